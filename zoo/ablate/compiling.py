"""The choice of the runs of a sweep that are compiled: those of shapes for which compilation pays off.

The choice follows from the sweep file alone, and not from measurements or caches of a machine, so that a
sweep that is run again has the same runs, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zoo.ablate.amount import of_size, of_variant
from zoo.ablate.config import Tune
from zoo.ablate.identity import digest
from zoo.ablate.ladder import LadderSize, Side
from zoo.ablate.scale.runs import format_count
from zoo.ablate.step_cost import step_cost
from zoo.ablate.variants import SweepVariant
from zoo.run.config import RunConfig, plain
from zoo.run.declared_once import declared_once
from zoo.run.job import Job

SHAPE = ("batch_size", "accumulation", "precision", "z_loss", "device")
"""The keys of `train`, besides `compile`, that determine the result of torch.compile."""

EAGER = 5e10
"""Assumed operations per second of a thread without compilation; small models reach less."""
SAVED = 0.4
"""Assumed share of the training time that compilation saves."""
COMPILATION = 60.0
"""Assumed seconds of compilation, once for all runs of a shape, including loading it in each worker."""


def shape_of(config: RunConfig) -> str:
    """A digest of the settings that determine a run's compiled graphs; runs with the same one share them."""
    job = Job.of(config)
    train = {key: getattr(job.train, key) for key in (*SHAPE, "compile")}
    return digest(plain([job.model, job.config.reparam, job.data, train, job.config.freeze]))


@dataclass(frozen=True)
class Shape:
    """The runs of a sweep that would share one compilation.

    Attributes:
        parameters: number of parameters of the model.
        seconds: expected time of all these runs without compilation, on one thread.
        compiles: whether the model can be compiled block by block.
    """

    parameters: int
    seconds: float
    compiles: bool

    @property
    def pays(self) -> bool:
        """Whether compilation saves more time than it takes."""
        return self.compiles and SAVED * self.seconds > COMPILATION

    def __str__(self) -> str:
        word = "compiled block by block" if self.pays else "not compiled"
        return f"{format_count(self.parameters)} parameters, {self.seconds / 60:.0f} minutes: {word}"


def describe(shapes: Iterable[Shape]) -> str:
    """The choice and its reason, for the terminal."""
    shown = "; ".join(str(shape) for shape in sorted(shapes, key=lambda s: (s.parameters, s.seconds)))
    return (
        f"compile: auto: {shown}. Minutes: all runs of a shape at {EAGER:.0e} operations per second of a "
        f"thread; compilation is taken to save {SAVED:.0%} of them and to cost {COMPILATION:.0f} seconds."
    )


def choose_compiled(
    variants: Sequence[SweepVariant], ladder: Sequence[LadderSize], tune: Tune | None, seeds: Sequence[int]
) -> tuple[tuple[SweepVariant, ...], tuple[LadderSize, ...], tuple[Shape, ...]]:
    """Compile the runs whose shape is trained long enough, block by block.

    Args:
        variants: the variants of a sweep without sizes, or of the smallest size.
        ladder: the sizes; empty without a ladder.
        tune: the tuning.
        seeds: the seeds of a comparison without sizes.

    Returns:
        The variants and the sizes with `train.compile` as chosen, and the shapes.
    """
    planned: list[tuple[RunConfig, float]] = []
    for i, size in enumerate(ladder):
        tokens = of_size(size, i, tune)[2] / len(size.sides)
        planned += [(side.config, tokens / side.per_step) for side in size.sides]
    if not ladder:
        planned = [(v.configs[0], float(of_variant(v, tune, seeds)[1])) for v in variants]
    shapes = _shapes(planned)

    def chosen(config: RunConfig, shape: str) -> RunConfig:
        if not shapes[shape].pays:
            return config
        train = Job.of(config).train.model_copy(update={"compile": "blocks"})
        return config.model_copy(update={"train": train})

    def variant(given: SweepVariant) -> SweepVariant:
        first = shape_of(given.configs[0])  # starts that follow from the rate (`auto`) change nothing
        return replace(given, configs=tuple(chosen(config, first) for config in given.configs))

    def side(given: Side) -> Side:
        return replace(given, config=chosen(given.config, shape_of(given.config)))

    sizes = tuple(
        replace(size, sides=tuple(map(side, size.sides)), variants=tuple(map(variant, size.variants)))
        for size in ladder
    )
    return tuple(map(variant, variants)), sizes, tuple(shapes.values())


def _shapes(planned: Iterable[tuple[RunConfig, float]]) -> dict[str, Shape]:
    """The shapes of planned runs, each given with its number of steps, by their digests."""
    costs: dict[str, float] = {}
    shapes: dict[str, Shape] = {}
    for config, steps in planned:
        key = shape_of(config)
        if key not in shapes:
            model = declared_once(config)
            count = sum(p.numel() for p in model.parameters())
            shapes[key] = Shape(count, 0.0, bool(model.compiled_parts))
            costs[key] = step_cost(config).flops
        shapes[key] = replace(shapes[key], seconds=shapes[key].seconds + steps * costs[key] / EAGER)
    return shapes
