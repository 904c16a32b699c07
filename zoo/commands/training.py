"""The commands `train` and `suggest-lr`, which run the training loop."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zoo.commands.app import INTERRUPTED, STOPPED, Overrides, Source, command, console, echo
from zoo.utils.errors import ZooError
from zoo.utils.progress import Progress

AUTO = "auto"
"""The word after ``--resume``; no KEY=VALUE can be mistaken for it."""


@command()
def train(
    config: Source,
    overrides: Overrides = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the last checkpoint; --resume auto starts the run if there is none.",
        ),
    ] = False,
    log_json: Annotated[
        bool,
        typer.Option("--log-json", help="Print the records of metrics.jsonl; messages go to standard error."),
    ] = False,
) -> None:
    """Train a model. Ctrl-C or SIGTERM saves a checkpoint; --resume continues from it, bit for bit."""
    from zoo.run.location import configured_run, named_run
    from zoo.train.claim import require_free
    from zoo.train.launch import processes

    changes = [text for text in overrides or () if text != AUTO]
    auto = AUTO in (overrides or ())
    if auto and not resume:
        raise ZooError(f"train: '{AUTO}' has no effect without --resume")
    if log_json and Progress.quiet:
        raise ZooError("train: --quiet has no effect with --log-json")
    folder = named_run(config, changes, resume)
    place = folder or configured_run(config, changes)
    # With several processes, another one may have claimed the run already.
    if place is not None and processes() == 1:
        require_free(place)

    from zoo.run.config import load_config

    loaded = load_config(config, changes)  # errors are reported before the engine is imported
    from zoo.train.run import train as run

    result = run(
        loaded,
        "auto" if auto else resume,
        None if Progress.quiet else console(stream=sys.stderr if log_json else None),
        folder=folder,
        records=sys.stdout if log_json else None,
    )
    if not result.finished:
        raise typer.Exit(STOPPED if result.signalled else INTERRUPTED)


@command("suggest-lr")
def suggest_lr(
    config: Source,
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(help="The number of steps of each of the two short runs; default: 200.")
    ] = None,
) -> None:
    """Estimate a learning rate for Amos from the gradients of two short runs, or of a run folder."""
    from zoo.diagnose.suggest import suggest_lr as suggest

    echo(suggest(config, overrides or (), steps))
