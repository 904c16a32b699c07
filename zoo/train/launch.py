"""The environment in which torchrun or srun starts the processes of a run."""

from __future__ import annotations

import os
import re

from zoo.utils.errors import ConfigError


def processes() -> int:
    """The number of processes that torchrun or srun has started; 1 without them.

    If MASTER_ADDR is set, the variables of srun are copied to those of torchrun.

    Raises:
        ConfigError: MASTER_ADDR is set, but neither torchrun nor srun has started this process.
    """
    if "RANK" not in os.environ and {"MASTER_ADDR", "SLURM_PROCID"} <= os.environ.keys():
        names = (
            "PROCID",
            "LOCALID",
            "STEP_NUM_TASKS",
            "STEP_TASKS_PER_NODE",
        )  # the last one has the form 8(x2),4
        values = [re.match(r"\d+", os.environ.get(f"SLURM_{name}", "")) for name in names]
        for key, value in zip(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), values, strict=True):
            if value is None:
                raise ConfigError(
                    "MASTER_ADDR is set, but srun did not start this process; start it with srun"
                )
            os.environ[key] = value[0]
        os.environ.setdefault("MASTER_PORT", "29500")
    return int(os.environ.get("WORLD_SIZE", "1"))
