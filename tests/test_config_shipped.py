"""The configs that come with zoo: all load, and say what the papers' tables say."""

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from zoo.ablate.config import sweep_schema
from zoo.config.compose import shipped
from zoo.config.yaml import read_yaml
from zoo.data.text.dataset import TextData
from zoo.run.config import RunConfig, dump_config, json_schema, load_config

FOLDER = next(iter(shipped().values())).parent
FILES = sorted(file for file in FOLDER.rglob("*.yaml") if "sweeps" not in file.parts)  # test_sweep_docs.py
VALIDATOR = Draft202012Validator(json_schema())

NGPT = {"optimizer": ("adamw", 1e-3, (0.9, 0.95), 0.0), "warmup": 0, "schedule": "cosine", "clip": 1.0}
GPT = NGPT | {"optimizer": ("adamw", 1e-3, (0.9, 0.95), 0.1), "warmup": 2000}
RAPID = {"optimizer": ("adamw", 1e-3, (0.9, 0.95), 0.01), "warmup": 100, "clip": 1.0, "z_loss": 1e-4}
STABLE = RAPID | {"optimizer": ("adamw", 5e-4, (0.9, 0.95), 0.01), "warmup": 2000}
HALF, ONE = {"layers": (24, 1024, 16)}, {"layers": (36, 1280, 20)}
M130, B1, B13 = {"layers": (12, 768, 12)}, {"layers": (24, 2048, 16)}, {"layers": (40, 5120, 40)}


def batch(context: int, sequences: int) -> dict[str, Any]:
    return {"context": context, "batch": sequences, "precision": "bf16", "vocab": 32000}


PAPERS = {
    f"{kind}-{size}{suffix}": facts | sizes | batch(context, 512)
    for kind, facts in (("gpt", GPT), ("ngpt", NGPT))
    for size, sizes in (("0.5b", HALF), ("1.0b", ONE))
    for suffix, context in (("", 1024), ("-4k", 4096), ("-8k", 8192))
} | {
    f"{kind}-{size}{suffix}": facts | sizes | method | batch(2048, sequences)
    for kind, method in (
        ("wesar", {"init": "he", "reparam": "wesar"}),
        ("small", {"init": "small", "reparam": "none"}),
    )
    for size, sizes in (("130m", M130), ("1.3b", B1), ("13b", B13))
    for suffix, facts, sequences in (("", RAPID, 2**20 // 2048), ("-stable", STABLE, 2**22 // 2048))
}
"""nGPT, Tables 2 and 3 and A.5; WeSaR, Tables 2, 3, 10 and 11."""


def facts_of(config: RunConfig) -> dict[str, Any]:
    c: Any = config
    return {
        "layers": (c.model.n_layers, c.model.d_model, c.model.n_heads),
        "vocab": c.model.vocab_size,
        "init": c.init.type,
        "reparam": c.reparam.type,
        "optimizer": (c.optimizer.type, c.optimizer.lr, c.optimizer.betas, c.optimizer.weight_decay),
        "schedule": c.schedule.type,
        "warmup": c.schedule.warmup,
        "context": c.data.context,
        "batch": c.train.batch_size,
        "precision": c.train.precision,
        "clip": c.train.clip_norm,
        "z_loss": c.train.z_loss,
    }


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_the_papers_numbers(name: str) -> None:
    facts = facts_of(load_config(name))
    assert {key: facts[key] for key in PAPERS[name]} == PAPERS[name]


@pytest.mark.parametrize("name", sorted(n for n in PAPERS if n.startswith(("wesar", "small"))))
def test_wesar_trains_on_30_billion_tokens(name: str) -> None:
    config = load_config(name)
    assert config.train is not None
    assert isinstance(config.data, TextData)
    assert config.train.steps * config.train.batch_size * config.data.context == pytest.approx(30e9, rel=1e-4)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_every_file_loads_and_fits_the_schema(file: Path, tmp_path: Path) -> None:
    problems: list[str] = []
    raw = read_yaml(file.read_text(encoding="utf-8"), str(file), problems).plain()
    assert not problems
    assert [e.message for e in VALIDATOR.iter_errors(raw)] == []
    if file.parent.name == "parts":
        return  # to be put on top of others, which are tested
    config = load_config(file)
    again = tmp_path / "config.yaml"
    again.write_text(dump_config(config), encoding="utf-8")
    assert load_config(again) == config
    assert [e.message for e in VALIDATOR.iter_errors(config.model_dump(mode="json"))] == []


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_config_says_in_a_line_what_it_is(name: str) -> None:
    first = shipped()[name].read_text(encoding="utf-8").split("\n")[0]
    assert first.startswith("# ")
    assert first.endswith(".")


def mixture(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "mixture", "corpora": list(parts)}


def test_the_schema_takes_other_forms() -> None:
    """Weights beside the fields of a corpus, or around it, within each other; a class by its path."""
    text, lines = {"type": "text", "paths": ["a"]}, {"type": "jsonl", "paths": "b.jsonl", "field": "t"}
    inner = mixture({**text, "weight": 1}, {"corpus": lines})
    for corpus in (mixture({**text, "weight": 2}, lines, {"corpus": text, "weight": 0.5}), mixture(inner)):
        assert [e.message for e in VALIDATOR.iter_errors({"data": {"corpus": corpus}})] == []
    short = {"precision": "bfloat16", "storage": "float32", "parallel": {"gather": "bf16"}}
    assert [e.message for e in VALIDATOR.iter_errors({"train": short})] == []
    for kind in ("torch.optim.NAdam", "my_opt.py:Lion"):
        assert VALIDATOR.is_valid({"optimizer": {"type": kind, "lr": 1e-3, "momentum_decay": 0.1}})


PAGES = [FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").rglob("*.md"))]
BLOCKS = [
    (page, code)
    for page in PAGES
    for code in re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
]


def test_every_file_in_the_pages_fits_the_schema() -> None:
    """But tasks of lm-evaluation-harness; and of files that name plugins, whose types are not registered, the keys."""
    sweeps, tried = Draft202012Validator(sweep_schema()), 0
    for page, code in BLOCKS:
        problems: list[str] = []
        raw = read_yaml(code, page.name, problems).plain()
        assert not problems
        if "task" in raw:
            continue
        is_sweep = bool({"axes", "tune", "variants", "scale"} & raw.keys())
        validator = sweeps if is_sweep else VALIDATOR
        found = [e.message for e in validator.iter_errors(raw) if not (e.path and "plugins" in raw)]
        assert found == [], f"{page}:\n{code}"
        tried += 1
    assert tried >= 15


@pytest.mark.parametrize(
    "bad",
    [
        {"modle": "gpt"},
        {"model": {"type": "gpt", "d_modle": 3}},
        {"model": "gtp"},
        {"seed": "1"},
        {"train": {"precision": "fp16"}},
        {"data": {"corpus": {"type": "text", "paths": 3}}},
        {"optimizer": {"type": "amos", "betas": [0.9, 0.95]}},
        {"optimizer": {"type": "nadam", "lr": 1e-3}},
        {"data": {"corpus": {"type": "text", "paths": ["a"], "weight": 2}}},
        {"data": {"corpus": mixture({"type": "text", "paths": ["a"], "weight": "2"})}},
        {"data": {"corpus": mixture({"type": "text", "paths": ["a"], "wieght": 2})}},
        {"data": {"corpus": mixture({"corpus": {"type": "text", "paths": ["a"], "weight": 2}})}},
    ],
)
def test_the_schema_refuses(bad: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(bad)


def test_the_schema_describes_every_field() -> None:
    definitions = {"RunConfig": json_schema(), **json_schema()["$defs"]}
    bare = [
        f"{owner}.{name}"
        for owner, schema in definitions.items()
        for name, field in schema.get("properties", {}).items()
        if name not in ("type", "extends") and "description" not in field
    ]
    assert bare == []
