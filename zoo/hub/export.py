"""A model as a folder in the hub's layout, which is kept only if it computes the same over there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.atomic import write_folder
from zoo.checkpoint import RUN_CONFIG, load_model
from zoo.config import load_config
from zoo.data import TextData, Tokenizer, load_tokenizer
from zoo.errors import CheckpointError, ZooError, did_you_mean
from zoo.factory import merge
from zoo.hub import register_auto
from zoo.hub.families import family_for
from zoo.hub.family import Family, Json
from zoo.hub.rules import expand
from zoo.hub.shards import CONFIG, SHARD_BYTES, write_shards
from zoo.hub.tokenizer import SAMPLE, write_tokenizer
from zoo.models import Model
from zoo.spec import declared

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit or to 1 if that is more."""

TOKENIZER = "tokenizer"
"""Its folder in a run's."""


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        folder: where.
        architecture: the class that opens it.
        tensors: number of tensors.
        folded: number of gates and the like that were folded into them.
        max_difference: largest difference of a logit there and here; None: transformers is not
            installed, so that nothing was compared.
        max_logit: largest logit, for scale.
        tokenizer: whether one was written.
    """

    folder: Path
    architecture: str
    tensors: int
    folded: int
    max_difference: float | None
    max_logit: float
    tokenizer: bool

    def __str__(self) -> str:
        """One line for each thing to know."""
        compared = "not compared: transformers is not installed"
        if self.max_difference is not None:
            compared = (
                f"largest difference of a logit {self.max_difference:.1e}, the largest {self.max_logit:.1e}"
            )
        what = f"{self.architecture}, {self.tensors} tensors, {self.folded} folded"
        text = "tokenizer.json" if self.tokenizer else "no tokenizer"
        return f"wrote {self.folder}: {what}, {text}\n{compared}"


def export(source: Path, out: Path, *, to: str = "hf", dtype: str = "float32") -> Export:
    """Write a trained model as a folder that transformers opens.

    Args:
        source: a run folder, a checkpoint folder or a .safetensors file.
        out: the folder to make.
        to: "hf".
        dtype: of the numbers in the files.

    Returns:
        What was written, and how exactly it computes the same.

    Raises:
        CheckpointError: no family can express the model, or it computes something else there; `out`
            is then not made.
        ZooError: an unknown `to` or `dtype`, or `out` is there already.
    """
    if to != "hf":
        raise ZooError(f"export: no format called '{to}'{did_you_mean(to, ['hf'])}")
    if dtype not in DTYPES:
        raise ZooError(f"export: no dtype called '{dtype}'{did_you_mean(dtype, DTYPES)}")
    model = load_model(source)
    tokenizer = context = None
    if (source / RUN_CONFIG).is_file() and isinstance(data := load_config(source).data, TextData):
        tokenizer, context = load_tokenizer(source / TOKENIZER), data.context
    return export_model(model, out, dtype=DTYPES[dtype], tokenizer=tokenizer, context=context)


@torch.no_grad()
def export_model(
    model: Model,
    out: Path,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: Tokenizer | None = None,
    context: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Export:
    """`export` for a model in memory.

    Args:
        model: on the CPU; its gates are folded and its numbers rounded to `dtype`, in place.
        out: the folder to make.
        dtype: of the numbers in the files.
        tokenizer: what made the model's tokens; written as well, if there is a form of it.
        context: tokens in the texts of its training.
        shard_bytes: size up to which tensors share a file.
    """
    if out.exists():
        raise ZooError(f"{out}: is there already; expected the name of a new folder")
    folded = merge(model).tensors
    kept = [p.name for p in declared(model) if p.local in p.module.reparameterised]
    if kept:
        raise CheckpointError(
            f"no family on the hub scales what is looked up in a tied table: {', '.join(kept)}"
        )
    family, config = family_for(model.recipe.model)
    for p in model.parameters():
        p.copy_(p.to(dtype))
    state = model.state_dict()
    tensors = {r.theirs: r.transform.to_hf([state[n] for n in r.ours]) for r in expand(family.rules, state)}
    config |= _notes(family, dtype, tokenizer, context)
    result: list[Export] = []

    def fill(folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_shards(folder, tensors, dtype, shard_bytes)
        has_tokenizer = tokenizer is not None and write_tokenizer(tokenizer, folder)
        difference, largest = _compare(model, family, folder)
        if tokenizer is not None and has_tokenizer and difference is not None:
            _compare_tokens(tokenizer, folder)
        result.append(
            Export(out, family.architecture, len(tensors), folded, difference, largest, has_tokenizer)
        )

    write_folder(out, fill)
    return result[0]


def _notes(family: Family, dtype: torch.dtype, tokenizer: Tokenizer | None, context: int | None) -> Json:
    """Fields of config.json that change no logit, as far as the family has them and we know them."""
    name = str(dtype).removeprefix("torch.")
    notes: Json = {"dtype": name, "torch_dtype": name, "max_position_embeddings": context}
    notes |= {"eos_token_id": tokenizer.eos_id if tokenizer else None, "bos_token_id": None}
    absent = {"eos_token_id", "bos_token_id"}  # their library would assume tokens of Llama's
    return {
        key: value
        for key, value in notes.items()
        if family.tolerates(key) and (value is not None or key in absent)
    }


def _compare(model: Model, family: Family, folder: Path) -> tuple[float | None, float]:
    """Largest difference of a logit, if transformers is there to tell, and largest logit.

    Raises:
        CheckpointError: the difference is too large.
    """
    *inputs, _ = model.example()
    training = model.training
    model.eval()
    here: Tensor = model(*inputs)
    model.train(training)
    largest = here.abs().max().item()
    if find_spec("transformers") is None:
        return None, largest
    import transformers

    register_auto()
    with _quiet(transformers.utils.logging):
        theirs = getattr(transformers, family.auto).from_pretrained(folder, dtype=torch.float32)
    there = theirs(**dict(zip(family.inputs, inputs, strict=True))).logits
    difference = (here - there).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest):
        raise CheckpointError(
            f"{family.architecture} computes other logits: {difference:.1e} apart, with {largest:.1e} the "
            f"largest; expected at most {TOLERANCE:.0e} of that. Nothing was written"
        )
    return difference, largest


def _compare_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Have the written tokenizer read a text.

    Raises:
        CheckpointError: it reads something else.
    """
    import transformers

    with _quiet(transformers.utils.logging):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if theirs.encode(SAMPLE, add_special_tokens=False) != tokenizer.encode(SAMPLE):
        raise CheckpointError("the tokenizer reads other tokens in transformers. Nothing was written")


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """No progress bars and no hints of their library for a while."""
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
