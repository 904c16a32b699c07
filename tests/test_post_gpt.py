"""The post-norm decoder against its equations, written with torch's functions in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo import build_model
from zoo.sampling import generate

SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 8, "n_layers": 2, "n_heads": 2}


def norm(h: Tensor, scale: Tensor) -> Tensor:
    return F.rms_norm(h, (8,), scale, eps=1e-5)


def rotated(x: Tensor) -> Tensor:
    """(time, heads, 4): pairs (i, i + 2) turned by position * 10000^(-i / 2), as complex numbers."""
    pairs = torch.complex(x[..., :2], x[..., 2:])
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] * 10000.0 ** -(torch.arange(2, dtype=x.dtype) / 2)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


def attention(h: Tensor, w: dict[str, Tensor]) -> Tensor:
    q, k, v = (F.linear(h, w[f"attention.{x}.weight"]).view(len(h), 2, 4) for x in "qkv")
    q, k, v = (t.transpose(0, 1) for t in (rotated(q), rotated(k), v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(0, 1).reshape(len(h), 8), w["attention.o.weight"])


def test_the_equations() -> None:
    model = build_model("gpt-post", **SIZES, seed=1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(
                torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype) / 4
            )
    weights: dict[str, Tensor] = dict(model.named_parameters())
    tokens = torch.randint(13, (7,), generator=torch.Generator().manual_seed(0))
    h = F.embedding(tokens, weights["embedding.weight"])
    for i in range(2):
        prefix = f"blocks.{i}."
        w = {name.removeprefix(prefix): p for name, p in weights.items() if name.startswith(prefix)}
        h = norm(h + attention(h, w), w["attention_residual.norm.scale"])
        up = F.gelu(F.linear(h, w["mlp.up.weight"]))
        h = norm(h + F.linear(up, w["mlp.down.weight"]), w["mlp_residual.norm.scale"])
    expected = F.linear(h, weights["read_out.matrix.weight"])
    torch.testing.assert_close(model(tokens[None])[0], expected, rtol=0, atol=1e-6)


def test_decoding_token_by_token_gives_the_same() -> None:
    model = build_model("gpt-post", **SIZES, seed=1).eval()
    tokens = generate(model, torch.tensor([[3, 1, 4]]), 5, temperature=0.0)
    with torch.no_grad():
        logits = model(tokens)
    assert torch.equal(tokens[0, 3:], logits[0, 2:-1].argmax(-1))
