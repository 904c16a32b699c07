"""Perplexities as a table, as JSON, and over the context as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from rich.table import Table

from zoo.evaluation.perplexity import choose_windows, evaluate, read
from zoo.evaluation.score import Score, total
from zoo.evaluation.subject import load_subject
from zoo.utils.atomic import write_file, write_text
from zoo.utils.device import find_device
from zoo.utils.errors import ZooError
from zoo.utils.plotting import INK, SOFT, colour, dress
from zoo.utils.run_folder import RunFolder

WIDE = 10
"""From this ratio of the perplexities on the picture's scale is logarithmic."""


@dataclass(frozen=True)
class Report:
    """Perplexities of texts under a model.

    Attributes:
        model: the path it was read from.
        trained: tokens of a sequence in its training, if known.
        lossless: whether the tokens give all texts back; if not, words and bytes were never predicted
            in full, and what is normalised by them says too little.
        scores: by context, then by file; the total last if there are several files.
    """

    model: str
    trained: int | None
    lossless: bool
    scores: Sequence[Score]

    def to_json(self) -> str:
        """For programs."""
        plain: dict[str, Any] = vars(self) | {"scores": [score.plain() for score in self.scores]}
        return json.dumps(plain, indent=2) + "\n"

    def table(self) -> Table:
        """For the terminal."""
        caption = None
        if not self.lossless:
            caption = "The tokenizer does not keep the text: per word and byte the figures are too low."
        table = Table(box=None, caption=caption, caption_justify="left")
        table.add_column("file", style="cyan", overflow="fold")
        for title in ("context", "stride", "tokens", "per token", "per word", "per byte", "bits per byte"):
            table.add_column(title, justify="right")
        for s in self.scores:
            window = ("all", "–") if s.context is None else (f"{s.context:,}", f"{s.stride:,}")
            perplexities = (s.token_perplexity, s.word_perplexity, s.byte_perplexity)
            figures = (_figure(value) for value in perplexities)
            table.add_row(s.file, *window, f"{s.tokens:,}", *figures, f"{s.bits_per_byte:.4f}")
        return table

    def draw(self, file: BinaryIO) -> None:
        """Draw the perplexity per token over the context, as a PNG, as in appendix A.7 of the nGPT paper.

        Args:
            file: gets the picture.
        """
        figure = Figure(figsize=(7, 4.5), dpi=160, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for i, name in enumerate(dict.fromkeys(score.file for score in self.scores)):
            points = [(s.context, s.token_perplexity) for s in self.scores if s.file == name]
            axes.plot(*zip(*points, strict=True), color=colour(i), lw=2, marker="o", ms=4, label=name)
        if self.trained is not None:
            axes.axvline(self.trained, color=SOFT, lw=1, ls="--", label="context of the training")
        dress(axes, "Perplexity", "context", "per token")
        axes.set_xscale("log", base=2)
        known = [s.token_perplexity for s in self.scores if s.token_perplexity is not None]
        if known and max(known) > WIDE * min(known):
            axes.set_yscale("log")
        axes.set_xticks(sorted({s.context for s in self.scores if s.context is not None}))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False, labelcolor=INK)
        figure.savefig(file, format="png", metadata={"Software": None})


def perplexity(
    path: Path,
    files: Sequence[Path],
    *,
    contexts: Sequence[int] = (),
    stride: int | None = None,
    batch_size: int = 8,
    lines: bool | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> tuple[Report, list[Path]]:
    """Evaluate a model on files, and write the report.

    Args:
        path: a run, one of its checkpoints, a file of zoo, or a folder as on the Hugging Face hub.
        files: text, UTF-8; at least one.
        contexts: tokens of a window; empty: those of the model's training.
        stride: new tokens of a window; None: half of them.
        batch_size: windows at once.
        lines: whether each line is a document; None: as in the model's training.
        tokenizer: the tokenizer's folder; None: it is with the model.
        device: where to compute, see `find_device`.
        out: the .json file; with several contexts a picture goes beside it as .png. None:
            ``perplexity.json`` in the run's folder, or in the working directory if it is no run.

    Returns:
        The report, and the files written.

    Raises:
        ZooError: a file, a model, a tokenizer or a setting that cannot be used; nothing was written.
    """
    if not files:
        raise ZooError("eval: no files; expected one or more texts")
    if out is None:
        out = (RunFolder(path) if RunFolder(path).exists else RunFolder(Path())).perplexity
    if out.suffix != ".json":
        raise ZooError(f"eval: {out}: expected a name that ends in .json")
    subject = load_subject(path, tokenizer, find_device(device))
    by_line = subject.lines if lines is None else lines
    windows = choose_windows(subject, contexts, stride, batch_size)
    texts = [read(file, subject.tokenizer, subject.start, by_line) for file in files]
    scores: list[Score] = []
    for each in windows:
        of_files = [evaluate(subject, text, each, batch_size) for text in texts]
        scores += [*of_files, total(of_files)] if len(texts) > 1 else of_files
    report = Report(str(path), subject.context, all(text.lossless for text in texts), scores)
    return report, _write(report, out, picture=len(windows) > 1)


def _write(report: Report, out: Path, picture: bool) -> list[Path]:
    """The JSON file, and the picture beside it."""
    write_text(out, report.to_json())
    if not picture:
        return [out]

    def draw(partial: Path) -> None:
        with partial.open("wb") as file:
            report.draw(file)

    write_file(out.with_suffix(".png"), draw)
    return [out, out.with_suffix(".png")]


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
