"""Optimizers, learning rate schedules, the projection after the step, and state by name."""

from zoo.optim.adamw import AdamWConfig
from zoo.optim.amos import Amos, AmosConfig
from zoo.optim.base import OptimizerConfig, ScheduleConfig
from zoo.optim.projection import attach_projection
from zoo.optim.schedules import WSD, Constant, Cosine, Linear, RSqrt
from zoo.optim.state import load_state_by_name, state_by_name

__all__ = [
    "WSD",
    "AdamWConfig",
    "Amos",
    "AmosConfig",
    "Constant",
    "Cosine",
    "Linear",
    "OptimizerConfig",
    "RSqrt",
    "ScheduleConfig",
    "attach_projection",
    "load_state_by_name",
    "state_by_name",
]
