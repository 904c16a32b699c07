"""Which private parts of torch this installation has. The modules of this package ask before they use one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch.torch_version import TorchVersion

P = ParamSpec("P")
T = TypeVar("T")

Context: TypeAlias = Any
"""What a `torch.autograd.Function` gets first. Any: each function sets attributes of its own on it."""

FIRST, END = "2.11", "3.0"
"""The versions of torch whose private parts are used: from the first one, up to but without the last one."""


def is_trusted() -> bool:
    """Return whether private parts of the installed torch may be used."""
    return TorchVersion(FIRST) <= TorchVersion(torch.__version__) < TorchVersion(END)


def has_operator(namespace: str, name: str, arguments: tuple[str, ...]) -> bool:
    """Return whether ``torch.ops.<namespace>.<name>`` may be used.

    Args:
        namespace: the operator's, such as ``mkldnn``.
        name: the operator's.
        arguments: the names of the arguments that it must take, in order.
    """
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None or not is_trusted():
        return False
    return tuple(argument.name for argument in packet.default._schema.arguments) == arguments


def has_function(name: str) -> bool:
    """Return whether the private function ``torch.<name>`` may be used."""
    return is_trusted() and hasattr(torch, name)


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that `torch.compile` leaves as it is.

    torch's private decorator does not import the compiler before the function is called, as the public
    one does.
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
        *arguments: what its `forward` takes after the context.
    """
    return function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch does not annotate it
