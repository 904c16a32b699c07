"""nGPT's encoder-decoder: every vector stays on the hypersphere, and it learns to fill in spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo import build_model, build_optimizer
from zoo.data.dataset import BatchSpec
from zoo.data.objectives.span_corruption import SpanCorruption
from zoo.data.tokens import TokenFile
from zoo.init import Registry
from zoo.models import Model, NGPTT5Config
from zoo.nn.residual import Lerp
from zoo.spec import Role

SIZES: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_mlp": 64}


def assert_unit(x: Tensor, dim: int, name: str) -> None:
    norm = x.norm(dim=dim)
    torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-5, rtol=0, msg=lambda m: f"{name}: {m}")


def step(model: Model, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, ...]) -> float:
    optimizer.zero_grad()
    loss = model.loss(*batch).total
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("optimizer", ["adamw", "amos", "muon"])
@pytest.mark.parametrize("update", ["lerp", "slerp", "riemannian"])
def test_every_vector_stays_on_the_sphere(optimizer: str, update: str) -> None:
    """After steps: all vectors of the matrices, the stream behind every step, and the memory."""
    model = build_model("ngpt-t5", **SIZES, update=update)
    attached = build_optimizer(model, optimizer, lr=0.02)
    for _ in range(5):
        step(model, attached, model.example(2, 16))
    spheres = [(e.name, e.parameter, e.sphere_dim) for e in Registry(model)]
    count = sum(dim is not None for _, _, dim in spheres)
    assert count == 2 + 2 * (4 + 3) + 2 * (4 + 4 + 3), "all matrices"
    for name, parameter, dim in spheres:
        if dim is not None:
            assert parameter.shape[dim] == 32
            assert_unit(parameter.detach(), dim, name)
    seen: list[str] = []

    def watch(path: str, module: nn.Module) -> None:
        def note(_m: nn.Module, _i: object, output: Tensor) -> None:
            seen.append(path)
            assert_unit(output.detach(), -1, path)

        module.register_forward_hook(note)

    for path, module in model.named_modules():
        if isinstance(module, Lerp) or path == "embedding":
            watch(path, module)
    source, prefix, _ = model.example(2, 16)
    model(source, prefix)
    assert len(seen) == 2 + 2 * 2 + 2 * 3  # the embedding for source and target, two or three steps a block


def test_keys_and_queries_of_the_source_are_on_the_sphere() -> None:
    model = build_model("ngpt-t5", **SIZES)
    cross = model.get_submodule("decoder_blocks.1.cross")
    q, k = torch.randn(2, 2, 5, 4, 8, generator=torch.Generator().manual_seed(0))
    scaled, keys = cross.qk(q, k, None)  # type: ignore[operator]
    assert_unit(keys, -1, "keys")
    assert_unit(scaled, -1, "queries, at the start where s_qk is 1")
    assert cross.scale == pytest.approx(8**0.5)


def test_it_learns_to_fill_in(tmp_path: Path) -> None:
    """Spans of a text that counts: the context says what is missing, the sentinel where."""
    path = tmp_path / "tokens.bin"
    np.arange(4000, dtype="<u2").__mod__(40).tofile(path)
    tokens, objective = TokenFile(path, "uint16", 4000), SpanCorruption(sentinels=10)
    model = build_model("ngpt-t5", **{**SIZES, "vocab_size": 51})
    optimizer = build_optimizer(model, "adamw", lr=0.02)
    batches = (objective.train_batch(tokens, BatchSpec(0, i, 16), 32, 40) for i in range(80))
    losses = [step(model, optimizer, batch) for batch in batches]
    assert losses[0] > 3.5
    assert np.mean(losses[-10:]) < 2.0


def test_it_has_the_parts_of_ngpt() -> None:
    """No normalisation layers, no biases, no positions but the rotation; s_z and an alpha for each step."""
    model = build_model("ngpt-t5", **SIZES)
    roles = [e.spec.role for e in Registry(model)]
    assert set(roles) == {Role.EMBEDDING, Role.LINEAR, Role.SCALING}
    alphas = [m for m in model.modules() if isinstance(m, Lerp)]
    s_qk, s_mlp, s_z = 2 + 2 * 2, 2 * 4, 1
    assert roles.count(Role.SCALING) == len(alphas) + s_qk + s_mlp + s_z


def test_odd_heads_cannot_rotate() -> None:
    with pytest.raises(ValueError, match="the head size 7 is odd, but RoPE rotates pairs"):
        NGPTT5Config(**SIZES, d_head=7)
