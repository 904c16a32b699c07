"""Registry entries for the parameters of any module, by which Amos can train every PyTorch model.

zoo's modules have declared their parameters; `zoo.init.module_rules` declares those of PyTorch's modules,
`zoo.hub.layouts` those of transformers. Other parameters are guessed from their shapes and named in a
warning.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from zoo.init.module_rules import parameter_specs
from zoo.init.overrides import Inferred, Overrides, override
from zoo.init.registry import Entry, eta
from zoo.spec import ParamSpec, Role
from zoo.utils.errors import ConfigError

log = logging.getLogger("zoo")

RULES_OF_OTHERS = {"transformers": "zoo.hub.layouts"}
"""Packages, and the modules that register rules for their classes with `parameter_specs`. A module is
imported when a model contains a class of the package."""


def infer(model: nn.Module, overrides: Overrides | None = None) -> list[Entry]:
    """Make one entry per parameter of any module; a parameter that is shared appears once.

    Parameters of modules without a rule are guessed as torch lays them out: the first dimension of a
    matrix counts the outputs (eta = 1/sqrt(fan_in)), a vector called ``weight`` is a scale (eta = 1),
    another one is a bias (eta = 1/2), and a single number is a scale. A warning lists the guesses.

    Args:
        model: any module; also compiled, parametrised or wrapped for data parallelism.
        overrides: other values of `eta` and of `reduce` (tensor dimensions that share a slot). A key is
            a pattern of full names (``"encoder.*.weight"``) or a class of modules, which stands for the
            parameters that such a module owns itself.

    Returns:
        Entries in the order of the modules, without the parameters that zoo's modules have frozen. The
        names of a compiled or wrapped model are those of the model inside.

    Raises:
        ConfigError: It is no module, a parameter has no shape yet, an override is malformed or matches
            nothing, or two overrides match one parameter.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"got {type(model).__name__}; expected a module, whose layers say what eta is")
    model = unwrapped(model)
    parameters = _inferred(model)
    override(parameters, overrides or {}, type(model).__name__)
    entries = [parameter.entry for parameter in parameters]
    guesses = [
        f"{entry.name} {entry.spec.shape}: eta {entry.eta:.4g}, reduced axes {list(entry.reduce('one_axis'))}"
        for entry, parameter in zip(entries, parameters, strict=True)
        if parameter.guessed and entry.parameter.requires_grad
    ]
    if guesses:
        log.warning(
            "%s: no rule says what these parameters are; guessed from their shapes (state others by "
            "`overrides`): %s",
            type(model).__name__,
            "; ".join(guesses),
        )
    return entries


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile` and data parallelism, whose names do not depend on them."""
    while True:
        inner = model._modules.get("_orig_mod")  # torch.compile's wrapper has no public class
        if isinstance(model, DataParallel | DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _inferred(model: nn.Module) -> list[Inferred]:
    """Find the parameters of a model, each with the entry that follows from the rules or from a guess."""
    specs: dict[tuple[nn.Module, str], ParamSpec] = {}
    parametrised: dict[nn.Module, nn.Module] = {}
    parameters: dict[int, Inferred] = {}
    for path, module in model.named_modules():
        _load_rules(module)
        for relative, spec in parameter_specs(module).items():
            *inner, local = relative.split(".")
            owner = module.get_submodule(".".join(inner))
            specs.setdefault((owner, local), spec)  # outer modules come first, and know more
        for originals, of_originals in _originals(module, specs):
            parametrised[originals] = module
            specs |= {(originals, local): spec for local, spec in of_originals.items()}
        for local, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{local}" if path else local
            if is_lazy(parameter):
                raise ConfigError(f"{name} has no shape yet; call the model before the optimizer is built")
            shape, by_rule = tuple(parameter.shape), specs.get((module, local))
            if by_rule is not None and by_rule.shape == shape:
                spec, guessed = by_rule, False
            else:
                spec, guessed = _guess(shape, parameter is module._parameters.get("weight")), True
            if spec.frozen or not (parameter.is_floating_point() or parameter.is_complex()):
                continue  # integers have no gradients: a quantised weight
            new = Inferred(Entry(name, module, local, spec, eta(spec), None), guessed)
            inferred = parameters.setdefault(id(parameter), new)
            if inferred.guessed and not guessed:  # another owner of the tensor has a rule
                inferred.entry, inferred.guessed = new.entry, False
            elif inferred is not new and not guessed:
                shared = _shared(inferred.entry.spec, spec)
                inferred.entry = replace(inferred.entry, spec=shared, eta=eta(shared))
            inferred.names.append(name)
            inferred.owners.append(parametrised.get(module, module))
    return list(parameters.values())


def _load_rules(module: nn.Module) -> None:
    """Import the rules of the package that a module comes from."""
    package = type(module).__module__.partition(".")[0]
    if package in RULES_OF_OTHERS:
        importlib.import_module(RULES_OF_OTHERS[package])


def _originals(
    module: nn.Module, specs: Mapping[tuple[nn.Module, str], ParamSpec]
) -> Iterator[tuple[nn.Module, Mapping[str, ParamSpec]]]:
    """Yield the tensors that `torch.nn.utils.parametrizations` trains in place of a module's parameters.

    A tensor of the parameter's shape is declared as the parameter. Weight normalisation trains another
    one, the norms of the rows; its eta is the norm of a row with entries eta.

    Yields:
        The module that owns the tensors, and their declarations by local name.
    """
    parametrizations = module._modules.get("parametrizations")
    if not is_parametrized(module) or not isinstance(parametrizations, nn.ModuleDict):
        return
    for name, originals in parametrizations.items():
        whole = specs.get((module, name))
        if whole is None:
            continue
        of_originals: dict[str, ParamSpec] = {}
        for local, original in originals.named_parameters(recurse=False):
            shape = tuple(original.shape)
            per_row = tuple(1 if n == 1 else m for n, m in zip(shape, whole.shape, strict=False))
            if shape == whole.shape:
                of_originals[local] = whole
            elif shape == per_row or original.numel() == 1:
                norm = eta(whole) * math.sqrt(whole.numel / original.numel())
                of_originals[local] = ParamSpec(Role.GATE, shape, whole.axes[: len(shape)], start=norm)
        yield originals, of_originals


def _guess(shape: tuple[int, ...], is_weight: bool) -> ParamSpec:
    """Declare a parameter of which only the shape is known."""
    axes = tuple(f"axis_{i}" for i in range(len(shape)))
    if len(shape) > 1:
        return ParamSpec(Role.LINEAR, shape, axes, fan_in=axes[1:])
    scale = is_weight or math.prod(shape) == 1
    return ParamSpec(Role.NORM_SCALE if scale else Role.BIAS, shape, axes)


def _shared(first: ParamSpec, second: ParamSpec) -> ParamSpec:
    """Declare a parameter that two modules share: an embedding that is a kernel as well has its eta."""
    for one, other in ((first, second), (second, first)):
        if one.role is Role.EMBEDDING and other.role is Role.LINEAR:
            return replace(one, input_std=other.input_std, output_std=other.output_std, tied=True)
    return first
