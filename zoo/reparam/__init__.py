"""Reparameterisations: one declared tensor becomes several."""

from zoo.reparam.convert import Conversion, merge, split
from zoo.reparam.gate import Gate
from zoo.reparam.methods import NoReparam, Reparam, ResidualScaling, WeSaR

__all__ = ["Conversion", "Gate", "NoReparam", "Reparam", "ResidualScaling", "WeSaR", "merge", "split"]
