"""Model FLOPs utilisation (MFU): the share of a GPU's peak at which training computes matrix products.

MFU = units/s * operations/unit / peak, where the operations are those of the forward and the backward pass
without recomputation (Chowdhery et al. 2022, PaLM, appendix B), counted by `run_flops`.
"""

from __future__ import annotations

import torch

from zoo.run.flops import run_flops
from zoo.run.job import Job
from zoo.run.train_config import Precision
from zoo.train.distributed import World
from zoo.utils.accelerators import flops_of


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """The peak of a device in operations per second; None where it is not known, as on all CPUs."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return flops_of(torch.cuda.get_device_name(device))


def peak_share(job: Job, world: World, units_per_example: int) -> float | None:
    """The MFU of one unit (a token, an image) per second on all ranks; None where no peak is known.

    Args:
        job: the run.
        world: the ranks, whose devices are alike.
        units_per_example: number of units in one example.
    """
    peak = peak_flops(world.device, job.train.precision)
    if peak is None:
        return None
    return run_flops(job.config).example.training / units_per_example / (peak * world.size)
