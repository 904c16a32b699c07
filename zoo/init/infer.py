"""Declarations for modules that are not ours, inferred from what kind of module owns a tensor.

Amos then serves any PyTorch model. What cannot be inferred, the ranges between which a layer
works (the second kernel of an MLP follows an activation, say), takes the default 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from zoo.init.registry import Entry, eta
from zoo.spec import ParamSpec, Role
from zoo.utils.errors import ZooError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def infer(model: nn.Module) -> Sequence[Entry]:
    """One entry per parameter of any module; a parameter that is shared appears once.

    Args:
        model: a module made of `nn.Linear`, convolutions, `nn.Embedding`, normalisations and
            modules whose own parameters are vectors (as normalisations of other libraries are).
            A transposed kernel (transformers' ``Conv1D``) says so by its attribute ``nf``.

    Returns:
        Entries in the order of the modules.

    Raises:
        ZooError: parameters whose role cannot be inferred; the message names them.
    """
    found: dict[int, Entry] = {}
    unknown: list[str] = []
    for path, module in model.named_modules():
        for local, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{local}" if path else local
            spec = _spec(module, local, tuple(parameter.shape))
            if spec is None:
                unknown.append(f"{name} {tuple(parameter.shape)} of {type(module).__name__}")
                continue
            if id(parameter) in found:
                first = found[id(parameter)]
                spec = _shared(first.spec, spec)
                found[id(parameter)] = Entry(first.name, first.owner, first.local, spec, eta(spec), None)
            else:
                found[id(parameter)] = Entry(name, module, local, spec, eta(spec), None)
    if unknown:
        raise ZooError(
            f"{type(model).__name__}: cannot infer what these parameters are: {'; '.join(unknown)}. "
            "Give them to Amos as groups of their own, with `eta` and `reduce`"
        )
    return list(found.values())


def _spec(module: nn.Module, local: str, shape: tuple[int, ...]) -> ParamSpec | None:
    """What the parameter `local` of a module of this kind is."""
    if len(shape) == 1:
        weight = module._parameters.get("weight")
        is_scale = weight is not None and weight is module._parameters[local]
        return ParamSpec(Role.NORM_SCALE if is_scale else Role.BIAS, shape, ("features",))
    if isinstance(module, nn.Linear):
        return ParamSpec(Role.LINEAR, shape, ("out", "in"), fan_in=("in",))
    if isinstance(module, nn.Embedding):
        return ParamSpec(Role.EMBEDDING, shape, ("rows", "embed"), fan_in=("embed",))
    if isinstance(module, CONVOLUTIONS):
        kernel = tuple(f"kernel_{i}" for i in range(len(shape) - 2))
        return ParamSpec(Role.CONV, shape, ("out", "in", *kernel), fan_in=("in", *kernel))
    if len(shape) == 2 and getattr(module, "nf", None) == shape[1]:
        return ParamSpec(Role.LINEAR, shape, ("in", "out"), fan_in=("in",))
    return None


def _shared(first: ParamSpec, second: ParamSpec) -> ParamSpec:
    """An embedding that is also a kernel has the scale of the kernel (Amos, section 3)."""
    for one, other in ((first, second), (second, first)):
        if one.role is Role.EMBEDDING and other.role is Role.LINEAR:
            return ParamSpec(Role.EMBEDDING, one.shape, one.axes, fan_in=one.fan_in, tied=True)
    return first
