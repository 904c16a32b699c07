"""The progress of a ladder, read from its lines alone, because run folders may have been deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from zoo.ablate.amount import of_size
from zoo.ablate.execute import plan_of_known, planner_of
from zoo.ablate.lines import Lines, RunLine
from zoo.ablate.outcome import Outcome
from zoo.ablate.plan import NOT_STARTED, PlannedRun
from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.runs import RunTable
from zoo.ablate.scale.verdict import ScaleVerdict, judge
from zoo.ablate.sweep import Sweep


@dataclass(frozen=True)
class LadderProgress:
    """The progress of a ladder by its lines.

    Attributes:
        sweep: the ladder.
        lines: the lines of the ladder.
        planned: number of runs, without those that tuning adds beyond a border.
        sizes: the numbers of parameters of every variant's completed sizes, from the smallest on.
        unplanned: the lines of runs that the sweep file does not plan, because it was changed after them.
    """

    sweep: Sweep
    lines: Lines
    planned: int
    sizes: Mapping[str, frozenset[int]]
    unplanned: tuple[RunLine, ...] = ()

    @property
    def ended(self) -> int:
        """The number of runs that have lines."""
        return len(list(self.lines))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        return bool(self.sizes) and all(len(sizes) == len(self.sweep.ladder) for sizes in self.sizes.values())

    @property
    def is_whole(self) -> bool:
        """Whether every size that has been begun, of any variant, is complete.

        It is not if there are lines of a variant that the sweep file does not have.
        """
        return all(line.run.size in self.sizes.get(line.run.variant, ()) for line in self.lines)

    @property
    def doubt(self) -> str:
        """A sentence, without its full stop, on the lines that are not planned; empty if there are none."""
        if not self.unplanned:
            return ""
        name, first, count = self.lines.file.name, self.unplanned[0].run, len(self.unplanned)
        return (
            f"{count} line{'s' * (count > 1)} of runs that the sweep file does not plan, first "
            f"{Path(first.place).name}, {first.variant} with seed {first.seed}; `zoo verdict {name}` judges "
            f"them with the others: expected {name} without them"
        )

    @property
    def taken_over(self) -> int:
        """The number of lines that stand for runs of another ladder (`lines_of`)."""
        return sum(map(self._is_shared, self.lines))

    @property
    def hours(self) -> Mapping[str, float]:
        """The hours of training of the other runs, as far as lines record them.

        They are those of workers, by the name of the accelerator that they shared; under "" those of
        processors' cores.
        """
        found: dict[str, float] = {}
        for line in self.lines:
            if line.seconds is not None and not self._is_shared(line):
                device = line.run.making.accelerator
                found[device] = found.get(device, 0.0) + line.seconds / 3600
        return found

    def _is_shared(self, line: RunLine) -> bool:
        return self.sweep.lines is not None and self.sweep.lines.is_shared(line)

    @property
    def looks(self) -> Looks:
        """The looks at which the runs so far are judged: at declared sizes while the ladder is incomplete."""
        declared = tuple(float(size.params) for size in self.sweep.ladder)
        early = not self.complete and len(declared) >= FEWEST_SIZES
        return Looks(max_seeds=self.sweep.max_seeds, sizes=declared if early else ())

    def verdicts(self) -> dict[str, ScaleVerdict]:
        """The verdict of every variant that has a size in common with the baseline.

        For an incomplete ladder, it is a look at declared sizes: there is no verdict below `FEWEST_SIZES`,
        and from there on the error of early looks is accounted for; variants without such a size keep their
        share of it. The verdict of the complete ladder is that of `zoo verdict` on its lines.
        """
        ours = self.sizes.get(self.sweep.baseline, frozenset())
        common = {name: sizes & ours for name, sizes in self.sizes.items() if sizes & ours}
        runs = tuple(line.run for line in self.lines if line.run.size in common.get(line.run.variant, ()))
        if len(common) < 2:
            return {}
        scale = self.sweep.scale
        assert scale is not None  # a ladder
        table, looks = RunTable(runs, loss=self.sweep.measure, by_parabola=True), self.looks
        return judge(table, self.sweep.baseline, margin=scale.margin, looks=looks, waiting=self.sizes)


def progress(sweep: Sweep) -> LadderProgress:
    """Read the progress of a ladder.

    Args:
        sweep: a ladder with `lines`.

    Raises:
        ConfigError: A line belongs to a run with settings that differ from the sweep file.
    """
    assert sweep.lines is not None and sweep.ladder  # callers require both
    # A line of another ladder counts only after it was copied.
    lines = Lines(sweep.lines.file, measure=sweep.measure)
    outcomes: dict[str, Outcome] = {}

    def look(run: PlannedRun) -> Outcome:
        return lines.outcome(run.key, run.config, run.steps) or NOT_STARTED

    runs = plan_of_known(planner_of(sweep), outcomes, look).runs if list(lines) else ()
    amounts = [of_size(size, index, sweep.tune) for index, size in enumerate(sweep.ladder)]
    reached: dict[str, dict[int, bool]] = {}
    for run in runs:
        of_variant = reached.setdefault(run.variant, {})
        of_variant[run.params] = of_variant.get(run.params, True) and outcomes[run.id].ended
    sizes = {
        name: frozenset(takewhile(of_variant.get, (size.params for size in sweep.ladder)))
        for name, of_variant in reached.items()
    }
    keys = {run.key for run in runs}
    return LadderProgress(
        sweep,
        lines,
        sum(compared + tuned for compared, tuned, _ in amounts),
        sizes,
        tuple(line for line in lines if line.key not in keys),
    )
