"""Sweeps that were never trained: run folders with the losses that a test wants."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.ablate.manifest import Manifest, Run, Tuning, Variant, write_manifest
from zoo.run.config import dump_config, load_config

STEPS = 100
EVERY = 10
TOKENS = 64
"""Of a step."""

FIELDS = {
    "model": {"type": "gpt", "vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_mlp": 32},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "data": {"corpus": "python-docs", "context": 16},
    "train": {"steps": STEPS, "batch_size": 4},
}


def curve(final: float, start: float = 6.0) -> list[float]:
    """Validation losses from `start` to `final`, falling along a straight line."""
    points = STEPS // EVERY
    return [start + (final - start) * i / points for i in range(points + 1)]


def slug(variant: str) -> str:
    """A variant's name as that of a folder."""
    return re.sub(r"\W", "", variant)


def write_run(
    folder: Path,
    losses: Sequence[float],
    *,
    seed: int = 0,
    step_seconds: float = 0.5,
    overrides: Sequence[str] = (),
    size: Mapping[str, int] | None = None,
    environment: Mapping[str, Any] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a run folder without checkpoints.

    Args:
        folder: to make.
        losses: one per validation: before the first step, and every 10 steps.
        seed: of the run.
        step_seconds: time of a step.
        overrides: of the configuration.
        size: parameters and bytes of the optimizer.
        environment: of its only session.
        more: further lines of metrics.jsonl.
    """
    folder.mkdir(parents=True)
    config = load_config({"name": folder.name, "seed": seed, **FIELDS}, overrides)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    sizes = {"parameters": 1000, "optimizer_bytes": 8000, **(size or {})}
    lines: list[Mapping[str, Any]] = [{"kind": "size", "step": 1, **sizes}]
    for i, loss in enumerate(losses):
        place = {"step": i * EVERY, "tokens": i * EVERY * TOKENS, "cross_entropy": loss}
        if i:
            timing = {
                "seconds": i * EVERY * step_seconds,
                "tokens_per_second": TOKENS / step_seconds,
                "peak_memory": 2**30,
            }
            lines.append({"kind": "train", **place, "loss": loss, "timing": timing})
        lines.append({"kind": "validation", **place})
    text = "".join(json.dumps(line) + "\n" for line in [*lines, *more])
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps([environment or {}]), encoding="utf-8")
    return folder


def write_sweep(
    folder: Path,
    finals: Mapping[str, Sequence[float]],
    *,
    tune: Mapping[str, Mapping[float, float]] | None = None,
    border: Sequence[str] = (),
    status: Mapping[tuple[str, int], str] | None = None,
    **run: Any,
) -> Path:
    """Write a sweep; its baseline is the first variant.

    Args:
        folder: to make.
        finals: by variant the final loss of seed 0, 1, ...
        tune: by variant and learning rate the final loss of seed 0 in a tuning of its own.
        border: variants whose rate was the lowest or highest of the grid.
        status: other than finished, by variant and seed.
        **run: see `write_run`.
    """
    runs = []
    for variant, losses in finals.items():
        for seed, final in enumerate(losses):
            state = (status or {}).get((variant, seed), "finished")
            name = f"{slug(variant)}-{seed}"
            if state != "waiting":
                write_run(folder / "runs" / name, curve(final), seed=seed, **run)
            fields = {"id": name, "variant": variant, "seed": seed, "folder": f"runs/{name}", "status": state}
            error = "step 7: the loss is nan" if state == "failed" else None
            runs.append(Run.model_validate({**fields, "phases": ("final",), "error": error}))
        for lr, final in (tune or {}).get(variant, {}).items():
            name = f"{slug(variant)}-lr{lr:g}"
            write_run(folder / "runs" / name, curve(final), overrides=[f"optimizer.lr={lr}"], **run)
            fields = {"id": name, "variant": variant, "seed": 0, "folder": f"runs/{name}"}
            fields |= {"phases": ("tune",), "tuned": {"optimizer.lr": lr}, "status": "finished"}
            runs.append(Run.model_validate(fields))
    variants = [
        Variant(
            name=name,
            settings={"optimizer": name},
            tuned={} if tune is None else {"optimizer.lr": min(tune[name], key=lambda lr: tune[name][lr])},
            tuned_on_border=("optimizer.lr",) if name in border else (),
        )
        for name in finals
    ]
    manifest = Manifest(
        name=folder.name,
        baseline=next(iter(finals)),
        config_hash="0",
        variants=tuple(variants),
        tune=Tuning(keys=("optimizer.lr",), rule="lowest final loss of seed 0") if tune else None,
        runs=tuple(runs),
    )
    write_manifest(folder, manifest)
    return folder
