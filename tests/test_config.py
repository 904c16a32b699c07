"""Configs: what composes, what overrides do, what is read and written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zoo.config.compose import ASSUMED, shipped
from zoo.config.registry import DATASETS, MODELS
from zoo.run.config import dump_config, load_config
from zoo.utils.errors import ConfigError

SIZES = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
GPT = {"model": {"type": "gpt", **SIZES}}


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def at(config: Any, path: str) -> Any:
    """The value at a dotted path of a dumped config."""
    value = config.model_dump(mode="json")
    for key in path.split("."):
        value = value[int(key)] if key.isdecimal() else value[key]
    return value


OVERRIDES: list[tuple[dict[str, Any], Sequence[str], dict[str, Any]]] = [
    (GPT, ["model.n_layers=3"], {"model.n_layers": 3, "model.d_model": 8}),
    (GPT, ["model.rope_base=1e3"], {"model.rope_base": 1000.0}),
    (GPT, ["model.rope_base=1e-3"], {"model.rope_base": 0.001}),
    (GPT, ["model.vocab_size=32_000"], {"model.vocab_size": 32000}),
    (GPT, ["seed=1", "seed=2"], {"seed": 2}),
    (GPT, ["description='\u00e9 #2'"], {"description": "\u00e9 #2"}),
    (GPT, ["description=\u00e9#2 "], {"description": "\u00e9#2"}),
    (GPT, ["init=small"], {"init.type": "small"}),
    (GPT, ["init.embedding_scaling=false", "init=he"], {"init.type": "he", "init.embedding_scaling": False}),
    (GPT | {"init": "he"}, ["init.embedding_scaling=false"], {"init.embedding_scaling": False}),
    (GPT, ["reparam={type: wesar, sigma2: 1e-5}"], {"reparam.sigma2": 1e-5}),
    (GPT | {"reparam": {"type": "wesar", "sigma2": 1e-5}}, ["reparam=wesar"], {"reparam.sigma2": 1e-5}),
    (GPT | {"reparam": {"type": "wesar", "sigma2": 1e-5}}, ["reparam=none"], {"reparam": {"type": "none"}}),
    (
        GPT | {"optimizer": {"type": "adamw", "lr": 1, "weight_decay": 0.5}},
        ["optimizer.lr=2", "optimizer.type=amos"],
        {"optimizer.lr": 2.0, "optimizer.type": "amos", "optimizer.momentum": None},
    ),
    (
        GPT | {"eta_overrides": [{"role": "embedding", "factor": 2}]},
        ["eta_overrides.0.factor=3"],
        {"eta_overrides.0.factor": 3.0, "eta_overrides.0.role": "embedding"},
    ),
    (GPT, ["optimizer={type: adamw, lr: 1e-3, betas: [0.9, 0.98]}"], {"optimizer.betas": [0.9, 0.98]}),
    (
        GPT,
        ["data={context: 7}", "data.corpus={type: text, paths: [a, b]}"],
        {"data.corpus.paths": ["a", "b"]},
    ),
    (GPT | {"train": {"steps": 1, "batch_size": 1}}, ["train.clip_norm=null"], {"train.clip_norm": None}),
    ({"optimizer": {"type": "amos", "lr": 0.1}}, [], {"model": None, "optimizer.type": "amos"}),
    ({"extends": "gpt-tiny"}, ["name=x"], {"name": "x", "model.type": "gpt"}),
    (GPT | {"model": MODELS["gpt"](**SIZES)}, [], {"model.type": "gpt", "model.d_model": 8}),
]


@pytest.mark.parametrize(("source", "overrides", "expected"), OVERRIDES)
def test_overrides(source: dict[str, Any], overrides: Sequence[str], expected: dict[str, Any]) -> None:
    config = load_config(source, overrides)
    assert {path: at(config, path) for path in expected} == expected


def test_extends_composes_from_left_to_right_and_own_values_last(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.yaml",
        "seed: 1\nmodel: {type: gpt, vocab_size: 16, d_model: 8, n_layers: 1, n_heads: 2}\n",
    )
    write(tmp_path, "parts/b.yaml", "extends: ../a.yaml\nseed: 2\nmodel: {n_layers: 5}\n")
    write(tmp_path, "parts/c.yaml", "model: {n_layers: 6, tied: true}\n")
    file = write(tmp_path, "d.yaml", "extends: [parts/b.yaml, parts/c.yaml]\nmodel: {tied: false}\n")
    config = load_config(file)
    assert [at(config, p) for p in ("seed", "model.n_layers", "model.tied", "name")] == [2, 6, False, "d"]


def test_a_component_of_another_type_takes_nothing_over(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "optimizer: {type: adamw, lr: 1, weight_decay: 0.5}\n")
    file = write(tmp_path, "b.yaml", "extends: a.yaml\noptimizer: {type: amos, lr: 2}\n")
    assert at(load_config(file), "optimizer.lr") == 2
    write(tmp_path, "b.yaml", "extends: a.yaml\noptimizer: {type: amos}\n")
    with pytest.raises(ConfigError, match=r"b\.yaml:2: optimizer\.lr: missing"):
        load_config(file)


def test_data_of_another_type_take_nothing_over_from_those_that_are_text_by_default(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "extends: gpt-tiny\ndata: {type: instructions, train: ins.jsonl}\n")
    assert at(load_config(file), "data.type") == "instructions"  # which has no corpus, as the text has
    file = write(tmp_path, "b.yaml", "extends: gpt-tiny\ndata: {type: text, context: 32}\n")
    assert [at(load_config(file), p) for p in ("data.context", "data.tokenizer.type")] == [32, "byte"]


def test_a_type_that_may_be_left_out_below_is_the_assumed_one() -> None:
    assert {"data": next(name for name, cls in DATASETS.choices.items() if cls.assumed)} == ASSUMED


def test_the_same_type_again_keeps_the_fields(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "optimizer: {type: adamw, lr: 1, weight_decay: 0.5}\n")
    file = write(tmp_path, "b.yaml", "extends: a.yaml\noptimizer: {type: adamw, lr: 2}\n")
    config = load_config(file)
    assert [at(config, p) for p in ("optimizer.lr", "optimizer.weight_decay")] == [2, 0.5]


def test_a_run_folder_is_a_config(tmp_path: Path) -> None:
    config = load_config("wesar-tiny", ["name=mine"])
    write(tmp_path, "run/config.yaml", dump_config(config))
    assert load_config(tmp_path / "run") == config


@pytest.mark.parametrize("name", ["1e-3", "yes", "012", "null", "1_000"])
def test_written_strings_stay_strings(tmp_path: Path, name: str) -> None:
    config = load_config(GPT).model_copy(update={"name": name})
    file = write(tmp_path, "config.yaml", dump_config(config))
    assert load_config(file) == config


@pytest.mark.parametrize("lr", [1e-5, 3e-4, 1.0, 123456.789, 2.0**-126])
def test_numbers_come_back_exactly(tmp_path: Path, lr: float) -> None:
    config = load_config({"optimizer": {"type": "amos", "lr": lr}})
    file = write(tmp_path, "config.yaml", dump_config(config))
    assert load_config(file).model_copy(update={"name": "run"}) == config


def test_shipped_names_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("ngpt-0.5b").name == "ngpt-0.5b"
    assert set(shipped()) >= {"gpt-0.5b", "ngpt-1.0b-8k", "wesar-13b-stable", "quickstart-gpt"}
