"""Pictures of a model's measurements, drawn as in the papers: a function for each picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from zoo.diagnose.conditioning import MatrixSpectrum
from zoo.diagnose.embeddings import EmbeddingTable
from zoo.diagnose.entropy import AttentionEntropy
from zoo.diagnose.findings import Findings, RelativeScale
from zoo.diagnose.history import Curve
from zoo.diagnose.summary import finite_or_none
from zoo.diagnose.vectors import ScaleVector
from zoo.report.panels import draw_curves, draw_legend, draw_line, integer_ticks, panels
from zoo.report.section import Image
from zoo.spec import Role
from zoo.utils.plotting import INK, SOFT, colour, dress, to_png
from zoo.utils.untyped import Kwargs

MeasuredT = TypeVar("MeasuredT", MatrixSpectrum, ScaleVector, RelativeScale)

MAX_BINS = 61
"""Number of bins of a histogram."""

PAPER_LAYERS = (3, 4)
"""The layers whose attention matrices the nGPT paper shows in detail (Figures 11 and 12)."""

VECTOR_TITLES = {
    Role.SCALING: ("scalings", "Eigen learning rates and scalings"),
    Role.GATE: ("gates", "Gates"),
    Role.NORM_SCALE: ("norm-scales", "Scales of normalisation layers"),
}
"""For each role of vectors the key and the title of their picture."""


def model_images(findings: Findings) -> list[Image]:
    """Draw all measurements of a model."""
    return list(_draw_all(findings))


def _draw_all(findings: Findings) -> Iterator[Image]:
    if findings.embeddings:
        yield _embeddings(findings.embeddings)
    if findings.matrices:
        yield _condition_numbers(findings.matrices)
    if attention := [c for c in findings.matrices if c.has_heads]:
        yield _spectra(attention)
    for role in VECTOR_TITLES:
        if vectors := [v for v in findings.vectors if v.location.spec.role is role]:
            yield _vectors(role, vectors)
            if role is Role.SCALING:
                yield _distributions(vectors)
    if findings.scales:
        yield _scales(findings.scales)
    if findings.entropies:
        yield _entropies(findings.entropies)


def _embeddings(tables: Sequence[EmbeddingTable]) -> Image:
    """A row of panels per table: norms, eigenvalues and dot products."""
    figure, every = panels(3 * len(tables), columns=3)
    for i, table in enumerate(tables):
        norms, eigenvalues, dots = every[3 * i : 3 * i + 3]
        dress(norms, table.location.label, "norm", "vectors")
        norms.hist(**_histogram(table.norms, colour(i)))
        dress(eigenvalues, "Covariance", "rank", "eigenvalue / median")
        ranks = range(1, len(table.eigenvalues) + 1)
        eigenvalues.plot(ranks, table.eigenvalues.numpy(), color=colour(i), lw=1.6)
        if table.eigenvalues.isfinite().all() and (table.eigenvalues > 0).any():
            eigenvalues.set_yscale("log")
        dress(dots, "Pairs", "dot product", "pairs")
        dots.hist(**_histogram(table.dot_products, colour(i)))
    counts = {table.sample_size for table in tables if table.sample_size < len(table.norms)}
    sample = f", here of {counts.pop():,} vectors drawn at random" if counts else ""
    return Image(
        "embeddings",
        "Embeddings",
        to_png(figure),
        "Norms of the vectors; eigenvalues of their covariance over the median eigenvalue, in decreasing "
        f"order; dot products of all pairs of different vectors{sample} (nGPT, Figure 4). Steep eigenvalues "
        "mean an ill-conditioned table; dot products far from 0 mean clusters.",
    )


def _condition_numbers(matrices: Sequence[MatrixSpectrum]) -> Image:
    """Condition numbers by layer: attention matrices on the left, all others on the right."""
    groups = {
        "Attention matrices": [c for c in matrices if c.has_heads],
        "Other matrices": [c for c in matrices if not c.has_heads],
    }
    groups = {title: group for title, group in groups.items() if group}
    order = list(dict.fromkeys(c.location.label for c in matrices))
    figure, every = panels(len(groups), height=4)
    for axes, (title, group) in zip(every, groups.items(), strict=True):
        medians = _curves(group, lambda c: c.condition_numbers.quantile(0.5).item())
        renormalised = _curves(group, lambda c: c.renormalised_condition_numbers.quantile(0.5).item())
        draw_curves(axes, title, "layer", "condition number", medians, order, log=True)
        for label, curve in renormalised.items():
            draw_line(axes, curve, True, color=colour(order.index(label)), ls=":")
        integer_ticks(axes)
    draw_legend(figure, every)
    return Image(
        "condition-numbers",
        "Condition numbers",
        to_png(figure),
        "Largest over smallest singular value of each matrix; of a matrix with heads, the median over the "
        "heads. Dotted: after every vector as long as the residual stream was given unit norm (nGPT, Figures "
        "5 and 10). Large values mean that a matrix has nearly lost rank. Infinite ones are left out.",
    )


def _spectra(matrices: Sequence[MatrixSpectrum]) -> Image:
    """A row of panels per layer: norms of vectors, and singular values."""
    layers = sorted({c.location.layer for c in matrices})
    layers = list(PAPER_LAYERS) if set(PAPER_LAYERS) <= set(layers) else layers[-2:]
    order = list(dict.fromkeys(c.location.label for c in matrices))
    figure, every = panels(2 * len(layers))
    for i, layer in enumerate(layers):
        norms, singular = every[2 * i : 2 * i + 2]
        dress(norms, f"Layer {layer}", "norm of a vector", "density")
        dress(singular, f"Layer {layer}, all heads", "singular value", "density")
        for c in matrices:
            if c.location.layer == layer:
                outline = {"histtype": "step", "density": True, "lw": 1.5, "label": c.location.label}
                line_colour = colour(order.index(c.location.label))
                norms.hist(**_histogram(c.vector_norms, line_colour) | outline)
                singular.hist(**_histogram(c.singular_values, line_colour) | outline)
    draw_legend(figure, every)
    return Image(
        "spectra",
        f"Attention matrices of layer {' and '.join(map(str, layers))}",
        to_png(figure),
        "Left: norms of the vectors of the whole matrices. Right: singular values of all heads (nGPT, "
        "Figures 11 and 12). A mass at 0 on the right means lost directions.",
    )


def _vectors(role: Role, vectors: Sequence[ScaleVector]) -> Image:
    """A panel per label with the layers' means and spreads or one histogram; one for all single numbers."""
    numbers = [v for v in vectors if v.values.numel() == 1]
    by_label: dict[str, list[ScaleVector]] = defaultdict(list)
    for v in vectors:
        if v.values.numel() > 1:
            by_label[v.location.label].append(v)
    columns, height = (3, 2.7) if by_label else (1, 5)
    figure, every = panels(len(by_label) + bool(numbers), columns, height)
    for i, (axes, (label, group)) in enumerate(zip(every, by_label.items(), strict=False)):
        if len(group) == 1:
            dress(axes, label, "value", "entries")
            axes.hist(**_histogram(group[0].values, colour(i)))
        else:
            _draw_spread(axes, label, group, colour(i))
    if numbers:
        curves = _curves(numbers, lambda v: v.values.item())
        log = all(v.values.item() > 0 for v in numbers)
        draw_curves(every[-1], "Single numbers", "layer", "value", curves, list(curves), log)
        integer_ticks(every[-1])
        draw_legend(figure, every[-1:])
    key, title = VECTOR_TITLES[role]
    return Image(
        key,
        title,
        to_png(figure),
        "Mean over the entries, layer by layer; the middle half and the middle 90 % of the entries are "
        "shaded. A vector that exists only once has a histogram (nGPT, Figure 6). Scalings are shown "
        "as they take effect: times s_init / s_scale, eigen learning rates as absolute values.",
    )


def _distributions(vectors: Sequence[ScaleVector]) -> Image:
    """A histogram per label of the entries of all layers together (nGPT, Figure 14)."""
    pooled: dict[str, list[Tensor]] = defaultdict(list)
    for v in vectors:
        pooled[v.location.label].append(v.values)
    figure, every = panels(len(pooled), 3, 2.7)
    for i, (axes, (label, values)) in enumerate(zip(every, pooled.items(), strict=False)):
        dress(axes, label, "value", "entries")
        axes.hist(**_histogram(torch.cat(values), colour(i)))
    return Image(
        "scaling-distributions",
        "Distributions of eigen learning rates and scalings",
        to_png(figure),
        "The entries of all layers together, as they take effect (nGPT, Figure 14).",
    )


def _draw_spread(axes: Axes, label: str, group: Sequence[ScaleVector], line_colour: str) -> None:
    """Draw the mean of the entries by layer, their middle half and their middle 90 %."""
    dress(axes, label, "layer", "value")
    layers = [v.location.layer for v in group]
    for share, opacity in ((0.05, 0.15), (0.25, 0.3)):
        low, high = ([v.values.quantile(q).item() for v in group] for q in (share, 1 - share))
        axes.fill_between(layers, low, high, color=line_colour, alpha=opacity, lw=0)
    axes.plot(layers, [v.values.mean().item() for v in group], color=line_colour, lw=1.8, marker="o", ms=3)
    integer_ticks(axes)


def _scales(scales: Sequence[RelativeScale]) -> Image:
    """M2 / eta over the layers, a line per label."""
    curves = _curves(scales, lambda s: s.m2 / s.eta)
    figure, (axes,) = panels(1, height=5)
    draw_curves(axes, "M2 / eta", "layer", "M2 / eta", curves, list(curves), log=True)
    axes.axhline(1, color=SOFT, lw=1, ls=":")
    integer_ticks(axes)
    draw_legend(figure, [axes])
    return Image(
        "scale-over-eta",
        "Scale of every variable over eta",
        to_png(figure),
        "M2 = sqrt(mean(theta^2)) of every trained variable over Amos' eta; layer 0 is what lies outside of "
        "the layers. Training with Amos should bring the quotient close to 1 (Amos, section 5.2 and "
        "Figure 3).",
    )


def _entropies(entropies: Sequence[AttentionEntropy]) -> Image:
    """A map of layers and heads for every kind of attention."""
    by_label: dict[str, list[AttentionEntropy]] = defaultdict(list)
    for e in entropies:
        by_label[e.label].append(e)
    figure, every = panels(len(by_label), height=3.6)
    for axes, (label, group) in zip(every, by_label.items(), strict=True):
        _draw_map(figure, axes, label, group)
    return Image(
        "attention-entropy",
        "Attention entropy",
        to_png(figure),
        "Entropy of each head's attention on the examples, over the entropy of a head that attends equally "
        "to all tokens it can see: 1 is uniform attention, 0 is attention to a single token.",
    )


def _draw_map(figure: Figure, axes: Axes, label: str, group: Sequence[AttentionEntropy]) -> None:
    relative = torch.stack([e.heads / e.uniform if e.uniform else e.heads for e in group])
    dress(axes, label, "layer", "head")
    axes.grid(visible=False)
    image = axes.imshow(relative.T.numpy(), vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="lower")
    every_nth = -(-len(group) // 16)
    axes.set_xticks(range(0, len(group), every_nth), [str(e.layer) for e in group][::every_nth])
    axes.set_yticks(range(0, relative.shape[1], -(-relative.shape[1] // 16)))
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("entropy / uniform", color=INK)
    bar.outline.set_visible(False)


def _curves(measured: Iterable[MeasuredT], value: Callable[[MeasuredT], float]) -> dict[str, Curve]:
    """A curve over the layers for each label; infinite values become None."""
    curves: dict[str, tuple[list[float], list[float | None]]] = defaultdict(lambda: ([], []))
    for item in measured:
        layers, values = curves[item.location.label]
        layers.append(item.location.layer)
        values.append(finite_or_none(value(item)))
    return dict(curves)


def _histogram(values: Tensor, bar_colour: str) -> Kwargs:
    """Arguments of `Axes.hist`; nearly equal values, as on the sphere, get bins of a sensible width."""
    low, high = values.min().item(), values.max().item()
    bins = min(MAX_BINS, 8 + 2 * round(values.numel() ** 0.5) + 1)
    least = 1e-3 * max(abs(low), abs(high), 1e-12)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - bins / 2 * least, middle + bins / 2 * least
    return {"x": values.flatten().numpy(), "bins": bins, "range": (low, high), "color": bar_colour}
