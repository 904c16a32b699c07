"""Warm starts: what is exact is exact, the rest is near, and all that cannot be expressed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import typed
from pages import sections
from tiny_runs import TEXT, of_kind, tiny, tiny_fields
from torch import Tensor

from zoo import build_model, load_model, save_model
from zoo.data.tokenizers.base import Tokenizer
from zoo.models import GPT, Model
from zoo.nn.loss import IGNORE_INDEX
from zoo.nn.norm import unit
from zoo.run.config import load_config
from zoo.run.warm.convert import convert
from zoo.run.warm.heads import Product, balanced_pairs
from zoo.run.warm.ngpt import Choices, to_ngpt
from zoo.run.warm.text import text_of
from zoo.spec import declared
from zoo.train.run import train
from zoo.utils.errors import ZooError

SIZES: dict[str, Any] = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 4}
TINY: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_mlp": 32}
TOKENS = torch.arange(96).reshape(4, 24) % 40


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT that knows its page of text a little."""
    return train(tiny(tmp_path_factory.mktemp("warm"), "schedule=constant", steps=80)).folder


def source(**fields: Any) -> GPT:
    """A GPT with random norms."""
    model = build_model("gpt", **{**SIZES, "seed": 1, "init": "he", **fields})
    assert isinstance(model, GPT)
    for p in declared(model):
        if p.spec.role == "norm_scale":
            p.parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
    return model


def test_a_head_keeps_its_product() -> None:
    """All columns of W_o and rows of W_v get length 1; the lengths' product is all that remains."""
    outputs, values = random(1, 32, 8), random(8, 32) * torch.linspace(0.1, 1, 8)[:, None]
    head = Product(outputs, values)
    for product in (head.least, 1.05 * head.least):
        o, v = head.factors(product)
        torch.testing.assert_close(product * o[0] @ v, outputs[0] @ values)
        for lengths in (o.norm(dim=1), v.norm(dim=1)):
            torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_pairs_are_turned_without_a_change() -> None:
    """RoPE's scores are Re(q conj(k) e^{i distance}): q conj(k) stays. One alone is balanced exactly."""
    queries, keys = random(1, 8, 32) * torch.linspace(0.2, 1, 8)[:, None], random(8, 32)

    def products(q: Tensor, k: Tensor) -> Tensor:
        x, y = random(2, 32).unbind()
        return torch.complex(q[:4] @ x, q[4:] @ x) * torch.complex(k[:4] @ y, k[4:] @ y).conj()

    q, k = balanced_pairs(queries, keys)
    torch.testing.assert_close(products(q[0], k), products(queries[0], keys))
    q, _ = balanced_pairs(queries, torch.zeros_like(keys))
    torch.testing.assert_close(q[0, :4].norm(dim=1), q[0, 4:].norm(dim=1))


@torch.no_grad()
@pytest.mark.parametrize("fields", [{}, {"tied": True}, {"n_kv_heads": 2, "qk_norm": True}], ids=str)
def test_mlp_and_tables_are_exact(fields: dict[str, Any]) -> None:
    gpt = source(**fields)
    ngpt: Any = to_ngpt(gpt, [TOKENS])
    x = random(2, 5, 32).float()
    for old, new in zip(gpt.blocks, ngpt.blocks, strict=True):
        there: Any = old
        expected = unit(there.mlp(there.mlp_residual.norm(x)))
        torch.testing.assert_close(unit(new.mlp(unit(x))), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ngpt.read_out(unit(x)), gpt.read_out(gpt.final_norm(x)), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ngpt.embedding(TOKENS), unit(gpt.embedding(TOKENS)))
    for p in declared(ngpt):
        if p.spec.sphere_dim is not None:
            lengths = p.parameter.norm(dim=p.spec.sphere_dim)
            torch.testing.assert_close(lengths, torch.ones_like(lengths), msg=p.name)


def test_wesar_is_exact(run: Path, tmp_path: Path) -> None:
    done = convert(run, tmp_path / "wesar", to="wesar")
    assert done.difference is not None
    assert done.before is not None
    assert abs(done.difference) <= 1e-5 * done.before
    assert done.logits is not None
    assert done.logits <= 1e-5
    assert load_model(tmp_path / "wesar").recipe.reparam.type == "wesar"
    assert (tmp_path / "wesar" / "tokenizer").is_dir()


def test_the_folder_appears_with_its_tokenizer_or_not_at_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(run, tmp_path / "warm", to="wesar")
    assert not (tmp_path / "warm").exists()
    convert(run, tmp_path / "warm", to="wesar")
    assert (tmp_path / "warm/tokenizer").is_dir()


def test_ngpt_starts_near_its_source(run: Path, tmp_path: Path) -> None:
    """Nearer than a fifth of what training had gained, and each choice is for something."""
    done = convert(run, tmp_path / "ngpt", to="ngpt")
    made = load_model(tmp_path / "ngpt")
    model = load_model(run)
    text = text_of(run, model, None)
    fresh = text.loss(build_model(made.recipe.model.model_dump()["type"], **_fields(made)))
    assert done.before is not None
    assert done.after is not None
    assert done.after == pytest.approx(text.loss(made), abs=1e-5)
    assert done.after - done.before < 0.2 * (fresh - done.before)
    plain = text.loss(to_ngpt(model, text.measured, Choices(rebase=False, turn=False, entrywise=False)))
    assert done.after < plain


def _fields(model: Model) -> dict[str, Any]:
    return {k: v for k, v in model.recipe.model.model_dump(mode="json").items() if k != "type"}


def test_training_goes_on_from_it(run: Path, tmp_path: Path) -> None:
    """Measured on a file; the run starts with the loss of what was written."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    done = convert(run, tmp_path / "ngpt", to="ngpt", text=text)
    assert "nats per target" in str(done)
    settings = load_config(run).model_dump(mode="json", include={"data", "train"})
    settings |= {
        "name": "on",
        "model": {"from": str(tmp_path / "ngpt")},
        "optimizer": {"type": "adamw", "lr": 1e-3},
    }
    settings["train"] |= {"steps": 2, "runs_dir": str(tmp_path / "runs")}
    expected = text_of(run, load_model(run), None).loss(load_model(tmp_path / "ngpt"))
    result = train(load_config(settings))
    validation, *_ = of_kind(result.folder, "validation")
    assert validation["cross_entropy"] == pytest.approx(expected, rel=0.1)


def test_the_commands(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the page's section, typed as they stand there."""
    monkeypatch.chdir(run.parent.parent)
    run.with_name("my-run").symlink_to(run)
    page = sections("fine-tuning.md")
    Path("tune.yaml").write_text(page["Starting from a checkpoint"].files["tune.yaml"], encoding="utf-8")
    Path("notes.txt").write_text(TEXT, encoding="utf-8")
    assert len(page["Warm starts"].commands) == 4
    for command in page["Warm starts"].commands:
        typed(command)
        captured = capsys.readouterr()
        if command.startswith("convert"):
            assert "nats per target" in captured.out


BAD: list[tuple[dict[str, Any], str]] = [
    ({"source": "gpt2", **SIZES}, "model.type: 'gpt2'; expected 'gpt', the layout of Llama"),
    ({"source": "bert", **SIZES}, "model.type: 'bert'; expected 'gpt'"),
    ({"source": "gpt", **SIZES, "mlp": "gelu"}, "model.mlp: 'gelu'; expected 'swiglu'"),
    ({"source": "gpt", **SIZES, "qkv_bias": True}, "model.qkv_bias: true; expected false"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_expressed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError) as caught:
        to_ngpt(build_model(**fields), [TOKENS])
    assert message in str(caught.value)


OTHERS: list[tuple[dict[str, Any], str, int]] = [
    ({"type": "bert", "vocab_size": 257}, "mlm", 2),
    ({"type": "t5", "vocab_size": 357}, "span-corruption", 3),
    ({"type": "lstm", "streams": 4}, "stream", 2),
]


@pytest.mark.parametrize(("model", "objective", "parts"), OTHERS, ids=[name for _, name, _ in OTHERS])
def test_a_text_becomes_examples_of_the_training(
    tmp_path: Path, model: dict[str, Any], objective: str, parts: int
) -> None:
    fields = tiny_fields(tmp_path, steps=5)
    lstm = model["type"] == "lstm"
    sizes = {"vocab_size": 256, "d_model": 16} if lstm else TINY
    fields |= {"model": {**sizes, **model}, "data": {**fields["data"], "objective": {"type": objective}}}
    run = train(load_config(fields)).folder
    found = text_of(run, load_model(run), tmp_path / "text.txt")
    assert {len(batch) for batch in found.compared} == {parts}
    targets = found.compared[0][-1]
    assert (targets == IGNORE_INDEX).any() == (objective == "mlm")
    for number, text in enumerate((tmp_path / "text.txt", None)):
        report = convert(run, tmp_path / f"out{number}", to="wesar", text=text)
        assert report.before is not None and report.after is not None
        assert report.before > 1
        assert report.after == pytest.approx(report.before, abs=1e-4)


def test_examples_that_nobody_knows(tmp_path: Path) -> None:
    """An imported BERT has a mask and a frame of its own."""
    save_model(build_model("bert", **TINY, vocab_size=257), tmp_path / "bert")
    reason = (
        "a model of type 'bert' is trained by mlm, and nothing tells how its examples are made from a text"
    )
    with pytest.raises(ZooError, match=reason):
        convert(tmp_path / "bert", tmp_path / "out", to="wesar", text=tmp_path / "text.txt")
    assert not (tmp_path / "out").exists()
    report = convert(tmp_path / "bert", tmp_path / "out", to="wesar")
    assert f"loss not compared: {tmp_path / 'bert'}: {reason}" in str(report)


def test_a_run_on_conversations_needs_a_text(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"say {c}", "response": c}) for c in "abcd"]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = {"type": "instructions", "train": str(tmp_path / "pairs.jsonl"), "validation": None, "context": 32}
    fields = tiny_fields(tmp_path, steps=1) | {"data": data, "schedule": "constant"}
    run = train(load_config(fields)).folder
    report = convert(run, tmp_path / "out", to="wesar")
    reason = f"{run}: was trained on data of type 'instructions'; give some text, with --text FILE"
    assert f"loss not compared: {reason}" in str(report)


def test_a_gate_has_no_effect_on_ngpt(tmp_path: Path) -> None:
    save_model(build_model("ngpt", **SIZES), tmp_path / "ngpt")
    with pytest.raises(
        ZooError, match="reparam 'wesar' has no effect on a model of type 'ngpt': of its 16 mat"
    ):
        convert(tmp_path / "ngpt", tmp_path / "out", to="wesar")
    assert not (tmp_path / "out").exists()


def test_bad_arguments(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="convert: no target called 'ngtp'; did you mean 'ngpt'"):
        convert(run, tmp_path / "out", to="ngtp")
    with pytest.raises(ZooError, match="is there already"):
        convert(run, tmp_path, to="ngpt")
    with pytest.raises(ZooError, match=r"out\.safetensors: a converted model is written to a folder"):
        convert(run, tmp_path / "out.safetensors", to="wesar")
    short = tmp_path / "short.txt"
    short.write_text("too short", encoding="utf-8")
    with pytest.raises(ZooError, match="tokens; expected at least 34, two examples"):
        convert(run, tmp_path / "out", to="ngpt", text=short)
    checkpoint = tmp_path / "alone"
    save_model(load_model(run), checkpoint)
    with pytest.raises(ZooError, match=r"nothing tells what text .* was trained on; give some, with --text"):
        convert(checkpoint, tmp_path / "out", to="ngpt")
    assert not (tmp_path / "out").exists()
