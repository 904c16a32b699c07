"""Commands that compare variants: sweeps, their reports, and verdicts over several sizes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.ablate.alpha import ALPHA
from zoo.commands.app import (
    DIVERGED,
    INTERRUPTED,
    Overrides,
    Wide,
    command,
    console,
    echo,
    named_columns,
    path_option,
)
from zoo.utils.errors import ZooError

if TYPE_CHECKING:
    from zoo.ablate.ladder_verdict import LadderVerdict
    from zoo.ablate.verdict import Judgement


@command()
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.yaml", help="The sweep file; docs/ablations.md describes it.")
    ],
    overrides: Overrides = None,
    workers: Annotated[
        int | None, typer.Option(help="The number of runs at a time; default: one per GPU, or one per core.")
    ] = None,
    largest_first: Annotated[
        bool,
        typer.Option(
            "--largest-first",
            help="Start the tuning and then the largest models first, for a fast machine that is there for a "
            "short time; default: the order of the plan, small models first.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        path_option(help="The folder of the sweeps; default: the one that the file names."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the cost: runs, tokens, FLOPs and time.")
    ] = False,
    jobs: Annotated[
        bool,
        typer.Option("--jobs", help="Only print the commands of the runs that are due now, for a scheduler."),
    ] = False,
    report: Annotated[
        Path | None,
        path_option(help="When all runs have ended: the folder for the page of `zoo report`."),
    ] = None,
    wide: Wide = False,
) -> None:
    """Train every variant with several seeds, all tuned alike; the same command resumes the sweep."""
    from zoo.ablate.conclusion import run_sweep
    from zoo.ablate.estimate import SpeedProbe, estimate
    from zoo.ablate.jobs import write_jobs
    from zoo.ablate.ladder_estimate import estimate_ladder
    from zoo.ablate.pool import worker_count
    from zoo.ablate.sweep import load_sweep
    from zoo.config.plugins import options
    from zoo.utils.atomic import explained, make_folder

    if jobs and (dry_run or workers is not None):
        raise ZooError("sweep: --dry-run and --workers have no effect with --jobs")
    if largest_first and (jobs or dry_run):
        raise ZooError("sweep: --largest-first has no effect with --dry-run and --jobs")
    if report is not None and (jobs or dry_run):
        raise ZooError("sweep: --report has no effect with --dry-run and --jobs")
    if wide and not dry_run:
        raise ZooError("sweep: --wide has no effect without --dry-run; expected it with `zoo report`")
    shown = console(wide)
    plan = load_sweep(file, overrides or (), out)
    if dry_run:
        cost = estimate_ladder if plan.ladder else estimate
        with shown.status("sweep --dry-run") as status:
            table = cost(plan.prepared(), SpeedProbe(worker_count(workers), status.update))
        shown.print(table, highlight=False)
        return
    if jobs:
        for line in write_jobs(plan):
            echo(line)
        return
    if report is not None:
        with explained(report):
            make_folder(report)  # whatever forbids it is reported before the runs, not after them
    result = run_sweep(plan, workers, shown, largest_first=largest_first)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)
    if report is None:
        command_line = f"zoo report {shlex.quote(str(plan.folder))} --out DIR{options(None)}"
        echo(f"The page with all of it: {command_line}")
    else:
        _, page = _judged([plan.folder], report)
        echo(f"wrote {page}")
    failed = [run for run in result.manifest.runs if run.status == "failed"]
    if any("final" in run.phases or run.crashed for run in failed):
        raise typer.Exit(DIVERGED)


@command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="SWEEP...|RUN...", help="The folders of sweeps, or run folders.")
    ],
    out: Annotated[
        Path,
        path_option("--out", "-o", help="The folder for report.html, .md, .csv and figures."),
    ] = Path("report"),
    baseline: Annotated[
        str | None,
        typer.Option(help="The variant to compare with; default: that of the sweep, or of the first run."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="The significance level of the comparisons."),
    ] = ALPHA,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The measure that decides, e.g. accuracy or tasks/NAME/acc; default: that of the sweep or "
            "of the runs, otherwise the loss."
        ),
    ] = None,
    wide: Wide = False,
) -> None:
    """Report which variant is better and how certain that is: verdict, speed-up, curves and costs."""
    from zoo.ablate.conclusion import conclusion, ladder_conclusion
    from zoo.ablate.ladder_verdict import LadderVerdict

    verdicts, page = _judged(runs, out, baseline, alpha, metric)
    for each in verdicts:
        text = ladder_conclusion(each) if isinstance(each, LadderVerdict) else conclusion(each)
        console(wide).print(text)
    echo(f"wrote {page}")


def _judged(
    runs: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    alpha: float = ALPHA,
    metric: str | None = None,
) -> tuple[Sequence[Judgement | LadderVerdict], Path]:
    """The verdicts of sweeps or run folders, and the path of the page that is written about them."""
    from zoo.ablate.ladder_verdict import is_ladder, judge_ladder
    from zoo.ablate.results import is_sweep
    from zoo.report.ladder import write_ladder
    from zoo.report.report import report, report_sweeps
    from zoo.utils.atomic import require_folder

    require_folder(out)
    if len(runs) == 1 and is_ladder(runs[0]):
        ladder = judge_ladder(runs[0], baseline, alpha, metric)
        page = write_ladder(
            ladder.verdicts,
            ladder.baseline,
            out,
            margin=ladder.margin,
            alpha=alpha,
            title=ladder.manifest.name,
            missing=ladder.missing,
            description=ladder.manifest.description,
        )
        return [ladder], page
    if len(runs) > 1 and all(map(is_sweep, runs)):
        return report_sweeps(runs, out, baseline=baseline, alpha=alpha, metric=metric)
    judgement, page = report(runs, out, baseline=baseline, alpha=alpha, metric=metric)
    return [judgement], page


@command()
def verdict(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS.csv|RUN...",
            help="A table with one row per run (variant, size, tokens, seed, loss, ...), or run folders.",
        ),
    ],
    baseline: Annotated[str, typer.Option(help="The variant to compare with.")],
    margin: Annotated[
        float | None, typer.Option(help="The factor within which two variants count as equal, e.g. 1.05.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="The allowed probability of any false claim.")] = ALPHA,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None,
        path_option("--out", "-o", help="The folder for the page, CSV, LaTeX and figures."),
    ] = None,
    aa: Annotated[
        bool, typer.Option("--aa", help="Compare one half of the seeds of the baseline with the other half.")
    ] = False,
    max_seeds: Annotated[
        int | None, typer.Option(help="Declare that seeds are added until it is decided, up to this number.")
    ] = None,
    declared_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Declare that sizes are added until it is decided, up to these."
        ),
    ] = None,
    anytime: Annotated[
        bool,
        typer.Option(
            "--anytime", help="Declare that seeds are added until it is decided, without a maximum."
        ),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--time",
            metavar="ROUNDS",
            help="First measure the speed of a ladder's variants, on an idle machine, in at least 5 rounds.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="OURS=THEIRS,...",
            help="The names of the columns in a table that W&B, MLflow, ... exported.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="{variant}-{size}-...",
            help="What the parts of the names of TensorBoard's folders mean; {} is not read.",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The tag of the loss in TensorBoard's event files.")] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="With --pattern: the number of tokens in a step.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="The loss of zoo's own runs: cross_entropy (the default) or bits_per_byte."),
    ] = None,
    item_cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field of a question in samples of lm-evaluation-harness (doc) that names its cluster, "
            "such as the passage it is about.",
        ),
    ] = None,
    wide: Wide = False,
) -> None:
    """Judge runs of several sizes and budgets, whoever made them: does a gain hold, shrink or grow?"""
    from zoo.ablate.ladder_verdict import declared, is_ladder, missing_runs
    from zoo.ablate.manifest import read_manifest
    from zoo.ablate.scale.document import document
    from zoo.ablate.scale.looks import Looks
    from zoo.ablate.scale.presentation import notes, sentences, verdict_table
    from zoo.ablate.scale.runs import parse_counts
    from zoo.ablate.scale.sources import LoggerExport, read_table
    from zoo.ablate.scale.tuned import halved
    from zoo.ablate.scale.verdict import alarms, judge
    from zoo.utils.atomic import require_folder

    if wide and as_json:
        raise ZooError("verdict: --wide has no effect with --json")
    if rounds is not None and aa:
        raise ZooError("verdict: --time has no effect with --aa, whose sides do the same work")
    if rounds is not None and not (len(runs) == 1 and is_ladder(runs[0])):
        raise ZooError(f"--time: {runs[0]}: expected the folder of a ladder, which `zoo sweep` makes")
    example = "size=params,loss=eval/loss"
    names = None if columns is None else named_columns(columns, example)
    sizes = () if declared_sizes is None else parse_counts(declared_sizes, "--declared-sizes")
    looks = Looks(max_seeds, sizes, anytime)
    if out is not None:
        require_folder(out)
    missing: list[str] = []
    variants: list[str] = []
    title, description = runs[0].stem if len(runs) == 1 else f"{len(runs)} runs", None
    if is_ladder(runs[0]):
        manifest = read_manifest(runs[0])
        margin, looks = declared(runs[0], margin, looks)
        missing, title, description = missing_runs(manifest), manifest.name, manifest.description
        variants = manifest.variant_names
    export = LoggerExport(names, pattern, tag, tokens_per_step)
    table = read_table(runs, export, metric, item_cluster)
    if aa:
        table, variants = halved(table, baseline), []
    verdicts = judge(table, baseline, margin=margin, alpha=alpha, looks=looks, waiting=variants)
    if rounds is not None:  # after all checks
        from zoo.ablate.timing import measure_speeds

        measure_speeds(runs[0], rounds)
        table = read_table(runs, export, metric, item_cluster)
        verdicts = judge(table, baseline, margin=margin, alpha=alpha, looks=looks, waiting=variants)
    written: Path | None = None
    if out is not None:
        from zoo.report.ladder import write_ladder

        written = write_ladder(
            verdicts,
            baseline,
            out,
            margin=margin,
            alpha=alpha,
            title=title,
            missing=missing,
            description=description,
        )
    if as_json:
        found = document(verdicts, baseline, margin=margin, alpha=alpha, missing=missing)
        echo(found.model_dump_json(indent=2))
    else:
        echo("\n".join(sentences(verdicts, baseline, margin)))
        console(wide).print(verdict_table(verdicts, baseline).rich())
        echo("".join(f"note: {note}.\n" for note in [*missing, *notes(verdicts)]), nl=False)
        if written is not None:
            echo(f"wrote {written}")
    if alarming := alarms(verdicts, baseline):
        echo("".join(f"alarm: {alarm}.\n" for alarm in alarming), nl=False, err=True)
        raise typer.Exit(DIVERGED)
