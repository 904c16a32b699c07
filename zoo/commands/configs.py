"""Commands about configurations: listing choices, describing them, and checking them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import DIVERGED, Described, Overrides, Source, Wide, command, console, echo, path_option
from zoo.utils.errors import ZooError


@command()
def explain(
    config: Described,
    overrides: Overrides = None,
    fold: Annotated[bool, typer.Option("--fold", help="Show repeated blocks only once.")] = False,
    wide: Wide = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Show what a training step needs on each of this number of processes."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="With --ranks: the GPU whose memory the step has to fit, e.g. h200.")
    ] = None,
) -> None:
    """Show the role, shape, sigma, eta, gate and slots of every parameter, without training anything."""
    from zoo.run.described import load_described
    from zoo.run.explanation import explain as describe
    from zoo.run.location import named_run

    if (as_json or ranks is not None) and (fold or wide):
        option = "--fold" if fold else "--wide"
        other = (
            "--json, which has all of every parameter" if as_json else "--ranks, which shows no parameters"
        )
        raise ZooError(f"explain: {option} has no effect with {other}")
    if ranks is not None:
        _foresee(config, overrides or (), ranks, device, as_json)
        return
    if device is not None:
        raise ZooError("explain: --device has no effect without --ranks")
    run = named_run(config, overrides or (), resume=False)
    explanation = describe(load_described(config, overrides or ()), run)
    if as_json:
        echo(explanation.to_json())
    else:
        console(wide).print(explanation.table(fold))


def _foresee(config: str, overrides: Sequence[str], ranks: int, device: str | None, as_json: bool) -> None:
    """Print the cost of a training step on every rank."""
    import json
    from dataclasses import asdict

    from zoo.run.described import load_described
    from zoo.run.job import Job
    from zoo.run.location import named_run
    from zoo.train.forecast import forecast
    from zoo.utils.accelerators import accelerator

    kind = None if device is None else accelerator(device)
    run = named_run(config, overrides, resume=False)
    foreseen = forecast(Job.of(load_described(config, overrides), run), ranks, kind)
    if as_json:
        echo(json.dumps(asdict(foreseen), indent=1))
    else:
        console().print(foreseen.table())


@command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="The kind of choices: configs, models, inits, optimizers, ...; default: all."),
    ] = None,
) -> None:
    """List what a configuration can choose from, with a line of description each."""
    from rich.table import Table

    from zoo.run.catalogue import catalogue, origins

    for title, choices in catalogue(kind).items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        known = origins(title)
        for name, description in choices.items():
            table.add_row(name, description, *known.get(name, ()))
        console().print(table)


@command()
def schema(
    kind: Annotated[str, typer.Argument(metavar="[config|sweep]", help="The kind of file.")] = "config",
) -> None:
    """Print the JSON schema of config files or of sweep files, for editors (docs/terminal.md)."""
    import json

    from zoo.ablate.config import sweep_schema
    from zoo.run.config import json_schema

    schemas = {"config": json_schema, "sweep": sweep_schema}
    if kind not in schemas:
        raise ZooError(f"schema: no kind of file called '{kind}'; expected config or sweep")
    echo(json.dumps(schemas[kind](), indent=2))


@command()
def coord_check(
    config: Source,
    overrides: Overrides = None,
    widths: Annotated[
        str | None, typer.Option(help="The widths (d_model) to compare; default: 64,128,256.")
    ] = None,
    depths: Annotated[
        str | None, typer.Option(help="Compare numbers of blocks instead of widths, e.g. 2,4,8.")
    ] = None,
    steps: Annotated[
        int, typer.Option(help="The number of measurements; the first is made before any update.")
    ] = 3,
    seeds: Annotated[int, typer.Option(help="The number of initialisations at each size.")] = 3,
    lr: Annotated[
        float | None,
        typer.Option(
            help="The learning rate; default: four times that of the configuration. Other rates of the "
            "optimizer change in proportion."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        path_option("--out", "-o", help="The folder to write the page to."),
    ] = None,
) -> None:
    """Check whether the outputs of modules keep their size as a model gets wider or deeper."""
    from zoo.diagnose.coordinate_axes import DEPTH, WIDTH
    from zoo.diagnose.coordinates import check_coordinates
    from zoo.report.coordinates import coordinate_table, verdict_of, write_coordinates
    from zoo.run.config import load_config
    from zoo.run.located import located
    from zoo.utils.atomic import require_folder

    if widths is not None and depths is not None:
        raise ZooError("coord-check: --widths and --depths: expected one of them, an axis at a time")
    axis, given = (WIDTH, "64,128,256" if widths is None else widths) if depths is None else (DEPTH, depths)
    try:
        sizes = [int(word) for word in given.split(",")]
    except ValueError as error:
        raise ZooError(f"coord-check: --{axis.name}s '{given}': expected numbers, e.g. 2,4,8") from error
    if out is not None:
        require_folder(out)
    screen, run = console(), load_config(config, overrides or ())
    with located(run), screen.status("coord-check") as status:
        check = check_coordinates(run, sizes, axis, steps=steps, seeds=seeds, lr=lr, progress=status.update)
    screen.print(coordinate_table(check).rich())
    for sentence in verdict_of(check):
        echo(sentence)
    if out is not None:
        echo(f"wrote {', '.join(map(str, write_coordinates(check, f'Coordinate check: {config}', out)))}")
    if not check.passes:
        raise typer.Exit(DIVERGED)
