"""Perplexities as a table, as JSON, and as a plot over the context."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from rich.console import Group
from rich.text import Text

from zoo.evaluation.evaluated_model import load_evaluated_model
from zoo.evaluation.perplexity import BATCH_SIZE, choose_windows, evaluate, read
from zoo.evaluation.score import Score, total
from zoo.utils.atomic import require_file, warned, write_file, write_text
from zoo.utils.device import find_device
from zoo.utils.errors import ZooError
from zoo.utils.fitting import FittingTable
from zoo.utils.plotting import INK, SOFT, colour, dress, literal
from zoo.utils.progress import progress
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import JsonObject

NUMBERS = ("context", "stride", "tokens", "per token", "per word", "per byte", "bits per byte")
LEFT_OUT = ("stride", "tokens", "per byte")
"""The columns that a narrow terminal does not show, the least important one first."""
WIDE = 10
"""The ratio of the largest to the smallest perplexity above which the plot has a logarithmic axis."""


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexities of texts under a model.

    Attributes:
        model: the path that the model was loaded from.
        trained: number of tokens in a sequence of its training; None: unknown.
        lossless: whether decoding the tokens gives all texts back. If not, parts of the texts were not
            predicted, and the perplexities per word and byte are too low.
        scores: the scores, sorted by context, then by file; with several files, their total comes last.
        carriage_returns: the files whose lines end with a carriage return and a line feed. A model that has
            read line feeds alone does not expect the carriage returns, and can lose more by them than by
            the rest of the text.
    """

    model: str
    trained: int | None
    lossless: bool
    scores: Sequence[Score]
    carriage_returns: Sequence[str] = ()

    def to_json(self) -> str:
        """The report as JSON."""
        plain: JsonObject = vars(self) | {"scores": [score.plain() for score in self.scores]}
        return json.dumps(plain, indent=2) + "\n"

    def table(self) -> Group:
        """The report as a table for the terminal, and the notes on it."""
        notes = [
            f"{file}: lines end with \\r\\n, and the \\r is scored as well; a model that was trained on "
            "\\n does not expect it."
            for file in self.carriage_returns
        ]
        if not self.lossless:
            notes.append("The tokenizer does not keep the whole text: figures per word and byte are too low.")
        rows = []
        for s in self.scores:
            window = ("all", "–") if s.context is None else (f"{s.context:,}", f"{s.stride:,}")
            perplexities = (s.token_perplexity, s.word_perplexity, s.byte_perplexity)
            figures = (_figure(value) for value in perplexities)
            rows.append([s.file, *window, f"{s.tokens:,}", *figures, f"{s.bits_per_byte:.4f}"])
        table = FittingTable("", ("file", *NUMBERS), rows, LEFT_OUT, NUMBERS, lines=False)
        return Group(table, *map(Text, notes))

    def draw(self, file: BinaryIO) -> None:
        """Plot the perplexity per token over the context, as in appendix A.7 of the nGPT paper.

        Args:
            file: the file that the PNG is written to.
        """
        figure = Figure(figsize=(7, 4.5), dpi=160, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for i, name in enumerate(dict.fromkeys(score.file for score in self.scores)):
            points = [(s.context, s.token_perplexity) for s in self.scores if s.file == name]
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour(i), lw=2, marker="o", ms=4, label=literal(name))
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
        # With the lines given, the legend has also those whose label begins with an underscore.
        axes.legend(handles=[*axes.lines], frameon=False, labelcolor=INK)
        figure.savefig(file, format="png", metadata={"Software": None})


def perplexity(
    path: Path,
    files: Sequence[Path],
    *,
    contexts: Sequence[int] = (),
    stride: int | None = None,
    batch_size: int | None = None,
    lines: bool | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    out: Path | None = None,
    show: Callable[[PerplexityReport], object] | None = None,
) -> tuple[PerplexityReport, list[Path]]:
    """Evaluate a model on text files, and write the report.

    Args:
        path: a run, one of its checkpoints, a .safetensors file, or a folder in the hub's format.
        files: text files, UTF-8; at least one.
        contexts: numbers of tokens in a window; empty: the context of the model's training.
        stride: number of new tokens in a window; None: half the context.
        batch_size: number of windows in a batch; None: 8.
        lines: whether each line is a document; None: as in the model's training.
        tokenizer: the folder of the tokenizer; None: the one that is stored with the model.
        device: name of the device, see `find_device`.
        out: the .json file to write; with several contexts, the plot is written beside it as .png. None:
            ``perplexity.json`` in the run folder, or in the working directory if `path` is not a run; if that
            cannot be written, a warning says so.
        show: a function that receives the report before it is written.

    Returns:
        The report, and the files that were written.

    Raises:
        ZooError: A file, the model, the tokenizer or a setting cannot be used; nothing is written then.
        CheckpointError: `out` cannot be written.
    """
    if not files:
        raise ZooError("eval: no files; expected one or more texts")
    given = [os.path.realpath(file) for file in files]
    for i, file in enumerate(files):
        if given[i] in given[:i]:
            raise ZooError(f"eval: {file}: given twice; expected each text once, as all count in the total")
    is_named = out is not None
    if out is None:
        out = (RunFolder(path) if RunFolder(path).exists else RunFolder(Path())).perplexity
    if out.suffix != ".json":
        raise ZooError(f"eval: {out}: expected a name that ends in .json")
    if is_named:
        require_file(out)
        if len(contexts) > 1:
            require_file(_plot_of(out))
    evaluated = load_evaluated_model(path, tokenizer, find_device(device))
    by_line = evaluated.lines if lines is None else lines
    windows = choose_windows(evaluated, contexts, stride, batch_size)
    texts = [read(file, evaluated.tokenizer, evaluated.start_id, by_line) for file in files]
    if by_line and evaluated.separates_documents:
        texts = [replace(text, separator=evaluated.tokenizer.eos_id) for text in texts]
    scores: list[Score] = []
    predicted = sum(len(text.tokens) - 1 for text in texts)
    with progress("perplexity", [predicted] * len(windows)) as advance:
        for of_files in evaluate(evaluated.model, texts, windows, batch_size or BATCH_SIZE, advance):
            scores += [*of_files, total(of_files)] if len(texts) > 1 else of_files
    report = PerplexityReport(
        str(path),
        evaluated.context,
        all(text.lossless for text in texts),
        scores,
        [text.name for text in texts if text.carriage_returns],
    )
    if show is not None:
        show(report)
    with warned(unless=is_named):
        return report, _write(report, out, plot=len(windows) > 1)
    return report, []


def _write(report: PerplexityReport, out: Path, plot: bool) -> list[Path]:
    """Write the JSON file and, if asked for, the plot; return their paths."""
    write_text(out, report.to_json())
    if not plot:
        return [out]

    def draw(partial: Path) -> None:
        with partial.open("wb") as file:
            report.draw(file)

    write_file(_plot_of(out), draw)
    return [out, _plot_of(out)]


def _plot_of(out: Path) -> Path:
    """The path of the plot beside the JSON file."""
    return out.with_suffix(".png")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}" if value < 1e6 else f"{value:.2e}"
