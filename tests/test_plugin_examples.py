"""The plugins of examples/plugins: each does what it says, and all of them train and resume in one run."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
from command_line import zoo
from pages import DOCS
from tiny_runs import ROOT, assert_same

from zoo import BatchSpec, Document, build_model, build_optimizer, load_plugin
from zoo.config.compose import shipped
from zoo.config.registry import INITS, REPARAMS, TEMPLATES, TOKENIZERS
from zoo.config.yaml import dump_yaml, read_yaml
from zoo.data.instructions.files import Message
from zoo.data.objectives import Causal
from zoo.data.text.prepare import with_text
from zoo.data.tokenizers.base import load_tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokens import TokenFile
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.errors import DataError, ZooError

EXAMPLES = ROOT / "examples/plugins"
SIZES: dict[str, Any] = {"vocab_size": 64, "d_model": 128, "n_layers": 2, "n_heads": 2}
SETTINGS = ("train.steps=6", "train.eval_every=3", "train.checkpoint_every=3")

pytestmark = pytest.mark.usefixtures("without_plugins")


def test_lion_of_the_page_is_lion(tmp_path: Path) -> None:
    """Against another library's, over five steps with weight decay; trained as the page says."""
    page = (DOCS / "plugins.md").read_text("utf-8")
    (config,) = re.findall(r"^```yaml\n(extends.*?)^```$", page, re.M | re.S)
    code = (EXAMPLES.parent / "lion.py").read_text("utf-8")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (tmp_path / "lion.py").write_text(code)
    (tmp_path / "mine.yaml").write_text(config)
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    mine, other = (start.clone().requires_grad_() for _ in range(2))
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
    optimizers = (
        load_plugin(tmp_path / "lion.py").Lion([mine], **options),
        pytorch_optimizer.Lion([other], weight_decouple=True, **options),
    )
    for step in range(5):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        for parameter, optimizer in zip((mine, other), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(mine, other, atol=1e-7)
    assert not torch.equal(mine, start)
    zoo("train", tmp_path / "mine.yaml", f"train.runs_dir={tmp_path}", *SETTINGS)


def test_the_schedule_ends_at_0() -> None:
    load_plugin("schedule.py", EXAMPLES)
    schedule = load_config({"schedule": {"type": "one-minus-sqrt", "decay": 0.25, "warmup": 4}}).schedule
    factors = [schedule.factor(step, 103) for step in range(103)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:79] == [1.0] * 75
    assert factors[78 + 16] == pytest.approx(1 - math.sqrt(16 / 25))
    assert factors[102] == pytest.approx(1 - math.sqrt(24 / 25))


def test_the_init_draws_what_it_says() -> None:
    load_plugin("init.py", EXAMPLES)
    model = build_model("gpt", **SIZES, init="glorot")
    kernels = [p for name, p in model.named_parameters() if p.ndim == 2 and "blocks" in name]
    assert len(kernels) >= 10
    for kernel in kernels:
        assert kernel.std().item() == pytest.approx(math.sqrt(2 / sum(kernel.shape)), rel=0.03)


def test_the_reparameterisation_starts_as_the_init_says() -> None:
    load_plugin("reparam.py", EXAMPLES)
    plain = build_model("gpt", **SIZES, init="gpt2", seed=3)
    scaled = build_model("gpt", **SIZES, init="gpt2", reparam="branch-scale", seed=3)
    tokens = torch.arange(20)[None]
    assert torch.allclose(plain(tokens), scaled(tokens), atol=1e-5)
    gates = {name for name, _ in scaled.named_parameters()} - {name for name, _ in plain.named_parameters()}
    assert len(gates) == 2 * SIZES["n_layers"]
    assert REPARAMS["branch-scale"]().start == pytest.approx(scaled.get_parameter(gates.pop()).item())


def test_the_transfer_rule_lowers_the_rates_of_hidden_matrices(tmp_path: Path) -> None:
    """At twice the base width; a run trains and resumes with it, and explains it."""
    plugin = EXAMPLES / "transfer.py"
    load_plugin(plugin)
    base = {"embed": 64, "heads": 64, "kv_heads": 64, "mlp": 256}
    transfer = load_config({"transfer": {"type": "root-width", "base": base}}).transfer
    model = build_model("gpt", **SIZES)
    optimizer = build_optimizer(model, "adamw", lr=0.01, transfer=transfer)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_hidden = "blocks" in name and parameter.ndim == 2
        assert rates[id(parameter)] == pytest.approx(0.01 / math.sqrt(2) if is_hidden else 0.01), name
    rule = "transfer={type: root-width, base: {embed: 16, heads: 16, kv_heads: 16, mlp: 64}}"
    zoo("train", "gpt-tiny", "--plugin", plugin, rule, f"train.runs_dir={tmp_path}", *SETTINGS)
    zoo("train", tmp_path / "gpt-tiny", "--plugin", plugin, "--resume", "train.steps=7")
    assert [record.name for record in load_config(tmp_path / "gpt-tiny").plugins] == ["transfer.py"]


def test_the_constraint_keeps_the_norm_of_the_readout() -> None:
    load_plugin("constraint.py", EXAMPLES)
    constraint = load_config({"constraint": "fixed-readout"}).constraint
    model = build_model("gpt", **SIZES)
    constraint.apply(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, "adamw", lr=0.05)
    for _ in range(3):
        tokens, targets = model.example(batch=2, time=16)
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(tokens, targets).total)
        optimizer.step()
    grown = {name: p.norm().item() / before[name].norm().item() for name, p in model.named_parameters()}
    assert grown["read_out.matrix.weight"] == pytest.approx(1, abs=1e-5)
    assert not torch.allclose(
        model.get_parameter("read_out.matrix.weight"), before["read_out.matrix.weight"], rtol=1e-2
    )
    assert max(grown.values()) > 1.05
    with pytest.raises(ZooError, match="fixed-readout: the model has no read-out of its own"):
        constraint.apply(build_model("gpt", **SIZES, tied=True))


def test_the_clip_is_relative_to_the_weights() -> None:
    load_plugin("clip.py", EXAMPLES)
    settings = {"steps": 1, "batch_size": 1, "clip": {"type": "by-weights", "share": 0.1}}
    clip = Job.of(load_config("gpt-tiny", [f"train={json.dumps(settings)}"])).train.clip
    with pytest.raises(ZooError, match=r"train.clip_norm: value 1.0: has no effect"):
        clip.build(1.0)
    large, small = (torch.nn.Parameter(torch.full((3, 4), 2.0)) for _ in range(2))
    direction = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    large.grad, small.grad = 100 * direction, 1e-3 * direction
    clip.build(None).clip([("large", large), ("small", small)], torch.tensor(1.0))
    assert large.grad.norm().item() == pytest.approx(0.1 * large.norm().item())
    assert torch.cosine_similarity(large.grad.flatten(), direction.flatten(), 0).item() == pytest.approx(1)
    assert torch.equal(small.grad, 1e-3 * direction)


def test_the_tokenizer_has_the_characters_of_the_text(tmp_path: Path) -> None:
    load_plugin("tokenizer.py", EXAMPLES)
    tokenizer = TOKENIZERS["characters"](least=2).build(lambda: iter(["abé", "éab", "c"]))
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode("ébac") == [4, 3, 2, 1]
    assert tokenizer.decode([4, 3, 0, 2, 1]) == "éba\N{REPLACEMENT CHARACTER}"
    with pytest.raises(DataError, match="token 5 is outside the tokenizer's vocabulary of 5"):
        tokenizer.decode([5])
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.encode("ébac"), loaded.hash) == ([4, 3, 2, 1], tokenizer.hash)


def test_the_template_is_an_interview() -> None:
    load_plugin("template.py", EXAMPLES)
    talk = [Message("user", "1+1?"), Message("assistant", "2"), Message("user", "Sure?")]
    template, tokenizer = TEMPLATES["interview"](), ByteTokenizer()
    prompt = template.encode_prompt(talk, tokenizer)
    assert tokenizer.decode(prompt) == "Q: 1+1?\n\nA: 2\n\nQ: Sure?\n\nA: "
    encoded = template.encode([*talk, Message("assistant", "Yes")], tokenizer)
    learned = [token for token, learned in zip(*encoded, strict=True) if learned]
    assert bytes(learned) == b"2\xffYes\xff"


def test_the_data_are_all_equations(tmp_path: Path) -> None:
    plugin = EXAMPLES / "data.py"
    load_plugin(plugin)
    data: Any = load_config({"data": {"type": "addition", "prime": 7, "share": 0.6}}).data
    dataset = data.prepare(build_model("gpt", **SIZES).recipe.model)
    trained = [dataset.train_batch(BatchSpec(0, step, 29)) for step in range(2)]
    held_out = list(dataset.validation_batches(BatchSpec(0, 0, 8), None))
    seen = []
    for inputs, targets in [trained[0], *held_out]:
        assert (targets[:, :-1] == -1).all()
        a, plus, b, equals = inputs.T
        assert torch.equal((a + b) % 7, targets[:, -1])
        assert set(plus.tolist()) == {7} and set(equals.tolist()) == {8}
        seen += (7 * a + b).tolist()
    assert sorted(seen) == list(range(49))  # an epoch of 29, and 20 that are held out
    assert not torch.equal(trained[0][0], trained[1][0])
    with pytest.raises(ZooError, match=r"data.prime: value 97: expected a vocab_size of at least 99"):
        load_config({"data": "addition"}).data.prepare(build_model("gpt", **SIZES).recipe.model)  # type: ignore[union-attr]
    empty: Any = load_config({"data": {"type": "addition", "prime": 7, "share": 0.001}}).data
    with pytest.raises(DataError, match="no training examples; expected one or more"):
        empty.prepare(build_model("gpt", **SIZES).recipe.model).train_batch(BatchSpec(0, 0, 8))
    tiny = read_yaml(shipped()["gpt-tiny"].read_text("utf-8"), "gpt-tiny", []).plain()
    assert isinstance(tiny, dict)
    mine = tiny | {"data": {"type": "addition", "prime": 11}, "plugins": [str(plugin)]}
    (tmp_path / "mine.yaml").write_text(dump_yaml(mine), "utf-8")
    zoo("train", tmp_path / "mine.yaml", f"train.runs_dir={tmp_path}", *SETTINGS)
    zoo("train", tmp_path / "mine", "--plugin", plugin, "--resume", "train.steps=7")


def test_the_corpus_is_a_column(tmp_path: Path) -> None:
    load_plugin("corpus.py", EXAMPLES)
    with (tmp_path / "quotes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["who", "what"], ["a", 'one, "two"'], ["b", "three\nfour"]])
    corpus = {"type": "csv", "paths": str(tmp_path), "column": "what"}
    data: Any = load_config({"data": {"corpus": corpus}}).data
    assert [document.text for document in data.corpus.documents()] == ['one, "two"', "three\nfour"]
    (tmp_path / "quotes.csv").write_text("who,what\na,one\nb\n")  # a short row
    assert [document.text for document in data.corpus.documents()] == ["one", ""]


def test_a_corpus_whose_text_is_none_is_named() -> None:
    documents = iter([Document("a:0", "one"), Document("a:1", None)])  # type: ignore[arg-type]  # of a plugin
    with pytest.raises(DataError, match="a:1: the corpus yields a text that is a NoneType; expected"):
        list(with_text(documents))


def test_the_objective_reads_backwards(tmp_path: Path) -> None:
    load_plugin("objective.py", EXAMPLES)
    text = np.random.default_rng(0).integers(0, 64, 1000, dtype=np.uint16)
    text.tofile(tmp_path / "tokens.bin")
    tokens = TokenFile(tmp_path / "tokens.bin", "uint16", len(text))
    data: Any = load_config({"data": {"objective": "backwards"}}).data
    assert data.objective_name == "causal"
    spec = BatchSpec(seed=0, step=3, batch_size=4)
    inputs, targets = data.objective.train_batch(tokens, spec, 16, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    forwards, following = Causal().train_batch(tokens, spec, 16, 64)
    assert torch.equal(inputs[:, -1], following[:, 0])
    assert torch.equal(targets[:, -1], forwards[:, 0])


def test_all_of_them_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained and resumed in two parts, they give what one part gives, bit for bit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = EXAMPLES / "all.yaml"
    runs = f"train.runs_dir={tmp_path}"
    zoo("train", file, "name=whole", runs, *SETTINGS)
    train(load_config(file, ["name=parts", runs, *SETTINGS]), until=3)
    zoo("train", file, "name=parts", "--resume", runs, *SETTINGS)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    config = load_config(tmp_path / "whole")
    names = ["clip", "constraint", "init", "lion", "logger", "objective", "reparam", "schedule", "tokenizer"]
    assert [record.name for record in config.plugins] == [f"{name}.py" for name in names]
    with (tmp_path / "parts/validation.csv").open() as log:
        rows = list(csv.DictReader(log))
    assert [row["step"] for row in rows] == ["0", "3", "6"]
    assert math.isfinite(float(rows[-1]["cross_entropy"]))
    assert INITS["glorot"] is type(config.init)
