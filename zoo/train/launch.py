"""The environment in which torchrun or srun starts the processes of a run."""

from __future__ import annotations

import os
import re

from zoo.utils.errors import ConfigError

NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""The variables of torchrun that say which process of how many this one is."""


def processes() -> int:
    """The number of processes that torchrun or srun has started; 1 without them.

    If MASTER_ADDR is set, the variables of srun are copied to those of torchrun.

    Raises:
        ConfigError: Some of the variables of srun, or of torchrun, are missing or are no numbers.
    """
    if "RANK" not in os.environ and {"MASTER_ADDR", "SLURM_PROCID"} <= os.environ.keys():
        # The last one has the form 8(x2),4.
        names = ("PROCID", "LOCALID", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE")
        values = [re.match(r"\d+", os.environ.get(f"SLURM_{name}", "")) for name in names]
        for key, value in zip(NEEDED, values, strict=True):
            if value is None:
                raise ConfigError(
                    "MASTER_ADDR is set, but srun did not start this process; start it with srun"
                )
            os.environ[key] = value[0]
        os.environ.setdefault("MASTER_PORT", "29500")
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return 1
    if missing := [key for key in (*NEEDED, "MASTER_ADDR", "MASTER_PORT") if key not in os.environ]:
        raise ConfigError(
            f"the environment has WORLD_SIZE={size}, but no {', '.join(missing)}; expected all that torchrun "
            "sets, or none of them for one process"
        )
    for key in (*NEEDED, "MASTER_PORT"):
        if not re.fullmatch(r"\d+", os.environ[key]):
            raise ConfigError(f"the environment has {key}={os.environ[key]!r}; expected a number")
    return int(size)
