"""Sources of a table of runs: a CSV, run folders and sweeps of zoo, or exports of other loggers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.ablate.lines import Key, Lines, tuned_values
from zoo.ablate.manifest import FILE, Run, read_manifest, run_folder
from zoo.ablate.outcome import verify
from zoo.ablate.quiet import QUIET
from zoo.ablate.run_metrics import RunMetrics, read_run_metrics
from zoo.ablate.scale.runs import (
    OPTIONAL,
    REQUIRED,
    FinishedRun,
    Making,
    RunTable,
    check_names,
    check_runs,
    only_loss,
    read_rows,
    read_runs,
    run_of_row,
)
from zoo.ablate.scale.same_settings import require_same_settings
from zoo.ablate.scale.scalars import EVENTS, read_scalars
from zoo.ablate.scale.scores import cluster_column, outcome_columns
from zoo.ablate.scale.speeds import read_speeds
from zoo.ablate.tokenizers import mixed_tokenizers, tokenizers_of_runs
from zoo.utils.errors import DataError, ZooError, did_you_mean
from zoo.utils.measures import CROSS_ENTROPY, LOSSES, Measure, find_measure
from zoo.utils.run_folder import RunFolder

FINISHED = ("finished", "Finished", "FINISHED", "")
"""The states in tables of W&B and MLflow of a run that has ended regularly."""
EXPORTED = (*REQUIRED, *OPTIONAL, "run")
"""Columns that an exported table may have by other names."""
IDS = ("ID", "Run ID", "run_id", "Name")
"""Columns by which exported tables tell runs apart; only the last one may be shared by several runs."""
STATES = ("State", "state", "Status", "status")


@dataclass(frozen=True)
class LoggerExport:
    """The settings for reading exports of other loggers.

    Attributes:
        columns: the name of each of zoo's columns in an exported table of runs.
        pattern: the pattern of the names of scalar files or folders, such as ``{variant}-{size}-s{seed}``;
            ``{}`` stands for a part that is not read.
        tag: the name of the loss in event files.
        tokens_per_step: number of tokens per step, to convert the last step to tokens.
    """

    columns: Mapping[str, str] | None = None
    pattern: str | None = None
    tag: str | None = None
    tokens_per_step: float | None = None


def read_table(
    paths: Sequence[Path],
    export: LoggerExport | None = None,
    metric: str | None = None,
    item_cluster: str | None = None,
) -> RunTable:
    """Read the finished runs that `zoo verdict` compares.

    Args:
        paths: one CSV, the folder of one sweep, run folders, or TensorBoard's: folders with event files, or
            scalars that were exported as CSV.
        export: the settings for exports of other loggers.
        metric: the loss by which runs of zoo are compared, one of `zoo.utils.measures.LOSSES`; None: the
            sweep's, or the cross entropy.
        item_cluster: the field of the questions in files of samples that names their cluster; None: questions
            are independent.

    Raises:
        ZooError: A file cannot be read, its runs contradict each other, no run has recorded the metric, or an
            option has no effect.
    """
    if metric is not None and metric not in LOSSES:
        raise DataError(
            f"--metric {metric}: a speed-up in tokens is read from a loss; expected {' or '.join(LOSSES)}"
        )
    export = export or LoggerExport()
    first = paths[0]
    if export.pattern is not None:
        table = read_scalars(paths, export.pattern, export.tag, export.tokens_per_step)
    elif first.is_dir() and (first / FILE).is_file():
        _require_one(paths, "a sweep")
        table = sweep_table(first, metric)
    elif first.is_dir():
        table = _folders(paths, metric)
    else:
        _require_one(paths, "a table of runs")
        columns = export.columns
        table = read_runs(first, item_cluster) if columns is None else _exported(first, columns, item_cluster)
    by_pattern = export.pattern is not None
    options: tuple[tuple[str, object, bool], ...] = (  # name, value, whether it has an effect
        ("--columns", export.columns, first.is_file() and not by_pattern),
        ("--tag", export.tag, by_pattern and any(path.is_dir() for path in paths)),
        ("--tokens-per-step", export.tokens_per_step, by_pattern),
        ("--metric", metric, first.is_dir() and not by_pattern),
        ("--item-cluster", item_cluster, _has_samples(table)),
    )
    for option, value, has_effect in options:
        if value is not None and not has_effect:
            raise DataError(f"{option}: has no effect on {first}")
    return table


def _has_samples(table: RunTable) -> bool:
    """Whether scores of questions were read from files of samples."""
    return any(scores and scores.questions for run in table.runs for scores in run.outcomes.values())


def _require_one(paths: Sequence[Path], what: str) -> None:
    if len(paths) > 1:
        raise DataError(f"{paths[0]} is {what}; expected it alone, or run folders only")


def sweep_table(folder: Path, metric: str | None = None) -> RunTable:
    """The runs of a ladder that have ended; those that diverged have an infinite loss, others are left out.

    Runs that halving stopped have an infinite loss as well, as soon as one of the side has ended: they show
    which rates were tried, and that those which were trained to the end are better.

    Args:
        folder: the folder of sweep.json.
        metric: the loss by which the runs are compared, one of `zoo.utils.measures.LOSSES`; None: the
            sweep's.

    Raises:
        ZooError: The sweep has no sizes, none of its runs has ended, a run was edited, or runs of different
            tokenizers are compared by a loss per token.
    """
    manifest = read_manifest(folder)
    if manifest.ladder is None:
        raise DataError(f"{folder}: a sweep without `scale`; expected a ladder (zoo report reads this one)")
    measure = find_measure(metric or manifest.metric)
    lines = {} if manifest.lines is None else Lines(folder / manifest.lines).runs(measure)
    ended = [run for run in manifest.runs if run.status in ("finished", "failed") and not run.crashed]
    if not ended:
        raise DataError(f"{folder}: no run has ended yet")
    sides = {(run.variant, run.params) for run in ended}
    ended += [run for run in manifest.runs if run.status == "stopped" and (run.variant, run.params) in sides]
    metrics = {run.id: _finished_metrics(folder, run) for run in ended if _key(run) not in lines}
    _require_one_tokenizer([run for run in metrics.values() if run is not None], measure)
    runs = [
        replace(
            lines.get(_key(run)) or _of_sweep(run, metrics[run.id], run_folder(folder, run), measure),
            tuning="tune" in run.phases,
            final="final" in run.phases,
            stopped=run.status == "stopped",
            drawn=None if manifest.tune is None else manifest.tune.drawn,
        )
        for run in ended
    ]
    return RunTable(tuple(runs), read_speeds(folder), loss=measure, by_parabola=True)


def _require_one_tokenizer(runs: Sequence[RunMetrics], measure: Measure) -> None:
    """Refuse runs of different tokenizers that are compared by a loss per token.

    Raises:
        DataError: There are such runs.
    """
    names = [str(run.folder.path) for run in runs]
    if mixed := mixed_tokenizers(names, tokenizers_of_runs(runs), measure):
        raise DataError(f"--metric: {mixed}")


def _key(run: Run) -> Key:
    values = tuned_values(run.tuned)
    return run.variant, float(run.params or 0), float(run.tokens or 0), run.seed, *values


def _configured_rate(run: RunMetrics | None) -> float | None:
    return None if run is None or run.config.optimizer is None else run.config.optimizer.lr


def _finished_metrics(sweep: Path, run: Run) -> RunMetrics | None:
    """The metrics of a run of a sweep; None if it failed, or was stopped."""
    folder = run_folder(sweep, run)
    if run.status != "finished":
        return None
    if not RunFolder(folder).metrics.is_file():
        raise ZooError(f"{folder}: gone; {FILE} calls this run finished")
    verify(folder)
    return read_run_metrics(folder)


def _of_sweep(run: Run, metrics: RunMetrics | None, folder: Path, measure: Measure) -> FinishedRun:
    rate, second_key = tuned_values(run.tuned)
    rate = _configured_rate(metrics) if rate is None else rate
    loss = math.inf if metrics is None else _final(metrics, measure)
    finished = _finished(
        run.variant, run.params or 0, run.tokens or 0, run.seed, loss, rate, metrics, str(folder)
    )
    return replace(finished, trunk=run.trunk or "", second_key=second_key)


def _final(run: RunMetrics, measure: Measure) -> float:
    """The last value of a loss; infinite if the run has no validation.

    Raises:
        DataError: The run has not recorded the loss.
    """
    if not len(run.validation):
        return math.inf
    value = run.final(measure)
    if value is None:
        raise DataError(f"{run.folder.path}: metric: '{measure.name}' is not recorded")
    return value or math.inf


def _folders(paths: Sequence[Path], metric: str | None) -> RunTable:
    """Read run folders; a variant is named by the types of its parts, as far as they differ.

    A run that diverged has an infinite loss, as in a sweep.
    """
    for path in paths:
        if not RunFolder(path).metrics.is_file() and any(path.rglob(EVENTS)):
            raise DataError(
                f"{path}: event files of TensorBoard, and no run of zoo; expected the meaning of its name, "
                "for instance --pattern '{variant}-{size}-s{seed}' --tag eval/loss --tokens-per-step 8192"
            )
    metrics = [read_run_metrics(path) for path in paths]
    trained = [run for run in metrics if run.diverged is None]
    if unfinished := [str(run.folder.path) for run in trained if not run.complete]:
        raise DataError(
            f"{unfinished[0]}: has not made all its steps; a ladder is not read inside a run: expected "
            "finished runs"
        )
    if unvalidated := [str(run.folder.path) for run in trained if not len(run.validation)]:
        raise DataError(f"{unvalidated[0]}: has no validation loss, which variants are compared by")
    if unknown := [str(run.folder.path) for run in metrics if not run.parameters]:
        raise DataError(f"{unknown[0]}: its number of parameters is not recorded; expected a CSV of runs")
    measure = find_measure(metric or CROSS_ENTROPY.name)
    _require_one_tokenizer(metrics, measure)
    words = [_words(run) for run in metrics]
    differing = [i for i in range(len(words[0])) if len({word[i] for word in words}) > 1]
    runs = [
        _finished(
            "-".join(word[i] for i in differing) or word[0],
            run.parameters or 0,
            _tokens(run),
            run.config.seed,
            _final(run, measure) if run.diverged is None else math.inf,
            _configured_rate(run),
            run,
            str(run.folder.path),
        )
        for run, word in zip(metrics, words, strict=True)
    ]
    check_runs(runs)
    require_same_settings(runs, metrics)
    return RunTable(tuple(runs), loss=measure)


def _tokens(run: RunMetrics) -> float:
    """What a run has read, in tokens or other units; a run that diverged, what it should have read.

    Raises:
        DataError: The run diverged before its first line, so that they are not known.
    """
    if (tokens := run.planned_tokens) is None:
        raise DataError(
            f"{run.folder.path}: diverged ({run.diverged}) before a step was logged, so that its budget "
            "is not known; leave this run out"
        )
    return tokens


def _words(run: RunMetrics) -> list[str]:
    config = run.config
    parts = (config.model, config.init, config.reparam, config.optimizer)
    return [str(getattr(part, "type", "none")) for part in parts]


def _finished(
    variant: str,
    params: float,
    tokens: float,
    seed: int,
    loss: float,
    rate: float | None,
    metrics: RunMetrics | None,
    place: str,
) -> FinishedRun:
    total = {} if metrics is None or math.isinf(loss) else metrics.validation.total
    seconds = total.get("seconds", math.nan)
    disturbed = metrics is not None and (metrics.speed_spread or 0.0) > QUIET
    return FinishedRun(
        variant,
        float(params),
        float(tokens),
        seed,
        loss,
        rate,
        total.get("flops"),
        None if disturbed or math.isnan(seconds) else seconds,
        data="" if metrics is None else metrics.data or "",
        objective="" if metrics is None else metrics.objective_text,
        passes=None if metrics is None else metrics.passes,
        overlap=None if metrics is None else metrics.overlap,
        spikes=0 if metrics is None else metrics.spikes,
        place=place,
        disturbed=disturbed,
        making=Making() if metrics is None else metrics.making,
        parameters=None if metrics is None else metrics.parameters,
    )


def _exported(file: Path, columns: Mapping[str, str], cluster: str | None) -> RunTable:
    """Read a table of runs exported by W&B, MLflow or others; columns that are not named are ignored."""
    names, rows = read_rows(file)
    outcomes = outcome_columns(dict.fromkeys((*columns, *names)))  # in the order in which they are named
    known = (*outcomes, *map(cluster_column, outcomes), *REQUIRED, *OPTIONAL)
    for ours, theirs in columns.items():
        if ours not in known and ours not in EXPORTED:
            raise DataError(f"--columns: no column '{ours}'{did_you_mean(ours, EXPORTED)}")
        if theirs not in names:
            raise DataError(f"{file}:1: no column '{theirs}'{did_you_mean(theirs, names)}")
    for theirs in (columns.get(ours, ours) for ours in known):
        if names.count(theirs) > 1:
            raise DataError(f"{file}:1: the column '{theirs}' is there twice; expected it once")
    runs = []
    for line, row in rows:
        place = f"{file}:{line}"
        for state in STATES:
            if row.get(state, "") not in FINISHED:
                raise DataError(
                    f"{place}: {state}: value '{row[state]}': a ladder is not read inside a run: expected "
                    "finished runs only, of which this column says 'finished' or nothing"
                )
        mapped = {ours: row[columns.get(ours, ours)] for ours in known if columns.get(ours, ours) in names}
        if missing := [name for name in REQUIRED if name not in mapped]:
            raise DataError(
                f"{file}:1: no column {', '.join(missing)}; expected --columns {missing[0]}=NAME,..., of: "
                f"{', '.join(names)}"
            )
        runs.append(run_of_row(place, mapped, file.parent, cluster))
    if not runs:
        raise DataError(f"{file}: no rows; expected one per run")
    _require_one_row_per_run(file, names, rows, columns)
    check_runs(runs)
    losses = [row | {"loss": row[columns.get("loss", "loss")]} for _, row in rows]
    return RunTable(tuple(runs), loss=only_loss(runs, losses))


def _require_one_row_per_run(
    file: Path, names: Sequence[str], rows: Sequence[tuple[int, dict[str, str]]], columns: Mapping[str, str]
) -> None:
    """Refuse an exported history, whose rows are the steps of runs.

    Without a column for the names of runs, the first of `IDS` that the table has is taken. Different runs may
    have the same name there, but then they differ in variant, size or seed.

    Raises:
        DataError: A run has several rows.
    """
    if "run" in columns or "run" in names:
        check_names(file, rows, columns.get("run", "run"))
        return
    known = [name for name in IDS if name in names and name not in columns.values()]
    if known:
        check_names(file, rows, known[0], [columns.get(key, key) for key in ("variant", "size", "seed")])
