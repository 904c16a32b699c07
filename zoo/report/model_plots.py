"""The trained models, layer by layer: condition numbers, scalings, embeddings, attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.ablate.results import Results
from zoo.checkpoint.model import load_model
from zoo.diagnose.embeddings import EmbeddingTable
from zoo.diagnose.examples import validation_examples
from zoo.diagnose.findings import Findings, measure_model, require_measurable
from zoo.report.plot import Plot, Series, View

QUANTILES = 101
"""Number of quantiles in the line that represents a distribution."""

MAX_TICKS = 24
"""Largest number of layers with a tick each; with more, the drawing library chooses the ticks."""


class Point(NamedTuple):
    """A position on the horizontal axis, a value, and the ends of the band around it."""

    x: float
    low: float
    middle: float
    high: float


Lines = Mapping[str, Sequence[Point]]
"""The lines of a model by the name of their view."""


class ModelPlot(NamedTuple):
    """A kind of plot that can be made for any model.

    Attributes:
        key, title, note: attributes of the plot.
        x, y: the titles of the axes.
        log_y: whether the vertical axis is logarithmic.
        lines: a function that returns the lines of a model; empty if the model has no such measurements.
    """

    key: str
    title: str
    x: str
    y: str
    log_y: bool
    lines: Callable[[Findings], Lines]
    note: str


def model_plots(results: Results) -> Iterator[Plot]:
    """The plots of the last checkpoint of every variant's first run, if it has one."""
    findings = {}
    for variant, run in results.first_runs().items():
        if checkpoint := run.folder.checkpoint():
            model = load_model(checkpoint.path).eval()
            require_measurable(model, checkpoint.path)
            inputs, mask, _ = validation_examples(model, run.folder.path)
            findings[variant] = measure_model(model, inputs, mask=mask)
    for plot in MODEL_PLOTS:
        lines = {variant: plot.lines(of_variant) for variant, of_variant in findings.items()}
        names = dict.fromkeys(name for by_name in lines.values() for name in by_name)
        views = [
            View(
                name,
                plot.x,
                plot.y,
                [_series(variant, by_name[name]) for variant, by_name in lines.items() if name in by_name],
                log_y=plot.log_y,
                ticks=_layers(lines.values(), name) if plot.x == "layer" else (),
            )
            for name in names
        ]
        if views:
            note = f"{plot.note} Last checkpoint of the first seed of every variant."
            yield Plot(plot.key, plot.title, views, note)


def _layers(lines: Iterable[Lines], name: str) -> list[float]:
    """The layers that have a point in a view, or none if they are too many for ticks."""
    layers = sorted({point.x for by_name in lines for point in by_name.get(name, ())})
    return layers if len(layers) <= MAX_TICKS else []


def _series(variant: str, points: Sequence[Point]) -> Series:
    x, low, middle, high = (list(column) for column in zip(*points, strict=True))
    band = (low, high) if low != middle or high != middle else ((), ())
    return Series(variant, variant, x, middle, *band)


def _condition_numbers(findings: Findings) -> Lines:
    """The lowest, the median and the highest over the heads, before and after renormalising."""
    matrices = [(c.location, c) for c in findings.matrices]
    before = _by_layer((at.label, at.layer, c.condition_numbers, 0.0) for at, c in matrices)
    after = _by_layer(
        (f"{at.label}, renormalised", at.layer, c.renormalised_condition_numbers, 0.0) for at, c in matrices
    )
    return {**before, **after}


def _vectors(findings: Findings) -> Lines:
    """The median and the middle 90 % of the entries."""
    return _by_layer((v.location.label, v.location.layer, v.values, 0.05) for v in findings.vectors)


def _entropies(findings: Findings) -> Lines:
    """The lowest, the median and the highest over the heads."""
    return _by_layer((e.label, e.layer, e.heads / e.uniform, 0.0) for e in findings.entropies if e.uniform)


def _by_layer(values: Iterable[tuple[str, int, Tensor, float]]) -> Lines:
    """(label, layer, numbers, share outside of the band at each end) -> points, where all are finite."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for label, layer, numbers, share in values:
        if len(numbers) and numbers.isfinite().all():
            quantiles = (numbers.quantile(q).item() for q in (share, 0.5, 1 - share))
            lines[label].append(Point(layer, *quantiles))
    return lines


def _eigenvalues(findings: Findings) -> Lines:
    return {
        e.location.label: [Point(i, value, value, value) for i, value in enumerate(e.eigenvalues.tolist(), 1)]
        for e in findings.embeddings
        if e.eigenvalues.isfinite().all()
    }


def _quantiles(values: Callable[[EmbeddingTable], Tensor]) -> Callable[[Findings], Lines]:
    """Make a function that represents a distribution by its quantiles."""

    def lines(findings: Findings) -> Lines:
        shares = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
        tables = {e.location.label: values(e)[: 1 << 24].quantile(shares) for e in findings.embeddings}
        return {
            label: [Point(x, y, y, y) for x, y in zip(shares.tolist(), numbers.tolist(), strict=True)]
            for label, numbers in tables.items()
        }

    return lines


MODEL_PLOTS = (
    ModelPlot(
        "condition-numbers",
        "Condition numbers",
        "layer",
        "condition number",
        True,
        _condition_numbers,
        "Largest over smallest singular value; line: median over the heads, band: all heads; a layer with an "
        "infinite number has no point. Renormalised: every vector was given unit norm first (nGPT, Figures 5 "
        "and 10).",
    ),
    ModelPlot(
        "factors",
        "Eigen learning rates, scalings, gates and norm scales",
        "layer",
        "value",
        False,
        _vectors,
        "As they take effect; line: median over the entries, band: the middle 90 % (nGPT, Figures 6 and 14).",
    ),
    ModelPlot(
        "attention-entropy",
        "Attention entropy",
        "layer",
        "entropy / uniform",
        False,
        _entropies,
        "On validation examples, over the entropy of uniform attention; line: median over the heads, band: "
        "all heads.",
    ),
    ModelPlot(
        "eigenvalues",
        "Eigenvalues of the embeddings",
        "rank",
        "eigenvalue / median",
        True,
        _eigenvalues,
        "Of the covariance, over the median eigenvalue (nGPT, Figure 4).",
    ),
    ModelPlot(
        "embedding-norms",
        "Norms of the embeddings",
        "share of the vectors",
        "norm",
        False,
        _quantiles(lambda e: e.norms),
        "The vectors in increasing order (nGPT, Figure 4).",
    ),
    ModelPlot(
        "dot-products",
        "Dot products of the embeddings",
        "share of the pairs",
        "dot product",
        False,
        _quantiles(lambda e: e.dot_products),
        "Of pairs of different vectors, in increasing order (nGPT, Figure 4).",
    ),
)
"""All kinds of plots in the order of the report."""
