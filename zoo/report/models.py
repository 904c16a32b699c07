"""The trained models, layer by layer: condition numbers, scalings, embeddings, attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.ablate.results import Results
from zoo.checkpoint.model import load_model
from zoo.diagnose.embeddings import Embeddings
from zoo.diagnose.examples import validation_examples
from zoo.diagnose.findings import Findings, look
from zoo.report.plot import Plot, Series, View

QUANTILES = 101
"""Of a distribution, which is drawn as a line through them."""

MARKS = 24
"""That there is room for on an axis."""

Point = tuple[float, float, float, float]
"""Where, and the low end, the middle and the high end of what is there."""

Lines = Mapping[str, Sequence[Point]]
"""By label."""


@dataclass(frozen=True)
class Kind:
    """What is drawn of the models.

    Attributes:
        key, title, note: of the plot.
        x: title of the axis.
        y: likewise.
        log: whether the vertical axis is logarithmic.
        lines: what to draw of one model.
    """

    key: str
    title: str
    note: str
    x: str
    y: str
    log: bool
    lines: Callable[[Findings], Lines]


def models(results: Results) -> Iterator[Plot]:
    """The plots that there is something for; loads a checkpoint of every variant that has one."""
    found = {}
    for variant in results.manifest.variants:
        for _, run in results.begun(variant.name)[:1]:
            if checkpoint := run.folder.checkpoint():
                model = load_model(checkpoint.path).eval()
                found[variant.name] = look(model, validation_examples(model, run.folder.path)[0])
    for kind in KINDS:
        drawn = {variant: kind.lines(findings) for variant, findings in found.items()}
        labels = dict.fromkeys(label for lines in drawn.values() for label in lines)
        views = [
            View(
                label,
                kind.x,
                kind.y,
                [_series(v, lines[label]) for v, lines in drawn.items() if label in lines],
                log_y=kind.log,
                ticks=_layers(drawn.values(), label) if kind.x == "layer" else (),
            )
            for label in labels
        ]
        if views:
            note = f"{kind.note} Last checkpoint of the first seed of every variant."
            yield Plot(kind.key, kind.title, views, note)


def _layers(drawn: Iterable[Lines], label: str) -> list[float]:
    """The layers that have something, if there is room for a mark at each."""
    found = sorted({point[0] for lines in drawn for point in lines.get(label, ())})
    return found if len(found) <= MARKS else []


def _series(variant: str, points: Sequence[Point]) -> Series:
    x, low, middle, high = (list(column) for column in zip(*points, strict=True))
    spread = (low, high) if low != middle or high != middle else ((), ())
    return Series(variant, variant, x, middle, *spread)


def _conditions(found: Findings) -> Lines:
    """Over the heads: the lowest, the median, the highest; then all again, renormalised."""
    plain = _by_layer((c.place.label, c.place.layer, c.numbers, 0.0) for c in found.matrices)
    after = _by_layer(
        (f"{c.place.label}, renormalised", c.place.layer, c.renormalised_numbers, 0.0) for c in found.matrices
    )
    return {**plain, **after}


def _vectors(found: Findings) -> Lines:
    """Over the entries: the middle 90 %."""
    return _by_layer((v.place.label, v.place.layer, v.values, 0.05) for v in found.vectors)


def _entropies(found: Findings) -> Lines:
    """Over the heads."""
    return _by_layer((e.label, e.layer, e.heads / e.uniform, 0.0) for e in found.entropies if e.uniform)


def _by_layer(rows: Iterable[tuple[str, int, Tensor, float]]) -> Lines:
    """Of (label, layer, numbers, share left out at each end): the median and the ends of what is finite."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for label, layer, numbers, share in rows:
        known = numbers[numbers.isfinite()]
        if len(known):
            low, middle, high = (known.quantile(q).item() for q in (share, 0.5, 1 - share))
            lines[label].append((layer, low, middle, high))
    return lines


def _eigenvalues(found: Findings) -> Lines:
    return {
        e.place.label: [(i, value, value, value) for i, value in enumerate(e.eigenvalues.tolist(), 1)]
        for e in found.embeddings
        if e.eigenvalues.isfinite().all()
    }


def _quantiles(values: Callable[[Embeddings], Tensor]) -> Callable[[Findings], Lines]:
    """A distribution as its quantiles."""

    def lines(found: Findings) -> Lines:
        shares = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
        tables = {e.place.label: values(e)[: 1 << 24].quantile(shares).tolist() for e in found.embeddings}
        return {
            label: [(share, value, value, value) for share, value in zip(shares.tolist(), row, strict=True)]
            for label, row in tables.items()
        }

    return lines


KINDS = (
    Kind(
        "condition-numbers",
        "Condition numbers",
        "Largest over smallest singular value; line: median over the heads, band: all heads. Renormalised: "
        "every vector was given unit norm first (nGPT, Figures 5 and 10).",
        "layer",
        "condition number",
        True,
        _conditions,
    ),
    Kind(
        "factors",
        "Eigen learning rates, scalings, gates and norm scales",
        "As they take effect; line: median over the entries, band: the middle 90 % (nGPT, Figures 6 and 14).",
        "layer",
        "value",
        False,
        _vectors,
    ),
    Kind(
        "attention-entropy",
        "Attention entropy",
        "On validation examples, over that of attention to everything alike; line: median over the heads, "
        "band: all heads.",
        "layer",
        "entropy / uniform",
        False,
        _entropies,
    ),
    Kind(
        "eigenvalues",
        "Eigenvalues of the embeddings",
        "Of the covariance, over the median eigenvalue (nGPT, Figure 4).",
        "rank",
        "eigenvalue / median",
        True,
        _eigenvalues,
    ),
    Kind(
        "embedding-norms",
        "Norms of the embeddings",
        "The vectors in increasing order (nGPT, Figure 4).",
        "share of the vectors",
        "norm",
        False,
        _quantiles(lambda e: e.norms),
    ),
    Kind(
        "dot-products",
        "Dot products of the embeddings",
        "Of pairs of different vectors, in increasing order (nGPT, Figure 4).",
        "share of the pairs",
        "dot product",
        False,
        _quantiles(lambda e: e.dots),
    ),
)
