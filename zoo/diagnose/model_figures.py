"""What was found in a model, drawn as in the papers: one function for each figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from zoo.diagnose.conditioning import Conditioning, head_axis
from zoo.diagnose.embeddings import Embeddings
from zoo.diagnose.entropy import AttentionEntropy
from zoo.diagnose.findings import Scale
from zoo.diagnose.section import Curve, by_layer, draw_curves, draw_line, legend, look, panels
from zoo.diagnose.summary import finite
from zoo.diagnose.vectors import Vector
from zoo.utils.plotting import INK, SOFT, colour, dress

BINS = 61
"""Of a histogram at most."""


def draw_embeddings(found: Sequence[Embeddings]) -> Figure:
    """A row per table: norms, eigenvalues, dot products."""
    figure, every = panels(3 * len(found), columns=3)
    for i, e in enumerate(found):
        norms, eigenvalues, dots = every[3 * i : 3 * i + 3]
        dress(norms, e.place.label, "norm", "vectors")
        norms.hist(**_histogram(e.norms, colour(i)))
        dress(eigenvalues, "Covariance", "rank", "eigenvalue / median")
        eigenvalues.plot(range(1, len(e.eigenvalues) + 1), e.eigenvalues.numpy(), color=colour(i), lw=1.6)
        if e.eigenvalues.isfinite().all() and (e.eigenvalues > 0).any():
            eigenvalues.set_yscale("log")
        dress(dots, "Pairs", "dot product", "pairs")
        dots.hist(**_histogram(e.dots, colour(i)))
    return figure


def draw_condition_numbers(found: Sequence[Conditioning]) -> Figure:
    """Attention matrices on the left, all others on the right; by layer."""
    groups = {
        "Attention matrices": [c for c in found if head_axis(c.place.spec) is not None],
        "Other matrices": [c for c in found if head_axis(c.place.spec) is None],
    }
    groups = {title: group for title, group in groups.items() if group}
    order = list(dict.fromkeys(c.place.label for c in found))
    figure, every = panels(len(groups), height=4)
    for axes, (title, group) in zip(every, groups.items(), strict=True):
        solid = _curves((c.place.label, c.place.layer, c.numbers.quantile(0.5).item()) for c in group)
        dotted = _curves(
            (c.place.label, c.place.layer, c.renormalised_numbers.quantile(0.5).item()) for c in group
        )
        draw_curves(axes, title, "layer", "condition number", solid, order, log=True)
        for label, curve in dotted.items():
            draw_line(axes, curve, True, color=look(order.index(label))["color"], ls=":")
        by_layer(axes)
    legend(figure, every)
    return figure


def draw_spectra(found: Sequence[Conditioning], layers: Sequence[int]) -> Figure:
    """A row per layer: norms of vectors, singular values."""
    order = list(dict.fromkeys(c.place.label for c in found))
    figure, every = panels(2 * len(layers))
    for i, layer in enumerate(layers):
        norms, singular = every[2 * i : 2 * i + 2]
        dress(norms, f"Layer {layer}", "norm of a vector", "density")
        dress(singular, f"Layer {layer}, all heads", "singular value", "density")
        for c in found:
            if c.place.layer == layer and head_axis(c.place.spec) is not None:
                paint = look(order.index(c.place.label))["color"]
                outline = {"histtype": "step", "density": True, "lw": 1.5, "label": c.place.label}
                norms.hist(**_histogram(c.norms, paint) | outline)
                singular.hist(**_histogram(c.singular, paint) | outline)
    legend(figure, every)
    return figure


def draw_vectors(found: Sequence[Vector]) -> Figure:
    """A panel per label, the layers' means and spreads or one histogram; and one for all single numbers."""
    numbers = [v for v in found if v.values.numel() == 1]
    by_label: dict[str, list[Vector]] = defaultdict(list)
    for v in found:
        if v.values.numel() > 1:
            by_label[v.place.label].append(v)
    columns, height = (3, 2.7) if by_label else (1, 5)
    figure, every = panels(len(by_label) + bool(numbers), columns, height)
    for i, (axes, (label, group)) in enumerate(zip(every, by_label.items(), strict=False)):
        if len(group) == 1:
            dress(axes, label, "value", "entries")
            axes.hist(**_histogram(group[0].values, colour(i)))
        else:
            _draw_spread(axes, label, group, colour(i))
    if numbers:
        curves = _curves((v.place.label, v.place.layer, v.values.item()) for v in numbers)
        log = all(v.values.item() > 0 for v in numbers)
        draw_curves(every[-1], "Single numbers", "layer", "value", curves, list(curves), log)
        by_layer(every[-1])
        legend(figure, every[-1:])
    return figure


def _draw_spread(axes: Axes, label: str, group: Sequence[Vector], paint: str) -> None:
    """The entries' mean by layer, their middle half and their middle 90 %."""
    dress(axes, label, "layer", "value")
    layers = [v.place.layer for v in group]
    for share, shade in ((0.05, 0.15), (0.25, 0.3)):
        low, high = ([v.values.quantile(q).item() for v in group] for q in (share, 1 - share))
        axes.fill_between(layers, low, high, color=paint, alpha=shade, lw=0)
    axes.plot(layers, [v.values.mean().item() for v in group], color=paint, lw=1.8, marker="o", ms=3)
    by_layer(axes)


def draw_scales(found: Sequence[Scale]) -> Figure:
    """M2 / eta over the layer, a line per label."""
    curves = _curves((s.place.label, s.place.layer, s.m2 / s.eta) for s in found)
    figure, (axes,) = panels(1, height=5)
    draw_curves(axes, "M2 / eta", "layer", "M2 / eta", curves, list(curves), log=True)
    axes.axhline(1, color=SOFT, lw=1, ls=":")
    by_layer(axes)
    legend(figure, [axes])
    return figure


def draw_entropy(found: Sequence[AttentionEntropy]) -> Figure:
    """A map of layers and heads for every kind of attention."""
    by_label: dict[str, list[AttentionEntropy]] = defaultdict(list)
    for e in found:
        by_label[e.label].append(e)
    figure, every = panels(len(by_label), height=3.6)
    for axes, (label, group) in zip(every, by_label.items(), strict=True):
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
    return figure


def _curves(rows: Iterable[tuple[str, int, float]]) -> dict[str, Curve]:
    """Of (label, layer, value): a curve over the layers for each label; what is infinite is left out."""
    curves: dict[str, tuple[list[float], list[float | None]]] = defaultdict(lambda: ([], []))
    for label, layer, value in rows:
        layers, values = curves[label]
        layers.append(layer)
        values.append(finite(value))
    return dict(curves)


def _histogram(values: Tensor, paint: str) -> dict[str, Any]:
    """Arguments of `hist`; values that are almost alike, as on the sphere, get bins of a sensible width."""
    low, high = values.min().item(), values.max().item()
    bins = min(BINS, 8 + 2 * round(values.numel() ** 0.5) + 1)
    least = 1e-3 * max(abs(low), abs(high), 1e-12)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - bins / 2 * least, middle + bins / 2 * least
    return {"x": values.flatten().numpy(), "bins": bins, "range": (low, high), "color": paint}
