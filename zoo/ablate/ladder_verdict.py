"""The verdict of a ladder that `zoo sweep` trains, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zoo.ablate.alpha import ALPHA
from zoo.ablate.crashes import crashes
from zoo.ablate.manifest import Manifest, read_manifest
from zoo.ablate.scale.looks import Looks
from zoo.ablate.scale.presentation import notes, sentences
from zoo.ablate.scale.sources import read_table
from zoo.ablate.scale.verdict import ScaleVerdict, alarms, judge
from zoo.utils.errors import DataError


@dataclass(frozen=True)
class LadderVerdict:
    """The present verdict of a ladder.

    Attributes:
        manifest: the manifest of the sweep.
        baseline: the variant that the others are compared with.
        alpha: the probability of any false claim.
        verdicts: the verdicts of all variants that have runs.
    """

    manifest: Manifest
    baseline: str
    alpha: float
    verdicts: Mapping[str, ScaleVerdict]

    @property
    def margin(self) -> float | None:
        """The factor within which two sides count as equal."""
        return self.manifest.ladder.margin if self.manifest.ladder else None

    @property
    def sentences(self) -> list[str]:
        """One sentence per variant."""
        return sentences(self.verdicts, self.baseline, self.margin)

    @property
    def missing(self) -> list[str]:
        """Sentences, without full stops, on runs that have not ended and on those that crashed."""
        return missing_runs(self.manifest)

    @property
    def notes(self) -> list[str]:
        """Reasons for doubt without their full stops, the gravest first."""
        return [*alarms(self.verdicts, self.baseline), *self.missing, *notes(self.verdicts)]


def missing_runs(manifest: Manifest) -> list[str]:
    """Sentences, without full stops, on runs that have not ended and on those that crashed."""
    waiting = [run for run in manifest.runs if run.status not in ("finished", "failed", "stopped")]
    reasons = list(crashes(manifest))
    if waiting:
        reasons.insert(0, f"{len(waiting)} of the {len(manifest.runs)} runs known so far have not ended")
    return reasons


def is_ladder(folder: Path) -> bool:
    """Whether a folder belongs to a sweep with sizes."""
    return (folder / "sweep.json").is_file() and read_manifest(folder).ladder is not None


def judge_ladder(
    folder: Path, baseline: str | None = None, alpha: float = ALPHA, metric: str | None = None
) -> LadderVerdict:
    """Judge the runs of a ladder that have ended.

    Args:
        folder: the folder of sweep.json.
        baseline: the variant to compare with; None: the sweep's.
        alpha: the probability of any false claim.
        metric: name of the measure by which the runs are compared, see `read_table`.

    Raises:
        ZooError: No run has ended, only runs of the baseline have, or a run was edited.
    """
    manifest = read_manifest(folder)
    baseline = baseline or manifest.baseline
    margin, looks = declared(folder)
    table, names = read_table([folder], metric=metric), manifest.variant_names
    verdicts = judge(table, baseline, margin=margin, alpha=alpha, looks=looks, waiting=names)
    return LadderVerdict(manifest, baseline, alpha, verdicts)


def declared(
    folder: Path, margin: float | None = None, looks: Looks | None = None
) -> tuple[float | None, Looks]:
    """The margin and the looks of a ladder: the given ones, or otherwise those of its sweep file.

    Args:
        folder: the folder of sweep.json.
        margin: the factor within which two sides count as equal, above 1; None: that of the sweep file.
        looks: the declared looks; if they declare nothing, those of the sweep file are used.

    Raises:
        DataError: The sweep adds seeds up to a maximum, and `looks` declare something else.
    """
    manifest = read_manifest(folder)
    ladder, looks = manifest.ladder, looks or Looks()
    if manifest.max_seeds is not None:
        of_sweep = Looks(max_seeds=manifest.max_seeds)
        if looks not in (Looks(), of_sweep):
            raise DataError(
                f"{folder}: the sweep has declared at most {manifest.max_seeds} seeds (max_seeds), and the "
                "error is spent accordingly; expected no other declaration"
            )
        looks = of_sweep
    if ladder is None:
        return margin, looks
    if ladder.until_decided and looks == Looks():
        looks = Looks(sizes=tuple(map(float, ladder.sizes)))
    return ladder.margin if margin is None else margin, looks
