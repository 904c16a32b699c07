"""Hugging Face's libraries without the network: what is not on this machine is an error at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import datasets.config
import huggingface_hub.constants

SWITCHES = (
    (datasets.config, "HF_HUB_OFFLINE"),
    (datasets.config, "HF_DATASETS_OFFLINE"),
    (huggingface_hub.constants, "HF_HUB_OFFLINE"),
)
"""Where the libraries keep what they read from the environment when they were imported."""

EVALUATE = "HF_EVALUATE_OFFLINE"
"""What `evaluate` reads, which is only imported by tasks that want its metrics."""


@contextmanager
def offline() -> Iterator[None]:
    """Switch the network off for these libraries, and back to what it was."""
    before = [(module, name, getattr(module, name)) for module, name in SWITCHES]
    evaluate = os.environ.get(EVALUATE)
    try:
        for module, name in SWITCHES:
            setattr(module, name, True)
        os.environ[EVALUATE] = "1"
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        os.environ.pop(EVALUATE)
        if evaluate is not None:
            os.environ[EVALUATE] = evaluate
