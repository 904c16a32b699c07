"""Writing a model as a Hugging Face folder, which is kept only if transformers computes the same logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from zoo.checkpoint.model import load_model
from zoo.data import Tokenizer
from zoo.data.files import JsonObject
from zoo.hub import CONFIG, register_auto
from zoo.hub.families import family_for
from zoo.hub.family import Family
from zoo.hub.model_card import model_card
from zoo.hub.pretrained import from_pretrained
from zoo.hub.rules import expand
from zoo.hub.shards import SHARD_BYTES, write_shards
from zoo.hub.tokenizer_export import export_tokenizer
from zoo.models import Model
from zoo.run.factory import merge
from zoo.run.trained import data_of, tokenizer_of
from zoo.spec import declared
from zoo.utils.atomic import write_folder
from zoo.utils.errors import CheckpointError, DataError, ZooError, did_you_mean

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GENERATION_CONFIG = "generation_config.json"
GENERATES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""The Auto classes of models that write text."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""The fields of config.json that generation reads, from a file of its own in newer versions."""
TOLERANCE = 1e-4
"""Maximal difference of a logit, relative to the largest logit but at least to 1."""


@dataclass(frozen=True)
class Export:
    """The result of an export.

    Attributes:
        folder: the folder that was written.
        architecture: the class of transformers that opens it.
        tensors: number of tensors.
        folded: number of reparameterised tensors, such as gates, that were folded into them.
        max_difference: largest absolute difference of a logit between transformers and zoo; None if
            transformers is not installed.
        max_logit: largest absolute logit.
        tokenizer: whether a tokenizer was written.
        reason: why no tokenizer was written.
    """

    folder: Path
    architecture: str
    tensors: int
    folded: int
    max_difference: float | None
    max_logit: float
    tokenizer: bool
    reason: str

    def __str__(self) -> str:
        """A summary in two lines."""
        summary = f"{self.architecture}, {self.tensors} tensors, {self.folded} folded"
        text = "tokenizer.json" if self.tokenizer else f"no tokenizer: {self.reason}"
        return f"wrote {self.folder}: {summary}, {text}\n{self.comparison}"

    @property
    def comparison(self) -> str:
        """How much the logits of transformers differ from zoo's, in words."""
        if self.max_difference is None:
            return "not compared: transformers is not installed"
        return f"largest difference of a logit {self.max_difference:.1e}, the largest {self.max_logit:.1e}"


def export(source: Path, out: Path, *, to: str = "hf", dtype: str = "float32") -> Export:
    """Write a trained model as a folder that transformers opens.

    Args:
        source: a run folder, a checkpoint folder, a .safetensors file, or another model with its tokenizer.
        out: the folder to create.
        to: format of the folder; only "hf".
        dtype: dtype of the tensors in the files.

    Raises:
        CheckpointError: no family can express the model, or transformers computes other logits; `out` is not
            created then.
        ZooError: `to` or `dtype` is unknown, or `out` exists.
    """
    if to != "hf":
        raise ZooError(f"export: no format called '{to}'{did_you_mean(to, ['hf'])}")
    if dtype not in DTYPES:
        raise ZooError(f"export: no dtype called '{dtype}'{did_you_mean(dtype, DTYPES)}")
    model = load_model(source)
    tokenizer, reason = None, ""
    try:
        tokenizer = tokenizer_of(source)
    except DataError as error:
        reason = str(error)
    notes: JsonObject = {}
    if (data := data_of(source)) is not None and data.prompting is not None and tokenizer is not None:
        asked = data.prompting
        notes = {"context": data.length, "end": asked.eos_id(tokenizer), "special": asked.special_tokens}
    return export_model(
        model, out, dtype=DTYPES[dtype], tokenizer=tokenizer, reason=reason, source=source, **notes
    )


@torch.no_grad()
def export_model(
    model: Model,
    out: Path,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: Tokenizer | None = None,
    reason: str = "it was given none",
    context: int | None = None,
    end: int | None = None,
    special: Sequence[str] = (),
    source: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Export:
    """`export` for a model in memory.

    Args:
        model: a model on the CPU; its gates are folded and its parameters rounded to `dtype`, in place.
        out: the folder to create.
        dtype: dtype of the tensors in the files.
        tokenizer: tokenizer of the model; written if it can be expressed as a tokenizer.json.
        reason: why there is no tokenizer, for the result.
        context: number of tokens of an example in training.
        end: id at which generation stops; None: the tokenizer's `eos_id`.
        special: names of the ids after the tokenizer's vocabulary, in their order.
        source: where the model came from, for the README.md; None: there is none.
        shard_bytes: maximal size of a file with more than one tensor.

    Raises:
        CheckpointError: see `export`.
        ZooError: `out` exists.
    """
    if out.exists():
        raise ZooError(f"{out}: is there already; expected the name of a new folder")
    folded = merge(model).tensors
    kept = [p.name for p in declared(model) if p.local in p.module.reparameterised]
    if kept:
        raise CheckpointError(
            f"no family of the hub has a scale on the lookups of a tied embedding: {', '.join(kept)}"
        )
    family, config = family_for(model.recipe.model)
    for p in model.parameters():
        p.copy_(p.to(dtype))
    state = model.state_dict()
    tensors = {
        r.hub_name: r.transform.to_hf([state[n] for n in r.zoo_names]) for r in expand(family.rules, state)
    }
    if tokenizer is not None and end is None:
        end = tokenizer.eos_id
    config |= _notes(family, dtype, end, context)
    result: list[Export] = []

    def fill(folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if family.auto in GENERATES:
            ends = {key: config[key] for key in TOKENS if config.get(key) is not None}
            (folder / GENERATION_CONFIG).write_text(json.dumps(ends, indent=2) + "\n", encoding="utf-8")
        write_shards(folder, tensors, dtype, shard_bytes)
        difference, largest = _compare(model, family, folder)
        why_not = reason if tokenizer is None else export_tokenizer(tokenizer, folder, special, end)
        written = why_not is None
        about = (family.architecture, len(tensors), folded, difference, largest, written, why_not or "")
        done = Export(out, *about)
        if source is not None:
            card = model_card(
                source,
                architecture=family.architecture,
                parameters=sum(p.numel() for p in model.parameters()),
                dtype=str(dtype).removeprefix("torch."),
                comparison=f"Its logits beside those of zoo: {done.comparison}.",
            )
            (folder / "README.md").write_text(card, encoding="utf-8")
        result.append(done)

    write_folder(out, fill)
    return result[0]


def _notes(family: Family, dtype: torch.dtype, end: int | None, context: int | None) -> JsonObject:
    """Fields of config.json that do not change the logits, as far as the family has them."""
    name = str(dtype).removeprefix("torch.")
    notes: JsonObject = {"dtype": name, "torch_dtype": name, "max_position_embeddings": context}
    notes |= {"eos_token_id": end, "bos_token_id": None}
    absent = {"eos_token_id", "bos_token_id"}  # if they were missing, transformers would assume Llama's
    return {
        key: value
        for key, value in notes.items()
        if family.ignores(key) and (value is not None or key in absent)
    }


def _compare(model: Model, family: Family, folder: Path) -> tuple[float | None, float]:
    """The largest difference of a logit between transformers (if installed) and zoo, and the largest logit.

    Raises:
        CheckpointError: the difference is larger than `TOLERANCE` allows.
    """
    *inputs, _ = model.example()
    training = model.training
    model.eval()
    here: Tensor = model(*inputs)
    model.train(training)
    largest = here.abs().max().item()
    if find_spec("transformers") is None:
        return None, largest
    register_auto()
    reopened = from_pretrained(family.auto, folder, dtype=torch.float32)
    logits = reopened(**dict(zip(family.inputs, inputs, strict=True))).logits
    difference = (here - logits).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest):
        raise CheckpointError(
            f"{family.architecture} computes other logits: they differ by {difference:.1e}, the largest is "
            f"{largest:.1e}; expected a difference of at most {TOLERANCE:.0e} of that. Nothing was written"
        )
    return difference, largest
