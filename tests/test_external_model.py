"""A model that zoo has never seen, defined in a file of this test: everything zoo does, without an edit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import test_grid
import torch
from command_line import zoo
from test_grid import OPTIMIZER_FORMS, Optimizer
from tiny_runs import SIZES, assert_same, tiny_fields
from torch import Tensor
from torch.nn import functional as F

import zoo as package
from zoo import build_model, generate, load_config, load_model, load_plugin, merge, save_model
from zoo.config.registry import INITS, REPARAMS
from zoo.config.yaml import dump_yaml
from zoo.models import LanguageModel, Model
from zoo.run.trained import tokenizer_of
from zoo.sampling import left_padded
from zoo.train.run import train

MODEL = '''
"""GPT whose attention has an output gate: y = attention(x) * sigmoid(W_g x)."""

from typing import Literal

import torch
from torch import nn

from zoo.config.registry import MODELS
from zoo.models.rotary import RotaryDecoder, RotaryDecoderConfig
from zoo.nn.attention import Attention
from zoo.nn.linear import Embedding, Linear, matrix
from zoo.nn.lm_head import LMHead
from zoo.nn.mlp import SwiGLU
from zoo.nn.norm import RMSNorm
from zoo.nn.qk import Rotary
from zoo.nn.residual import PreNorm
from zoo.spec import Module


@MODELS.register
class SluiceConfig(RotaryDecoderConfig):
    """Pre-norm decoder whose attention has an output gate."""

    default_init = "gpt2"
    type: Literal["sluice"] = "sluice"

    def build(self):
        return Sluice(self)


class SluiceAttention(Attention):
    def __init__(self, d_model, *args, **kwargs):
        super().__init__(d_model, *args, **kwargs)
        self.gate = Linear(matrix(("gate", d_model), ("embed", d_model)))

    def forward(self, x, rope, cache=None, position=0):
        return super().forward(x, rope, cache, position) * torch.sigmoid(self.gate(x))


class Block(Module):
    def __init__(self, c):
        super().__init__()
        self.attention = SluiceAttention(
            c.d_model,
            c.n_heads,
            c.kv_heads,
            qk=Rotary(),
            scale=c.head_size**-0.5,
            residual_branches=c.residual_branches,
        )
        self.mlp = SwiGLU(c.d_model, c.mlp_size, c.residual_branches)
        self.attention_residual = PreNorm(c.d_model, 1e-5)
        self.mlp_residual = PreNorm(c.d_model, 1e-5)

    def forward(self, h, rope, cache=None, position=0):
        h = self.attention_residual(h, self.attention, rope, cache, position)
        return self.mlp_residual(h, self.mlp)


class Sluice(RotaryDecoder):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embedding = Embedding(("vocab", c.vocab_size), c.d_model, tied=c.tied)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = RMSNorm(("embed", c.d_model), 1e-5)
        self.read_out = LMHead(self.embedding, tied=c.tied)

    def final_norm(self, h):
        return self.norm(h)
'''
NAME = re.compile("sluice", re.IGNORECASE)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, without_plugins: None) -> Path:
    """The file with the model; every test begins and ends without plugins."""
    path = tmp_path / "sluice.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def written(folder: Path, **changes: Any) -> Path:
    """A YAML file that names the plugin and trains the model for 6 steps."""
    fields = tiny_fields(folder, steps=6, checkpoint_every=3, eval_every=6)
    model = {"type": "sluice", **SIZES}
    path = folder / f"{changes.get('name', 'tiny')}.yaml"
    path.write_text(dump_yaml({**fields, "model": model, "plugins": ["sluice.py"], **changes}))
    return path


def build(file: Path, seed: int = 0, **fields: Any) -> Model:
    load_plugin(file)
    sizes: dict[str, Any] = {**SIZES, **fields}
    return build_model("sluice", **sizes, seed=seed).eval()


def test_zoo_has_never_heard_of_it() -> None:
    """What follows works for any other model just as well."""
    home = Path(package.__file__).parent
    sources = [p for p in home.rglob("*") if p.suffix in (".py", ".yaml", ".json", ".html", ".js")]
    assert len(sources) > 200
    assert [p for p in sources if NAME.search(p.read_text(encoding="utf-8"))] == []


@torch.no_grad()
def test_a_gate_of_one_half_is_half_an_attention(file: Path) -> None:
    """With W_g = 0 the model is a GPT whose W_o is half as large."""
    ours = build(file, n_kv_heads=1)
    gpt = build_model({"model": {"type": "gpt", **SIZES, "n_kv_heads": 1}}).eval()
    for name, tensor in ours.named_parameters():
        if ".gate." in name:
            tensor.zero_()
        else:
            gpt.get_parameter(name).copy_(tensor * (0.5 if ".attention.o." in name else 1))
    tokens, _ = ours.example(2, 16)
    torch.testing.assert_close(ours(tokens), gpt(tokens))


def test_it_trains_and_resumes_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    zoo("train", path, "name=whole")
    train(load_config(path, ["name=parts"]), until=3)
    zoo("train", path, "name=parts", "--resume")
    assert_same(tmp_path / "runs/whole", tmp_path / "runs/parts")
    zoo("train", path, "name=more", "reparam=wesar", "optimizer={type: amos, lr: 0.01}", "schedule=constant")
    capsys.readouterr()
    zoo("explain", path)
    assert "blocks.0.attention.gate.weight" in capsys.readouterr().out.replace("\n", "")


def test_a_run_is_used_by_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, text = tmp_path / "runs/tiny", tmp_path / "text.txt"
    zoo("train", written(tmp_path))
    capsys.readouterr()
    zoo("generate", run, "--prompt", "Line 1", "--max-new-tokens", "5", "--temperature", "0")
    assert capsys.readouterr().out.startswith("Line 1")
    zoo("inspect", run, "--text", text)
    inspected = json.loads((run / "inspect/inspect.json").read_text())
    assert [e["label"] for e in inspected["attention_entropy"]] == ["attention", "attention"]
    assert "blocks.1.attention.gate.weight" in inspected["condition_numbers"]
    capsys.readouterr()
    zoo("export", run, tmp_path / "exported", status=2)
    assert "no family on the hub can express this model of type 'sluice'" in capsys.readouterr().err


def test_perplexity_is_that_of_one_pass(tmp_path: Path) -> None:
    """In windows as long as the text, against the cross entropy of the whole text."""
    zoo("train", written(tmp_path))
    run, text = tmp_path / "runs/tiny", tmp_path / "short.txt"
    text.write_text("Line 1: 1 times 1 is 1, and the fox.", encoding="ascii")
    zoo("eval", run, "--perplexity", text, "--contexts", "40")
    (score,) = json.loads((run / "perplexity.json").read_text())["scores"]
    model = load_model(run).eval()
    ids = torch.tensor([tokenizer_of(run).eos_id, *text.read_bytes()])
    nats = F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum").item()
    assert score["nats"] == pytest.approx(nats, rel=1e-5)


def test_generation_with_a_cache_is_generation_without(file: Path) -> None:
    """Greedily, of prompts of different lengths in one batch."""
    model = build(file, seed=3, tied=True)
    prompts = [[5, 17, 40, 8], [9], [100, 200]]
    tokens, mask = left_padded(prompts)
    together = generate(model, tokens, 8, temperature=0, mask=mask)
    for row, prompt in zip(together, prompts, strict=True):
        text = torch.tensor([prompt])
        for _ in range(8):
            text = torch.cat((text, model(text)[:, -1:].argmax(-1)), 1)
        assert row[-8:].tolist() == text[0, -8:].tolist()


def test_it_is_the_trunk_of_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which starts from the weights of a run, is trained, and is asked."""
    zoo("train", written(tmp_path))
    words = ("fine", "great", "dull")
    lines = [f"{word} {i}\t{word != 'dull'}" for i in range(8) for word in words]
    (tmp_path / "texts.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    data = {
        "type": "classification",
        "train": str(tmp_path / "texts.tsv"),
        "validation": str(tmp_path / "texts.tsv"),
        "text": "text",
        "context": 12,
    }
    model = {"type": "classifier", "classes": 2, "trunk": {"from": str(tmp_path / "runs/tiny")}}
    zoo("train", written(tmp_path, name="labels", model=model, data=data))
    run = tmp_path / "runs/labels"
    trunk = load_model(run).get_submodule("trunk")
    assert isinstance(trunk, LanguageModel)
    assert type(trunk).__name__ == "Sluice"
    capsys.readouterr()
    zoo("classify", run, "--text", "fine 3")
    assert capsys.readouterr().out.splitlines()[0].split("\t")[1:] == ["False", "True"]


@torch.no_grad()
def test_its_weights_are_saved_and_loaded(file: Path, tmp_path: Path) -> None:
    """As they are trained, and merged."""
    model = build(file, reparam="wesar", seed=4)
    tokens, _ = model.example(2, 16)
    save_model(model, tmp_path / "trained.safetensors")
    assert torch.equal(load_model(tmp_path / "trained.safetensors").eval()(tokens), model(tokens))
    logits: Tensor = model(tokens)
    assert merge(model).tensors > 0
    save_model(model, tmp_path / "merged.safetensors")
    merged = load_model(tmp_path / "merged.safetensors").eval()
    assert not any("gate" in name for name in merged.state_dict() if ".attention.gate." not in name)
    torch.testing.assert_close(merged(tokens), logits)


COUNT = max(len(INITS.choices), len(REPARAMS.choices), len(OPTIMIZER_FORMS))
SAMPLE = [
    (
        sorted(INITS.choices)[i % len(INITS.choices)],
        sorted(REPARAMS.choices)[i % len(REPARAMS.choices)],
        OPTIMIZER_FORMS[i % len(OPTIMIZER_FORMS)],
    )
    for i in range(COUNT)
]
"""Every initialisation, reparameterisation and optimizer at least once."""


@pytest.mark.parametrize(("init", "reparam", "optimizer"), SAMPLE)
def test_the_grid_takes_it(
    init: str, reparam: str, optimizer: Optimizer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it takes the models of zoo."""
    load_plugin(file)
    monkeypatch.setitem(test_grid.TINY, "sluice", test_grid.DECODER)
    case = ("sluice", init, reparam, "none", optimizer, "norm")
    test_grid.test_every_combination_trains_or_is_refused(case)
    if REPARAMS[reparam].preserves_outputs:
        test_grid.test_methods_start_as_the_backbone("sluice", reparam)


def test_bad_input_is_told_as_of_any_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for override, message in (
        ("model.n_heads=3", "d_model 16 is not divisible by n_heads 3"),
        ("model.gates=3", "model.gates: unknown key"),
        ("model.type=sluce", "did you mean 'sluice'?"),
        ("data.objective=mlm", "model 'sluice' is trained by causal"),
    ):
        capsys.readouterr()
        zoo("train", written(tmp_path), override, status=2)
        assert message in capsys.readouterr().err.replace("\n", " "), override
