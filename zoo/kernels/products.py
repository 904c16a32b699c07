"""The operators of matrix products and attention, which take most of the time of a forward pass."""

from __future__ import annotations

import torch

from zoo.kernels.matmul import ONEDNN_LINEAR, ROUNDED_PRODUCT
from zoo.kernels.short_attention import ATTENTION
from zoo.kernels.support import is_trusted

NAMES = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)

PRODUCTS: list[object] = [
    *(getattr(torch.ops.aten, n).default for n in NAMES if is_trusted() and hasattr(torch.ops.aten, n)),
    ONEDNN_LINEAR,
    ROUNDED_PRODUCT,
    ATTENTION,
]
"""The operators of `NAMES` that this version of torch has, none if the version is not trusted, and zoo's."""
