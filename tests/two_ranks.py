"""Two processes that compute as the ranks of one run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import torch
from torch.multiprocessing.spawn import spawn

from zoo.train.distributed import World, world

RANKS = 2


def on_two_ranks(work: Callable[[World], None]) -> None:
    """Do `work`, a function of a module, on both ranks; what fails there fails here."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    spawn(_be_a_rank, args=(port, work), nprocs=RANKS)  # type: ignore[no-untyped-call]


def _be_a_rank(rank: int, port: int, work: Callable[[World], None]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    with world("cpu") as ours:
        work(ours)
