"""`zoo inspect`: a checkpoint looked at from all sides, as pictures, a page and numbers."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from zoo.checkpoint.model import RUN_CONFIG, load_model
from zoo.data import Order
from zoo.diagnose.findings import look
from zoo.diagnose.model_sections import model_sections
from zoo.diagnose.run_figures import run_sections
from zoo.diagnose.section import Section
from zoo.models import Model
from zoo.run.config import load_config
from zoo.run.trained import data_of, tokenizer_of
from zoo.utils.atomic import write_file
from zoo.utils.errors import DataError, ZooError

PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
PART = """<section id="{s.name}">
<h2>{s.title}</h2>
<p>{s.caption}</p>
<img alt="{s.title}" src="data:image/png;base64,{png}">
</section>"""
"""What stands on the page of a section, whose words are ours and need no escaping."""

FOLDER = "inspect"
"""Its name in a run's folder."""

EXAMPLES, LONGEST = 4, 512
"""Examples that attention is measured on, and the tokens of each at most."""

READABLE = frozenset({"causal", "stream", "mlm"})
"""Objectives of models that are given nothing but a text."""


def inspect(
    path: Path, text: Path | None = None, out: Path | None = None, device: torch.device | str = "cpu"
) -> list[Path]:
    """Look at a model, and at how it came about if it is a run, and write what was seen.

    Args:
        path: a run, one of its checkpoints, a file of zoo, or a folder as on the Hugging Face hub.
        text: UTF-8, what the attention's entropy is measured on; None: the run's validation examples,
            where they are at hand.
        out: the folder for the PNGs, inspect.html and inspect.json; None: ``inspect`` in the run's folder,
            or in the working directory if it is no run.
        device: where to compute.

    Returns:
        The files written, the page first.

    Raises:
        ZooError: no model there, a text that cannot be read, or that the model cannot be given alone.
    """
    model = load_model(path, device=device).eval()
    inputs, what = (
        examples(model, path) if text is None else (read_text(model, path, text), f"on {text.name}")
    )
    run = (path / RUN_CONFIG).is_file()
    overrides = load_config(path).eta_overrides if run else ()
    found = look(model, None if inputs is None else [t.to(device) for t in inputs], overrides)
    drawn = [*model_sections(found), *(run_sections(path) if run else [])]
    about = f"{type(model).__name__}, {len(model.fsdp_units)} layers; attention {what}."
    target = (path if run else Path()) / FOLDER if out is None else out
    numbers = {"model": str(path), "attention": what, **found.to_json()}
    return _write(target, path.name or str(path), about, drawn, json.dumps(numbers, indent=1) + "\n")


def examples(model: Model, path: Path) -> tuple[Sequence[Tensor] | None, str]:
    """The first validation examples of the data a model was trained on, and where they are from.

    Returns:
        The inputs, or None where there are none at hand; and a few words.
    """
    config = data_of(path)
    if config is None:
        return None, "was not measured: nobody knows what the model was trained on; give --text"
    try:
        held_out = config.prepare(model.recipe.model).validation(Order(0, 0, EXAMPLES), 1)
    except ZooError as error:
        return None, f"was not measured: {error}"
    batch = next(iter(held_out or ()), None)
    if batch is None:
        return None, "was not measured: the run holds nothing out; give --text"
    return batch[:-1], f"on {len(batch[0])} validation examples"


def read_text(model: Model, path: Path, text: Path) -> list[Tensor]:
    """The beginning of a text as examples: (up to 4, context) int64.

    Raises:
        DataError: a model that is not given text alone, no tokenizer, or a text that cannot be read or is
            too short.
    """
    config = model.recipe.model
    if not config.objectives & READABLE:
        raise DataError(
            f"inspect: --text: a model of type '{config.type}' is trained by "
            f"{' or '.join(sorted(config.objectives))} and is not given a text alone; leave --text out to "
            "measure its attention on its validation examples"
        )
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{text}: cannot be read as UTF-8: {error}") from error
    tokens = tokenizer_of(path).encode(words)
    data = data_of(path)
    context = min(LONGEST, config.max_seq_len or LONGEST, data.length if data else LONGEST)
    starts = list(islice(range(0, len(tokens) - context + 1, context), EXAMPLES))
    if len(tokens) < 2:
        raise DataError(f"{text}: {len(tokens)} tokens; expected two or more")
    return [torch.tensor([tokens[i : i + context] for i in starts] or [tokens])]


def _write(folder: Path, title: str, about: str, drawn: Sequence[Section], numbers: str) -> list[Path]:
    """The page, the pictures and the numbers."""
    pictures = [section.png() for section in drawn]
    parts = [PART.format(s=s, png=base64.b64encode(p).decode()) for s, p in zip(drawn, pictures, strict=True)]
    page = PAGE.substitute(
        title=html.escape(title),
        about=html.escape(about),
        links="".join(f'<a href="#{s.name}">{s.title}</a>' for s in drawn),
        sections="\n".join(parts),
    )
    files = {folder / "inspect.html": page.encode(), folder / "inspect.json": numbers.encode()}
    files |= {folder / f"{s.name}.png": png for s, png in zip(drawn, pictures, strict=True)}
    for file, content in files.items():
        write_file(file, lambda partial, content=content: partial.write_bytes(content))  # type: ignore[misc]
    return list(files)
