"""zoo: is an architecture, an optimizer or an initialisation really better? Then train with it.

Amos, nGPT and WeSaR, with the models they train and the methods they compare with. Names are
loaded when they are first used, so that ``import zoo`` costs little more than ``import torch``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import zoo.hub.formats  # noqa: F401  registers the formats that load_model reads

if TYPE_CHECKING:
    from zoo.checkpoint.model import load_model, save_model
    from zoo.config.plugins import load_plugin
    from zoo.init.registry import Registry
    from zoo.optim.amos import Amos
    from zoo.optim.attach import attach
    from zoo.run.config import load_config
    from zoo.run.explanation import explain
    from zoo.run.factory import build_model, build_optimizer, merge, split
    from zoo.sampling import generate
    from zoo.spec import Module, ParamSpec, Role
    from zoo.utils.errors import ZooError

__version__ = "0.2.0"

_HOME = {
    "Amos": "zoo.optim.amos",
    "Module": "zoo.spec",
    "ParamSpec": "zoo.spec",
    "Registry": "zoo.init.registry",
    "Role": "zoo.spec",
    "ZooError": "zoo.utils.errors",
    "attach": "zoo.optim.attach",
    "build_model": "zoo.run.factory",
    "build_optimizer": "zoo.run.factory",
    "explain": "zoo.run.explanation",
    "generate": "zoo.sampling",
    "load_config": "zoo.run.config",
    "load_model": "zoo.checkpoint.model",
    "load_plugin": "zoo.config.plugins",
    "merge": "zoo.run.factory",
    "save_model": "zoo.checkpoint.model",
    "split": "zoo.run.factory",
}

__all__ = [
    "Amos",
    "Module",
    "ParamSpec",
    "Registry",
    "Role",
    "ZooError",
    "__version__",
    "attach",
    "build_model",
    "build_optimizer",
    "explain",
    "generate",
    "load_config",
    "load_model",
    "load_plugin",
    "merge",
    "save_model",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'zoo' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
