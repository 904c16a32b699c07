"""A tiny copy of the study: the same questions with one size, short budgets, two seeds and little text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.scale.place import THE_STUDY, Place
from benchmarks.scale.questions import NEW, OLD, SECOND
from zoo.config.yaml import dump_yaml, read_yaml
from zoo.utils.errors import ZooError

SMALL = {"vocab_size": 256, "warmup": 1, "after": 2, "context": 16, "batch_size": 2, "eval_batches": 2}
"""What these keys have wherever they stand in the files of the study."""
BUDGETS = (8 * 32, 16 * 32)
"""In tokens, 32 a step."""
TEXTS = {NEW: "docs/terminal.md", OLD: "docs/packing.md", SECOND: "docs/spikes.md"}


def write_tiny(folder: Path) -> Place:
    """Write the sweep files of a tiny copy, and the texts that it is scored on.

    Args:
        folder: a folder that is not there yet, or empty.

    Raises:
        ZooError: it has files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ZooError(f"{folder}: has files; expected a folder that is new")
    place = Place.within(folder.resolve())
    for parent in (place.sweeps, place.results):
        parent.mkdir(parents=True)
    place.front.write_text("## Install\n", encoding="utf-8")
    for name, text in TEXTS.items():
        place.texts[name].write_bytes((ROOT / text).read_bytes())
    for file in sorted(THE_STUDY.sweeps.glob("*.yaml")):
        fields = read_yaml(file.read_text(encoding="utf-8"), str(file), []).plain()
        (place.sweeps / file.name).write_text(dump_yaml(_tiny(fields, folder.resolve())), encoding="utf-8")
    return place


def _tiny(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A file of the study, made small."""
    small: dict[str, Any] = _with_small_values(fields)
    data, scale = small.get("data", {}), small.get("scale", {})
    for corpus in {"corpus", "validation_corpus"} & data.keys():
        data[corpus] = {"type": "text", "paths": [str(ROOT / "docs/reference")]}
    if data.get("tokenizer", {}).get("type") == "sentencepiece":
        data["tokenizer"] = "byte"
    if "train" in small:
        small["train"].pop("compile", None)
    for of_some in (scale, *scale.get("other_sizes", ())):
        if "sizes" in of_some:
            of_some["sizes"] = of_some["sizes"][-1:]  # that of the checkpoint of Q6
    if "budgets" in scale:
        budgets = scale["budgets"]["tokens"]
        scale["budgets"] = {"tokens": list(BUDGETS[: len(budgets)])}
    if "seeds" in scale:
        scale["seeds"] = 2
    return small | ({"out": str(folder / "sweeps/scale")} if "out" in small else {})


def _with_small_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: SMALL.get(key, _with_small_values(item)) for key, item in value.items()}
    return [_with_small_values(item) for item in value] if isinstance(value, list) else value
