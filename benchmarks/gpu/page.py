"""The page of a machine: what was measured, as tables, ratios, and a line for each cell that failed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu.cells import ALL, CELLS, Cell, Generation, Training, Update
from benchmarks.gpu.records import Record
from benchmarks.harness import table

TESTS = "tests"
"""The key of the device's tests among the records."""

AIMS = (
    "nGPT / GPT <= 1.08; Amos / AdamW <= .78 with momentum, <= .48 without; WeSaR / without <= 1.003; "
    "MFU >= 55 % at 0.5B"
)


def page(machine: Mapping[str, Any], records: Mapping[str, Record], command: str) -> str:
    """The page in Markdown."""
    done = {key: r.figures for key, r in records.items() if key in CELLS and not r.error}
    missing = [key for key in CELLS if key not in records]
    tests = records.get(TESTS)
    parts = [
        "# On a GPU",
        f"`{command}`",
        ", ".join(f"{key} {value}" for key, value in machine.items()),
        "Every cell is measured in a process of its own: medians of steps after three that do not count. "
        "Training is under bf16 autocast, generation with bf16 weights. MFU is without recomputation; "
        f"attention counts whole, not its causal half. Aims: {AIMS}.",
        f"Tests of the device: {_tests(tests)}.",
    ]
    for title, kind, row in TABLES:
        rows = [row(cell, done[cell.key]) for cell in ALL if isinstance(cell, kind) and cell.key in done]
        if rows:
            parts += [f"## {title}", table(rows)]
    if ratios := [{"time ratio": what, "measured": f"{value:.3f}"} for what, value in ratios_of(done)]:
        parts += ["## Ratios", table(ratios)]
    if failures := [
        {"cell": key, "seconds": r.seconds, "error": r.error.replace("|", "\\|")}
        for key, r in records.items()
        if r.error
    ]:
        parts += ["## Failed", table(failures)]
    if missing:
        parts += ["## Not measured", "\n".join(f"* {key}" for key in missing)]
    return "\n\n".join(parts) + "\n"


def _tests(record: Record | None) -> str:
    if record is None:
        return "not run"
    return record.error or f"{record.figures['passed']} passed"


def _time(figures: Mapping[str, Any]) -> dict[str, str]:
    return {
        "ms": f"{1e3 * statistics.median(figures['seconds']):.2f}",
        "first, s": f"{figures['first_s']:.1f}",
        "peak GiB": "" if figures["peak_bytes"] is None else f"{figures['peak_bytes'] / 2**30:.2f}",
    }


def _training_row(cell: Training, figures: Mapping[str, Any]) -> dict[str, str]:
    return {
        "model": f"{cell.model} ({cell.package})",
        "context": str(cell.context),
        "batch": str(figures["batch"]),
        "compile": cell.compile,
        "recompute": cell.recompute,
        **_time(figures),
        "tokens/s": f"{figures['tokens_per_s']:.0f}",
        "MFU": "" if figures["mfu"] is None else f"{figures['mfu']:.1%}",
    }


def _update_row(cell: Update, figures: Mapping[str, Any]) -> dict[str, str]:
    settings = ", ".join(f"{key} {value}" for key, value in cell.settings.items())
    return {
        "optimizer": f"{cell.optimizer} {settings}".strip(),
        "tensors of": cell.model,
        **_time(figures),
        "state bytes per parameter": f"{figures['state_bytes'] / figures['parameters']:.3g}",
    }


def _generation_row(cell: Generation, figures: Mapping[str, Any]) -> dict[str, str]:
    return {
        "model": f"{cell.model} ({cell.package})",
        "prompts": str(cell.batch),
        "mode": cell.mode,
        **_time(figures),
        "tokens/s": f"{figures['tokens_per_s']:.1f}",
    }


TABLES: tuple[tuple[str, type, Callable[[Any, Mapping[str, Any]], dict[str, str]]], ...] = (
    ("Training step", Training, _training_row),
    ("Optimizer step", Update, _update_row),
    ("Generation", Generation, _generation_row),
)


def ratios_of(done: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """What is claimed, of the cells whose both sides are there."""
    for what, of, counterpart in CLAIMS:
        for cell in ALL:
            other = counterpart(cell) if isinstance(cell, of) else None
            if other is not None and cell.key in done and other.key in done:
                ours, theirs = (statistics.median(done[c.key]["seconds"]) for c in (cell, other))
                yield f"{what}: {cell.key}", ours / theirs


def _gpt(cell: Any) -> Cell | None:
    return replace(cell, model=cell.model.removeprefix("n")) if cell.model.startswith("ngpt") else None


def _without_gates(cell: Any) -> Cell | None:
    return replace(cell, model=f"small{cell.model[5:]}") if cell.model.startswith("wesar") else None


def _kept(cell: Any) -> Cell | None:
    return None if cell.recompute == "none" else replace(cell, recompute="none")


def _transformers(cell: Any) -> Cell | None:
    comparable = cell.package == "zoo" and cell.model == "gpt-0.5b"
    return replace(cell, package="transformers") if comparable else None


def _eager(cell: Any) -> Cell | None:
    return None if cell.mode == "eager" or cell.package != "zoo" else replace(cell, mode="eager")


def _adamw(cell: Any) -> Cell | None:
    return None if cell.optimizer == "adamw" else replace(cell, optimizer="adamw", settings={})


CLAIMS: tuple[tuple[str, type, Callable[[Any], Cell | None]], ...] = (
    ("nGPT / GPT", Training, _gpt),
    ("zoo / transformers", Training, _transformers),
    ("WeSaR / without gates", Training, _without_gates),
    ("recomputed / kept", Training, _kept),
    ("Amos / fused AdamW", Update, _adamw),
    ("zoo / transformers", Generation, _transformers),
    ("compiled or captured / eager", Generation, _eager),
)
"""What is divided, for which cells, and by which other cell."""
