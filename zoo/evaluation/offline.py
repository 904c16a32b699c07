"""Running lm-evaluation-harness without the network and without further processes."""

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
"""Settings of libraries that read them from the environment when they are imported."""

VARIABLES = ("HF_EVALUATE_OFFLINE", "DISABLE_MULTIPROC")
"""Environment variables: the first is for `evaluate`, which only some tasks import; the second keeps the
harness from estimating standard errors in forks of a process that has threads."""


@contextmanager
def offline() -> Iterator[None]:
    """Within a `with` block, make data that is not on this machine an error; restore all settings."""
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
