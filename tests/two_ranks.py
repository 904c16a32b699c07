"""Two processes that compute as the ranks of one run."""

from __future__ import annotations

import faulthandler
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from forks import METHOD
from torch.multiprocessing.spawn import start_processes

from zoo.run.config import load_config
from zoo.train.distributed import World, world
from zoo.train.run import train

RANKS = 2


def on_two_ranks(work: Callable[[World], None]) -> None:
    """Do `work`, a function of a module, on both ranks; what fails there fails here."""
    start_ranks(_join_world, work)


def train_on_two_ranks(settings: dict[str, Any], *, resume: bool = False) -> None:
    """`zoo train` as torchrun starts it; what a rank raises is raised here."""
    start_ranks(_train, settings, resume)


def start_ranks(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function of a module in both processes, as torchrun starts them; what fails there fails here."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    start_processes(  # type: ignore[no-untyped-call]
        _be_a_rank, args=(port, function, *arguments), nprocs=RANKS, start_method=METHOD
    )


def _be_a_rank(rank: int, port: int, function: Callable[..., None], *arguments: Any) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    faulthandler.enable()  # a rank that crashes says where
    torch.set_num_threads(1)
    function(*arguments)


def _join_world(work: Callable[[World], None]) -> None:
    with world("cpu") as ours:
        work(ours)


def _train(settings: dict[str, Any], resume: bool) -> None:
    train(load_config(settings), resume)
