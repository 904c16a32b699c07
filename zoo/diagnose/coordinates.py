"""The coordinate check: whether the sizes of all outputs stay the same when a model gets wider.

If they grow with the width, a wider model diverges at the learning rate of a narrow one; if they shrink, it
learns nothing there (microsoft/mup, coord_check). Measured are the means of the absolute values of every
module's output on one batch, which a few steps of training repeat.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.models import Model, ModelConfig
from zoo.nn.linear import Linear
from zoo.run.config import RunConfig
from zoo.run.factory import build_optimizer
from zoo.run.first_weights import initial_model
from zoo.spec import Module
from zoo.utils.errors import ConfigError

Word = Literal["flat", "grows", "shrinks"]

TOLERANCE = 1.2
"""A module is flat if its outputs change by less than this factor, as in the tests of muP's authors."""

BATCH, LENGTH = 8, 64
SCALED = ("d_model", "n_heads", "n_kv_heads", "d_mlp")
"""The fields of a model's configuration that are proportional to its width."""


@dataclass(frozen=True)
class Alignment:
    """How much of a matrix product adds up, as exponents of the number of its terms (arXiv 2407.05872).

    An exponent is 1 if all terms have the same sign and 1/2 if their signs are random.

    Attributes:
        alpha: of the change of the weights and the input.
        omega: of the first weights and the change of the input.
        nu: of both changes.
    """

    alpha: float
    omega: float
    nu: float


@dataclass(frozen=True)
class ModuleCheck:
    """What became of one module.

    Attributes:
        name: its name in the model.
        sizes: for every step, the first of which is before any update, the mean absolute output at each
            width, averaged over seeds.
        alignment: of a linear map at the last step and the largest width, averaged over seeds; None: it is
            no linear map.
        is_head: whether its outputs are the logits, which may shrink (the head starts near 0).
    """

    name: str
    sizes: tuple[tuple[float, ...], ...]
    alignment: Alignment | None
    is_head: bool

    @property
    def factors(self) -> tuple[float, ...]:
        """For every step, the output of the largest width over that of the smallest."""
        return tuple(at[-1] / at[0] if at[0] > 0 else math.inf if at[-1] > 0 else 1.0 for at in self.sizes)

    @property
    def word(self) -> Word:
        """The verdict, by the step at which the factor is farthest from 1."""
        worst = max(self.factors, key=lambda f: abs(math.log(f)) if 0 < f < math.inf else math.inf)
        return "grows" if not worst <= TOLERANCE else "shrinks" if worst < 1 / TOLERANCE else "flat"

    @property
    def passes(self) -> bool:
        """Whether this is as it should be: flat, or logits that shrink."""
        return self.word == "flat" or (self.is_head and self.word == "shrinks")


@dataclass(frozen=True)
class CoordinateCheck:
    """The result of a coordinate check.

    Attributes:
        widths: in increasing order.
        lr: the learning rate.
        modules: in the order of their calls.
    """

    widths: tuple[int, ...]
    lr: float
    modules: tuple[ModuleCheck, ...]

    @property
    def passes(self) -> bool:
        """Whether all modules pass."""
        return all(module.passes for module in self.modules)


def check_coordinates(
    config: RunConfig,
    widths: Sequence[int],
    *,
    steps: int = 3,
    seeds: int = 3,
    lr: float | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> CoordinateCheck:
    """Train a model at several widths for a few steps on one batch, and compare the sizes of its outputs.

    Args:
        config: a run with a model and an optimizer; its `transfer` is what is checked.
        widths: two or more values of d_model.
        steps: measurements; the first is before any update.
        seeds: initialisations at each width.
        lr: the learning rate; None: four times the configuration's, because a check has to show what would
            go wrong later (the authors of muP advise a larger rate than for training).
        progress: told what is trained next.

    Raises:
        ConfigError: there is no model or optimizer, a width is impossible, or there are fewer than two.
    """
    if config.model is None or config.optimizer is None:
        raise ConfigError("coord-check: expected a configuration with a model and an optimizer")
    ordered = tuple(sorted(set(widths)))
    if len(ordered) < 2 or steps < 1 or seeds < 1:
        raise ConfigError(
            f"coord-check: {len(ordered)} widths, {steps} steps, {seeds} seeds; expected two widths or more, "
            "and at least one step and seed"
        )
    rate = 4 * config.optimizer.lr if lr is None else lr
    optimizer = config.optimizer.model_copy(update={"lr": rate})
    models = [at_width(config.model, width) for width in ordered]
    sizes: dict[str, list[list[list[float]]]] = defaultdict(
        lambda: [[[] for _ in ordered] for _ in range(steps)]
    )
    aligned: dict[str, list[Alignment]] = defaultdict(list)
    heads: set[str] = set()
    for i, model_config in enumerate(models):
        for seed in range(seeds):
            progress(f"width {ordered[i]}, seed {seed}")
            run = config.model_copy(update={"model": model_config, "optimizer": optimizer, "seed": seed})
            trial = _Trial(run)
            for step in range(steps):
                for name, size in trial.measure().items():
                    sizes[name][step][i].append(size)
                if step + 1 < steps:
                    trial.step()
            heads |= trial.heads
            if i == len(ordered) - 1 and steps > 1:
                for name, alignment in trial.alignments():
                    aligned[name].append(alignment)
    return CoordinateCheck(
        ordered,
        rate,
        tuple(
            ModuleCheck(
                name,
                tuple(tuple(sum(values) / len(values) for values in at) for at in found),
                _mean(aligned[name]) if name in aligned else None,
                name in heads,
            )
            for name, found in sizes.items()
        ),
    )


def at_width(model: ModelConfig, width: int) -> ModelConfig:
    """A model of another width, with as many more heads of the same size.

    Raises:
        ConfigError: the model has no d_model, or one of its sizes would be no whole number.
    """
    present = {name: getattr(model, name, None) for name in SCALED}
    d_model = present["d_model"]
    if d_model is None:
        raise ConfigError("coord-check: the model has no d_model, so it has no width")
    changes = {}
    for name, value in present.items():
        if value is None:
            continue
        scaled, rest = divmod(value * width, d_model)
        if rest or scaled < 1:
            raise ConfigError(
                f"coord-check: width {width}: model.{name} would be {value * width / d_model:g}; "
                "expected a whole number"
            )
        changes[name] = scaled
    return type(model).model_validate(model.model_dump() | changes)


class _Trial:
    """One model at one width with one seed."""

    def __init__(self, config: RunConfig) -> None:
        assert config.optimizer is not None  # the caller has checked it
        self.model = initial_model(config).model
        config.constraint.apply(self.model)
        steps = None if config.train is None else config.train.steps
        self.optimizer = build_optimizer(self.model, config.optimizer, transfer=config.transfer, steps=steps)
        self.batch = self.model.example(BATCH, LENGTH)
        self.inputs: dict[str, list[Tensor]] = defaultdict(list)
        self.linear = {name: m for name, m in self.model.named_modules() if isinstance(m, Linear)}
        self.start = {name: m.virtual("weight").detach().clone() for name, m in self.linear.items()}
        self.heads: set[str] = set()

    def measure(self) -> dict[str, float]:
        """The mean absolute output of every module; of one that is used twice, the last one."""
        outputs: dict[str, Tensor] = {}
        with torch.no_grad(), _watched(self.model, outputs, self.inputs):
            *inputs, _ = self.batch
            logits = self.model(*inputs)
        self.heads = {name for name, output in outputs.items() if output is logits}
        return {name: output.float().abs().mean().item() for name, output in outputs.items()}

    def step(self) -> None:
        """Train on the batch once."""
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


@contextmanager
def _watched(model: Model, outputs: dict[str, Tensor], inputs: Mapping[str, list[Tensor]]) -> Iterator[None]:
    """Record the outputs of the declared modules, and the inputs of linear maps."""

    def watch(name: str) -> Callable[..., None]:
        def record(module: nn.Module, given: tuple[Any, ...], output: object) -> None:
            if isinstance(output, Tensor):
                outputs[name] = output
            if isinstance(module, Linear):
                inputs[name].append(given[0].detach().float())

        return record

    hooks = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if name and isinstance(module, Module)
    ]
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
