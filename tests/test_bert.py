"""BERT is what its papers say: etas, ranges, positions, masks; the loss looks at nothing but its targets."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

from zoo import build_model, generate
from zoo.checkpoint.recipe import Recipe, assemble, declare
from zoo.config.registry import INITS
from zoo.init import AmosInit, Init, Registry
from zoo.models import BERT, BERTConfig
from zoo.nn.linear import Linear
from zoo.reparam import NoReparam
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.utils.errors import DataError, ZooError

POSITIONS = ("absolute", "rope", "relative", "shaw")
SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}


def recipe(init: Init | None = None, **fields: Any) -> Recipe:
    return Recipe(model=BERTConfig(**fields), init=init or INITS["bert"](), reparam=NoReparam())


def bert(position: str | dict[str, Any], std: float = 0.3, **fields: Any) -> BERT:
    """A tiny model all of whose parameters, biases and scales too, are random."""
    given = {"type": position} if isinstance(position, str) else position
    model = assemble(recipe(**{**SIZES, "position": given, **fields}), 0)
    assert isinstance(model, BERT)
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data.normal_(0, std, generator=generator)
    return model.eval()


def tokens_and_targets() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(61, (3, 12), generator=generator)
    return tokens, tokens.masked_fill(torch.rand(3, 12, generator=generator) > 0.4, -1)


def table_2(d: int, m: int, position: str) -> dict[str, float]:
    """Amos, Table 2, for every variable of a model; {i} is the number of a layer."""
    input_embedding = other_kernel = math.sqrt(1 / d)
    second_mlp_kernel, bias, norm_scale, relative_position = math.sqrt(2 / m), 0.5, 1.0, 0.5
    eta = {
        "embedding.token.weight": input_embedding,
        "embedding.segment.weight": input_embedding,
        "head.transform.weight": other_kernel,
        "head.transform.bias": bias,
        "head.bias": bias,
        "blocks.{i}.mlp.up.weight": other_kernel,
        "blocks.{i}.mlp.up.bias": bias,
        "blocks.{i}.mlp.down.weight": second_mlp_kernel,
        "blocks.{i}.mlp.down.bias": bias,
    }
    for kernel in "qkvo":
        eta[f"blocks.{{i}}.attention.{kernel}.weight"] = other_kernel
        eta[f"blocks.{{i}}.attention.{kernel}.bias"] = bias
    for norm in ("embedding", "head", "blocks.{i}.attention_residual", "blocks.{i}.mlp_residual"):
        eta[f"{norm}.norm.scale"], eta[f"{norm}.norm.bias"] = norm_scale, bias
    if position == "absolute":
        eta["embedding.position.weight"] = input_embedding
    if position == "relative":
        eta["blocks.{i}.attention.relative.weight"] = relative_position
    if position == "shaw":
        eta["blocks.{i}.attention.keys.weight"] = relative_position
        eta["blocks.{i}.attention.values.weight"] = relative_position
    return eta


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("d", "n", "heads"), [(768, 12, 12), (1024, 24, 16)])
def test_amos_table_2(d: int, n: int, heads: int, position: str) -> None:
    fields: dict[str, Any] = {"vocab_size": 30522, "d_model": d, "n_layers": n, "n_heads": heads}
    registry = Registry(declare(recipe(**fields, position={"type": position})))
    table = table_2(d, 4 * d, position)
    found = {e.name: e.eta for e in registry}
    expected = {e.name: table[re.sub(r"\d+", "{i}", e.name)] for e in registry}
    assert found == pytest.approx(expected, rel=1e-12)
    assert {re.sub(r"\d+", "{i}", name) for name in found} == set(table)


def test_amos_slots() -> None:
    """Input embeddings share a slot over their width, relative positions one for the whole table (A.8)."""
    absolute, relative, shaw = (Registry(bert(p)) for p in ("absolute", "relative", "shaw"))
    assert absolute["embedding.position.weight"].slot_shape("one_axis") == (512, 1)
    assert absolute["embedding.segment.weight"].slot_shape("dense") == (2, 1)
    assert relative["blocks.0.attention.relative.weight"].slot_shape("one_axis") == (1, 1)
    assert shaw["blocks.0.attention.keys.weight"].slot_shape("one_axis") == (1, 1)


@pytest.mark.parametrize(("d", "n", "heads"), [(768, 12, 12), (1024, 24, 16)])
def test_as_many_parameters_as_theirs(d: int, n: int, heads: int) -> None:
    config: Any = BertConfig
    with torch.device("meta"):
        theirs = BertForMaskedLM(
            config(hidden_size=d, num_hidden_layers=n, num_attention_heads=heads, intermediate_size=4 * d)
        )
    ours = declare(recipe(vocab_size=30522, d_model=d, n_layers=n, n_heads=heads))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(
    ("init", "drawn"),
    [("amos", 0.5), ("he", 0.5), ("small", 0.5), ("ngpt", 0.5), ("bert", 0.02), ("gpt2", 0.02)],
)
def test_relative_positions_at_the_start(init: str, drawn: float) -> None:
    """In their range; where a scheme knows one deviation alone, that."""
    model = build_model("bert", **SIZES, position={"type": "shaw", "distance": 500}, init=init)
    table = model.get_parameter("blocks.1.attention.values.weight")
    assert table.std().item() == pytest.approx(drawn, rel=0.05)
    assert Registry(model, model.recipe.init)["blocks.1.attention.values.weight"].sigma == drawn


@pytest.mark.parametrize("init", ["he", "small"])
def test_embeddings_are_not_scaled_before_a_norm(init: str) -> None:
    """Token, segment and position keep their proportions; the norm takes care of the rest."""
    registry = Registry(build_model("bert", **SIZES, init=init), INITS[init]())
    tables = [registry[f"embedding.{name}.weight"] for name in ("token", "segment", "position")]
    assert len({e.sigma for e in tables}) == 1
    assert {e.spec.scale for e in tables} == {1.0}


# The declared ranges are those of Amos' Table 1. One kind of layer stands apart: what `o` is given is
# an average of values, the smaller the more of them are averaged, and with it what it gives; declared
# is the range of one value, which the averages approach as attention learns to choose.
AVERAGED = {"o"}


@pytest.mark.parametrize("position", POSITIONS)
def test_activations_have_the_declared_std(position: str) -> None:
    """Every linear and the read-out, with the amos init: within 25 %."""
    sizes = {"vocab_size": 512, "d_model": 256, "n_layers": 3, "n_heads": 4}
    model = assemble(recipe(AmosInit(), **sizes, position={"type": position}), 0)
    measured: dict[str, tuple[float, float]] = {}

    def rms(x: Tensor) -> float:
        return x.square().mean().sqrt().item()

    def watch(path: str, module: Linear) -> None:
        spec = module.specs["weight"]

        def hook(_: nn.Module, given: tuple[Tensor, ...], gave: Tensor) -> None:
            # The first call is that on the stream; relative positions go through k and v afterwards.
            measured.setdefault(f"{path} input", (rms(given[0]), spec.input_std))
            measured.setdefault(f"{path} output", (rms(gave), spec.output_std))

        module.register_forward_hook(hook)

    linears = {path: m for path, m in model.named_modules() if isinstance(m, Linear)}
    for path, module in linears.items():
        watch(path, module)
    logits = model(torch.randint(512, (4, 64), generator=torch.Generator().manual_seed(1)))
    table = Registry(model)["embedding.token.weight"].spec
    measured["read-out"] = (rms(logits), table.output_std)
    assert len(linears) == 3 * 6 + 1
    for path, (found, declared) in measured.items():
        if path.split()[0].split(".")[-1] in AVERAGED:
            assert 0.5 < found / declared < 1, f"{path}: {found:.3f}, declared {declared:.3f}"
        else:
            assert abs(found / declared - 1) < 0.25, f"{path}: {found:.3f}, declared {declared:.3f}"


@pytest.mark.parametrize("position", POSITIONS)
def test_floating_point_operations(position: str) -> None:
    """Counted by hand, per token: two for every weight it meets, and attention's."""
    d, m, layers, vocab, time, distances = 32, 128, 2, 257, 32, 33
    config = load_config("bert-tiny", [f"model.position={position}"])
    per_layer = 2 * (4 * d * d + 2 * d * m) + 4 * time * d
    if position == "shaw":
        per_layer += 4 * distances * d
    if position == "relative":  # 255 rows met by every query, and mapped twice for each sequence's tokens
        per_layer += 4 * 255 * d + 2 * 2 * 255 * d * d // time
    head = 2 * d * (d + vocab) * 5 // time  # only for the 15 % of the tokens that are predicted
    assert explain(config).totals.forward_flops == layers * per_layer + head


def reference(model: BERT, tokens: Tensor) -> Tensor:
    """The papers' equations for rotary and relative positions, pair by pair, in float64."""
    w = {name: p.detach().double() for name, p in model.named_parameters()}
    c, heads, size = model.config, model.config.n_heads, model.config.head_size

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.norm.scale"], w[f"{name}.norm.bias"], c.norm_eps)

    def affine(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def attention(x: Tensor, name: str) -> Tensor:
        q, k, v = (affine(x, f"{name}.{m}").reshape(-1, heads, size) for m in "qkv")
        time, out = x.shape[0], torch.zeros(x.shape[0], heads, size, dtype=torch.float64)
        for n in range(heads):
            for i in range(time):
                scores, values = [], []
                for j in range(time):
                    key, value = k[j, n], v[j, n]
                    if c.position.type == "shaw":
                        r = c.position.distance
                        row = min(max(j - i, -r), r) + r
                        key, value = (
                            key + w[f"{name}.keys.weight"][row],
                            value + w[f"{name}.values.weight"][row],
                        )
                        scores.append((q[i, n] @ key) / math.sqrt(size))
                    else:
                        scores.append(rotary_product(q[i, n], key, i - j) / math.sqrt(size))
                    values.append(value)
                out[i, n] = torch.stack(scores).softmax(0) @ torch.stack(values)
        return affine(out.flatten(1), f"{name}.o")

    logits = []
    for sequence in tokens:
        h = norm(w["embedding.token.weight"][sequence] + w["embedding.segment.weight"][0], "embedding")
        for i in range(c.n_layers):
            block = f"blocks.{i}"
            h = norm(h + attention(h, f"{block}.attention"), f"{block}.attention_residual")
            mlp = affine(F.gelu(affine(h, f"{block}.mlp.up")), f"{block}.mlp.down")
            h = norm(h + mlp, f"{block}.mlp_residual")
        h = norm(F.gelu(affine(h, "head.transform")), "head")
        logits.append(h @ w["embedding.token.weight"].T + w["head.bias"])
    return torch.stack(logits)


def rotary_product(q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Re sum_l q_l conj(k_l) e^(i (m - n) theta_l), l and l + h/2 a complex number (Su et al.)."""
    half = len(q) // 2
    theta = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(half, dtype=torch.float64), distance * theta)
    return (torch.complex(q[:half], q[half:]) * torch.complex(k[:half], k[half:]).conj() * turn).sum().real


@pytest.mark.parametrize("position", ["rope", {"type": "shaw", "distance": 3}])
@torch.no_grad()
def test_positions_as_their_papers_write_them(position: str | dict[str, Any]) -> None:
    model, (tokens, _) = bert(position), tokens_and_targets()
    torch.testing.assert_close(model(tokens).double(), reference(model, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_text_of_padding_alone_changes_no_gradient(position: str) -> None:
    """Nobody reads its hidden states; a softmax over nothing would make all gradients NaN."""
    model, (tokens, _) = bert(position), tokens_and_targets()
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1], mask[0, -2:] = False, False

    def gradients(rows: int) -> list[Tensor]:
        read = model(tokens[:rows], None, mask[:rows])
        trained = list(model.parameters())
        return list(torch.autograd.grad(read[0, :-2].square().sum(), trained, materialize_grads=True))

    with_it, without = gradients(2), gradients(1)
    assert any(gradient.any() for gradient in without)
    torch.testing.assert_close(with_it, without, atol=1e-4, rtol=1e-4)


def test_gradients_of_relative_positions() -> None:
    """Those of the factored form are those of the pairwise one."""
    attention: Any = bert({"type": "shaw", "distance": 2}).double().get_submodule("blocks.0.attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 5, 4, 8, generator=generator).double() for _ in range(3))
    tables = [attention.keys.weight, attention.values.weight]
    row = (torch.arange(5) - torch.arange(5)[:, None]).clamp(-2, 2) + 2
    scores = torch.einsum("bind,bjnd->bnij", q, k) + torch.einsum("bind,ijd->bnij", q, tables[0][row])
    p = (scores / math.sqrt(8)).softmax(-1)
    expected = torch.einsum("bnij,bjnd->bind", p, v) + torch.einsum("bnij,ijd->bind", p, tables[1][row])
    found = attention.attend(q, k, v, None)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    weights = torch.randn(found.shape, generator=generator).double()
    gradients = [torch.autograd.grad((y * weights).sum(), tables) for y in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("position", POSITIONS)
def test_padding_is_not_seen(position: str) -> None:
    """What lies under the mask changes no logit, and a padded sequence has those of the sequence alone."""
    model, (tokens, _) = bert(position), tokens_and_targets()
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[:, 9:] = False
    other = tokens.clone()
    other[:, 9:] = 0
    padded = model(tokens, None, mask)[:, :9]
    torch.testing.assert_close(padded, model(other, None, mask)[:, :9], atol=0, rtol=0)
    torch.testing.assert_close(padded, model(tokens[:, :9]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_order_and_segments_count(position: str) -> None:
    model, (tokens, _) = bert(position), tokens_and_targets()
    assert not torch.allclose(model(tokens.flip(1)).flip(1), model(tokens), atol=1e-2)
    assert not torch.allclose(model(tokens, torch.ones_like(tokens)), model(tokens), atol=1e-2)
    assert torch.equal(model(tokens, torch.zeros_like(tokens)), model(tokens))


@pytest.mark.parametrize("position", POSITIONS)
def test_loss_is_that_of_the_targets(position: str) -> None:
    """As if all logits were formed; so are the gradients."""
    model, (tokens, targets) = bert(position), tokens_and_targets()
    parts = model.loss(tokens, targets, z_loss=0.1)
    logits = model(tokens)[targets != -1]
    z = 0.1 * logits.logsumexp(-1).square().mean()
    expected = F.cross_entropy(logits, targets[targets != -1]) + z
    torch.testing.assert_close(parts.total, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts.z_loss, z, atol=1e-5, rtol=1e-5)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(y, parameters) for y in (parts.total, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_no_targets_no_loss() -> None:
    model, (tokens, targets) = bert("absolute"), tokens_and_targets()
    parts = model.loss(tokens, torch.full_like(targets, -1))
    assert parts.total.item() == 0
    torch.autograd.backward(parts.total)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("field", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("position", POSITIONS)
def test_dropout_is_of_training(position: str, field: str) -> None:
    model, plain = bert(position, **{field: 0.5}), bert(position)
    tokens, _ = tokens_and_targets()
    assert torch.equal(model(tokens), plain(tokens))
    torch.manual_seed(0)
    noisy = model.train()(tokens)
    assert not torch.allclose(noisy, plain(tokens), atol=1e-2)
    torch.manual_seed(0)
    assert torch.equal(model(tokens), noisy)


@pytest.mark.parametrize("position", POSITIONS)
def test_half_precision_activations(position: str) -> None:
    """Under autocast the stream stays near that of float32."""
    model, (tokens, targets) = bert(position, std=0.1), tokens_and_targets()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.loss(tokens, targets).cross_entropy
    torch.testing.assert_close(rounded, model.loss(tokens, targets).cross_entropy, atol=0.03, rtol=0.03)


def test_an_encoder_continues_no_text() -> None:
    with pytest.raises(ZooError, match="generate: BERT does not continue text; expected a decoder"):
        generate(bert("absolute"), tokens_and_targets()[0], 3)


def test_bad_inputs() -> None:
    model, (tokens, _) = bert({"type": "absolute", "length": 12}), tokens_and_targets()
    longer = torch.zeros(1, 13, dtype=torch.int64)
    for given, message in (
        ((tokens[0],), r"tokens: expected \(batch, time\) integers, got shape \(12,\)"),
        ((longer,), "tokens: 13 of them, but there are 12 positions"),
        ((tokens, tokens[:, :5]), r"segments: expected \(3, 12\) of torch.int64, got \(3, 5\)"),
        ((tokens, None, tokens), r"mask: expected bool \(3, 12\) like the tokens, got torch.int64 \(3, 12\)"),
    ):
        with pytest.raises(DataError, match=message):
            model(*given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "d_model 32 is not divisible by n_heads 5"),
        ({"n_heads": 32, "position": {"type": "rope"}}, r"d_model / n_heads = 1 is odd"),
        ({"position": {"type": "rope", "length": 5}}, "length"),
        ({"position": {"type": "alibi"}}, "alibi"),
    ],
)
def test_impossible_configs(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BERTConfig(**{**SIZES, **fields})
