"""The coordinate check: whether all outputs keep their size when a model gets wider or deeper.

If the outputs grow, a larger model diverges at the learning rate of a small one; if they shrink, it learns
nothing at this rate (microsoft/mup, coord_check). The check measures the mean absolute value of every
module's output on one batch, on which the model is trained for a few steps.

nGPT's outputs are normalised, so that their sizes are not informative. For such a model the check measures
how far every output has moved since the first step, relative to its size at that step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.diagnose.coordinate_axes import WIDTH, Axis, names_at
from zoo.nn.linear import Linear
from zoo.run.config import RunConfig
from zoo.run.first_weights import initial_model, require_room
from zoo.run.optimizer import build_optimizer
from zoo.spec import Module, declared
from zoo.utils.errors import ConfigError

Word = Literal["flat", "grows", "shrinks"]

TOLERANCE = 1.2
"""A module is flat if its outputs change by less than this factor, as in the tests of muP's authors."""

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
    """The result for one module.

    Attributes:
        name: the name of the module in the smallest model.
        sizes: for every measured step, the measurement at each size of the model, averaged over seeds. The
            first step is before any update, where nothing has moved.
        alignment: the alignment of a linear map at the last step and the largest size, averaged over seeds;
            None: the module is no linear map.
        may_shrink: whether the module passes even if its outputs shrink; see `Axis`.
    """

    name: str
    sizes: tuple[tuple[float, ...], ...]
    alignment: Alignment | None
    may_shrink: bool

    @property
    def factors(self) -> tuple[float, ...]:
        """For every step, the measurement at the largest size over that at the smallest."""
        return tuple(at[-1] / at[0] if at[0] > 0 else math.inf if at[-1] > 0 else 1.0 for at in self.sizes)

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
        modules: the results of the modules, in the order of their calls.
    """

    axis: Axis
    sizes: tuple[int, ...]
    lr: float
    movement: bool
    modules: tuple[ModuleCheck, ...]

    @property
    def steps(self) -> range:
        """The numbers of the measured steps; 1 is before any update."""
        count = len(self.modules[0].sizes)
        return range(2, count + 2) if self.movement else range(1, count + 1)

    @property
    def passes(self) -> bool:
        """Whether all modules pass."""
        return all(module.passes for module in self.modules)


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
        config: a run with a model and an optimizer, whose `transfer` is checked.
        sizes: two or more widths or depths.
        axis: width or depth.
        steps: number of measurements; the first is before any update.
        seeds: number of initialisations at each size.
        lr: the learning rate; None: four times the configuration's, because a check should show what would go
            wrong later (the authors of muP advise a larger rate than for training).
        progress: a function that is called with a description of each training.

    Raises:
        ConfigError: There is no model or optimizer, a size is impossible, there are fewer than two sizes, or
            the movement of the outputs is to be measured but there is a single step.
    """
    if config.model is None or config.optimizer is None:
        raise ConfigError("coord-check: expected a configuration with a model and an optimizer")
    ordered = tuple(sorted(set(sizes)))
    if len(ordered) < 2 or not 1 <= steps <= MOST or not 1 <= seeds <= MOST:
        raise ConfigError(
            f"coord-check: {len(ordered)} {axis.name}s, {steps} steps, {seeds} seeds; expected two "
            f"{axis.name}s or more, and 1 to {MOST} steps and seeds"
        )
    rate = 4 * config.optimizer.lr if lr is None else lr
    optimizer = config.optimizer.model_copy(update={"lr": rate})
    models = [axis.resized(config.model, size) for size in ordered]
    require_room(config.model_copy(update={"model": models[-1]}), torch.device("cpu"))
    sizes_by_name: dict[str, list[list[list[float]]]] = defaultdict(
        lambda: [[[] for _ in ordered] for _ in range(steps)]
    )
    aligned: dict[str, list[Alignment]] = defaultdict(list)
    may_shrink: set[str] = set()
    movement, blocks = False, 0
    for i, model_config in enumerate(models):
        for seed in range(seeds):
            progress(f"{axis.name} {ordered[i]}, seed {seed}")
            run = config.model_copy(update={"model": model_config, "optimizer": optimizer, "seed": seed})
            trial = _Trial(run, blocks)
            movement, blocks = trial.movement, trial.blocks
            if movement and steps < 2:
                raise ConfigError(
                    "coord-check: 1 step; the outputs of this model are normalised, so that their movement "
                    "is measured: expected two steps or more"
                )
            for step in range(steps):
                for name, size in trial.measure().items():
                    sizes_by_name[name][step][i].append(size)
                if step + 1 < steps:
                    trial.step()
            may_shrink |= trial.ends_of_branches if axis.adds_branches else trial.heads
            if i == len(ordered) - 1 and steps > 1:
                for name, alignment in trial.alignments():
                    aligned[name].append(alignment)
    return CoordinateCheck(
        axis,
        ordered,
        rate,
        movement,
        tuple(
            ModuleCheck(
                name,
                tuple(
                    tuple(sum(values) / len(values) for values in at)
                    for at in (measured[1:] if movement else measured)
                ),
                _mean(aligned[name]) if name in aligned else None,
                name in may_shrink,
            )
            for name, measured in sizes_by_name.items()
        ),
    )


class _Trial:
    """One model at one size with one seed."""

    def __init__(self, config: RunConfig, blocks: int) -> None:
        """Initialise the model.

        Args:
            config: the configuration of the run.
            blocks: number of blocks of the smallest model; 0: this is the smallest one.
        """
        assert config.optimizer is not None  # the caller has checked it
        self.model = initial_model(config).model
        self.blocks = blocks or len(self.model.layers)
        self.movement = any(p.spec.sphere is not None for p in declared(self.model))
        config.constraint.apply(self.model)
        steps = None if config.train is None else config.train.steps
        self.optimizer = build_optimizer(self.model, config.optimizer, transfer=config.transfer, steps=steps)
        self.batch = self.model.example(BATCH, LENGTH)
        self.inputs: dict[str, list[Tensor]] = defaultdict(list)
        self.modules = {
            name: m for name, m in names_at(self.model, self.blocks).items() if isinstance(m, Module)
        }
        self.linear = {name: m for name, m in self.modules.items() if isinstance(m, Linear)}
        self.start = {name: m.virtual("weight").detach().clone() for name, m in self.linear.items()}
        self.first: dict[str, Tensor] = {}
        self.heads: set[str] = set()
        self.ends_of_branches: set[str] = set()

    def measure(self) -> dict[str, float]:
        """The size or the movement of every module's output, by name; of a module used twice, of the last."""
        outputs: dict[str, Tensor] = {}
        with torch.no_grad(), _watched(self.modules, outputs, self.inputs):
            *inputs, _ = self.batch
            logits = self.model(*inputs)
        self.heads = {name for name, output in outputs.items() if output is logits}
        last = [
            output
            for name, output in outputs.items()
            if any(spec.residual_branches > 1 for spec in self.modules[name].specs.values())
        ]
        self.ends_of_branches = {
            name for name, output in outputs.items() if any(output is end for end in last)
        }
        if not self.movement:
            return {name: _size(output) for name, output in outputs.items()}
        self.first = self.first or outputs
        return {
            name: _size(output - self.first[name]) / _size(self.first[name])
            for name, output in outputs.items()
        }

    def step(self) -> None:
        """Take one training step on the batch."""
        self.optimizer.zero_grad()
        self.model.loss(*self.batch).total.backward()  # type: ignore[no-untyped-call]  # torch
        self.optimizer.step()

    def alignments(self) -> Iterator[tuple[str, Alignment]]:
        """The exponents of every linear map that has changed."""
        for name, (first, *_, last) in self.inputs.items():
            module, weight = self.linear[name], self.start[name]
            change, moved = module.virtual("weight").detach() - weight, last - first
            if change.any() and moved.any():
                pairs = ((change, last), (weight, moved), (change, moved))
                yield name, Alignment(*(_exponent(w, x) for w, x in pairs))


def _size(output: Tensor) -> float:
    """The mean absolute value of a tensor."""
    return output.float().abs().mean().item()


@contextmanager
def _watched(
    modules: Mapping[str, Module], outputs: dict[str, Tensor], inputs: Mapping[str, list[Tensor]]
) -> Iterator[None]:
    """Record the outputs of modules and the inputs of linear maps within a `with` block."""

    def watch(name: str) -> Callable[..., None]:
        def record(module: nn.Module, given: tuple[Tensor, ...], output: object) -> None:
            if isinstance(output, Tensor):
                outputs[name] = output
            if isinstance(module, Linear):
                inputs[name].append(given[0].detach().float())

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


def _mean(values: Sequence[Alignment]) -> Alignment:
    """The means over seeds."""
    return Alignment(*(sum(getattr(v, n) for v in values) / len(values) for n in ("alpha", "omega", "nu")))
