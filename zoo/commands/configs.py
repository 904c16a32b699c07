"""Commands about configurations: what there is to choose, and what a choice amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import DIVERGED, Overrides, Source, command, console
from zoo.utils.errors import ZooError


@command()
def explain(
    config: Source,
    overrides: Overrides = None,
    fold: Annotated[bool, typer.Option("--fold", help="Show repeated blocks only once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show role, shape, sigma, eta, gate and slots of every parameter, and totals; allocates nothing."""
    from zoo.run.config import load_config
    from zoo.run.explanation import explain as describe
    from zoo.run.job import named_run

    if as_json and fold:
        raise ZooError("explain: --fold has no effect with --json, which has a row per parameter")
    run = named_run(config, overrides or (), resume=False)
    explanation = describe(load_config(config, overrides or ()), run)
    if as_json:
        typer.echo(explanation.to_json())
    else:
        console().print(explanation.table(fold))


@command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="configs, models, inits, optimizers, ...")] = None,
) -> None:
    """List the choices of a config, each with a line of description."""
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
def schema() -> None:
    """Print the JSON schema of config files, for editors."""
    import json

    from zoo.run.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@command()
def coord_check(
    config: Source,
    overrides: Overrides = None,
    widths: Annotated[str, typer.Option(help="Values of d_model, e.g. 64,128,256.")] = "64,128,256",
    steps: Annotated[int, typer.Option(help="Measurements; the first is before any update.")] = 3,
    seeds: Annotated[int, typer.Option(help="Initialisations at each width.")] = 3,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default: four times the config's.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the page.")] = None,
) -> None:
    """Check whether outputs keep their size when a model gets wider, with or without a transfer rule."""
    from zoo.diagnose.coordinates import check_coordinates
    from zoo.report.coordinates import coordinate_table, write_coordinates
    from zoo.run.config import load_config

    try:
        values = [int(word) for word in widths.split(",")]
    except ValueError as error:
        raise ZooError(f"coord-check: --widths {widths}: expected numbers, e.g. 64,128,256") from error
    screen = console()
    with screen.status("coord-check") as status:
        check = check_coordinates(
            load_config(config, overrides or ()),
            values,
            steps=steps,
            seeds=seeds,
            lr=lr,
            progress=status.update,
        )
    screen.print(coordinate_table(check).rich())
    failing = [module.name for module in check.modules if not module.passes]
    screen.print(
        "all modules pass" if not failing else f"{len(failing)} of {len(check.modules)} modules fail"
    )
    if out is not None:
        typer.echo(
            f"wrote {', '.join(map(str, write_coordinates(check, f'Coordinate check: {config}', out)))}"
        )
    if failing:
        raise typer.Exit(DIVERGED)
