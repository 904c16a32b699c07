"""Initialisations and the eta/sigma registry."""

from zoo.init.freeze import FreezeRule, freeze
from zoo.init.initialise import initialise
from zoo.init.measure import measure, spreads
from zoo.init.registry import Entry, EtaOverride, Registry
from zoo.init.schemes import AmosInit, BERTInit, GPT2Init, He, Init, NGPTInit, Small
from zoo.init.t5 import T5Init

__all__ = [
    "AmosInit",
    "BERTInit",
    "Entry",
    "EtaOverride",
    "FreezeRule",
    "GPT2Init",
    "He",
    "Init",
    "NGPTInit",
    "Registry",
    "Small",
    "T5Init",
    "freeze",
    "initialise",
    "measure",
    "spreads",
]
