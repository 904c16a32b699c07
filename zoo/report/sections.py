"""The sections of a report. What another part has to show is a function here: results in, section out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.ablate.caveats import caveats
from zoo.ablate.tables import cost_sheet, run_sheet, speedup_sheet, verdict_sheet
from zoo.ablate.verdict import Judgement
from zoo.report.gradients import gradients
from zoo.report.losses import losses
from zoo.report.models import models
from zoo.report.monitors import monitors
from zoo.report.rows import costs, forest
from zoo.report.section import Sample, Section
from zoo.report.sensitivity import sensitivity


def _verdict(judgement: Judgement) -> Section:
    return Section("Verdict", [verdict_sheet(judgement), *forest(judgement)], caveats(judgement))


def _speed(judgement: Judgement) -> Section:
    sheet = speedup_sheet(judgement.results)
    return Section("Speed-up", [sheet] if sheet.rows else [])


def _losses(judgement: Judgement) -> Section:
    return Section("Loss", list(losses(judgement.results)))


def _tuning(judgement: Judgement) -> Section:
    return Section("Sensitivity to the tuned settings", list(sensitivity(judgement.results)))


def _costs(judgement: Judgement) -> Section:
    return Section("Time and memory", [cost_sheet(judgement.results), *costs(judgement.results)])


def _monitors(judgement: Judgement) -> Section:
    return Section("Inside the training", [*monitors(judgement.results), *gradients(judgement.results)])


def _models(judgement: Judgement) -> Section:
    return Section("Inside the models", list(models(judgement.results)))


def _samples(judgement: Judgement) -> Section:
    results = judgement.results
    runs = [(v.name, run) for v in results.manifest.variants for _, run in results.begun(v.name)]
    return Section("Samples", [Sample(name, r.config.name, r.sample) for name, r in runs if r.sample])


def _runs(judgement: Judgement) -> Section:
    return Section("Runs", [run_sheet(judgement.results)])


SECTIONS: Sequence[Callable[[Judgement], Section]] = (
    _verdict,
    _speed,
    _losses,
    _tuning,
    _costs,
    _monitors,
    _models,
    _samples,
    _runs,
)
"""In the order of the report."""


def sections(judgement: Judgement) -> list[Section]:
    """All sections that have something to show."""
    return [section for make in SECTIONS if (section := make(judgement)).blocks]
