"""`zoo train` as the ranks of a run, in processes that a test may kill; they start quickly."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from forks import CONTEXT

from zoo.utils.run_folder import RunFolder


def start(
    count: int, settings: dict[str, Any], fault: str = "", pause: float = 0.0, said_in: str = "stderr"
) -> list[BaseProcess]:
    """Start `zoo train --resume auto` on some ranks.

    Args:
        count: number of ranks.
        settings: the configuration.
        fault: what the last rank does wrong: "hangs" or "fails" in its third step, "no device" or "no config"
            is found there.
        pause: seconds added to every step.
        said_in: what rank r says is in the file of this name and ``-r``.
    """
    folder = Path(settings["train"]["runs_dir"]).parent
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks: list[BaseProcess] = [
        CONTEXT.Process(
            target=_rank,
            args=(rank, count, port, path, fault if rank == count - 1 else "", pause, said_in),
        )
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def ended(ranks: list[BaseProcess], within: float = 180) -> list[int | None]:
    """The exit statuses; what does not end by itself is killed."""
    end = time.monotonic() + within
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
    statuses = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.join()
    return statuses


def said(folder: Path, count: int, said_in: str = "stderr") -> list[str]:
    """The errors that the ranks have printed."""
    texts = [(folder / f"{said_in}-{rank}").read_text(encoding="utf-8") for rank in range(count)]
    return [line for text in texts for line in text.splitlines() if line.startswith("error: ")]


def reached(run: Path, step: int) -> None:
    """Return when the run has a checkpoint after so many steps."""
    for _ in range(1200):
        last = RunFolder(run).read_pointer("last") if run.exists() else None
        if last is not None and int(last["checkpoint"].removeprefix("step-")) >= step:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run}: no checkpoint after step {step}")


def _rank(rank: int, count: int, port: int, path: Path, fault: str, pause: float, said_in: str) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    errors = os.open(path.parent / f"{said_in}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    import zoo.train.distributed as distributed
    from zoo.commands.cli import main
    from zoo.train.step import Stepper
    from zoo.utils.errors import ZooError

    update, steps = Stepper.update, 0

    def slower(self: Stepper, *args: Any) -> None:
        nonlocal steps
        steps += 1
        if fault == "fails" and steps == 3:
            raise ZooError("what only this process has")
        time.sleep(3600 if fault == "hangs" and steps == 3 else pause)
        update(self, *args)

    def none(*_: Any) -> torch.device:
        raise ZooError("device 'cuda': there is none here")

    setattr(Stepper, "update", slower)  # noqa: B010
    if fault == "no device":
        setattr(distributed, "find_device", none)  # noqa: B010
    given = f"{path}.lost" if fault == "no config" else str(path)
    sys.argv = ["zoo", "train", given]
    main(["train", given, "--resume", "auto"])
