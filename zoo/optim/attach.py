"""What follows every optimizer step: the projection onto spheres, the measurements of reparameterisations.

Both belong to the declarations of a model, not to an optimizer and not to a training loop: as hooks of the
optimizer they run in any loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.nn.sphere import project
from zoo.spec import Module
from zoo.utils.errors import ConfigError

_ATTACHED: WeakKeyDictionary[Optimizer, WeakSet[nn.Module]] = WeakKeyDictionary()
"""The models that an optimizer has been attached to."""


def attach(optimizer: Optimizer, model: nn.Module) -> None:
    """Keep `model` what it declares to be after every step of `optimizer`.

    After each step, every vector that nGPT keeps on a sphere gets unit norm again, and the
    reparameterisations measure the new weights (spectral norms, for instance), so that evaluation,
    accumulated batches and recomputed activations see the measurements of the last step. Attaching
    a second time changes nothing.

    Args:
        optimizer: any optimizer that trains parameters of `model`.
        model: a zoo model or a module that contains some, plain or sharded.

    Raises:
        ConfigError: The optimizer trains no parameter of the model, or not all of those on spheres.
    """
    if model in _ATTACHED.setdefault(optimizer, WeakSet()):
        return
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise ConfigError(f"attach: the {type(optimizer).__name__} trains no parameter of this model")
    if missing := [name for name, parameter, _ in spheres(model) if parameter not in trained]:
        raise ConfigError(
            f"attach: the {type(optimizer).__name__} does not train {', '.join(missing)}, which the model "
            "keeps on a sphere; give it these parameters, or freeze them"
        )
    reparameterised = [m for m in model.modules() if isinstance(m, Module) and m.reparameterised]

    def after_step(*_: Any) -> None:
        project((parameter, dim) for _, parameter, dim in spheres(model))
        for module in reparameterised:
            for name, reparameterisation in module.reparameterised.items():
                reparameterisation.after_step(module, name)

    if reparameterised or any(spheres(model)):
        optimizer.register_step_post_hook(after_step)
    _ATTACHED[optimizer].add(model)


def spheres(model: nn.Module) -> Iterator[tuple[str, Tensor, int]]:
    """The trained parameters on spheres: name, tensor as it is now, and the dimension of unit norm."""
    for path, module in model.named_modules():
        for name, spec in module.specs.items() if isinstance(module, Module) else ():
            if spec.sphere_dim is not None and not spec.frozen:
                yield f"{path}.{name}" if path else name, module.get_parameter(name), spec.sphere_dim
