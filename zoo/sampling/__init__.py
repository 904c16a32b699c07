"""Generation of text, token by token with a cache."""

from zoo.sampling.draw import sample
from zoo.sampling.loop import generate, steps
from zoo.sampling.padding import left_padded
from zoo.sampling.settings import Sampling
from zoo.sampling.text import TextStreamer

__all__ = ["Sampling", "TextStreamer", "generate", "left_padded", "sample", "steps"]
