"""The coordinate check: whether all outputs keep their size when a model gets wider or deeper.

If the outputs grow, a larger model diverges at the learning rate of a small one; if they shrink, it learns
nothing at this rate (microsoft/mup, coord_check). The check measures the mean absolute value of every
module's output on one batch, on which the model is trained for a few steps. It measures in evaluation mode:
what dropout or a carried state changes from one forward pass to the next is no effect of the steps.

nGPT's outputs are normalised, so that their sizes are not informative. For such a model the check measures
how far every output has moved since the first step, relative to its size at that step.

A module that is called more than once in a forward pass has as many outputs: T5's table of tokens is read for
the encoder and for the decoder, and in BERT with relative positions the maps to keys and values are applied
to the hidden states and to the table of distances. Every such call is checked by itself, since its inputs
have another size and move in another way.

The vectors that are looked up in a table are measured as the model uses them. If it multiplies them by a
constant that grows with the width, such as the sqrt(d_model) of `scaled_embedding`, it is their product with
the constant that has to keep its size: the table's own output should then fall as d_model^-1/2, as it does
under a rule for the width. The check therefore multiplies the table's output by what the constant has grown
by since the smallest width (`WidthPowers.lookups`).

What a module returns without an input, such as a vector of scalings, is a parameter and no output; the check
sees it in the outputs of the modules that use it.

A rule for entries of updates (muP) makes them fall as 1/m, so that what adds up over the inputs of a matrix
stays the same. What does not add up, because its signs are random, falls as m^-1/2. It vanishes as the
model gets wider, as it should, but where it is not small beside the start, outputs shrink with the width
under an exact rule as well. So there is a largest change up to which widths can be compared: `MAX_CHANGE`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.diagnose.coordinate_axes import WIDTH, Axis, block_names, names_at
from zoo.init import freeze
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.nn.linear import Embedding, Linear
from zoo.nn.loss import IGNORE_INDEX
from zoo.nn.lstm import LSTMState
from zoo.optim.base import set_targets
from zoo.reparam import start_from_forward
from zoo.run.config import RunConfig
from zoo.run.first_weights import initial_model, require_room
from zoo.run.optimizer import build_optimizer
from zoo.spec import Module, declared
from zoo.utils.errors import ConfigError

Word = Literal["flat", "grows", "shrinks"]

TOLERANCE = 1.2
"""A module is flat if its outputs change by less than this factor, as in the tests of muP's authors."""

MAX_CHANGE = math.sqrt(TOLERANCE ** (2 / 3) - 1)
"""Largest change of a matrix relative to its start, in norm, at which outputs can be compared over widths.

If nothing of a change c adds up, the output of a matrix has 1 + c^2 times the mean square of that at the
start, and approaches the latter as the model gets wider. What a gated MLP adds to the stream is a product of
three matrices' outputs: its root mean square then shrinks by (1 + c^2)^(3/2), which is `TOLERANCE` (our
derivation).
"""

BATCH, LENGTH = 8, 64
MOST = 1000
"""Limit of steps and seeds (our choice): a hundred times as many as a check needs."""


@dataclass(frozen=True)
class Alignment:
    """The alignment of a matrix product, as exponents of the number of its terms (arXiv 2407.05872).

    An exponent is 1 if all terms have the same sign and 1/2 if their signs are random.

    Attributes:
        alpha: exponent for the change of the weights and the initial input.
        omega: exponent for the initial weights and the change of the input.
        nu: exponent for both changes.
    """

    alpha: float
    omega: float
    nu: float


@dataclass(frozen=True)
class ModuleCheck:
    """The result of a coordinate check for one module, or for one call of it if a forward pass has several.

    Attributes:
        name: the name of the module in the smallest model; that of its second call has "(call 2)" behind it.
        sizes: the measurements at each size of the model, for every measured step, averaged over seeds. The
            first step is before any update, where nothing has moved.
        alignment: the alignment of a linear map at the last step and the largest size, averaged over seeds;
            None: the module is no linear map.
        change: the change of the weights of a linear map until the last step at the smallest size, relative
            to their start in norm, averaged over seeds; None: the module is no linear map, or starts at 0.
        may_shrink: whether the module passes even if its outputs shrink; see `Axis`.
    """

    name: str
    sizes: tuple[tuple[float, ...], ...]
    alignment: Alignment | None
    change: float | None
    may_shrink: bool

    @property
    def factors(self) -> tuple[float, ...]:
        """For every step, the measurement at the largest size over that at the smallest."""
        return tuple(at[-1] / at[0] if at[0] else math.inf if at[-1] else 1.0 for at in self.sizes)

    @property
    def word(self) -> Word:
        """The verdict, by the step at which the factor is farthest from 1."""
        worst = max(self.factors, key=lambda f: abs(math.log(f)) if 0 < f < math.inf else math.inf)
        return "grows" if not worst <= TOLERANCE else "shrinks" if worst < 1 / TOLERANCE else "flat"

    @property
    def passes(self) -> bool:
        """Whether the outputs keep their size, or shrink where they may."""
        return self.word == "flat" or (self.may_shrink and self.word == "shrinks")


@dataclass(frozen=True)
class CoordinateCheck:
    """The result of a coordinate check.

    Attributes:
        axis: the axis along which the sizes differ.
        sizes: the sizes of the model, in increasing order.
        lr: the learning rate.
        movement: whether the movement of the outputs was measured, and not their size.
        largest_lr: the learning rate at which the change of some matrix reaches `MAX_CHANGE` at the smallest
            size; None: outputs do not shrink at large rates, since updates do not fall as 1/m.
        losses: the loss at the smallest size before the first and after the last update, averaged over seeds.
        modules: the results of the modules, in the order of their calls.
    """

    axis: Axis
    sizes: tuple[int, ...]
    lr: float
    movement: bool
    largest_lr: float | None
    losses: tuple[float, float]
    modules: tuple[ModuleCheck, ...]

    @property
    def steps(self) -> range:
        """The numbers of the measured steps; 1 is before any update."""
        count = len(self.modules[0].sizes)
        return range(2, count + 2) if self.movement else range(1, count + 1)

    @property
    def failing(self) -> list[ModuleCheck]:
        """The modules that do not pass."""
        return [module for module in self.modules if not module.passes]

    @property
    def learns(self) -> bool:
        """Whether the loss at the smallest size does not rise, as it does if the rate is too large."""
        before, after = self.losses
        return after <= before

    @property
    def rate_hides_rule(self) -> bool:
        """Whether modules shrink at a rate at which they would under an exact rule as well."""
        too_large = self.largest_lr is not None and not self.lr <= self.largest_lr
        return too_large and any(module.word == "shrinks" for module in self.failing)

    @property
    def passes(self) -> bool:
        """Whether all modules pass, at a rate at which the smallest model learns."""
        return not self.failing and self.learns


def check_coordinates(
    config: RunConfig,
    sizes: Sequence[int],
    axis: Axis = WIDTH,
    *,
    steps: int = 3,
    seeds: int = 3,
    lr: float | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> CoordinateCheck:
    """Train a model at several sizes for a few steps on one batch, and compare its outputs.

    Args:
        config: a run with a model and an optimizer, whose `transfer` is checked. Its `freeze`, `layer_decay`
            and `eta_overrides` apply at every size as in training.
        sizes: two or more widths or depths.
        axis: width or depth.
        steps: number of measurements; the first is before any update.
        seeds: number of initialisations at each size.
        lr: the learning rate; None: four times the configuration's, because a check should show what would go
            wrong later (the authors of muP advise a larger rate than for training). Other rates of the
            optimizer, such as that of Muon's `rest`, change in proportion.
        progress: a function that is called with a description of each training.

    Raises:
        ConfigError: There is no model or optimizer, the model starts from a checkpoint, a size is impossible,
            there are fewer than two sizes, a number of steps or seeds or the learning rate is out of range,
            the movement of the outputs is to be measured but there is a single step, or a setting has no
            effect on a model of some size.
    """
    if config.model is None or config.optimizer is None:
        raise ConfigError("coord-check: expected a configuration with a model and an optimizer")
    if config.checkpoint is not None:
        raise ConfigError(
            f"coord-check: the model starts from {config.checkpoint.path}, whose weights have one size; "
            "expected a model without `from`"
        )
    ordered = tuple(sorted(set(sizes)))
    rate = 4 * config.optimizer.lr if lr is None else lr
    if len(ordered) < 2:
        given = ", ".join(map(str, sizes))
        raise ConfigError(f"coord-check: {axis.name}s {given}; expected two different {axis.name}s or more")
    for name, number in (("steps", steps), ("seeds", seeds)):
        if not 1 <= number <= MOST:
            raise ConfigError(f"coord-check: {number} {name}; expected 1 to {MOST}")
    if not 0 < rate < math.inf:
        raise ConfigError(f"coord-check: lr {rate:g}; expected a positive number")
    optimizer = config.optimizer.at_rate(rate)
    models = [axis.resized(config.model, size) for size in ordered]
    require_room(config.model_copy(update={"model": models[-1]}), torch.device("cpu"))
    sizes_by_call: dict[_Call, list[list[list[float]]]] = defaultdict(
        lambda: [[[] for _ in ordered] for _ in range(steps)]
    )
    aligned: dict[_Call, list[Alignment]] = defaultdict(list)
    changes: dict[str, list[float]] = defaultdict(list)
    before: list[float] = []
    after: list[float] = []
    may_shrink: set[_Call] = set()
    movement = False
    blocks: Sequence[str] = ()
    for i, model_config in enumerate(models):
        for seed in range(seeds):
            progress(f"{axis.name} {ordered[i]}, seed {seed}")
            run = config.model_copy(update={"model": model_config, "optimizer": optimizer, "seed": seed})
            trial = _Trial(run, blocks, ordered[i] / ordered[0] if axis is WIDTH else 1.0)
            movement, blocks = trial.movement, trial.blocks
            if movement and steps < 2:
                raise ConfigError(
                    "coord-check: 1 step; the outputs of this model are normalised, so that their movement "
                    "is measured: expected two steps or more"
                )
            if i == 0:
                before.append(trial.loss())
            for step in range(steps):
                for call, size in trial.measure().items():
                    sizes_by_call[call][step][i].append(size)
                if step + 1 < steps:
                    trial.step()
            may_shrink |= trial.ends_of_branches if axis.adds_branches else trial.heads
            if i == 0:
                after.append(trial.loss())
                for name, change in trial.changes():
                    changes[name].append(change)
            if i == len(ordered) - 1 and steps > 1:
                for call, alignment in trial.alignments():
                    aligned[call].append(alignment)
    changed = {name: _mean(values) for name, values in changes.items()}
    over_m = config.transfer.update_size == "entry" and config.transfer.of_sizes
    limited = axis is WIDTH and over_m and not movement and any(changed.values())
    return CoordinateCheck(
        axis,
        ordered,
        rate,
        movement,
        rate * MAX_CHANGE / max(changed.values()) if limited else None,
        (_mean(before), _mean(after)),
        tuple(
            ModuleCheck(
                str(call),
                tuple(tuple(map(_mean, at)) for at in (measured[1:] if movement else measured)),
                _mean_alignment(aligned[call]) if call in aligned else None,
                changed.get(call.module),
                call in may_shrink,
            )
            for call, measured in sizes_by_call.items()
            if all(values for at in measured for values in at)  # a part that only the first block has
        ),
    )


@dataclass(frozen=True)
class _Call:
    """A call of a module in a forward pass.

    Attributes:
        module: the name of the module in the smallest model.
        number: 1 for its first call.
    """

    module: str
    number: int

    def __str__(self) -> str:
        """The name of the module, and from the second call on the number of the call."""
        return self.module if self.number == 1 else f"{self.module} (call {self.number})"


class _Trial:
    """One model at one size with one seed."""

    def __init__(self, config: RunConfig, blocks: Sequence[str], width: float) -> None:
        """Initialise the model.

        Args:
            config: the configuration of the run.
            blocks: names of the blocks of the smallest model; empty: this is the smallest one.
            width: the ratio of the width to that of the smallest model.
        """
        assert config.optimizer is not None  # the caller has checked it
        self.model = initial_model(config).model
        self.blocks = blocks or block_names(self.model)
        self.movement = any(p.spec.sphere is not None for p in declared(self.model))
        freeze(self.model, config.freeze)
        config.constraint.apply(self.model)
        streams = getattr(config.model, "streams", None)  # of an LSTM that carries its state
        self.batch = self.model.example(streams or BATCH, LENGTH)
        # As in training, if weight normalization starts from its first batch.
        start_from_forward(self.model, *self.batch[:-1], mask=self.model.padding_mask(*self.batch))
        self.optimizer = build_optimizer(
            self.model,
            config.optimizer,
            eta_overrides=config.eta_overrides,
            layer_decay=config.layer_decay,
            transfer=config.transfer,
            steps=None if config.train is None else config.train.steps,
        )
        self.inputs: dict[_Call, list[Tensor]] = defaultdict(list)
        self.modules = {
            name: m for name, m in names_at(self.model, self.blocks).items() if isinstance(m, Module)
        }
        self.constants = {  # what the model's factors of looked-up vectors have grown by
            name: width ** m.specs["weight"].powers.lookups
            for name, m in self.modules.items()
            if isinstance(m, Embedding)
        }
        self.linear = {name: m for name, m in self.modules.items() if isinstance(m, Linear)}
        self.start = {name: m.virtual("weight").detach().clone() for name, m in self.linear.items()}
        self.first: dict[_Call, Tensor] = {}
        self.heads: set[_Call] = set()
        self.ends_of_branches: set[_Call] = set()

    def measure(self) -> dict[_Call, float]:
        """The size or the movement of the output of every call of a module, in evaluation mode."""
        outputs: dict[_Call, Tensor] = {}
        watched = _watched(self.modules, outputs, self.inputs)
        with torch.no_grad(), evaluation_mode(self.model), watched:
            *inputs, _ = self.batch
            logits = self.model(*inputs)
        self.heads = {call for call, output in outputs.items() if output is logits}
        last = [
            output
            for call, output in outputs.items()
            if any(spec.residual_branches > 1 for spec in self.modules[call.module].specs.values())
        ]
        self.ends_of_branches = {
            call for call, output in outputs.items() if any(output is end for end in last)
        }
        if not self.movement:
            return {
                call: _size(output) * self.constants.get(call.module, 1.0) for call, output in outputs.items()
            }
        self.first = self.first or outputs
        return {
            call: _size(output - self.first[call]) / _size(self.first[call])
            for call, output in outputs.items()
        }

    def step(self) -> None:
        """Take one training step on the batch."""
        self.optimizer.zero_grad()
        self.model.loss(*self.batch).total.backward()  # type: ignore[no-untyped-call]  # torch
        set_targets(self.optimizer, lambda: int((self.batch[-1] != IGNORE_INDEX).sum()))
        self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        """The loss on the batch, without dropout."""
        with evaluation_mode(self.model):
            return self.model.loss(*self.batch).total.item()

    def changes(self) -> Iterator[tuple[str, float]]:
        """The change of the weights of every linear map that does not start at 0, relative to their start."""
        for name, weight in self.start.items():
            if weight.any():
                change = self.linear[name].virtual("weight").detach() - weight
                yield name, (change.norm() / weight.norm()).item()

    def alignments(self) -> Iterator[tuple[_Call, Alignment]]:
        """The exponents of the calls of all linear maps that began above 0, and changed with their inputs."""
        for call, (first, last) in self.inputs.items():
            module, weight = self.linear[call.module], self.start[call.module]
            change, moved = module.virtual("weight").detach() - weight, last - first
            if weight.any() and change.any() and moved.any():
                pairs = ((change, last), (weight, moved), (change, moved))
                yield call, Alignment(*(_exponent(w, x) for w, x in pairs))


def _size(output: Tensor) -> float:
    """The mean absolute value of a tensor."""
    return output.float().abs().mean().item()


@contextmanager
def _watched(
    modules: Mapping[str, Module], outputs: dict[_Call, Tensor], inputs: dict[_Call, list[Tensor]]
) -> Iterator[None]:
    """Record what modules do in a forward pass within a `with` block.

    Args:
        modules: the modules that are watched, by name.
        outputs: receives the output of every call.
        inputs: receives the first and the latest input, float32, of every call of a linear map.
    """
    calls: Counter[str] = Counter()

    def watch(name: str) -> Callable[..., None]:
        def record(module: nn.Module, given: tuple[Tensor, ...], output: object) -> None:
            calls[name] += 1
            call = _Call(name, calls[name])
            match output:
                case (Tensor() as hidden) | (Tensor() as hidden, LSTMState()) if given:
                    outputs[call] = hidden
            if isinstance(module, Linear):
                # A copy, because an input may be a parameter, which the optimizer changes in place.
                inputs[call] = [*inputs[call][:1], given[0].detach().to(torch.float32, copy=True)]

        return record

    hooks = [module.register_forward_hook(watch(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _exponent(weight: Tensor, x: Tensor) -> float:
    """The exponent e of rms(W x) = n^e rms(W) rms(x), n being the number of terms."""

    def rms(tensor: Tensor) -> float:
        return tensor.square().mean().sqrt().item()

    ratio = rms(x @ weight.T) / (rms(weight) * rms(x))
    return math.log(ratio) / math.log(weight.shape[1]) if ratio > 0 else -math.inf


def _mean(values: Sequence[float]) -> float:
    """The mean over seeds."""
    return sum(values) / len(values)


def _mean_alignment(values: Sequence[Alignment]) -> Alignment:
    """The means over seeds."""
    return Alignment(*(_mean([getattr(v, n) for v in values]) for n in ("alpha", "omega", "nu")))
