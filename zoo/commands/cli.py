"""The command line ``zoo``: all commands, and the messages and exit statuses of their errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

# Each of these registers its commands; `--help` lists them in this order.
# isort: off
from zoo.commands import training, comparison, inference, measurement, configs, checkpoints  # noqa: F401
# isort: on

from zoo.commands.app import DIVERGED, USER_ERROR, app, console
from zoo.utils.allocator import ask_for_huge_pages
from zoo.utils.errors import DivergenceError, RankError, ZooError
from zoo.utils.printable import printable

TRACEBACK = "ZOO_TRACEBACK"
"""The environment variable by which zoo shows the traceback of an error in a plugin."""

SHORTAGES = {
    "EMFILE": "this process may open more with a higher limit (ulimit -n)",
    "ENFILE": "other processes have too many files open",
    "ENOSPC": "the disk has to have room",
    "EDQUOT": "the user's share of the disk has to have room",
    "EFBIG": "files may be larger with a higher limit (ulimit -f)",
    "EROFS": "what is written must lie on another file system",
    "EACCES": "this user must be allowed to use it",
    "EPERM": "this user must be allowed to do it",
    "EIO": "the disk or its connection fails",
    "ENAMETOOLONG": "names and paths must be shorter",
    "ELOOP": "a link must not lead to itself",
    "ESTALE": "the network's file system was away for a moment",
    "ENOMEM": "the machine or the limit of memory (ulimit -v) is too small",
}
"""Errors of the operating system that no program can prevent, and how to remedy them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The exit status is 2 for a mistake of the user, 1 for a run that diverged or lost one of its processes,
    130 for one that Ctrl-C interrupted or whose output was closed by its reader, and 75 for one that another
    signal stopped.

    Args:
        arguments: The arguments; None: those of the process.
    """
    ask_for_huge_pages()
    _read_and_write_anything()
    if logging.lastResort is not None:  # the handler of warnings if no other one is set up
        logging.lastResort.setFormatter(_Formatter())
    try:
        app(args=arguments, prog_name="zoo")
    except ZooError as error:
        _fail(str(error), USER_ERROR)
    except (DivergenceError, RankError) as error:
        _fail(str(error), DIVERGED)
    except Exception as error:
        line = _line_in_plugin(error)
        if line is None and (shortage := _shortage(error)):
            _fail(shortage, USER_ERROR)
        if line is None or os.environ.get(TRACEBACK):
            raise
        what = f"{line}: {type(error).__name__}: {error}"
        _fail(f"{what}\n({TRACEBACK}=1 in the environment shows the traceback)", USER_ERROR)


class _Formatter(logging.Formatter):
    """Escapes the control characters of a warning, which may come from a file."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _read_and_write_anything() -> None:
    """Keep texts from raising on a console of another encoding.

    Characters that the console cannot show are written as escapes, a backslash and a number. Input that
    cannot be decoded is reported by its reader.
    """
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)


def _line_in_plugin(error: Exception) -> str | None:
    """The line of a plugin that caused an error; None if the error comes from zoo itself."""
    if "zoo.config.plugins" not in sys.modules:
        return None
    from zoo.config.plugins import line_in_plugin

    return line_in_plugin(error)


def _shortage(error: Exception) -> str | None:
    """The message about a resource that the machine lacks; None for other errors, which are bugs of zoo."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"the memory is exhausted; {SHORTAGES['ENOMEM']}"
    if "can't start new thread" in str(error):
        return (
            "no more threads can be started; the limits of memory and processes (ulimit -v, -u) are too low"
        )
    if not isinstance(error, OSError):
        return None
    advice = SHORTAGES.get(errno.errorcode.get(error.errno or 0, ""))
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}; {advice}" if advice else None


def _fail(message: str, status: int) -> None:
    """Print the error, by one process only if there are several, and exit."""
    several = _is_one_of_several()
    if several:
        from zoo.train.rank_errors import end_unless_first, keep_store_alive

        end_unless_first(message, status)
    line = f"error: {printable(message)}"
    try:
        console(stream=sys.stderr).print(line, style="red", highlight=False, soft_wrap=True)
    except (OSError, ImportError):  # without a descriptor rich cannot be imported
        sys.stderr.write(f"{line}\n")
    if several:
        sys.stderr.flush()
        keep_store_alive()
    sys.exit(status)


def _is_one_of_several() -> bool:
    """Whether torchrun or srun has started several processes."""
    from zoo.train.launch import processes

    try:
        return processes() > 1
    except ZooError:  # it is being reported already
        return False
