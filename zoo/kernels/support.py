"""Tests which private functions of torch exist; the modules of this package call them before use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch.torch_version import TorchVersion

P = ParamSpec("P")
T = TypeVar("T")

Context: TypeAlias = Any
"""The context that a `torch.autograd.Function` gets first. Any: each function sets its own attributes."""

FIRST, END = "2.11", "3.0"
"""The range of torch versions whose private functions are used: from the first to before the last."""


def is_trusted() -> bool:
    """Return whether private functions of the installed torch may be used."""
    return TorchVersion(FIRST) <= TorchVersion(torch.__version__) < TorchVersion(END)


def has_operator(namespace: str, name: str, arguments: tuple[str, ...]) -> bool:
    """Return whether ``torch.ops.<namespace>.<name>`` may be used.

    Args:
        namespace: namespace of the operator, such as ``mkldnn``.
        name: name of the operator.
        arguments: the names of the arguments that the operator must take, in order.
    """
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None or not is_trusted():
        return False
    return tuple(argument.name for argument in packet.default._schema.arguments) == arguments


def has_function(name: str) -> bool:
    """Return whether the private function ``torch.<name>`` may be used."""
    return is_trusted() and hasattr(torch, name)


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that `torch.compile` should not compile.

    Unlike the public decorator, torch's private one does not import the compiler before the function is
    called.
    """
    public: Any = torch.compiler.disable  # Any: torch does not annotate it
    decorate = vars(torch).get("_disable_dynamo", public) if is_trusted() else public
    decorated: Callable[P, T] = decorate(function)
    return decorated


def differentiable(
    function: type[torch.autograd.Function], *arguments: object
) -> Any:  # Any: what its `forward` returns
    """Call a function that defines its own backward pass.

    Args:
        function: a subclass of `torch.autograd.Function`.
        *arguments: the arguments of `forward` after the context.
    """
    return function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch does not annotate it
