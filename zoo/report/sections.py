"""The sections of a report."""

from __future__ import annotations

from zoo.ablate.caveats import caveats
from zoo.ablate.tables import cost_table, effect_table, measure_table, run_table, speedup_table, verdict_table
from zoo.ablate.verdict import Judgement
from zoo.report.loss_plots import loss_plots
from zoo.report.model_plots import model_plots
from zoo.report.section import Sample, Section
from zoo.report.sensitivity import sensitivity_plots
from zoo.report.tuning_curves import tuning_curve_plots
from zoo.report.variable_plots import variable_plots
from zoo.report.variant_rows import cost_plots, difference_plots


def report_sections(judgement: Judgement) -> list[Section]:
    """All sections with content; a new kind of section is added here."""
    results = judgement.results
    speedups, measures, effects = speedup_table(results), measure_table(results), effect_table(results)
    tuning = [*sensitivity_plots(results), *tuning_curve_plots(results)]
    samples = [Sample(v, run.config.name, run.sample) for v, run in results.all_started() if run.sample]
    sections = [
        Section("Verdict", [verdict_table(judgement), *difference_plots(judgement)], caveats(judgement)),
        Section("Main effects", [effects] if effects.rows else []),
        Section("Measures", [measures] if len(measures.columns) > 2 and measures.rows else []),
        Section("Speed-up inside the runs", [speedups] if speedups.rows else []),
        Section("Loss", [*loss_plots(results)]),
        Section("Sensitivity to the tuned settings", tuning),
        Section("Time and memory", [cost_table(results), *cost_plots(results)]),
        Section("Inside the training", [*variable_plots(results)]),
        Section("Inside the models", [*model_plots(results)]),
        Section("Samples", samples),
        Section("Runs", [run_table(results)]),
    ]
    return [section for section in sections if section.blocks]
