"""The command line as tests type it, in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from zoo.commands.cli import main


def zoo(*arguments: str | Path, status: int = 0) -> None:
    """Run a command, which has to end with `status`."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert ended.value.code == status, arguments


def typed(line: str, *more: str) -> None:
    """Run a line as it stands on a page, without `zoo` in front, which has to succeed."""
    zoo(*shlex.split(line), *more)
