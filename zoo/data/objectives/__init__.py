"""Objectives: what a text model is trained to predict."""

from __future__ import annotations

from typing import Annotated

from zoo.config.registry import OBJECTIVES
from zoo.data.objectives.base import Causal, Objective
from zoo.data.objectives.mlm import MaskedLM
from zoo.data.objectives.span_corruption import SpanCorruption
from zoo.data.objectives.stream import Stream

__all__ = ["AnyObjective", "Causal", "MaskedLM", "Objective", "SpanCorruption", "Stream"]

AnyObjective = Annotated[Objective, OBJECTIVES]
