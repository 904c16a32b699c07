"""Reading adapters of the library peft: a model with the changes of LoRA folded into its weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zoo.checkpoint.model import load_model
from zoo.checkpoint.safetensors import open_tensors, shorten
from zoo.data.files import JsonObject
from zoo.hub import ADAPTER_CONFIG
from zoo.hub.adapter import ADAPTER_TENSORS, PREFIX
from zoo.hub.families import family_for, family_of_origin
from zoo.hub.rules import Rule, expand
from zoo.hub.shards import read_json
from zoo.models import Model
from zoo.run.conversion import merge
from zoo.utils.errors import CheckpointError

KEY = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(\.weight)?")
WHOLE = re.compile(r"(?P<module>.+?)(\.base_layer)?\.weight")
"""A matrix that was trained as a whole, or an embedding that peft saves beside its change."""
SETTINGS = {
    "use_dora": (False,),
    "lora_bias": (False,),
    "bias": ("none",),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
}
"""Settings of which only these values can be folded."""


@dataclass(frozen=True)
class _Pair:
    """A and B of one matrix, and what their product is multiplied by."""

    down: Tensor
    up: Tensor
    factor: float
    of_embedding: bool


def load_adapter(folder: Path, *, base: Path | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """Read the model that an adapter changes, and fold the change into its weights.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors, as peft writes them.
        base: the model, a Hugging Face folder or one of zoo's; None: the one that the adapter names, if that
            is a folder here.
        dtype: of the model, into which the folded float32 weights are rounded; None: float32.

    Raises:
        CheckpointError: the adapter is not one of LoRA or has settings that cannot be folded, the base is not
            there, or the adapter is one of another base.
    """
    place = folder / ADAPTER_CONFIG
    config = read_json(place)
    _check(config, place)
    pairs, whole = _read(folder, config)
    if base is None:
        named = config.get("base_model_name_or_path")
        found = [p for p in (Path(str(named)), folder / str(named)) if named and p.is_dir()]
        if not found:
            raise CheckpointError(
                f"{place}: base_model_name_or_path: {named!r} is no folder here; expected --base FOLDER "
                "(in Python base=...), the model that the adapter was trained on"
            )
        base = found[0]
    model = load_model(base)
    merge(model)
    family, _ = family_of_origin(model.recipe.model, model.published) or family_for(model.recipe.model)
    state = model.state_dict()
    rules = {r.hub_name.removesuffix(".weight"): r for r in expand(family.rules, state, model.recipe.model)}
    unknown = [name for name in (*whole, *pairs) if name not in rules]
    if unknown:
        raise CheckpointError(
            f"{folder}: the adapter is not one of {base} ({family.architecture}), which has no "
            f"{shorten(unknown)}"
        )
    lookups = [name for name, pair in pairs.items() if pair.of_embedding]
    if lookups and model.recipe.model.ties_embedding:
        raise CheckpointError(
            f"{folder}: {lookups[0]}: the change is one of the look-ups alone, but the base uses the table "
            "in its head as well; expected a base whose tie_word_embeddings is false"
        )
    changes = {name: pair.up.float() @ pair.down.float() * pair.factor for name, pair in pairs.items()}
    _check_shapes(folder, base, changes, rules, state)
    _check_shapes(
        folder, base, {n: t.mT if rules[n].transform.in_out else t for n, t in whole.items()}, rules, state
    )
    with torch.no_grad():
        for name, tensor in whole.items():
            for target, part in _parts(rules[name], tensor, state):
                target.copy_(part)
        for name, change in changes.items():
            r = rules[name]
            for target, part in _parts(r, change.mT if r.transform.in_out else change, state):
                target.add_(part)
    return model.to(dtype)


def _parts(r: Rule, tensor: Tensor, state: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The model's tensors of a rule, each with its part of a tensor of the Hugging Face model."""
    targets = [state[name] for name in r.zoo_names]
    return list(zip(targets, r.transform.to_zoo(tensor, [tuple(t.shape) for t in targets]), strict=True))


def _check(config: JsonObject, place: Path) -> None:
    """Refuse what is not plain LoRA, with a line for each setting."""
    problems = []
    if config.get("peft_type") != "LORA":
        problems.append(f"peft_type: {config.get('peft_type')!r}; expected 'LORA'")
    for name, accepted in SETTINGS.items():
        value = config.get(name, accepted[0])
        if value not in accepted:
            problems.append(f"{name}: {value!r}; expected {accepted[0]!r}")
    if problems:
        raise CheckpointError("\n".join(f"{place}: {problem}" for problem in problems))


def _read(folder: Path, config: JsonObject) -> tuple[dict[str, _Pair], dict[str, Tensor]]:
    """A and B of every matrix, and the matrices that are there as a whole, by the names of their modules."""
    place = folder / ADAPTER_CONFIG
    sides: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    embeddings = set()
    with open_tensors(folder / ADAPTER_TENSORS) as file:
        for name in file.keys():  # noqa: SIM118
            own = name.removeprefix(PREFIX)
            if found := KEY.fullmatch(own):
                sides.setdefault(found["module"], {})[found["side"]] = file.get_tensor(name)
                if found["kind"]:
                    embeddings.add(found["module"])
            elif found := WHOLE.fullmatch(own):
                whole[found["module"]] = file.get_tensor(name)
            else:
                raise CheckpointError(
                    f"{folder / ADAPTER_TENSORS}: {name}: expected matrices, or A and B of LoRA"
                )
    pairs = {}
    for name, both in sides.items():
        if both.keys() != {"A", "B"}:
            raise CheckpointError(f"{folder / ADAPTER_TENSORS}: {name}: has one of A and B; expected both")
        down, up = both["A"], both["B"]
        if name in embeddings:  # (rank, vocabulary) and (d, rank): the change of the table is their transpose
            down, up = up.mT, down.mT
        alpha, rank = (_of(config, key, name, place) for key in ("lora_alpha", "r"))
        if down.dim() != 2 or up.dim() != 2 or not down.shape[0] == up.shape[1] == rank:
            raise CheckpointError(
                f"{folder / ADAPTER_TENSORS}: {name}: A is {list(down.shape)} and B {list(up.shape)}; "
                f"expected matrices of rank {rank:g}, as {ADAPTER_CONFIG} says"
            )
        factor = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        pairs[name] = _Pair(down, up, factor, name in embeddings)
    return pairs, whole


def _of(config: JsonObject, key: str, module: str, place: Path) -> float:
    """Rank or alpha of a module: of the first pattern that its name ends with, or else the common one."""
    patterns = config.get({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]) or {}
    value = next((v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", module)), config.get(key))
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{place}: {key}: {value!r}; expected a positive number")
    return value


def _check_shapes(
    folder: Path, base: object, changes: dict[str, Tensor], rules: dict[str, Rule], state: dict[str, Tensor]
) -> None:
    wrong = []
    for name, change in changes.items():
        r = rules[name]
        tensor = r.transform.to_hf([state[n] for n in r.zoo_names])
        expected = list((tensor.mT if r.transform.in_out else tensor).shape)
        if list(change.shape) != expected:
            wrong.append(f"{name} is {list(change.shape)} in the adapter and {expected} in the base")
    if wrong:
        raise CheckpointError(f"{folder}: the adapter is not one of {base}: {shorten(wrong)}")
