"""The base classes of the configurations of optimizers and of schedules."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from zoo.config.registry import Config, require_size
from zoo.optim.param_group import ParamGroup
from zoo.spec import ParamSpec
from zoo.utils.errors import ConfigError

if TYPE_CHECKING:
    from zoo.init.registry import Entry
    from zoo.init.transfer import UpdateSize

FLOAT32 = 4
"""Bytes of a number in float32."""


class OptimizerConfig(Config):
    """The settings of an optimizer."""

    lr: float = Field(gt=0, allow_inf_nan=False, description="learning rate before the schedule's factor")

    older: ClassVar[Mapping[str, object]] = {}
    """Fields that older versions did not have, with the value that reproduces their behaviour. Complete
    configurations in old run folders are read with them."""

    has_own_schedule: ClassVar[bool] = False
    """Whether the optimizer replaces a learning rate schedule, so that a schedule beside it is an error."""

    def at_rate(self, lr: float) -> Self:
        """The same settings at another learning rate, with all other rates in proportion."""
        return self.model_copy(update={"lr": lr})

    def require_trainable(self) -> None:
        """Refuse settings with which no run should be trained; run folders that have them can be read.

        Raises:
            ConfigError: The settings are such ones; the message begins with the key `optimizer`.
        """

    @property
    def update_size(self) -> UpdateSize | None:
        """The quantity whose size is the learning rate, for transfer rules; None: no rule covers it."""
        return None

    def shape_factor(self, spec: ParamSpec) -> float:
        """The factor by which the optimizer multiplies a parameter's learning rate because of its shape."""
        return 1.0

    @property
    def uses_eta(self) -> bool:
        """Whether the optimizer uses the eta of any parameter."""
        return False

    def reads_eta(self, spec: ParamSpec) -> bool:
        """Whether the optimizer uses the eta of a parameter with the declaration `spec`."""
        return self.uses_eta

    def decays_on(self, entry: Entry) -> bool:
        """Whether the optimizer's weight decay, if it has one, acts on a parameter."""
        return entry.decays

    def update_flops(self, spec: ParamSpec) -> float:
        """The operations of the matrix products in an update of a parameter, as a mean over steps.

        Elementwise work does not count, as in those of the model (`zoo.run.flops.model_flops`).
        The products of other packages' optimizers are not known and do not count either.

        Args:
            spec: the declaration of the parameter.
        """
        return 0.0

    @property
    def waits_for(self) -> str | None:
        """The quantity that each step copies from the GPU to the host, which waits for it; None: nothing."""
        return None

    def not_under_fixed_norm(self) -> str | None:
        """Why this optimizer cannot train matrices of fixed norm (Hyperball); None: it can."""
        return None

    def not_sharded(self) -> str | None:
        """Why this optimizer cannot train sharded parameters; None: nothing is known to prevent it."""
        return None

    def largest_step(self, spec: ParamSpec) -> float | None:
        """The largest distance that an entry of a vector moves in a step whose schedule factor is 1.

        Args:
            spec: the declaration of the vector.

        Returns:
            The bound up to details of the averages, or None if there is none.
        """
        return None

    def reach(self, spec: ParamSpec, schedule: ScheduleConfig, steps: int) -> float | None:
        """The largest distance that an entry of a vector moves in a run: the sum of `largest_step`.

        Where the gradient keeps its sign, the distance is .5 to .8 of this bound.
        """
        step = self.largest_step(spec)
        if step is None or self.has_own_schedule:
            return None
        return step * _summed_factors(type(schedule), schedule.model_dump_json(), steps)

    @abstractmethod
    def build(self, entries: Sequence[Entry]) -> Optimizer:
        """Build the optimizer.

        Args:
            entries: The registry's entries of the parameters to train.

        Returns:
            An optimizer whose groups know the names of their parameters.

        Raises:
            ConfigError: A setting is impossible for these parameters.
        """
        raise NotImplementedError

    @abstractmethod
    def slots(self, entry: Entry) -> dict[str, tuple[int, ...]] | None:
        """Name and shape of every state tensor of a parameter, without step counts.

        Returns:
            Shapes by name, or None if they cannot be known before the first step.
        """
        raise NotImplementedError

    def state_bytes(self, entry: Entry) -> int | None:
        """Bytes of the tensors of `slots`, which are float32; None if they cannot be known."""
        slots = self.slots(entry)
        if slots is None:
            return None
        return FLOAT32 * (sum(math.prod(shape) for shape in slots.values()) + entry.spec.keeps_norm)


@functools.cache  # all vectors of a model need the same sum
def _summed_factors(kind: type[ScheduleConfig], fields: str, steps: int) -> float:
    """The sum of a schedule's factors over the steps of a run, estimated from at most 20,000 steps.

    Args:
        kind: the class of the schedule.
        fields: its fields as JSON, since a schedule with a list has no hash.
        steps: number of steps of the run.
    """
    schedule, stride = kind.model_validate_json(fields), max(1, steps // 10_000)
    return stride * sum(schedule.factor(t, steps) for t in range(stride // 2, steps, stride))


class ScheduleConfig(Config):
    """The settings of a schedule: a factor on the learning rate that depends on the step alone."""

    warmup: int = Field(0, ge=0, description="steps W of linear warm-up: step t, from 1, gets t/W")

    def factor(self, step: int, total: int) -> float:
        """The factor on the learning rate of a step.

        Args:
            step: The number of steps before this one: 0 for the first, whose factor with warm-up is 1/W, not
                0.
            total: The number of steps of the whole run.

        Raises:
            ConfigError: `after_warmup` returned something else than a factor.
        """
        if step + 1 < self.warmup:
            return (step + 1) / self.warmup
        peak = max(self.warmup, 1)
        factor = self.after_warmup(step + 1 - peak, peak, max(total + 1 - peak, 1))
        return require_size(type(self), "after_warmup", factor)

    @abstractmethod
    def after_warmup(self, step: int, peak: int, length: int) -> float:
        """The factor `step` steps after the peak.

        Args:
            step: The number of steps since the peak, the step whose factor is 1.
            peak: The number of that step, counted from 1.
            length: The number of steps from the peak to the first step after the run.
        """
        raise NotImplementedError

    def check(self, total_steps: int) -> None:
        """Check that the schedule fits the length of a run.

        Args:
            total_steps: The number of steps of the whole run.

        Raises:
            ConfigError: The warm-up is longer than the run.
        """
        if total_steps < max(1, self.warmup):
            raise ConfigError(f"schedule.warmup {self.warmup} is longer than the run of {total_steps} steps")

    def build(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """The schedule as a torch scheduler; its ``step`` is called after each step of the optimizer.

        Args:
            optimizer: The optimizer whose learning rates the scheduler sets.
            total_steps: The number of steps of the whole run.

        Raises:
            ConfigError: The run is too short, see `check`.
        """
        self.check(total_steps)
        return LambdaLR(optimizer, lambda step: self.factor(step, total_steps))


def decayed_groups(
    entries: Iterable[Entry],
    lr: float,
    weight_decay: float,
    decays: Callable[[Entry], bool] = lambda entry: entry.decays,
    eps: float | None = None,
) -> list[ParamGroup]:
    """Parameter groups with their weight decay, see `grouped`.

    Args:
        entries: the registry.
        lr: learning rate of an entry whose factor is 1.
        weight_decay: the decay of the entries on which it acts; that of the others is 0.
        decays: says on which entries weight decay acts.
        eps: eps of an entry whose factor is 1; None: the groups have none.
    """

    def options(entry: Entry) -> dict[str, float]:
        decay = weight_decay if decays(entry) else 0.0
        return {"weight_decay": decay} | ({} if eps is None else {"eps": eps})

    return grouped(entries, lr, options)


def grouped(entries: Iterable[Entry], lr: float, options: Callable[[Entry], ParamGroup]) -> list[ParamGroup]:
    """Group parameters by their learning rates and options, each times the factors of the entry.

    Args:
        entries: The registry's entries of the parameters.
        lr: The learning rate of an entry whose `lr_factor` is 1.
        options: A function that returns the other options of an entry's group, before its factors.

    Returns:
        Parameter groups; `params` holds pairs of a name and a parameter.

    Raises:
        ConfigError: There are no parameters.
    """
    members: dict[tuple[tuple[str, object], ...], list[tuple[str, Tensor]]] = defaultdict(list)
    for entry in entries:
        rate = {"lr": lr if entry.lr_factor == 1 else lr * entry.lr_factor}
        others = dict(options(entry))
        for name, factor in (("weight_decay", entry.wd_factor), ("eps", entry.eps_factor)):
            if factor != 1 and name in others:
                others[name] *= factor
        members[tuple((rate | others).items())].append((entry.name, entry.parameter))
    if not members:
        raise ConfigError("there are no parameters to optimize")
    return [{"params": named, **dict(key)} for key, named in members.items()]


def set_targets(optimizer: Optimizer, count: Callable[[], float]) -> None:
    """Tell an optimizer whose clipping follows it (Amos, `clip_value: by targets`) the number of targets.

    Args:
        optimizer: any optimizer, before its step.
        count: returns the number of targets in the mean loss whose gradients the step takes. It is called
            only for an optimizer that needs the number, as reading it may wait for the device.
    """
    groups = [group for group in optimizer.param_groups if "targets" in group]
    if groups:
        targets = count()
        for group in groups:
            group["targets"] = targets
