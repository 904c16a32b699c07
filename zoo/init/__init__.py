"""Initialisations and the eta/sigma registry."""

from zoo.init.freeze import FreezeRule, freeze
from zoo.init.initialise import initialise
from zoo.init.measure import measure
from zoo.init.registry import Entry, EtaOverride, Registry
from zoo.init.schemes import GPT2, AmosInit, BERTInit, He, Init, NGPTInit, Small
from zoo.init.t5 import T5Init

__all__ = [
    "GPT2",
    "AmosInit",
    "BERTInit",
    "Entry",
    "EtaOverride",
    "FreezeRule",
    "He",
    "Init",
    "NGPTInit",
    "Registry",
    "Small",
    "T5Init",
    "freeze",
    "initialise",
    "measure",
]
