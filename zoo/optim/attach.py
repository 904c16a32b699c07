"""Hooks after every optimizer step: the projection onto spheres, and updates of reparameterisations.

Both follow from the declarations of a model, not from an optimizer or a training loop. As hooks of the
optimizer they run in any loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.nn.sphere import project
from zoo.optim.fixed_norm import fixed_norms, keep_norms
from zoo.optim.skip_flag import restored_if, skip_flag
from zoo.spec import Module
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import local

_ATTACHED: WeakKeyDictionary[Optimizer, WeakSet[nn.Module]] = WeakKeyDictionary()
"""The models that an optimizer has been attached to."""


def attach(optimizer: Optimizer, model: nn.Module) -> None:
    """Have every step of `optimizer` preserve the constraints that `model` declares.

    A matrix whose norm is kept takes the steps of Hyperball. After each step, every vector that nGPT keeps
    on a sphere gets unit norm again, and the reparameterisations measure the new weights (spectral norms, for
    instance), so that evaluation, accumulated batches and recomputed activations see the measurements of the
    last step. Nothing follows a step that the optimizer skips (`zoo.optim.skip_flag`). Attaching a
    second time changes nothing.

    torch leaves out the hooks of an optimizer when it is copied or pickled. A copy of an optimizer, made
    together with its model, has to be attached to the copy of the model.

    Args:
        optimizer: any optimizer that trains parameters of `model`.
        model: a zoo model or a module that contains some, plain or sharded.

    Raises:
        ConfigError: They are no optimizer and model, the optimizer trains no parameter of the model, or not
            all of those on spheres, or a matrix whose norm is to be kept is zero.
    """
    if not isinstance(optimizer, Optimizer) or not isinstance(model, nn.Module):
        given = f"{type(optimizer).__name__} and {type(model).__name__}"
        raise ConfigError(f"attach: got {given}; expected an optimizer and the model that it trains")
    if model in _ATTACHED.setdefault(optimizer, WeakSet()):
        return
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise ConfigError(f"attach: the {type(optimizer).__name__} trains no parameter of this model")
    held = [*((name, p) for name, p, _ in spheres(model)), *fixed_norms(model)]
    if missing := [name for name, parameter in held if parameter not in trained]:
        raise ConfigError(
            f"attach: the {type(optimizer).__name__} does not train {', '.join(missing)}, which the model "
            "keeps on a sphere; give it these parameters, or freeze them"
        )
    if any(fixed_norms(model)):
        keep_norms(optimizer, lambda: fixed_norms(model))
    # The modules are looked for once, as this takes a host longer than a step of a small model takes a GPU.
    # Their tensors are looked up after every step, as those of a module may be replaced.
    rounded = [
        m
        for m in model.modules()
        if isinstance(m, Module) and any(spec.sphere_dim is not None for spec in m.specs.values())
    ]
    followers = [m for m in model.modules() if isinstance(m, Module) and m.follows_step()]
    reparameterised = [m for m in model.modules() if isinstance(m, Module) and m.reparameterised]

    def after_step(optimizer: Optimizer, *_: object) -> None:
        skip = skip_flag(optimizer)
        for follower in followers:
            with restored_if(skip, [local(p.detach()) for p in follower.parameters()]):
                follower.after_step()
        project([(p, dim) for module in rounded for _, p, dim in _spheres_of(module)], skip=skip)
        for module in reparameterised:
            with restored_if(skip, list(module.buffers())):
                for name, reparameterisation in module.reparameterised.items():
                    reparameterisation.after_step(module, name)

    if reparameterised or followers or rounded:
        optimizer.register_step_post_hook(after_step)
    _ATTACHED[optimizer].add(model)


def spheres(model: nn.Module) -> Iterator[tuple[str, Tensor, int]]:
    """The trained parameters on spheres: name, current tensor, and the dimension of unit norm."""
    for path, module in model.named_modules():
        for name, parameter, dim in _spheres_of(module) if isinstance(module, Module) else ():
            yield f"{path}.{name}" if path else name, parameter, dim


def _spheres_of(module: Module) -> Iterator[tuple[str, Tensor, int]]:
    """The trained parameters of a module itself that are on spheres."""
    for name, spec in module.specs.items():
        if spec.sphere_dim is not None and not spec.frozen:
            yield name, module.get_parameter(name), spec.sphere_dim
