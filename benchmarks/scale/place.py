"""Where the files of the study across scale lie: those of the study, or of a tiny copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drift.lines import RESULTS as DRIFT
from benchmarks.harness import RESULTS, ROOT
from benchmarks.scale.questions import NEW, OLD, SECOND, Question
from zoo.ablate.sweep import Sweep, load_sweep

DATA = ROOT.parent / "shared/data"


@dataclass(frozen=True)
class Place:
    """The files and folders that the study reads and writes.

    Attributes:
        sweeps: the folder of the sweep files.
        results: the folder of the pages.
        front: README.md.
        drift: the lines of the drift table.
        texts: the files of `NEW`, `OLD` and `SECOND`.
    """

    sweeps: Path
    results: Path
    front: Path
    drift: Path
    texts: Mapping[str, Path]

    @classmethod
    def within(cls, folder: Path) -> Place:
        """That of a copy of the study, which is all in one folder."""
        return cls(
            folder / "configs/sweeps/scale",
            folder / "docs/results",
            folder / "README.md",
            folder / "docs/results/drift.csv",
            {name: folder / f"{name}.txt" for name in (NEW, OLD, SECOND)},
        )

    def file(self, question: Question) -> Path:
        """The sweep file of a question."""
        return self.sweeps / f"{question.key}.yaml"

    def load(self, question: Question) -> Sweep:
        """The sweep of a question.

        Raises:
            ConfigError: there is no such file, or it has problems.
        """
        return load_sweep(self.file(question))


THE_STUDY = Place(
    ROOT / "configs/sweeps/scale",
    RESULTS,
    ROOT / "README.md",
    DRIFT,
    {
        NEW: DATA / "ptb/ptb.test.txt",
        OLD: DATA / "wikitext-2/valid.txt",
        SECOND: DATA / "sentencepiece/botchan.txt",
    },
)
