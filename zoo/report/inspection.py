"""`zoo inspect`: pictures, a page and a JSON file with the measurements of one checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from zoo.checkpoint.model import load_model
from zoo.diagnose.examples import text_examples, validation_examples
from zoo.diagnose.findings import measure_model, require_measurable
from zoo.report.model_figures import model_images
from zoo.report.page import draw_images, html_page, write_files
from zoo.report.section import Section
from zoo.report.training_figures import training_images
from zoo.run.trained import entries_of
from zoo.utils.atomic import require_folder
from zoo.utils.printable import printable
from zoo.utils.run_folder import RunFolder


def inspect(
    path: Path, text: Path | None = None, out: Path | None = None, device: torch.device | str = "cpu"
) -> list[Path]:
    """Measure and draw a model and, if it is a run, the curves of its training.

    Args:
        path: a run folder, one of its checkpoints, a file of zoo, or a folder in the layout of the Hugging
            Face hub.
        text: a UTF-8 file to measure the attention's entropy on; None: the first validation examples of the
            data that the model was trained on, if there are any.
        out: the folder for the PNG files, inspect.html and inspect.json; None: the folder ``inspect`` in the
            run folder, or in the working directory if `path` is not a run folder.
        device: the device to compute on.

    Returns:
        The files that were written: the page, the numbers, then the pictures.

    Raises:
        ZooError: There is no model at `path`, its weights are not finite, the text cannot be read or is no
            input of the model, or `out` cannot be written into; nothing is measured then.
    """
    run = RunFolder(path)
    if out is None:
        out = (run if run.exists else RunFolder(Path())).inspection
    require_folder(out)
    model = load_model(path, device=device).eval()
    require_measurable(model, path)
    if text is None:
        inputs, mask, examples = validation_examples(model, path)
    else:
        inputs, mask, examples = text_examples(model, path, text), None, f"on {printable(text.name)}"
    entries = entries_of(path, model)
    on_device = None if inputs is None else [t.to(device) for t in inputs]
    findings = measure_model(model, on_device, entries, None if mask is None else mask.to(device))
    images = [*model_images(findings), *(training_images(path) if run.exists else [])]
    sections = [Section(image.title, [image]) for image in images]
    pngs = draw_images(sections, {})
    lead = [f"{type(model).__name__}, {len(model.fsdp_units)} layers; attention {examples}."]
    if not entries:
        lead.append("Etas were measured when the run began, and its folder is not here: no scales over eta.")
    numbers = {"model": str(path), "attention": examples, **findings.to_json()}
    return write_files(
        out,
        {
            "inspect.html": html_page(path.name or str(path), lead, sections, {}, pngs),
            "inspect.json": json.dumps(numbers, indent=1) + "\n",
            **{f"{key}.png": png for key, png in pngs.items()},
        },
    )
