"""Trained factors that can drift against each other, and fixed norms that no factor can compensate."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from zoo.spec import Declared, Module, ScalePair, TensorSides, declared


def notes(model: nn.Module) -> list[str]:
    """Lines of text about the constraints and the reparameterisations of a model, for `zoo explain`."""
    parameters = {p.name: p for p in declared(model)}
    pairs = list(_pairs(model, parameters))
    lines = []
    for left, right in pairs:
        gained = {
            name
            for name, side in (*left, *right)
            if side != "entries" and _has_factor(parameters[name], side)
        }
        if gained and all(_scalable(parameters, sides) for sides in (left, right)):
            lines.append(f"drift: a factor can move between {_text(left)} and {_text(right)}")
    lines += [
        f"drift: a factor can move between rows and columns of {name}"
        for name, p in parameters.items()
        if _trained_factors(p) > 1 and p.module.reparameterised[p.local].sides == {"rows", "columns"}
    ]
    scaled = {name for pair in pairs if "entries" in {s for _, s in pair[0]} for name, _ in pair[1]}
    for name, p in parameters.items():
        if p.spec.keeps_norm and name not in scaled and not _trained_factors(p) and not p.spec.normalised:
            lines.append(f"fixed norm: no norm scale and no gate can undo that of {name}")
    return lines


def _pairs(model: nn.Module, parameters: dict[str, Declared]) -> Iterator[ScalePair]:
    """The pairs of all modules, by full names."""
    for path, module in model.named_modules():
        for pair in module.scale_pairs if isinstance(module, Module) else ():
            left, right = (tuple((f"{path}.{n}" if path else n, side) for n, side in sides) for sides in pair)
            if all(name in parameters for name, _ in (*left, *right)):
                yield left, right


def _scalable(parameters: dict[str, Declared], sides: TensorSides) -> bool:
    """Whether trained factors, or a trained vector itself, can absorb a factor at all of the sides."""
    return all(
        not parameters[name].spec.frozen if side == "entries" else _has_factor(parameters[name], side)
        for name, side in sides
    )


def _has_factor(p: Declared, side: str) -> bool:
    """Whether a side of a tensor has a trained factor."""
    return _trained_factors(p) > 0 and side in p.module.reparameterised[p.local].sides


def _trained_factors(p: Declared) -> int:
    """The number of trained parameters that the reparameterisation of a tensor has added."""
    reparameterisation = p.module.reparameterised.get(p.local)
    added = () if reparameterisation is None else reparameterisation.added
    specs = p.module.specs  # of parameters: buffers have none
    return sum(name in specs and not specs[name].frozen for name in added)


def _text(sides: TensorSides) -> str:
    return ", ".join(name if side == "entries" else f"{side} of {name}" for name, side in sides)
