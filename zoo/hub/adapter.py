"""LoRA as an adapter that the library peft opens: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.checkpoint.safetensors import write_tensors
from zoo.hub import ADAPTER_CONFIG
from zoo.hub.rules import Rule
from zoo.models import Model
from zoo.reparam.lora import LowRank
from zoo.spec import Module, Role, declared
from zoo.utils.untyped import JsonObject

ADAPTER_TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix of peft before the names of the base model's modules."""
BASE_NAME = "adapter_base"
"""The key of `zoo.models.base.Model.published` for the name of an adapter's base."""
TASKS = {
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
}
"""peft's names of the tasks of models, by their Auto class; other classes need none."""


@dataclass(frozen=True)
class Change:
    """The change factor B A of one matrix.

    Attributes:
        down: A, (rank, in).
        up: B, (out, rank).
        factor: alpha / rank.
        base: the matrix itself, (out, in).
        role: the role of the matrix.
        sphere: whether the changed matrix is projected to a sphere.
    """

    down: Tensor
    up: Tensor
    factor: float
    base: Tensor
    role: Role
    sphere: bool


def changes_of(model: Model) -> dict[str, Change]:
    """The changes that LoRA has trained, by the names of the matrices; empty without LoRA."""
    changes = {}
    for p in declared(model):
        method = p.module.reparameterised.get(p.local)
        if isinstance(method, LowRank):
            down, up = (p.module.get_parameter(name).detach().clone() for name in method.added)
            base = p.parameter.detach().clone()
            on_sphere = method.sphere_dim is not None
            changes[p.name] = Change(down, up, method.factor, base, p.spec.role, on_sphere)
    return changes


def trained_whole(model: Model) -> dict[str, Tensor]:
    """The tensors that a model with LoRA trains as a whole, by name: the head of a classifier."""
    added = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, Module)
        for method in module.reparameterised.values()
        for name in method.added
    }
    return {
        p.name: p.parameter.detach().clone()
        for p in declared(model)
        if not p.spec.frozen and p.name not in added
    }


@dataclass(frozen=True)
class Adapter:
    """The contents of an adapter's files.

    Attributes:
        config: content of adapter_config.json.
        tensors: A, B and the tensors that were trained as a whole, by their names in the file, float32.
        bases: the matrices that A and B change, by the names of the Hugging Face model.
    """

    config: JsonObject
    tensors: Mapping[str, Tensor]
    bases: Mapping[str, Tensor]

    def write(self, folder: Path) -> None:
        """Write both files into a new folder."""
        folder.mkdir()
        text = json.dumps(self.config, indent=2) + "\n"
        (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")
        write_tensors(folder / ADAPTER_TENSORS, dict(self.tensors), {"format": "pt"})


def adapter_of(
    changes: Mapping[str, Change],
    whole: Mapping[str, Tensor],
    rules: Sequence[Rule],
    auto: str,
    base_name: str | None,
) -> Adapter | str:
    """Express the changes of LoRA as an adapter.

    The changes of a matrix of the Hugging Face model that is a concatenation of several of zoo's (a fused q,
    k, v) are concatenated as well: its rank is the sum of their ranks, and B is block-diagonal. If they share
    A, as in an adapter that has not been trained since it was read, A is kept once.

    Args:
        changes: the result of `changes_of`, at least one change.
        whole: tensors that were trained as a whole, by their names in zoo.
        rules: the rules of all tensors of the model, from `zoo.hub.rules.expand`.
        auto: the Auto class of transformers that opens the model.
        base_name: the name of the base model; None: it is not known.

    Returns:
        The adapter, or the reason why there is none.
    """
    if any(change.sphere for change in changes.values()):
        return "the matrices of nGPT are projected to the sphere after the change, which peft does not do"
    others = [name for name, change in changes.items() if change.role is not Role.LINEAR]
    if others:
        return f"peft changes linear maps, and {others[0]} is none"
    tensors: dict[str, Tensor] = {}
    bases: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    factors: dict[str, float] = {}
    saved: list[str] = []
    for r in rules:
        if 0 < len(whole.keys() & set(r.zoo_names)) < len(r.zoo_names):
            return f"{r.hub_name} is trained in parts"
        if set(r.zoo_names) <= whole.keys():
            tensors[f"{PREFIX}{r.hub_name}"] = r.transform.to_hf(
                [whole[name] for name in r.zoo_names]
            ).float()
            saved.append(r.hub_name.rpartition(".")[0])
        named = {name: changes[name] for name in r.zoo_names if name in changes}
        if not named:
            continue
        if len(named) < len(r.zoo_names):
            return f"{r.hub_name} is changed in parts"
        module = r.hub_name.removesuffix(".weight")
        parts = list(named.values())
        # Parts with different alpha / rank share the factor of the first one.
        factor = parts[0].factor
        scaled = [part.up * (part.factor / factor) for part in parts]
        down = parts[0].down
        if not all(torch.equal(part.down, down) for part in parts):
            down = torch.cat([part.down for part in parts])
            starts = torch.tensor([0, *(len(part.down) for part in parts)]).cumsum(0).tolist()
            scaled = [
                F.pad(up, (start, len(down) - start - up.shape[1]))
                for start, up in zip(starts[:-1], scaled, strict=True)
            ]
        up = r.transform.to_hf(scaled)
        up = up.mT if r.transform.in_out else up
        tensors[f"{PREFIX}{module}.lora_A.weight"] = down.float().contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = up.float().contiguous()
        bases[r.hub_name] = r.transform.to_hf([part.base for part in parts])
        ranks[module], factors[module] = len(down), factor
    usual = next(iter(ranks.values()))
    alpha = next(iter(factors.values())) * usual
    config: JsonObject = {
        "peft_type": "LORA",
        "task_type": TASKS.get(auto),
        "base_model_name_or_path": base_name,
        "r": usual,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(r.transform.in_out for r in rules),
        "target_modules": _shortened(ranks, [r.hub_name.removesuffix(".weight") for r in rules]),
        "modules_to_save": [*dict.fromkeys(saved)] or None,
        "rank_pattern": {name: rank for name, rank in ranks.items() if rank != usual},
        "alpha_pattern": {
            name: factors[name] * rank for name, rank in ranks.items() if factors[name] * rank != alpha
        },
        "inference_mode": True,
    }
    return Adapter(config, tensors, bases)


def _shortened(modules: Collection[str], known: Sequence[str]) -> list[str]:
    """Names of modules shortened to their last words, if no other module ends with these words.

    Args:
        modules: the modules to name.
        known: names of all modules that have a weight, and of other tensors.
    """
    ends = {name.rpartition(".")[2] for name in modules}
    also = {name for name in known if name.rpartition(".")[2] in ends}
    return sorted(ends if also == set(modules) else modules)
