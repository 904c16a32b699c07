"""Operators of zoo: functions that torch calls by a schema, and that the compiler does not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import library

T = TypeVar("T")


def operator(
    name: str, fake: Callable[..., object], device: str = "default"
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a function on tensors as the operator ``torch.ops.zoo.<name>``.

    torch's `custom_op` does the same, and at every call looks whether a result shares memory with an
    argument, which takes longer than a product of small matrices. The function has to return new tensors. The
    operator has no gradient of its own: what is to be differentiated calls it from a
    `torch.autograd.Function`.

    Args:
        name: The operator's name.
        fake: A function of the same arguments that returns empty tensors like the results, by which the
            compiler knows their shapes and dtypes.
        device: The type of device that the function is for; "default": any.

    Returns:
        A decorator; what it returns takes the arguments of the function.
    """

    def register(function: Callable[..., T]) -> Callable[..., T]:
        qualified = f"zoo::{name}"
        schema = library.infer_schema(function, mutates_args=())
        library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(qualified, device, function)
        library.register_fake(qualified, fake)
        overload: Callable[..., T] = getattr(torch.ops.zoo, name).default
        return overload

    return register
