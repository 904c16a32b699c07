"""The harness in this process alone: no network, no further processes."""

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

VARIABLES = ("HF_EVALUATE_OFFLINE", "DISABLE_MULTIPROC")
"""For `evaluate`, which only some tasks import, and for the harness, which would estimate standard errors
in copies of a process that has threads."""


@contextmanager
def alone() -> Iterator[None]:
    """What is not on this machine is an error at once; afterwards all is as it was."""
    before = [(module, name, getattr(module, name)) for module, name in SWITCHES]
    environment = {name: os.environ.get(name) for name in VARIABLES}
    try:
        for module, name in SWITCHES:
            setattr(module, name, True)
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        for name, content in environment.items():
            os.environ.pop(name, None)
            if content is not None:
                os.environ[name] = content
