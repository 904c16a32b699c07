"""Export of a model to a Hugging Face folder, which is kept only if transformers computes the same logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from zoo.checkpoint.model import FLOATING, load_model
from zoo.data.classification.class_names import read_labels
from zoo.data.classification.dataset import ClassificationData
from zoo.data.classification.encoding import TextPairEncoder
from zoo.data.instructions.dataset import InstructionData
from zoo.data.instructions.template import Template
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer
from zoo.hub import CONFIG, GENERATION_CONFIG, register_auto
from zoo.hub.adapter import BASE_NAME, Adapter, adapter_of, changes_of, trained_whole
from zoo.hub.chat_template import write_chat_template
from zoo.hub.classifier import classifier_family, text_end, write_classifier
from zoo.hub.families import family_for, family_of_origin
from zoo.hub.family import Family
from zoo.hub.model_card import base_name, model_card
from zoo.hub.pretrained import from_pretrained, with_adapter
from zoo.hub.rules import expand
from zoo.hub.shards import SHARD_BYTES, write_shards
from zoo.hub.tokenizer_export import export_tokenizer
from zoo.models import Model
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.run.config import load_config
from zoo.run.factory import merge
from zoo.run.trained import data_of, tokenizer_of
from zoo.spec import declared
from zoo.utils.atomic import require_new, write_folder
from zoo.utils.errors import CheckpointError, DataError, ZooError, did_you_mean
from zoo.utils.printable import dtype_name
from zoo.utils.progress import progress
from zoo.utils.run_folder import model_folder
from zoo.utils.untyped import JsonObject

GENERATES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""The Auto classes of models that write text."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""The fields of config.json for generation, which newer versions read from a separate file."""
ADAPTER = "adapter"
"""The folder of an adapter within the exported one."""
TOLERANCE = 1e-4
"""Largest accepted difference of a logit, relative to the largest logit or to 1, if that is larger."""


@dataclass(frozen=True)
class Export:
    """The result of an export to a folder of another library.

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
        adapter: the outcome for the adapter of a model with LoRA, in words; "": there is no LoRA.
        chat_template: the outcome for the template of a model that was trained on conversations, in words;
            "": there were none, or the tokenizer's own is right.
    """

    folder: Path
    architecture: str
    tensors: int
    folded: int
    max_difference: float | None
    max_logit: float
    tokenizer: bool
    reason: str
    adapter: str = ""
    chat_template: str = ""

    def __str__(self) -> str:
        """A summary in two lines, and one each about the chat template and the adapter."""
        summary = f"{self.architecture}, {self.tensors} tensors, {self.folded} folded"
        text = "tokenizer.json" if self.tokenizer else f"no tokenizer: {self.reason}"
        lines = (
            f"wrote {self.folder}: {summary}, {text}",
            self.comparison,
            self.chat_template,
            self.adapter,
        )
        return "\n".join(filter(None, lines))

    @property
    def comparison(self) -> str:
        """The difference between the logits of transformers and zoo, in words."""
        if self.max_difference is None:
            return "not compared: transformers is not installed"
        return f"largest difference of a logit {self.max_difference:.1e}, the largest {self.max_logit:.1e}"


def export(source: Path, out: Path, *, to: str = "hf", dtype: str | None = None) -> Export:
    """Write a trained model as a folder that transformers opens.

    Args:
        source: a run folder, a checkpoint folder, a .safetensors file, or another model with its tokenizer.
        out: the folder to create.
        to: format of the folder; only "hf".
        dtype: dtype of the tensors in the files; None: that of the folder that the model came from, or
            float32.

    Raises:
        CheckpointError: No family can express the model, or transformers computes other logits; `out` is not
            created then.
        ZooError: `to` or `dtype` is unknown, or `out` exists.
    """
    if to != "hf":
        raise ZooError(f"export: no format called '{to}'{did_you_mean(to, ['hf'])}")
    if dtype is not None and dtype not in FLOATING:
        raise ZooError(f"export: no dtype called '{dtype}'{did_you_mean(dtype, FLOATING)}")
    require_new(out)
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
    if isinstance(data, ClassificationData) and tokenizer is not None:
        notes["texts"] = data.encoder(model.recipe.model, tokenizer)
    if isinstance(data, InstructionData):
        notes["template"] = data.template
    wanted = None if dtype is None else FLOATING[dtype]
    with suppress(DataError):  # only classifiers have class names
        notes["labels"] = read_labels(model_folder(source).path)
    settings = model_folder(source).config
    if settings.is_file():
        notes["base"] = base_name(load_config(settings))
    return export_model(model, out, dtype=wanted, tokenizer=tokenizer, reason=reason, source=source, **notes)


@torch.no_grad()
def export_model(
    model: Model,
    out: Path,
    *,
    dtype: torch.dtype | None = None,
    tokenizer: Tokenizer | None = None,
    reason: str = "it was given none",
    context: int | None = None,
    end: int | None = None,
    special: Sequence[str] = (),
    texts: TextPairEncoder | None = None,
    template: Template | None = None,
    source: Path | None = None,
    base: str | None = None,
    labels: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
) -> Export:
    """Export a model in memory, see `export`.

    Args:
        model: a model on the CPU; its gates are folded and its parameters rounded to `dtype`, in place.
        out: the folder to create.
        dtype: dtype of the tensors in the files; None: that of the folder that the model came from, or
            float32.
        tokenizer: tokenizer of the model; written if it can be expressed as a tokenizer.json.
        reason: why there is no tokenizer, for the result.
        context: number of tokens of an example in training, for a model whose maximum is not known from a
            Hugging Face folder.
        end: id at which generation stops; None: that of the folder that the model came from, or the
            tokenizer's `eos_id`.
        special: names of the ids after the tokenizer's vocabulary, in their order.
        texts: the encoder of texts and pairs that a classifier was trained with, for the tokenizer; None: it
            is not known.
        template: the template of the conversations that the model was trained on, which becomes the chat
            template; None: there were none, and the tokenizer keeps its own, if it has one.
        source: the path of the model, for the README.md; None: there is none.
        labels: names of the classes of a classifier; empty: those of the folder that it came from, or
            LABEL_0, ...
        base: the name of the model that LoRA was trained on, for the adapter; None: it is not known.
        shard_bytes: maximal size of a file with more than one tensor.

    Raises:
        CheckpointError: The model cannot be exported, see `export`.
        ZooError: `out` exists.
    """
    require_new(out)
    changes = changes_of(model)
    whole = trained_whole(model) if changes else {}
    folded = merge(model).tensors
    kept = [p.name for p in declared(model) if p.local in p.module.reparameterised]
    if kept:
        raise CheckpointError(
            f"no family of the hub has a scale on the lookups of a tied embedding: {', '.join(kept)}"
        )
    given = model.published
    dtype = dtype or FLOATING[given.get("dtype", "float32")]
    trunk = getattr(model.recipe.model, "trunk", None)
    origin = family_of_origin(trunk or model.recipe.model, given)
    family, config = origin or family_for(trunk or model.recipe.model)
    if trunk is not None:
        config = write_classifier(family, model.recipe.model, config, labels)
        family = classifier_family(family)
    for p in model.parameters():
        p.copy_(p.to(dtype))
    state = model.state_dict()
    rules = expand(family.rules, state, trunk or model.recipe.model)
    tensors = {r.hub_name: r.transform.to_hf([state[n] for n in r.zoo_names]) for r in rules}
    named = given.get(BASE_NAME) or base
    modules = [replace(r, hub_name=family.name_in_memory(r.hub_name)) for r in rules]
    adapter = adapter_of(changes, whole, modules, family.auto, named) if changes else None
    config |= _notes(family, config, dtype, tokenizer, end, context, origin is not None)
    if texts is not None and texts.tokenizer.eos_id == config.get("pad_token_id"):
        config["pad_token_id"] = None  # transformers would treat end tokens as padding
    padding = config.get("pad_token_id") if family.padding is None else family.padding
    decodes = trunk is not None and family.head is not None and family.head.decodes
    inputs = _inputs(model, padding, text_end(config) if decodes else None)
    segments = 1 if trunk is None else model.recipe.model.n_segments
    result: list[Export] = []

    def fill(folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if family.auto in GENERATES:
            ends = {key: config[key] for key in TOKENS if config.get(key) is not None}
            generation = given.get("generation", ends)
            generation = generation | _end(generation, end)
            (folder / GENERATION_CONFIG).write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
        write_shards(folder, tensors, dtype, shard_bytes)
        difference, largest = _compare(model, family, folder, inputs)
        why_not: str | None = reason
        chat = ""
        if tokenizer is not None:
            why_not = export_tokenizer(tokenizer, folder, special, end, texts, segments)
            if why_not is None and template is not None:
                chat = write_chat_template(template, tokenizer, folder)
        words = "" if adapter is None else _write_adapter(adapter, model, family, folder, dtype, inputs)
        about = (
            family.architecture,
            len(tensors),
            folded,
            difference,
            largest,
            why_not is None,
            why_not or "",
            words,
            chat,
        )
        done = Export(out, *about)
        if source is not None:
            card = model_card(
                source,
                architecture=family.architecture,
                parameters=sum(p.numel() for p in model.parameters()),
                dtype=dtype_name(dtype),
                comparison=f"Its logits beside those of zoo: {done.comparison}.",
                adapter=ADAPTER if isinstance(adapter, Adapter) else None,
            )
            (folder / "README.md").write_text(card, encoding="utf-8")
        result.append(done)

    write_folder(out, fill)
    return result[0]


def _notes(
    family: Family,
    config: JsonObject,
    dtype: torch.dtype,
    tokenizer: Tokenizer | None,
    end: int | None,
    context: int | None,
    came_from_a_folder: bool,
) -> JsonObject:
    """The fields of config.json that do not change the logits, as far as the family has them.

    For a model that came from a folder, fields keep their values or stay missing, except for the dtype of the
    files and an end token that training has introduced.
    """
    named = tokenizer.named_special_ids if isinstance(tokenizer, HuggingFaceTokenizer) else {}
    ids = {f"{key}_id": named.get(key) for key in ("bos_token", "pad_token")}
    eos = tokenizer.eos_id if tokenizer is not None and end is None else end
    notes: JsonObject = dict.fromkeys(family.null_tokens)
    notes |= {"max_position_embeddings": context, **ids, "eos_token_id": eos}
    # If the fields were missing, transformers would assume those of the family's first model.
    absent = set() if came_from_a_folder else {"eos_token_id", "bos_token_id", *family.null_tokens}
    notes = {
        key: value
        for key, value in notes.items()
        if key not in config and family.ignores(key) and (value is not None or key in absent)
    }
    dtypes = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype", "torch_dtype"]
    return notes | _end(config, end) | dict.fromkeys(dtypes, dtype_name(dtype))


def _end(config: JsonObject, end: int | None) -> JsonObject:
    """The field with the id that ends generation, unless the id is in the field already."""
    known = config.get("eos_token_id")
    ids = known if isinstance(known, list) else [known]
    return {} if end is None or end in ids else {"eos_token_id": end}


def _compare(
    model: Model, family: Family, folder: Path, inputs: Sequence[Tensor]
) -> tuple[float | None, float]:
    """The largest difference of a logit from transformers (if it is installed), and the largest logit.

    Raises:
        CheckpointError: The difference is larger than `TOLERANCE` allows, or transformers fails with
            the folder, for instance because it refuses a value that the model came with.
    """
    kept = next(model.parameters()).dtype
    with evaluation_mode(model):
        here: Tensor = model.float()(*inputs)
    model.to(kept)
    largest = here.abs().max().item()
    if find_spec("transformers") is None:
        return None, largest
    register_auto()
    with progress("comparing logits with those of transformers"):
        try:
            reopened = from_pretrained(family.auto, folder, dtype=torch.float32)
            logits = reopened(**_named(family, inputs)).logits
        except (ZooError, MemoryError):
            raise
        except Exception as error:  # transformers refuses values by exceptions of any kind
            raise CheckpointError(
                f"{family.architecture}: transformers fails with what would be written: "
                f"{' '.join(f'{type(error).__name__}: {error}'.split())}. Nothing was written"
            ) from error
    difference = (here - logits).abs().max().item()
    if not difference <= TOLERANCE * max(1.0, largest):
        raise CheckpointError(
            f"{family.architecture} computes other logits: they differ by {difference:.1e}, the largest is "
            f"{largest:.1e}; expected a difference of at most {TOLERANCE:.0e} of that. Nothing was written"
        )
    return difference, largest


def _inputs(model: Model, padding: int | None, end: int | None) -> list[Tensor]:
    """An example without the token that transformers treats as padding.

    Args:
        model: the model.
        padding: the id of the padding token; None: there is none.
        end: the token that every text has to have once, as its last one; None: there is no such token.
    """
    tokens, *others = model.example()[:-1]
    for special in (token for token in (padding, end) if token is not None):
        other = next(i for i in range(3) if i not in (padding, end))
        tokens = tokens.masked_fill(tokens == special, other)
    if end is not None:
        tokens[:, -1] = end
    return [tokens, *others]


def _named(family: Family, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """An example as keyword arguments of transformers' `forward`."""
    pairs = zip(family.inputs, inputs, strict=True)
    return {name: t.long() if t.dtype == torch.bool else t for name, t in pairs if name}


def _write_adapter(
    adapter: Adapter | str,
    model: Model,
    family: Family,
    folder: Path,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
) -> str:
    """Write an adapter, and compare the logits of base and adapter in peft, if it is installed.

    Args:
        adapter: the adapter, or the reason why there is none.
        model: the model with the adapter folded in.
        family: the family of the model.
        folder: the folder of the folded model, which gets a folder for the adapter.
        dtype: dtype of the folded weights.
        inputs: an example, see `_inputs`.

    Returns:
        The outcome in words.

    Raises:
        CheckpointError: Peft computes other logits.
    """
    if isinstance(adapter, str):
        return f"no adapter: {adapter}"
    done = f"wrote {ADAPTER}: {len(adapter.bases)} matrices of LoRA"
    if find_spec("peft") is None or find_spec("transformers") is None:
        adapter.write(folder / ADAPTER)
        return f"{done}; not compared: peft is not installed"
    with evaluation_mode(model):
        here: Tensor = model(*inputs)
    reopened = from_pretrained(family.auto, folder, dtype=torch.float32)
    state = reopened.state_dict()
    if renamed := sorted(adapter.bases.keys() - state.keys()):  # the names in files and in memory may differ
        return f"no adapter: {renamed[0]} has another name in this version of transformers"
    adapter.write(folder / ADAPTER)
    for name, base in adapter.bases.items():
        state[name].copy_(base)
    adapted = with_adapter(reopened, folder / ADAPTER).eval()
    logits = adapted(**_named(family, inputs)).logits
    difference, largest = (here - logits).abs().max().item(), here.abs().max().item()
    rounding = 0.0 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps  # rounding of the folded weights
    if not difference <= (TOLERANCE + rounding) * max(1.0, largest):
        raise CheckpointError(
            f"peft computes other logits with the adapter: they differ by {difference:.1e}, the largest is "
            f"{largest:.1e}. Nothing was written"
        )
    return f"{done}; largest difference of a logit in peft {difference:.1e}"
