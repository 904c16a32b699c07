"""Any subclass of `torch.optim.Optimizer` as an optimizer of zoo, without an edit of zoo or of the class.

Its configuration is made from the signature of its constructor. Before it is used it is tried out on small
tensors (`zoo.optim.trial`), which shows whether the training loop can serve it and resume it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import create_model, model_validator
from torch import Tensor
from torch.optim import Optimizer

from zoo.config.registry import OPTIMIZERS
from zoo.optim.averages import set_training_mode
from zoo.optim.base import OptimizerConfig, grouped
from zoo.optim.param_group import ParamGroup
from zoo.optim.signature import FieldDefinitions, constructor_arguments, fields
from zoo.optim.state import tensors_in
from zoo.optim.trial import (
    CLOSURE,
    HESSIAN,
    Trial,
    check_sharded_steps,
    check_trial,
    depends_on_weights,
    explained,
    ignores,
    is_elementwise,
    undisturbed,
)
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from zoo.init.registry import Entry

LARGEST_TRIED = 1 << 20
"""Entries of the largest parameter for which a step is tried on real tensors where meta tensors fail."""

_SERVED: set[tuple[type[OptimizerConfig], str]] = set()
"""Configurations whose optimizers have passed the trial."""


class ForeignOptimizerConfig(OptimizerConfig):
    """An optimizer from outside zoo; a subclass for each class of optimizers has its arguments as fields."""

    optimizer_class: ClassVar[type[Optimizer]]

    type: str

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        settings = type(self), self.model_dump_json()
        if settings not in _SERVED:
            try:
                check_trial(self._trial)
            except ConfigError as error:
                raise ValueError(f"{self.type}: {error}") from error
            _SERVED.add(settings)
        return self

    @property
    def _trial(self) -> Trial:
        """A trial of this configuration's optimizer on small tensors."""
        decay = {} if getattr(self, "weight_decay", None) is None else {"weight_decay": 0.0}
        return Trial(self.optimizer_class, self.optimizer_of, self.lr, decay)

    def require_trainable(self) -> None:
        """Refuse a class whose steps use no `lr` or `weight_decay` of their groups, or need a Hessian.

        Raises:
            ConfigError: The class is such a one.
        """
        used = {"lr": (self.lr, self.lr / 2)}
        if getattr(self, "weight_decay", None):
            used["weight_decay"] = (0.0, 1.0)
        problem = HESSIAN if hasattr(self.optimizer_class, "update_hessian") else None
        for key, values in used.items():
            if problem is None and ignores(self._trial, key, values):
                problem = (
                    f"its step does not use the `{key}` of its groups, which zoo sets; expected "
                    f'`group["{key}"]` in `step`'
                )
        if problem is not None:
            raise ConfigError(f"optimizer: {self.type}: {problem}")

    def optimizer_of(self, groups: list[ParamGroup]) -> Optimizer:
        """Build the optimizer of groups whose `params` are pairs of a name and a parameter.

        Raises:
            ConfigError: The constructor fails.
        """
        names = {parameter: name for group in groups for name, parameter in group["params"]}
        plain = [{**group, "params": [parameter for _, parameter in group["params"]]} for group in groups]
        fields = type(self).model_fields.items()
        given = {name: getattr(self, name) for name, field in fields if getattr(self, name) != field.default}
        options = {name: value for name, value in given.items() if name != "type"}
        with explained(self.optimizer_class, "the constructor"):
            optimizer = self.optimizer_class(plain, **options)
        for group in optimizer.param_groups:
            group["param_names"] = [names.pop(parameter) for parameter in group["params"]]
        set_training_mode(optimizer)
        if names:
            raise ConfigError(f"the constructor leaves out {', '.join(names.values())}")
        return optimizer

    def not_under_fixed_norm(self) -> str | None:
        """The reason if a step depends on the weights: the constraint takes steps at weights of zero."""
        if depends_on_weights(self._trial):
            return "its step depends on the weights, not only on their gradients"
        return None

    def not_sharded(self) -> str | None:
        """The reason if an update of some rows depends on the others, which are on other ranks."""
        return None if is_elementwise(self._trial) else "its update is not elementwise"

    def build(self, entries: Sequence[Entry]) -> Optimizer:
        """Build the optimizer; the groups of matrices have the weight decay, if the class has one.

        Raises:
            ConfigError: The constructor fails, or the parameters are sharded and the optimizer is not
                elementwise.
        """
        decay: float | None = getattr(self, "weight_decay", None)
        has_decay = "weight_decay" in type(self).model_fields

        def options(entry: Entry) -> dict[str, float]:
            if has_decay and not entry.decays:
                return {"weight_decay": 0.0}
            # A decay that is not given is the class's own.
            return {} if decay is None else {"weight_decay": decay}

        settings = self
        try:
            sharded = [entry.parameter for entry in entries if is_sharded(entry.parameter)]
            if sharded:
                settings = self._for_shards(sharded[0])
            return settings.optimizer_of(grouped(entries, self.lr, options))
        except ConfigError as error:
            raise ConfigError(f"optimizer: {self.type}: {error}") from error

    def _for_shards(self, like: DTensor) -> Self:
        """The same settings, for sharded parameters.

        DTensor implements the ``foreach`` operations that torch's own optimizers use, but not all.

        Raises:
            ConfigError: The optimizer is not elementwise, or uses operations that sharded tensors lack.
        """
        if reason := self.not_sharded():
            raise ConfigError(f"it needs a single process: {reason}")
        is_torchs = self.optimizer_class.__module__.partition(".")[0] == "torch"
        chosen = getattr(self, "foreach", False) is not None
        settings = self if is_torchs or chosen else self.model_copy(update={"foreach": False})
        try:
            check_sharded_steps(settings._trial, like)
        except ConfigError as error:
            raise ConfigError(f"it needs a single process: {str(error).rstrip(' .:')}") from error
        return settings

    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]] | None:
        """Name and shape of the state tensors after a step; None: they cannot be known."""
        kept = self._kept(entry)
        return None if kept is None else {name: tuple(tensor.shape) for name, tensor in kept.items()}

    def state_bytes(self, entry: Entry) -> int | None:
        """The bytes of the state tensors; None: they cannot be known."""
        kept = self._kept(entry)
        return None if kept is None else sum(t.numel() * t.element_size() for t in kept.values())

    def _kept(self, entry: Entry) -> dict[str, Tensor] | None:
        """The state tensors of a parameter after a step on meta tensors or small ones, without numbers."""
        devices = ["meta", *(["cpu"] if entry.spec.numel <= LARGEST_TRIED else [])]
        for device in devices:
            parameter = torch.zeros(entry.spec.shape, device=device, requires_grad=True)
            try:
                with undisturbed():
                    optimizer = self.optimizer_of([{"params": [("parameter", parameter)]}])
                    parameter.grad = torch.ones_like(parameter)
                    optimizer.step()
            except Exception:
                continue
            state = dict(tensors_in(optimizer.state[parameter]))
            return {path[1:]: tensor for path, tensor in state.items() if tensor.dim()}
        return None


@functools.cache
def config_class(cls: type, path: str) -> type[ForeignOptimizerConfig]:
    """The configuration of a class of optimizers.

    Args:
        cls: The class.
        path: The value of `type` in the configuration.

    Raises:
        ConfigError: The class is no class of optimizers, or one that zoo cannot serve; the message says why.
    """
    try:
        definitions = _fields_of(cls)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    made = create_model(
        f"{cls.__name__}Config",
        __base__=ForeignOptimizerConfig,
        __doc__=(inspect.getdoc(cls) or cls.__name__).strip().split("\n")[0],
        __module__=cls.__module__,
        type=(Literal[path], path),  # type: ignore[arg-type]  # a literal made at run time
        **definitions,
    )
    made.optimizer_class = cls
    return made


OPTIMIZERS.adapt = config_class
OPTIMIZERS.adapts = Optimizer


def _fields_of(cls: type) -> FieldDefinitions:
    """Definitions of the fields of a configuration, but for `type` and `lr`.

    Raises:
        ConfigError: The class is no class of optimizers, or one that zoo cannot serve.
    """
    if not issubclass(cls, Optimizer) or cls is Optimizer:
        raise ConfigError("it is no subclass of torch.optim.Optimizer")
    closure = inspect.signature(cls.step).parameters.get("closure")
    is_sam = all(hasattr(cls, method) for method in ("first_step", "second_step"))
    if is_sam or (closure is not None and closure.default is closure.empty):
        raise ConfigError(CLOSURE)
    arguments = constructor_arguments(cls)
    rate = arguments.pop("lr", None)
    if taken := arguments.keys() & {*dir(ForeignOptimizerConfig), "type"}:
        raise ConfigError(f"its argument `{min(taken)}` has a name that configurations use themselves")
    definitions = fields(arguments)
    if rate is None:
        raise ConfigError("its constructor takes no `lr`, which the schedule sets")
    return definitions
