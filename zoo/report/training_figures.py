"""Curves of every variable over the steps of a run, as in the papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zoo.diagnose.history import Curve, RunHistory, read_history
from zoo.diagnose.quantities import DIAGNOSED, QUANTITIES
from zoo.report.panels import draw_curves, draw_legend, draw_line, panels
from zoo.report.section import Image
from zoo.utils.plotting import SOFT, to_png

MAX_LAYERS = 4
"""Number of layers with a panel of their own."""

GUIDES = {
    "m2_over_eta": " Dotted: 1.",
    "ratio": " Dotted: the ratio of independent gradients, averaged over as many steps; of a curve at or "
    "below it we only know that the true ratio is smaller.",
}
"""The explanation of the dotted lines."""


def training_images(run: Path) -> list[Image]:
    """Draw every quantity that a run measured, with a panel for some layers from the first to the last.

    Args:
        run: a run folder.

    Raises:
        ZooError: `run` is not a run folder.
    """
    return list(_draw(read_history(run)))


def _draw(history: RunHistory) -> Iterator[Image]:
    layers = _choose_layers(history.layers)
    for quantity, (title, symbol, note) in QUANTITIES.items():
        measured = history.diagnosis if quantity in DIAGNOSED else history.monitor
        curves = {layer: history.in_layer(measured.get(quantity, {}), layer) for layer in layers}
        values = (value for panel in curves.values() for _, of_curve in panel.values() for value in of_curve)
        if not any(value is not None and value > 0 for value in values):  # nothing for a logarithmic axis
            continue
        order = list(dict.fromkeys(name for panel in curves.values() for name in panel))
        figure, every = panels(len(layers), columns=3 if len(layers) > 4 else 2, height=3.0)
        for axes, (layer, panel) in zip(every, curves.items(), strict=True):
            name = f"layer {layer}" if layer else "outside of the layers"
            draw_curves(axes, name, "step", symbol, panel, order, log=True)
            for guide in _guides(quantity, history.floor):
                draw_line(axes, guide, True, color=SOFT, lw=1, ls=":", zorder=1)
        limits = [limit for axes in every if axes.lines for limit in axes.get_ylim()]
        for axes in every:
            axes.set_ylim(min(limits), max(limits))
        draw_legend(figure, every)
        yield Image(quantity.replace("_", "-"), title, to_png(figure), note + GUIDES.get(quantity, ""))


def _guides(quantity: str, floor: Curve) -> Iterator[Curve]:
    """The dotted lines of a panel."""
    steps, values = floor
    if quantity == "ratio":
        yield floor
    elif quantity == "m2_over_eta":
        yield steps, [1.0] * len(values)


def _choose_layers(layers: Sequence[int]) -> list[int]:
    """Layer 0 (everything outside of the layers), and at most `MAX_LAYERS` more, evenly spaced."""
    inside = [layer for layer in layers if layer]
    count = min(MAX_LAYERS, len(inside))
    chosen = [inside[round(i * (len(inside) - 1) / max(count - 1, 1))] for i in range(count)]
    return [0, *chosen] if 0 in layers else chosen
