"""Initialisation: the standard deviations, and that every parameter is drawn on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from zoo import build_model
from zoo.checkpoint.recipe import Recipe, assemble
from zoo.config.registry import INITS
from zoo.init import Registry
from zoo.init.infer import infer
from zoo.models import GPTConfig, NGPTConfig
from zoo.reparam import NoReparam, WeSaR
from zoo.spec import Role

SIZES = {"vocab_size": 512, "d_model": 128, "n_layers": 2, "n_heads": 4}


@pytest.mark.parametrize("reparam", [NoReparam(), WeSaR()])
@pytest.mark.parametrize("init", sorted(INITS.choices))
@pytest.mark.parametrize("kind", [GPTConfig, NGPTConfig])
def test_measured_std_is_sigma(kind: type, init: str, reparam: NoReparam | WeSaR) -> None:
    """Every matrix has the standard deviation that the registry states, every constant its start."""
    scheme = INITS[init]()
    model = assemble(Recipe(model=kind(**SIZES), init=scheme, reparam=reparam), 0)
    for entry in Registry(model, scheme):
        tensor = entry.parameter
        if entry.sigma is not None:
            assert tensor.std().item() == pytest.approx(entry.sigma, rel=0.03), entry.name
            assert abs(tensor.mean().item()) < 0.02 * entry.sigma
        else:
            expected = {Role.NORM_SCALE: 1.0, Role.BIAS: 0.0}.get(entry.spec.role, entry.spec.start)
            assert expected is not None, entry.name
            assert torch.equal(tensor, torch.full_like(tensor, expected)), entry.name


def test_a_layer_more_moves_no_other_weight() -> None:
    def weights(layers: int, seed: int = 0) -> dict[str, torch.Tensor]:
        init = INITS["gpt2"](std=0.02)
        model = assemble(
            Recipe(model=GPTConfig(**{**SIZES, "n_layers": layers}), init=init, reparam=NoReparam()), seed
        )
        return dict(model.named_parameters())

    two, three, other = weights(2), weights(3), weights(2, seed=1)
    ends_branch = ("o.weight", "down.weight")  # these are scaled by the depth
    for name, tensor in two.items():
        scaled = (3 / 2) ** 0.5 if name.rsplit(".", 2)[-2] + ".weight" in ends_branch else 1.0
        torch.testing.assert_close(three[name] * scaled, tensor)
        if tensor.std() > 0:
            assert not torch.equal(other[name], tensor)


@pytest.mark.parametrize("init", ["he", "small"])
@torch.no_grad()
def test_tables_that_are_heads_have_their_own_scale_of_lookups(init: str) -> None:
    """The WeSaR schemes scale looked-up vectors to what their model declares."""
    d, tokens = 256, torch.arange(512)
    sizes: dict[str, Any] = {"vocab_size": 512, "d_model": d, "init": init, "tied": True, "seed": 0}
    lstm: Any = build_model("lstm", d_memory=256, **sizes)
    assert lstm.embedding(tokens).std().item() == pytest.approx(d**-0.25, rel=0.02)
    gpt2: Any = build_model("gpt2", n_layers=1, n_heads=4, context=512, **sizes)
    for table in (gpt2.embedding, gpt2.position):
        assert table(tokens).std().item() == pytest.approx(1.0, rel=0.02)
    for scaled in (False, True):
        gpt: Any = build_model("gpt", n_layers=1, n_heads=4, scaled_embedding=scaled, **sizes)
        assert gpt.embed(tokens, None).std().item() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("model", "read_std"), [("t5", 256**-0.5), ("lstm", 256**-0.25), ("gpt", 1.0)])
@torch.no_grad()
def test_he_gives_a_tied_head_the_gain_of_its_declaration(model: str, read_std: float) -> None:
    """Its logits have a standard deviation of 1 for inputs of the declared one."""
    layers: dict[str, Any] = {} if model == "lstm" else {"n_layers": 1, "n_heads": 4}
    built: Any = build_model(model, vocab_size=512, d_model=256, tied=True, init="he", seed=0, **layers)
    logits = torch.randn(512, 256) * read_std @ built.embedding.weight.T
    assert logits.std().item() == pytest.approx(1.0, rel=0.02)


def test_spheres_start_in_order() -> None:
    model = assemble(Recipe(model=NGPTConfig(**SIZES), init=INITS["he"](), reparam=NoReparam()), 0)
    spheres = [e for e in Registry(model) if e.sphere_dim is not None]
    assert len(spheres) == 2 + 7 * 2
    for entry in spheres:
        norm = entry.parameter.norm(dim=entry.sphere_dim)
        torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)


class Foreign(nn.Module):
    """A little of everything that other libraries' models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 6, 3)
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 16)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight


def test_inference_for_foreign_modules() -> None:
    entries = {e.name: e for e in infer(Foreign())}
    assert {n: (str(e.spec.role), e.slot_shape("one_axis")) for n, e in entries.items()} == {
        "table.weight": ("embedding", (20, 1)),
        "conv.weight": ("conv", (6, 1, 1)),
        "conv.bias": ("bias", (1,)),
        "norm.weight": ("norm_scale", (1,)),
        "norm.bias": ("bias", (1,)),
        "linear.weight": ("linear", (16, 1)),
        "linear.bias": ("bias", (1,)),
    }
    etas = {n: e.eta for n, e in entries.items()}
    expected = {
        "table.weight": 8**-0.5,
        "conv.weight": 24**-0.5,
        "norm.weight": 1.0,
        "linear.weight": 8**-0.5,
    }
    assert etas == pytest.approx({**expected, "conv.bias": 0.5, "norm.bias": 0.5, "linear.bias": 0.5})
