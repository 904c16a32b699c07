"""The common part of the commands: the application that they register with, arguments, exit statuses.

A command turns arguments into a call and its result into words. It imports what it calls when it runs, so
that ``zoo --help`` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from typer.models import OptionInfo

from zoo.utils.printable import printable
from zoo.utils.untyped import Kwargs, Passed

if TYPE_CHECKING:
    from rich.console import Console

USER_ERROR = 2
DIVERGED = 1
INTERRUPTED = 130
"""The exit status that a shell reports for a program that Ctrl-C has ended."""

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: a signal other than Ctrl-C ended the run, which is saved and can continue."""

PIPED_WIDTH = 200
"""The width of tables in columns if the output is no terminal; the usual 80 would cut them off."""

HELP = """
Is an optimizer, an architecture or an initialisation really better? Train with it and see.

zoo trains language models with Amos (an optimizer), nGPT (a transformer on the sphere) and WeSaR \
(a reparameterisation), and with the methods that their papers compare them with, on the same data and with \
the same budget. Each method has one config.

A first session, minutes on a laptop, nothing to download:

  zoo list configs                    what there is to train
  zoo explain quickstart-ngpt         every parameter, what zoo knows of it
  zoo train quickstart-ngpt           trains; writes runs/quickstart-ngpt
  zoo generate runs/quickstart-ngpt --prompt "def "

CONFIG is the name of a shipped config or a YAML file; arguments after it change single values: \
zoo train quickstart-ngpt train.steps=100 optimizer.lr=5e-3
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        import zoo

        echo(f"zoo {zoo.__version__}")
        raise typer.Exit


@app.callback()
def before_all(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of zoo.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Read the options in front of the command."""


def common_options(
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A Python file or module that registers classes of your own."),
    ] = None,
    allow_changed_plugins: Annotated[
        bool,
        typer.Option("--allow-changed-plugins", help="Use plugins that have changed since the run began."),
    ] = False,
    allow_large: Annotated[
        bool, typer.Option("--allow-large", help="Accept sizes that exceed the memory or are implausible.")
    ] = False,
    allow_non_finite: Annotated[
        bool, typer.Option("--allow-non-finite", help="Load weights and slots that contain NaN or infinity.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print results and errors, but no progress.")
    ] = False,
) -> None:
    """Apply the options that every command has."""
    from zoo.utils.permissions import Permissions
    from zoo.utils.progress import Progress

    Permissions.large, Permissions.non_finite = allow_large, allow_non_finite
    Progress.quiet = quiet
    Progress.console = None if quiet else console(stream=sys.stderr)
    if plugin or allow_changed_plugins:
        from zoo.config import plugins

        plugins.allow_changed_plugins(allow_changed_plugins)
        for source in plugin or ():
            plugins.load_plugin(source)


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command that has the `common_options` after its own."""
    common = signature(common_options, eval_str=True).parameters

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Passed) -> None:
            common_options(**{option: arguments.pop(option) for option in common})
            function(**arguments)

        parameters = {**signature(function, eval_str=True).parameters, **common}
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        run.__signature__ = Signature([*parameters.values()])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {key: parameter.annotation for key, parameter in parameters.items()}
        app.command(name)(run)
        return function

    return decorate


def _found(source: str) -> str:
    """Check that a configuration exists, before slow modules are imported."""
    from zoo.config.compose import find_config

    find_config(source)
    return source


def _found_or_model(source: str) -> str:
    """Check that a configuration exists, or a model in a folder or a file."""
    from zoo.checkpoint.formats import holds_model

    return source if holds_model(Path(source)) else _found(source)


def _shipped(beginning: str) -> list[str]:
    """The names of shipped configurations that a shell may complete `beginning` to."""
    from zoo.config.compose import shipped

    return [name for name in shipped() if name.startswith(beginning)]


Source = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, a run folder, or the name of a shipped configuration.",
        callback=_found,
        autocompletion=_shipped,
    ),
]
Described = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, a run folder, the name of a shipped configuration, or a model: a checkpoint, a "
        ".safetensors file, a folder as on the Hugging Face hub.",
        callback=_found_or_model,
        autocompletion=_shipped,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values to change, e.g. optimizer.lr=1e-3."),
]


Wide = Annotated[
    bool, typer.Option("--wide", help="Show every column of a table, however narrow the terminal is.")
]


def path_option(*names: str, help: str) -> OptionInfo:
    """The option of a path that is written, or of a folder; an empty one is an error. See `typer.Option`."""
    option: OptionInfo = typer.Option(*names, help=help, parser=_path, metavar="PATH")
    return option


def _path(text: str | Path) -> Path:
    """A path that is typed after an option, which an unset variable of a shell would make empty.

    Raises:
        typer.BadParameter: The text is empty; Python reads it as the current folder.
    """
    if text == "":
        raise typer.BadParameter("empty; expected a path, or . for the current folder")
    return Path(text)


def named_columns(text: str, example: str) -> dict[str, str]:
    """Parse ``ours=theirs,ours=theirs``; `example` is shown in the message.

    Raises:
        typer.BadParameter: The text does not have this form, or names one of ours twice.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not ours or not theirs for ours, _, theirs in pairs):
        raise typer.BadParameter(f"{text}: expected ours=theirs,..., for instance {example}")
    named = [ours.strip() for ours, _, _ in pairs]
    if twice := [name for name in named if named.count(name) > 1]:
        raise typer.BadParameter(f"{text}: {twice[0]} is there twice; expected it once")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text; on a terminal its control characters are escaped."""
    shown, stream = str(text), sys.stderr if err else sys.stdout
    typer.echo(printable(shown) if stream is not None and stream.isatty() else shown, nl=nl, err=err)


def console(wide: bool = False, stream: TextIO | None = None) -> Console:
    """The console for tables and lines; it colours them if it is a terminal and NO_COLOR is not set.

    Args:
        wide: whether lines may be longer than the terminal is wide.
        stream: where to print; None: standard output.
    """
    from zoo.commands.terminal import InertConsole
    from zoo.utils.fitting import UNBOUNDED

    # Names and texts are shown unchanged: square brackets are no markup, and :x: is no emoji.
    settings: Kwargs = {"file": stream, "markup": False, "emoji": False}
    if wide:
        return InertConsole(width=UNBOUNDED, **settings)
    terminal = InertConsole(**settings)
    return terminal if terminal.is_terminal else InertConsole(width=PIPED_WIDTH, **settings)
