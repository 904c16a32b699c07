"""What `make gpu` measures, a cell at a time: those that say most come first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

Package = Literal["zoo", "transformers"]
Compile = Literal["none", "blocks"]
Recompute = Literal["none", "blocks", "selective"]
Mode = Literal["eager", "compiled", "graph", "compiled graph"]
TOKENS = 16_384
"""Tokens in a training step, whatever the context is."""


@dataclass(frozen=True)
class Size:
    """What is measured, or something as small as a test needs.

    Attributes:
        fields: fields that replace those of the shipped model.
        tokens: number of tokens in a training step.
        context: number of tokens of the longest sequence in a training step.
        steps: number of steps that are timed.
        prompt: number of tokens that a generation begins with.
        new: number of tokens that a generation adds.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = TOKENS
    context: int = TOKENS
    steps: int = 10
    prompt: int = 128
    new: int = 128


FULL = Size()
TINY_MODEL = MappingProxyType({"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 2})
TINY = Size(TINY_MODEL, tokens=32, context=16, steps=2, prompt=4, new=5)


@dataclass(frozen=True)
class Training:
    """Steps of AdamW under bf16 autocast.

    Attributes:
        model: a shipped configuration; a Llama of transformers has the sizes of its model.
        context: number of tokens of a sequence.
        package: the package that the model comes from.
        compile: whether each block is compiled.
        recompute: the value of `train.recompute`.
    """

    section: ClassVar[str] = "training"
    model: str
    context: int
    package: Package = "zoo"
    compile: Compile = "blocks"
    recompute: Recompute = "none"

    @property
    def key(self) -> str:
        """The name of the cell in the file of results."""
        parts = self.section, self.package, self.model, str(self.context), self.compile, self.recompute
        return " ".join(parts)


@dataclass(frozen=True)
class Update:
    """Steps of an optimizer on the tensors of a model, with gradients that stay the same.

    Attributes:
        optimizer: the name of the optimizer in `zoo.build_optimizer`; "adamw" is torch's, fused.
        settings: the settings of the optimizer.
        model: a shipped configuration, see `Training`.
    """

    section: ClassVar[str] = "update"
    optimizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "gpt-0.5b"

    @property
    def key(self) -> str:
        """The name of the cell in the file of results."""
        return " ".join(
            (self.section, self.model, self.optimizer, *(f"{k}={v}" for k, v in self.settings.items()))
        )


@dataclass(frozen=True)
class Generation:
    """Greedy generation in bfloat16 from random weights.

    Attributes:
        batch: number of prompts.
        package: the package that the model comes from.
        mode: whether the step from one token to the next is compiled, or replayed as a CUDA graph, or both;
            the cache has a fixed size then.
        model: a shipped configuration, see `Training`.
    """

    section: ClassVar[str] = "generation"
    batch: int
    package: Package = "zoo"
    mode: Mode = "eager"
    model: str = "gpt-0.5b"

    @property
    def key(self) -> str:
        """The name of the cell in the file of results."""
        return " ".join((self.section, self.package, self.model, str(self.batch), self.mode))


Cell = Training | Update | Generation

PACKAGES: tuple[Package, ...] = ("zoo", "transformers")
MODELS: tuple[tuple[str, Package], ...] = (
    ("gpt-0.5b", "zoo"),
    ("ngpt-0.5b", "zoo"),
    ("gpt-0.5b", "transformers"),
)
MODES: tuple[tuple[Mode, Package], ...] = (
    ("eager", "zoo"),
    ("eager", "transformers"),
    ("graph", "zoo"),
    ("compiled", "zoo"),
    ("compiled", "transformers"),
    ("compiled graph", "zoo"),
)
WAYS: tuple[Recompute, ...] = ("blocks", "selective")
ALL: tuple[Cell, ...] = (
    *(Training(model, 1024, package) for model, package in MODELS),
    Update("adamw"),
    Update("amos", {"momentum": 0.9}),
    Update("amos"),
    *(Training(model, context, package) for context in (4096, 8192) for model, package in MODELS),
    *(Training(f"{kind}-{size}", 2048) for size in ("130m", "1.3b") for kind in ("wesar", "small")),
    *(Training(f"{kind}-0.5b", 8192, recompute=way) for kind in ("gpt", "ngpt") for way in WAYS),
    *(Generation(batch, package, mode) for batch in (1, 8) for mode, package in MODES),
    *(Training(model, 1024, package, "none") for model, package in MODELS),
)
CELLS: dict[str, Cell] = {cell.key: cell for cell in ALL}
"""All cells by their keys."""
