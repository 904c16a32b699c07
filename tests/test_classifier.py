"""The classifier: what its trunk and its head are, what padding does, all trunks in every respect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import GPT2, saved
from torch import Tensor
from torch.nn import functional as F

from zoo import build_model, build_optimizer, load_model, save_model
from zoo.checkpoint.recipe import Recipe, assemble
from zoo.config.registry import INITS, MODELS
from zoo.init import Registry
from zoo.models import Classifier
from zoo.models.classifier import pooled
from zoo.reparam import NoReparam
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.utils.errors import ConfigError, DataError

SIZES: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "n_layers": 2, "n_heads": 2}
TRUNKS: dict[str, dict[str, Any]] = {
    "bert": {"type": "bert", **SIZES},
    "bert-rope": {"type": "bert", **SIZES, "position": {"type": "rope"}},
    "bert-relative": {"type": "bert", **SIZES, "position": {"type": "relative"}},
    "modernbert": {"type": "modernbert", **SIZES, "reach": 2},
    "gpt": {"type": "gpt", **SIZES},
    "gpt-tied": {"type": "gpt", **SIZES, "tied": True},
    "gpt-post": {"type": "gpt-post", **SIZES},
    "gpt2": {"type": "gpt2", **SIZES, "context": 20},
    "neox": {"type": "neox", **SIZES},
    "ngpt": {"type": "ngpt", **SIZES},
    "ngpt-tied": {"type": "ngpt", **SIZES, "tied": True, "s_z": {"kind": "scalar"}},
    "lstm": {"type": "lstm", "vocab_size": 60, "d_model": 16, "d_memory": 24},
    "t5": {"type": "t5", **SIZES},
    "ngpt-t5": {"type": "ngpt-t5", **SIZES},
}
CAUSAL = {"neox", "gpt", "gpt-tied", "gpt-post", "gpt2", "lstm", "ngpt", "ngpt-tied"}
CASES = [
    (name, pool)
    for name in TRUNKS
    for pool in ("first", "last", "mean")
    if not (pool == "first" and name in CAUSAL)
]


def build(name: str, pool: str = "mean", **fields: Any) -> Classifier:
    model = build_model("classifier", trunk=TRUNKS[name], classes=3, pool=pool, seed=3, **fields)
    assert isinstance(model, Classifier)
    return model


def texts(*lengths: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens of such lengths, with padding that would be seen if it were not hidden."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(lengths), max(lengths))
    tokens = torch.randint(40, shape, generator=generator)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    segments = (torch.arange(shape[1]) > 2).long().expand(shape).contiguous()
    return tokens, segments, mask


@pytest.mark.parametrize(("name", "pool"), CASES)
def test_padding_changes_nothing(name: str, pool: str) -> None:
    """A text in a batch of longer ones has the logits that it has alone."""
    model = build(name, pool).eval()
    lengths = (9, 4, 12)
    tokens, segments, mask = texts(*lengths)
    logits = model(tokens, segments, mask)
    for i, n in enumerate(lengths):
        alone = model(tokens[i : i + 1, :n], segments[i : i + 1, :n])
        torch.testing.assert_close(logits[i : i + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TRUNKS)
def test_the_trunk_is_the_model_without_its_read_out(name: str) -> None:
    """Its tensors have the names and, from the same seed, the states that they have in the whole model."""
    model = build(name).eval()
    config = MODELS[TRUNKS[name]["type"]](**TRUNKS[name])
    init = INITS[config.default_init]()
    whole: Any = assemble(Recipe(model=config, init=init, reparam=NoReparam()), 0).eval()
    tensors = {key: whole.state_dict()[key] for key in model.trunk.state_dict()}
    model.trunk.load_state_dict(tensors)
    tokens, segments, mask = texts(6, 6)
    states = model.trunk.hidden_states(tokens, segments, mask)
    torch.testing.assert_close(states, whole.hidden_states(tokens, segments, mask), atol=0, rtol=0)
    assert not {key.split(".")[0] for key in tensors} & {"read_out", "head", "decoder_blocks", "decoder_norm"}


def test_pooling_by_hand() -> None:
    states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [50.0, 60.0]], [[1.0, 1.0], [2.0, 3.0], [6.0, 2.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert pooled(states, mask, "first").tolist() == [[1, 2], [1, 1]]
    assert pooled(states, mask, "last").tolist() == [[3, 4], [6, 2]]
    assert pooled(states, mask, "mean").tolist() == [[2, 3], [3, 2]]
    for pool in ("first", "last", "mean"):
        whole = pooled(states[1:], None, pool)
        assert torch.equal(whole, pooled(states[1:], mask[1:], pool))
    assert pooled(states, mask & torch.tensor([[True], [False]]), "mean").tolist() == [[2, 3], [0, 0]]


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """GPT2ForSequenceClassification: the last token that is no padding, a linear map without bias."""
    saved("gpt2", tmp_path)
    settings = transformers.GPT2Config(**{**GPT2, "num_labels": 3, "pad_token_id": 60})
    theirs: Any = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path, config=settings)
    theirs.eval()
    trunk = load_model(tmp_path)
    model = build_model("classifier", trunk=trunk.recipe.model.model_dump(), classes=3, pool="last").eval()
    assert isinstance(model, Classifier)
    model.trunk.load_state_dict({key: trunk.state_dict()[key] for key in model.trunk.state_dict()})
    with torch.no_grad():
        model.get_parameter("head.linear.weight").copy_(theirs.score.weight)
        model.get_parameter("head.linear.bias").zero_()
        tokens, _, mask = texts(7, 3, 9)
        padded = tokens.masked_fill(~mask, 60)
        expected = theirs(input_ids=padded, attention_mask=mask.long()).logits
        torch.testing.assert_close(model(padded, None, mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ngpt", "ngpt-tied", "ngpt-t5"])
def test_the_head_on_the_sphere_gives_scaled_cosines(name: str) -> None:
    model = build(name).eval()
    tokens, segments, mask = texts(5, 8)
    states = pooled(model.trunk.hidden_states(tokens, segments, mask), mask, "mean")
    rows = model.get_parameter("head.linear.weight")
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    with torch.no_grad():
        model.get_parameter("head.s_z.scale").mul_(7)  # from the effective 1 that s_z starts with
    cosines = F.cosine_similarity(states[:, None], rows[None], dim=-1)
    torch.testing.assert_close(model(tokens, segments, mask), 7 * cosines, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TRUNKS)
@pytest.mark.parametrize("reparam", ["none", "lora"])
def test_all_that_is_trained_moves(name: str, reparam: str) -> None:
    """Nothing of the trunk is left that the loss does not reach, and spheres hold."""
    model = build(name, reparam=reparam)
    registry, optimizer = Registry(model), build_optimizer(model, "adamw", lr=0.01)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(*model.example(4, 8)).total)
        optimizer.step()
    for entry in registry:
        assert not torch.equal(entry.parameter, before[entry.name]), entry.name
        if entry.sphere_dim is not None:
            norms = entry.parameter.norm(dim=entry.sphere_dim)
            torch.testing.assert_close(norms, torch.ones_like(norms), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", TRUNKS)
def test_a_file_keeps_it(name: str, tmp_path: Path) -> None:
    model = build(name).eval()
    again = load_model(save_model(model, tmp_path)).eval()
    inputs = texts(5, 8)
    assert torch.equal(again(*inputs), model(*inputs))
    assert again.recipe == model.recipe


def test_the_registry_knows_the_head() -> None:
    """eta of the matrix 1 / sqrt(d), of the bias 1 / 2 (Amos, Table 1), of s_z its target, stored."""
    plain, sphere = Registry(build("gpt")), Registry(build("ngpt"))
    assert plain["head.linear.weight"].eta == pytest.approx(1 / 4)
    assert plain["head.linear.bias"].eta == pytest.approx(1 / 2)
    assert sphere["head.linear.weight"].eta == pytest.approx(1 / 4)
    assert sphere["head.s_z.scale"].eta == pytest.approx(4 / 4)
    assert sphere["head.linear.weight"].sphere_dim == 1


@pytest.mark.parametrize("name", TRUNKS)
def test_it_starts_as_its_trunk_does_and_is_explained(name: str) -> None:
    config = load_config({"model": {"type": "classifier", "classes": 2, "trunk": TRUNKS[name]}})
    explained = explain(config)
    assert f"init {MODELS[TRUNKS[name]['type']].default_init}" in explained.model
    assert explained.totals.parameters == sum(
        p.numel() for p in build_model(config.model_dump()).parameters()
    )
    assert explained.totals.forward_flops > 0


def test_loss_and_accuracy() -> None:
    model = build("bert").eval()
    *inputs, labels = model.example(6, 10)
    labels[4] = -1
    logits, parts = model(*inputs), model.loss(*inputs, labels, z_loss=0.1)
    cross_entropy = F.cross_entropy(logits, labels, ignore_index=-1)
    log_z = 0.1 * logits.logsumexp(-1).square()[labels >= 0].mean()
    torch.testing.assert_close(parts.total, cross_entropy + log_z)
    right = (logits.argmax(-1) == labels)[labels >= 0]
    torch.testing.assert_close(parts.accuracy, right.float().mean())
    assert parts.predicted is not None
    assert torch.equal(parts.predicted, logits.argmax(-1))


def test_an_example_is_on_the_cpu_wherever_tensors_are_made() -> None:
    model = build("gpt")
    with torch.device("meta"):
        assert {tensor.device.type for tensor in model.example()} == {"cpu"}


def test_segments_matter_to_bert_alone() -> None:
    tokens, segments, mask = texts(8, 8)
    bert, gpt = build("bert").eval(), build("gpt").eval()
    assert not torch.allclose(bert(tokens, segments, mask), bert(tokens, None, mask))
    assert torch.equal(gpt(tokens, segments, mask), gpt(tokens, None, mask))


def test_dropout_of_what_the_head_reads() -> None:
    model = build("gpt", dropout=0.5)
    inputs = texts(8, 8)
    assert not torch.equal(model(*inputs), model(*inputs))
    assert torch.equal(model.eval()(*inputs), build("gpt").eval()(*inputs))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trunk": {"type": "gpt", **SIZES}, "classes": 1}, "model.classes: value 1"),
        ({"trunk": {"type": "gpt", **SIZES}, "classes": 2, "pool": "first"}, "the first token of a 'gpt'"),
        ({"trunk": {"type": "lstm", "vocab_size": 9, "streams": 2}, "classes": 2}, "leave trunk.streams out"),
        ({"trunk": {"type": "gpt", **SIZES}, "classes": 2, "pool": "max"}, "'first', 'last' or 'mean'"),
        ({"trunk": {"type": "resnet", "depth": 18}, "classes": 2}, "model.trunk.type: value 'resnet'"),
        ({"classes": 2}, "model.trunk: missing"),
        ({"trunk": {"type": "gpt", **SIZES, "n_heads": 3}, "classes": 2}, "model.trunk.*not divisible"),
        ({"trunk": {"type": "gpt", **SIZES, "width": 3}, "classes": 2}, "model.trunk.width: unknown key"),
    ],
)
def test_configs_that_make_no_classifier(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config({"model": {"type": "classifier", **fields}})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(2, 5),), "tokens: expected .* integers"),
        ((torch.zeros(2, 5).long(), None, torch.ones(2, 4).bool()), r"mask: expected bool \(2, 5\)"),
        ((torch.zeros(2, 5).long(), None, torch.ones(2, 5)), "mask: expected bool"),
        ((torch.zeros(2, 21).long(),), "there are 20 positions"),
    ],
)
def test_inputs_that_are_no_texts(inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build("gpt2")(*inputs)
