"""Text from a model: token by token, each computed once thanks to the cache of keys and values."""

from zoo.sampling.draw import sample
from zoo.sampling.loop import generate, steps
from zoo.sampling.padding import left_padded
from zoo.sampling.settings import Sampling
from zoo.sampling.text import Writer

__all__ = ["Sampling", "Writer", "generate", "left_padded", "sample", "steps"]
