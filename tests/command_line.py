"""The command line as tests type it, in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from zoo.commands.cli import main
from zoo.run.config import load_config
from zoo.run.job import Job


def zoo(*arguments: str | Path, status: int = 0) -> None:
    """Run a command, which has to end with `status`."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert ended.value.code == status, arguments


def typed(line: str, *more: str) -> None:
    """Run a line as it stands on a page, without `zoo` in front, which has to succeed.

    Args:
        line: the line.
        more: what makes a training shorter. Its configuration is read without it as well.
    """
    command, *words = shlex.split(line)
    if command == "train" and more and not any(word.startswith("--") for word in words):
        job = Job.of(load_config(words[0], words[1:]))
        job.schedule.check(job.train.steps)
    zoo(command, *words, *more)
