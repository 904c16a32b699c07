"""Optimizers, learning rate schedules, the projection after the step, and state by name.

Names are loaded when they are first used: a model needs no optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.utils.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.optim.adafactor import Adafactor as Adafactor
    from zoo.optim.adafactor import AdafactorConfig as AdafactorConfig
    from zoo.optim.adagc import AdaGCConfig as AdaGCConfig
    from zoo.optim.adam import AdamConfig as AdamConfig
    from zoo.optim.adamw import AdamWConfig as AdamWConfig
    from zoo.optim.ademamix import AdEMAMix as AdEMAMix
    from zoo.optim.ademamix import AdEMAMixConfig as AdEMAMixConfig
    from zoo.optim.amos import Amos as Amos
    from zoo.optim.amos import AmosConfig as AmosConfig
    from zoo.optim.base import OptimizerConfig as OptimizerConfig
    from zoo.optim.base import ScheduleConfig as ScheduleConfig
    from zoo.optim.clip import ClipConfig as ClipConfig
    from zoo.optim.clip import GlobalNorm as GlobalNorm
    from zoo.optim.combined import Combined as Combined
    from zoo.optim.constraint import Constraint as Constraint
    from zoo.optim.constraint import NoConstraint as NoConstraint
    from zoo.optim.foreign import ForeignOptimizerConfig as ForeignOptimizerConfig
    from zoo.optim.hyperball import Hyperball as Hyperball
    from zoo.optim.lion import Lion as Lion
    from zoo.optim.lion import LionConfig as LionConfig
    from zoo.optim.mars import MARS as MARS
    from zoo.optim.mars import MARSConfig as MARSConfig
    from zoo.optim.muon import Muon as Muon
    from zoo.optim.muon import MuonConfig as MuonConfig
    from zoo.optim.normuon import NorMuon as NorMuon
    from zoo.optim.normuon import NorMuonConfig as NorMuonConfig
    from zoo.optim.prodigy import Prodigy as Prodigy
    from zoo.optim.prodigy import ProdigyConfig as ProdigyConfig
    from zoo.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
    from zoo.optim.schedule_free import ScheduleFreeConfig as ScheduleFreeConfig
    from zoo.optim.schedules import WSD as WSD
    from zoo.optim.schedules import Constant as Constant
    from zoo.optim.schedules import Cosine as Cosine
    from zoo.optim.schedules import LinearDecay as LinearDecay
    from zoo.optim.schedules import LinearRestart as LinearRestart
    from zoo.optim.schedules import RSqrt as RSqrt
    from zoo.optim.soap import SOAP as SOAP
    from zoo.optim.soap import SOAPConfig as SOAPConfig
    from zoo.optim.state import load_state_by_name as load_state_by_name
    from zoo.optim.state import state_by_name as state_by_name
    from zoo.optim.virtual_clip import VirtualNormConfig as VirtualNormConfig
    from zoo.optim.zclip import ZClipConfig as ZClipConfig

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "zoo.optim.adafactor": "Adafactor AdafactorConfig",
        "zoo.optim.adagc": "AdaGCConfig",
        "zoo.optim.adam": "AdamConfig",
        "zoo.optim.adamw": "AdamWConfig",
        "zoo.optim.ademamix": "AdEMAMix AdEMAMixConfig",
        "zoo.optim.amos": "Amos AmosConfig",
        "zoo.optim.base": "OptimizerConfig ScheduleConfig",
        "zoo.optim.clip": "ClipConfig GlobalNorm",
        "zoo.optim.combined": "Combined",
        "zoo.optim.constraint": "Constraint NoConstraint",
        "zoo.optim.foreign": "ForeignOptimizerConfig",
        "zoo.optim.hyperball": "Hyperball",
        "zoo.optim.lion": "Lion LionConfig",
        "zoo.optim.mars": "MARS MARSConfig",
        "zoo.optim.muon": "Muon MuonConfig",
        "zoo.optim.normuon": "NorMuon NorMuonConfig",
        "zoo.optim.prodigy": "Prodigy ProdigyConfig",
        "zoo.optim.schedule_free": "ScheduleFreeAdamW ScheduleFreeConfig",
        "zoo.optim.schedules": "WSD Constant Cosine LinearDecay LinearRestart RSqrt",
        "zoo.optim.soap": "SOAP SOAPConfig",
        "zoo.optim.state": "load_state_by_name state_by_name",
        "zoo.optim.virtual_clip": "VirtualNormConfig",
        "zoo.optim.zclip": "ZClipConfig",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
