"""Reparameterisations, which compute the (virtual) tensor that a layer uses from trained tensors."""

from zoo.reparam.base import Reparam
from zoo.reparam.convert import Conversion, merge, split
from zoo.reparam.forward_start import start_from_forward
from zoo.reparam.gate import Gate
from zoo.reparam.lora import LoRA
from zoo.reparam.methods import NoReparam, ResidualScaling, WeSaR
from zoo.reparam.multipliers import Multipliers
from zoo.reparam.spectral import SigmaReparam
from zoo.reparam.weight_norm import WeightNormalization

__all__ = [
    "Conversion",
    "Gate",
    "LoRA",
    "Multipliers",
    "NoReparam",
    "Reparam",
    "ResidualScaling",
    "SigmaReparam",
    "WeSaR",
    "WeightNormalization",
    "merge",
    "split",
    "start_from_forward",
]
