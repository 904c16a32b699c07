"""Optimizers, learning rate schedules, the projection after the step, and state by name."""

from zoo.optim.adafactor import Adafactor, AdafactorConfig
from zoo.optim.adagc import AdaGCConfig
from zoo.optim.adam import AdamConfig
from zoo.optim.adamw import AdamWConfig
from zoo.optim.ademamix import AdEMAMix, AdEMAMixConfig
from zoo.optim.amos import Amos, AmosConfig
from zoo.optim.attach import attach
from zoo.optim.base import OptimizerConfig, ScheduleConfig
from zoo.optim.clip import ClipConfig, GlobalNorm
from zoo.optim.combined import Combined
from zoo.optim.constraint import Constraint, NoConstraint
from zoo.optim.foreign import ForeignOptimizerConfig
from zoo.optim.hyperball import Hyperball
from zoo.optim.lion import Lion, LionConfig
from zoo.optim.mars import MARS, MARSConfig
from zoo.optim.muon import Muon, MuonConfig
from zoo.optim.normuon import NorMuon, NorMuonConfig
from zoo.optim.prodigy import Prodigy, ProdigyConfig
from zoo.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeConfig
from zoo.optim.schedules import WSD, Constant, Cosine, LinearDecay, LinearRestart, RSqrt
from zoo.optim.soap import SOAP, SOAPConfig
from zoo.optim.state import load_state_by_name, state_by_name
from zoo.optim.virtual_clip import VirtualNormConfig
from zoo.optim.zclip import ZClipConfig

__all__ = [
    "MARS",
    "SOAP",
    "WSD",
    "AdEMAMix",
    "AdEMAMixConfig",
    "AdaGCConfig",
    "Adafactor",
    "AdafactorConfig",
    "AdamConfig",
    "AdamWConfig",
    "Amos",
    "AmosConfig",
    "ClipConfig",
    "Combined",
    "Constant",
    "Constraint",
    "Cosine",
    "ForeignOptimizerConfig",
    "GlobalNorm",
    "Hyperball",
    "LinearDecay",
    "LinearRestart",
    "Lion",
    "LionConfig",
    "MARSConfig",
    "Muon",
    "MuonConfig",
    "NoConstraint",
    "NorMuon",
    "NorMuonConfig",
    "OptimizerConfig",
    "Prodigy",
    "ProdigyConfig",
    "RSqrt",
    "SOAPConfig",
    "ScheduleConfig",
    "ScheduleFreeAdamW",
    "ScheduleFreeConfig",
    "VirtualNormConfig",
    "ZClipConfig",
    "attach",
    "load_state_by_name",
    "state_by_name",
]
