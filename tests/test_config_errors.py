"""Bad configs as data: what is given, and what the message says of it."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.factory import build_model
from zoo.run.job import Job
from zoo.utils.errors import ConfigError

MODEL = "model: {type: gpt, vocab_size: 16, d_model: 8, n_layers: 1, n_heads: 2}\n"

FILES = [
    ("modle: gpt", r"f.yaml:1: modle: unknown key; did you mean 'model'\?"),
    ("\n\nseed: 1\nlr: 3", r"f.yaml:4: lr: unknown key; did you mean 'optimizer.lr'\?"),
    (
        "train:\n  steps: 1\n  batch_size: 1\n  parallel: {storage: bfloat16}",
        r"f.yaml:4: train.parallel.storage: unknown key; did you mean 'train.storage'\?",
    ),
    ("model:\n  type: gpt\n  d_modle: 8", r"f.yaml:3: model.d_modle: unknown key; did you mean 'd_model'\?"),
    ("model:\n  type: gtp", r"f.yaml:2: model.type: value 'gtp': no such type; did you mean 'gpt'\?"),
    (
        "optimizer: {type: torch.optim:Adam}",
        r"f.yaml:1: optimizer.type: value 'torch.optim:Adam': no such type; the path of a class is written "
        r"my_file.py:Name or package.module.Name; known: adafactor, ",
    ),
    (
        "optimizer: {type: adamw, lr: 1e39}",
        r"f.yaml:1: optimizer: lr 1e\+39: expected at most 3.4e\+38 in size, as in float32",
    ),
    (
        "model: {type: gpt, rope_scaling: {type: yarn, factor: 4, context: 8, low_turns: 1e-308}}",
        r"f.yaml:1: model.rope_scaling: low_turns 1e-308: expected 0 or at least 1.2e-38 in size, as in float",
    ),
    ("init: a:b", r"f.yaml:1: init.type: value 'a:b': no such type; known: "),
    ("init: hee", r"f.yaml:1: init.type: value 'hee': no such type; did you mean 'he'\?"),
    (
        "optimizer: {type: adamw, lr: 1, decays: all}",
        r"f.yaml:1: optimizer: decays: all has no effect without a decay; expected weight_decay as well",
    ),
    ("schedule: {warmup: 3}", r"f.yaml:1: schedule: no `type`; expected one of constant, cosine"),
    ("optimizer: 3", r"f.yaml:1: optimizer: value 3: expected a `type` \(.*adamw, .*amos.*\) and its fields"),
    ("train: 3", r"f.yaml:1: train: value 3: expected a mapping"),
    ("train: fast", r"f.yaml:1: train: value 'fast': expected a mapping"),
    ("train: {batch_size: 2}", r"f.yaml:1: train.steps: missing; expected: optimizer steps"),
    ("seed: yes", r"f.yaml:1: seed: value 'yes': expected an integer"),
    ("seed: 1.0", r"f.yaml:1: seed: value 1.0: expected an integer"),
    ("seed: true", r"f.yaml:1: seed: value true: expected an integer"),
    ("seed: '1'", r"f.yaml:1: seed: value '1': expected an integer"),
    ("seed: -1", r"f.yaml:1: seed: value -1: expected a number greater than or equal to 0"),
    ("optimizer: {type: amos, lr: .inf}", r"f.yaml:1: optimizer.lr: value '.inf': expected a number"),
    (
        "train: {steps: 1, batch_size: 1, clip_norm: 1e999}",
        r"f.yaml:1: train.clip_norm: value Infinity: expected a finite number$",
    ),
    ("optimizer: {type: amos, lr: '1'}", r"f.yaml:1: optimizer.lr: value '1': expected a number"),
    (
        "optimizer: {type: adamw, lr: 1, betas: [0.9, '0.9']}",
        r"f.yaml:1: optimizer.betas.1: value '0.9': expected a number",
    ),
    (
        "reparam: {type: wesar, sigma2: 0}",
        r"f.yaml:1: reparam.sigma2: value 0: expected a number greater than or equal to 0.0",
    ),
    (
        "model: {type: ngpt, alpha: {scale: 1.0e+308}}",
        r"f.yaml:1: model.alpha.scale: value 1e\+308: expected a number less than or equal to 10000000000",
    ),
    (
        "transfer: {type: nugpt, alignment: 1.2}",
        r"^\S*f.yaml:1: transfer.alignment: value 1.2: "
        r"expected a number less than or equal to 1 or 'measured', 'full' or 'none'$",
    ),
    ("name: a/b", r"f.yaml:1: name: value 'a/b': expected letters, digits, '_', '\.' and '-', begin"),
    ("name: 3", r"f.yaml:1: name: value 3: expected a string"),
    (
        "optimizer: {type: adamw, lr: 1}\neta_overrides: [{role: bias, eta: 1}]",
        r"eta_overrides have no effect: this optimizer does not use eta",
    ),
    (
        "eta_overrides: [{role: bias}]",
        r"f.yaml:1: eta_overrides.0: expected either `eta` or `factor` or `per`",
    ),
    ("eta_overrides: {role: bias}", r"f.yaml:1: eta_overrides: value {\"role\": \"bias\"}: expected a list"),
    (
        "eta_overrides:\n  - role: bias\n    eta: 1\n  - role: embeding\n    eta: 1",
        r"f.yaml:4: eta_overrides.1.role: value 'embeding': expected .*did you mean 'embedding'\?",
    ),
    ("data:\n  corpus: txt", r"f.yaml:2: data.corpus.type: value 'txt': no such type; did you mean 'text'\?"),
    ("data:\n  corpus:\n    type: text", r"f.yaml:2: data.corpus.paths: missing"),
    (MODEL.replace("d_model: 8", "d_model: 9"), r"f.yaml:1: model: d_model 9 is not divisible by n_heads 2"),
    (
        MODEL.replace("n_layers: 1", "n_layers: 0"),
        r"f.yaml:1: model.n_layers: value 0: expected a number greater than 0",
    ),
    (
        MODEL.replace("type: gpt", "type: ngpt, alpha: {knd: scalar}"),
        r"f.yaml:1: model.alpha.knd: unknown key; did you mean 'kind'\?",
    ),
    (
        "train:\n  {steps: 1, batch_size: 3, accumulation: 2}",
        r"f.yaml:2: train: batch_size 3 is not divisible by accumulation 2",
    ),
    (
        "train: {steps: 1, batch_size: 1, device: gpu}",
        r"f.yaml:1: train.device: value 'gpu': .*expected auto, cpu",
    ),
    ("seed: 1\nseed: 2", r"f.yaml:2: seed: written twice, first at .*f.yaml:1"),
    ("- 1", r"f.yaml:1: expected a mapping \(key: value\), got a list"),
    ("just words", r"f.yaml:1: expected a mapping \(key: value\), got 'just words'"),
    ("just words " * 99, r"f.yaml:1: expected a mapping \(key: value\), got 'just [a-z ]{54}\.\.\.$"),
    ("seed: !!int " + "x" * 99, r"f.yaml:1: seed: value 'x{59}\.\.\.: expected int"),
    ("a: [1", r"f.yaml:1: not YAML: .*expected ',' or '\]'"),
    ("a:\n\tb: 1", r"f.yaml:2: not YAML: "),
    ("seed: \x07", r"f.yaml: not YAML: "),
    (
        "model: &m {type: gpt}\ninit: *m",
        r"f.yaml:1: init: anchors and aliases are not supported; use `extends`",
    ),
    (
        "seed: !!python/name:os.system 1",
        r"f.yaml:1: seed: tag 'tag:yaml.org,2002:python/name:os.system' is not",
    ),
    ("model: !include {type: gpt}", r"f.yaml:1: model: tag '!include' is not supported"),
    ("eta_overrides: !mine []", r"f.yaml:1: eta_overrides: tag '!mine' is not supported"),
    ("!mine seed: 1", r"f.yaml:1: tags, anchors and aliases of keys are not supported"),
    ("name: &n seed\n*n : 1", r"f.yaml:1: tags, anchors and aliases of keys are not supported"),
    ("? [a]\n: 1", r"f.yaml:1: expected a plain key, got a list"),
    ("extends: f.yaml", r"f.yaml: extends itself: f.yaml -> f.yaml"),
    ("extends: nothing-like-it", r"f.yaml:1: extends: no config called 'nothing-like-it'"),
    ("extends: gpt-tinny", r"f.yaml:1: extends: no config called 'gpt-tinny'; did you mean 'gpt-tiny'\?"),
    ("extends: g.yaml", r"f.yaml:1: extends: .*g.yaml: no such file; did you mean '.*f.yaml'\?"),
    ("extends: {a: 1}", r"f.yaml:1: extends: .*expected a name or a path"),
]


@pytest.mark.parametrize(("text", "message"), FILES)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_run_folder_that_was_edited(tmp_path: Path) -> None:
    """Its configuration is completed by the type of the optimizer, which is no word here."""
    (tmp_path / "config.yaml").write_text("optimizer: {type: [adamw], lr: 1}\n")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"config.yaml:1: optimizer.type: value .*did you mean 'adamw'"):
        load_config(tmp_path)


def test_the_name_of_a_file_that_is_no_name(tmp_path: Path) -> None:
    """The message says where the name comes from; a name of its own is enough."""
    file = tmp_path / "my conf.yaml"
    file.write_text("seed: 1\n", encoding="utf-8")
    place = r"my conf\.yaml \(the name of the file, as it has no key `name`\)"
    with pytest.raises(ConfigError, match=rf"{place}: name: value 'my conf': expected letters"):
        load_config(file)
    assert load_config(file, ["name=mine"]).name == "mine"


OVERRIDES = [
    (
        "model.d_modle=3",
        r"^override 'model.d_modle=3': model.d_modle: unknown key; did you mean 'd_model'\?$",
    ),
    ("optimzer.lr=3", r"^override 'optimzer.lr=3': optimzer: unknown key; did you mean 'optimizer'\?$"),
    ("lr=3", r"^override 'lr=3': lr: unknown key; did you mean 'optimizer.lr'\?$"),
    ("steps=3", r"^override 'steps=3': steps: unknown key; did you mean 'train.steps'\?$"),
    ("model.d_model.x=3", r"override 'model.d_model.x=3': model.d_model: .*expected an integer"),
    (
        "model.n_layers=many",
        r"^override 'model.n_layers=many': model.n_layers: value 'many': expected an integer$",
    ),
    (
        "model.type=ngtp",
        r"override 'model.type=ngtp': model.type: value 'ngtp': no such type; did you mean 'ngpt'",
    ),
    (
        "optimizer.lr=1",
        r"override 'optimizer.lr=1': optimizer: no `type`; expected one of .*adamw, ademamix, amos",
    ),
    ("eta_overrides.0.eta=1", r"override 'eta_overrides.0.eta=1': eta_overrides: .*expected a list"),
    ("seed", r"^override 'seed': expected key=value, for instance optimizer.lr=1e-3$"),
    ("seed=", r"^override 'seed=': expected key=value"),
    ("=3", r"^override '=3': expected key=value"),
    ("model..d_model=3", r"^override 'model..d_model=3': expected key=value"),
    (
        "plugins=[x.py]",
        r"^override 'plugins=\[x.py\]': plugins are no value .* in a file, or as --plugin FILE$",
    ),
    ("seed=[1", r"^override 'seed=\[1': not a YAML value"),
    ("seed=#1", r"^override 'seed=#1': a comment is no part of a value; expected a text with # in quotes$"),
    ("name=sweep #2", r"^override 'name=sweep #2': a comment is no part of a value"),
    ("init={type: he} # a", r"^override 'init=\{type: he\} # a': a comment is no part of a value"),
    ("name=!mine x", r"^override 'name=!mine x': tag '!mine' is not supported$"),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_bad_overrides(override: str, message: str) -> None:
    source = {"model": {"type": "gpt", "vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}}
    with pytest.raises(ConfigError, match=re.compile(message, re.MULTILINE)):
        load_config(source, [override])


SOURCES: list[tuple[Any, str]] = [
    ("ngpt-tinny", r"no config called 'ngpt-tinny'; did you mean 'ngpt-tiny'\?"),
    ("xyz", r"no config called 'xyz'; known: bert-base, "),
    ("name=again", r"^no config called 'name=again'; expected its name or file, then values KEY=VALUE$"),
    ("no/such/file.yaml", r"no/such/file.yaml: no such file"),
    (
        {"optimizer": {"type": "adamw", "lr": math.nan}},
        r"^optimizer.lr: value NaN: expected a finite number$",
    ),
    ({"modle": 1}, r"^modle: unknown key; did you mean 'model'\?$"),
]


@pytest.mark.parametrize(("source", "message"), SOURCES)
def test_bad_sources(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(source)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_the_name_of_a_file_without_its_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"q{suffix}").write_text("extends: gpt-tiny", encoding="utf-8")
    Path("f.yaml").write_text("extends: q", encoding="utf-8")
    for source in ("q", "f.yaml"):
        with pytest.raises(ConfigError, match=rf"no config called 'q'; did you mean 'q{suffix}'\?$"):
            load_config(source)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"f\.yaml: not UTF-8 at byte 6"):
        load_config(file)


def test_all_problems_come_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("sed: 1\n", encoding="utf-8")
    file = tmp_path / "f.yaml"
    file.write_text(
        "extends: base.yaml\n"
        "model:\n"
        "  type: gpt\n"
        "  d_modle: 64\n"
        "  n_layers: '1'\n"
        "  mlp: swilgu\n"
        "train: {steps: 1, batch_size: 3, accumulation: 2}\n"
        "data: {context: 1.5}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as raised:
        load_config(file, ["lr=1", "oops"])
    places = [
        line.split(str(tmp_path) + "/")[-1].split(": ", 2)[:2] for line in str(raised.value).splitlines()
    ]
    assert places == [
        ["override 'oops'", "expected key=value, for instance optimizer.lr=1e-3"],
        ["override 'lr=1'", "lr"],
        ["base.yaml:1", "sed"],
        ["f.yaml:2", "model.d_model"],
        ["f.yaml:2", "model.n_heads"],
        ["f.yaml:2", "model.vocab_size"],
        ["f.yaml:4", "model.d_modle"],
        ["f.yaml:5", "model.n_layers"],
        ["f.yaml:6", "model.mlp"],
        ["f.yaml:7", "train"],
        ["f.yaml:8", "data.context"],
    ]


CHECKED = [
    ("optimizer: {type: adamw, lr: 1}\neta: measured", r"f.yaml:3: eta: measured has no effect"),
    (
        "optimizer: {type: adamw, lr: 1}\nfreeze:\n- {roles: [bias]}\n- {roles: [gate]}",
        r"f.yaml:4: freeze\[0\]",
    ),
    ("train:\n  steps: 3\n  batch_size: 2\n  storage: bf16", r"f.yaml:5: train: storage: bf16 needs"),
    ("init: {type: he}\nseed: 3\ntransfer: {type: mup, base: {embed: 4}}", r"f.yaml:4: transfer.base"),
    (
        "transfer:\n  type: mup\n  base:\n    embed: 4\n    mlp: 0",
        r"f.yaml:6: transfer\.base\.mlp: value 0: expected a number greater than 0",
    ),
]


@pytest.mark.parametrize(("text", "message"), CHECKED)
def test_what_several_keys_or_the_model_decide_has_a_line_as_well(
    tmp_path: Path, text: str, message: str
) -> None:
    """These errors named the file only, or nothing."""
    file = tmp_path / "f.yaml"
    file.write_text(MODEL + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        explain(file)


def test_what_is_missing_and_what_cannot_be_built_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"  # the name of a key is no key
    file.write_text(MODEL, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"model\.yaml: to train, the configuration needs optimizer, data, train"
    ):
        Job.of(load_config(file))
    file.write_text("seed: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model\.yaml: model: missing"):
        build_model(file)


def test_where_a_configuration_was_written_makes_no_difference(tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "f.yaml", tmp_path / "b" / "f.yaml"
    for file, text in ((one, MODEL), (other, f"\n\n{MODEL}")):
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    assert load_config(one) == load_config(other)
    assert (load_config(one).place(("model",)), load_config(other).place(("model",))) == (
        f"{one}:1",
        f"{other}:3",
    )


def test_overrides_are_a_list() -> None:
    """A string is a sequence of strings as well, of one letter each."""
    with pytest.raises(
        ConfigError, match=r"overrides: value 'seed=1': expected a list of strings, \['seed=1'\]"
    ):
        load_config("gpt-tiny", "seed=1")


def test_values_from_python_are_those_of_yaml(tmp_path: Path) -> None:
    """A path is its text; a value that YAML cannot have is named by its key."""
    sizes: dict[str, Any] = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
    texts: dict[str, Any] = {"type": "text", "corpus": {"type": "text", "paths": [tmp_path]}, "context": 8}
    found, expected = (
        load_config({"data": {**texts, "corpus": {"type": "text", "paths": [path]}}})
        for path in (tmp_path, str(tmp_path))
    )
    assert found == expected
    with pytest.raises(ConfigError, match=r"^model.dtype: value torch.bfloat16: expected a string, a number"):
        build_model("gpt", **sizes, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match=r"^data.corpus.paths\[0\]: value .*object"):
        load_config({"data": {**texts, "corpus": {"type": "text", "paths": [object()]}}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["optimizer={type: prodigy}", "layer_decay=0.5"], "layer_decay"),
        (["optimizer={type: muon, lr: 0.01}", "freeze=[{roles: [linear]}]"], "none is trained"),
        (
            [
                "optimizer={type: muon, lr: 0.01, rest: {type: amos, lr: 0.01}}",
                "eta_overrides=[{role: linear, axes: [mlp], factor: 2}]",
            ],
            r"eta_overrides\[0\] has no effect",
        ),
        (["reparam=weight_norm", "train.clip=virtual"], "virtual is for gates"),
        (["schedule={type: cosine, warmup: 500000}"], "warmup"),
    ],
)
def test_explain_refuses_what_training_refuses(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(load_config("quickstart-gpt", changes))


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGCHLD", "SIGTERM"])
def test_a_signal_that_no_scheduler_sends(signal: str) -> None:
    with pytest.raises(ConfigError, match=f"'{signal}' is not a signal that can be waited for"):
        load_config("quickstart-gpt", [f"train.stop_signal={signal}"])
