"""Rounding through 24 layers: bfloat16, compiled by inductor, against float32, untrained and trained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from zoo import build_model, build_optimizer
from zoo.train.compilation import compiled_loss

LAYERS = 24


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_ngpt_of_24_layers() -> None:
    """The loss is off by less than one rounding to bfloat16 at most is, 2^-9, and not by 24 times that.

    Trained alphas on random matrices would amplify any rounding, so the second comparison follows training.
    """
    torch._dynamo.reset()
    fields: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": LAYERS, "n_heads": 2, "d_mlp": 32}
    model = build_model("ngpt", **fields, alpha={"init": 1 / LAYERS}, s_z={"init": 32**0.5})
    twin = copy.deepcopy(model).eval()
    compiled = compiled_loss(twin, "blocks")
    optimizer = build_optimizer(model, "adamw", lr=0.01)
    batch = model.example(2, 16)
    for expected in ((4.0, 5.0), (0.0, 2.0)):  # about ln 64 = 4.16 at the start
        exact = model.loss(*batch).total.item()
        twin.load_state_dict(model.state_dict())
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            rounded = compiled(*batch).total.item()
        assert expected[0] < exact < expected[1]
        assert abs(rounded - exact) < 2**-9 * max(exact, 0.25)
        for _ in range(20):
            optimizer.zero_grad()
            torch.autograd.backward(model.loss(*batch).total)
            optimizer.step()
