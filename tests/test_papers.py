"""configs/papers and docs/papers.md against each other, and every row against what its paper says."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zoo.ablate.sweep import load_sweep
from zoo.checkpoint.recipe import declare
from zoo.config.compose import shipped
from zoo.config.yaml import read_yaml
from zoo.init import Registry
from zoo.models import Model
from zoo.nn.scaling import Scaling
from zoo.run.config import RunConfig, load_config
from zoo.run.factory import recipe_of

ROOT = Path(__file__).parent.parent
FOLDER = next(iter(shipped().values())).parent / "papers"
FILES = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
D = 1024


@cache
def config(name: str) -> RunConfig:
    return load_config(FILES[name])


@cache
def built(name: str) -> Model:
    """The model of a row, on the meta device."""
    return declare(recipe_of(config(name)))


def section(title: str) -> str:
    """The text below a heading up to the next one."""
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the last table of a section, without its head; names of configs without quotes."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").replace("`papers/", "`").split("|")] for line in lines]


def differences(name: str, parent: str) -> dict[str, tuple[Any, Any]]:
    """Where two configs differ, as flat keys, but for their names."""

    def flat(value: Any, key: str = "") -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for n, item in value.items() for k, v in flat(item, f"{key}.{n}").items()}
        return {key.removeprefix("."): value}

    ours, theirs = (flat(c.model_dump(mode="json")) for c in (config(name), load_config(parent)))
    return {
        k: (theirs.get(k), ours.get(k))
        for k in ours | theirs
        if ours.get(k) != theirs.get(k) and k not in ("name", "data.corpus.paths")
    }


def test_the_page_names_every_file_and_no_other() -> None:
    assert set(re.findall(r"`papers/([\w.-]+)`", PAGE)) == set(FILES)


def test_the_other_configs_that_the_page_names_are_shipped() -> None:
    families = "n?gpt|wesar|small|bert|rope|rpe|t5|lstm|resnet"
    named = set(re.findall(rf"`(?:zoo \w+ )?((?:{families})\d*-[\w.-]*\w)", PAGE))
    assert named
    assert named <= set(shipped())


def test_the_files_that_the_page_points_to_exist() -> None:
    paths = re.findall(r"`((?:zoo|tests|configs)/[\w./-]+)`", PAGE)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    titles = re.findall(r"^#+ (.*)$", PAGE, flags=re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors


@pytest.mark.parametrize(
    ("paper", "tables", "figures"),
    [("Amos (arXiv 2210.11693)", 7, 8), ("nGPT (arXiv 2410.01131)", 6, 14), ("WeSaR (EMNLP 2024)", 12, 12)],
)
def test_the_page_speaks_of_every_table_and_figure(paper: str, tables: int, figures: int) -> None:
    said = [line.split("|")[1].strip() for line in section(paper).splitlines() if line.startswith("|")]
    expected = [f"Table {i + 1}" for i in range(tables)] + [f"Figure {i + 1}" for i in range(figures)]
    assert [cell for cell in said if cell.startswith(("Table", "Figure"))] == expected


def test_all_rows_are_different_runs() -> None:
    dumps: dict[str, str] = {}
    for name in FILES:
        same = config(name).model_copy(update={"name": "run"}).model_dump_json()
        assert same not in dumps, f"{name} is {dumps[same]}"
        dumps[same] = name


@pytest.mark.parametrize("name", FILES)
def test_a_row_is_a_few_lines_over_a_parent_and_builds(name: str) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    first, *lines = text.strip().split("\n")
    assert re.fullmatch(r"# .*\.", first)
    assert "extends" in read_yaml(text, name, []).value
    assert len(lines) <= 4
    assert all(p.device.type == "meta" for p in built(name).parameters())
    assert config(name).train is not None


VALUES = {"1": 1.0, "0.33": 0.33, "0.05": 0.05, "1/sqrt(d)": D**-0.5, "sqrt(d)": D**0.5}
VECTORS = {
    "s_qk": ["blocks.0.attention.qk.s_qk", "blocks.23.attention.qk.s_qk"],
    "s_u, s_v": ["blocks.0.mlp.s_u", "blocks.23.mlp.s_nu"],
    "s_z": ["read_out.s_z"],
    "alpha": ["blocks.0.attention_residual.alpha", "blocks.23.mlp_residual.alpha"],
}
DEFAULTS = {"s_qk": (1.0, D**-0.5), "s_u, s_v": (1.0, 1.0), "s_z": (1.0, D**-0.5), "alpha": (0.05, D**-0.5)}


def scalings(name: str, vector: str) -> list[Scaling]:
    found = [built(name).get_submodule(path) for path in VECTORS[vector]]
    return [s for s in found if isinstance(s, Scaling)]


def test_ngpt_table_4() -> None:
    """The start of the trained tensor is s_scale, what the model uses is s_init, in the model as built."""
    table = rows("nGPT, Table 4")
    assert len(table) == 14
    assert len({tuple(row[:3]) for row in table}) == 14
    for changed, init, scale, name in table:
        for vector, paths in VECTORS.items():
            assert len(scalings(name.strip("`"), vector)) == len(paths)
            expected = (VALUES[init], VALUES[scale]) if vector == changed else DEFAULTS[vector]
            for s in scalings(name.strip("`"), vector):
                start = s.specs["scale"].start
                assert start is not None
                assert (start * s.factor, start) == pytest.approx(expected), (name, vector)


def test_ngpt_table_5() -> None:
    table = rows("nGPT, Table 5")
    assert len(table) == len({tuple(row[:4]) for row in table}) == 12
    for *kinds, name in table:
        for vector, kind in zip(VECTORS, kinds, strict=True):
            for s in scalings(name.strip("`"), vector):
                learned = {"vector": None, "scalar": 1, "fixed": 0}[kind]
                count = sum(spec.numel for spec in s.specs.values())
                assert count == learned if learned is not None else count > 1
                assert s.fixed == (1.0 if kind == "fixed" else None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", {}),
        ("6-no-qk-norm", {"model.qk_norm": (True, False)}),
        ("a2-signed-alpha", {"model.alpha.signed": (False, True)}),
        ("a3-riemannian", {"model.update": ("lerp", "riemannian")}),
    ],
)
def test_ngpts_other_rows(name: str, expected: dict[str, Any]) -> None:
    assert differences(f"ngpt-{name}", "ngpt-0.5b") == expected


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("ngpt-")])
def test_ngpts_ablations_train_for_100k_steps_of_512_sequences_of_1k(name: str) -> None:
    """A.8: 0.5B, context 1k, learning rate 1e-3, 100k iterations, about 52B tokens."""
    changed = differences(name, "ngpt-0.5b")
    assert all(key.startswith("model.") for key in changed)
    c: Any = config(name)
    assert c.optimizer.lr == 1e-3
    assert c.train.steps * c.train.batch_size * c.data.context == pytest.approx(52e9, rel=0.01)


RAPID, STABLE = (1e-3, 100, 2**20), (5e-4, 2000, 2**22)


def wesar(name: str) -> dict[str, Any]:
    """What distinguishes the rows of WeSaR's tables."""
    c: Any = config(name)
    tokens = c.train.batch_size * c.data.context
    reparam = c.reparam.model_dump()
    return {
        "size": {768: "130M", 2048: "1.3B", 5120: "13B"}[c.model.d_model],
        "model": c.model.type,
        "init": c.init.type,
        "embedding scaling": c.init.embedding_scaling,
        "reparam": reparam.pop("type"),
        "fields": reparam,
        "setting": (c.optimizer.lr, c.schedule.warmup, tokens),
        "tokens": round(c.train.steps * tokens / 1e9),
    }


USUAL: dict[str, Any] = {"model": "gpt", "embedding scaling": True, "setting": RAPID, "tokens": 30}
GATES: dict[str, Any] = {"reparam": "wesar", "fields": {"sigma2": 4e-5, "train_gates": True}}
SMALL: dict[str, Any] = {"init": "small", "reparam": "none", "fields": {}}
HE: dict[str, Any] = {"init": "he"}


@pytest.mark.parametrize("row", rows("WeSaR, Table 5"), ids=str)
def test_wesar_table_5(row: list[str]) -> None:
    size, method, name = row
    facts = {"Small, rapid": SMALL, "Small, stable": SMALL | {"setting": STABLE}, "WeSaR": HE | GATES}
    assert wesar(name.strip("`")) == USUAL | {"size": size} | facts[method]


def test_wesar_table_3() -> None:
    assert wesar("wesar-3-stable") == USUAL | HE | GATES | {"size": "1.3B", "setting": STABLE}
    for name in ("wesar-3-stable", "wesar-5-1.3b-wesar"):
        c: Any = config(name)
        assert (c.train.clip_norm, c.optimizer.weight_decay, c.train.z_loss) == (1.0, 0.01, 1e-4)


METHODS: dict[str, dict[str, Any]] = {
    "Small": SMALL,
    "Weight Normalization": HE | {"reparam": "weight_norm", "fields": {"sigma2": 16e-5, "start": "forward"}},
    "sigma-Reparam, pre-LN": HE
    | {"reparam": "sigma_reparam", "fields": {"sigma2": 64e-5, "differentiate": False}},
    "sigma-Reparam, post-LN": HE
    | {"model": "gpt-post", "reparam": "sigma_reparam", "fields": {"sigma2": 16e-5, "differentiate": False}},
    "residual scaling, He": HE | {"reparam": "residual", "fields": {}},
    "residual scaling, Small": SMALL | {"reparam": "residual"},
    "WeSaR": HE | GATES,
}
"""WeSaR, Tables 6 and 12, with the best sigma^2 of Table 6; section 5.3 for what they start from."""


def test_wesar_tables_6_and_12() -> None:
    table = rows("WeSaR, Tables 6 and 12")
    assert [method for method, *_ in table] == list(METHODS)
    for method, short, long in table:
        for name, tokens in ((short, 10), (long, 30)):
            expected = USUAL | {"size": "1.3B", "tokens": tokens} | METHODS[method]
            assert wesar(name.strip("`")) == expected, name


def test_wesar_table_7() -> None:
    facts: dict[str, dict[str, Any]] = {
        "Small": SMALL,
        "He": HE | {"reparam": "none", "fields": {}},
        "WeSaR with He": HE | GATES,
        "WeSaR with Small": GATES | {"init": "small"},
        "WeSaR with fixed alpha": HE | {"reparam": "wesar", "fields": {"sigma2": 4e-5, "train_gates": False}},
    }
    table = rows("WeSaR, Table 7")
    assert [method for method, _ in table] == list(facts)
    for method, name in table:
        assert wesar(name.strip("`")) == USUAL | {"size": "1.3B"} | facts[method], name


def test_wesar_table_9() -> None:
    table = rows("WeSaR, Table 9")
    assert len(table) == 12
    for size, changed, name in table:
        what, value = changed.split(" = ")
        expected = USUAL | HE | GATES | {"size": size}
        if what == "mu":
            expected |= {"setting": (float(value), *RAPID[1:])}
        else:
            expected |= {"fields": {"sigma2": float(value), "train_gates": True}}
        assert wesar(name.strip("`")) == expected, name


SIZES = {"base": (12, 768), "large": (24, 1024)}
FAMILIES = {
    "BERT": ("bert", "absolute", "mlm", "fp32"),
    "RoPE": ("bert", "rope", "mlm", "fp32"),
    "RPE": ("bert", "relative", "mlm", "fp32"),
    "T5": ("t5", None, "span-corruption", "bf16"),
}
"""Architecture, positions, objective and precision (Amos, 5.1 and A.5); RPE is of the base size."""

SCHEDULES = {
    "encoders": {"AdamW": ("linear", 10_000), "Amos": ("constant", 20_000)},
    "T5": {"AdamW": ("linear", 10_000), "Amos": ("constant", 0), "AdaFactor": ("rsqrt", 10_000)},
}
"""Schedule and steps of warm-up (Amos, A.5)."""


def beta(optimizer: Any) -> float:
    """What Table 4 of Amos calls beta."""
    of_type = {"amos": "beta", "adamw": "betas", "adafactor": "decay"}
    value = getattr(optimizer, of_type[optimizer.type])
    return float(value[1] if isinstance(value, tuple) else value)


@pytest.mark.parametrize("row", rows("Amos, Table 4"), ids=str)
def test_amos_table_4(row: list[str]) -> None:
    model, batch, optimizer, beta_2, lr, steps, name = row
    c: Any = config(name.strip("`"))
    family, _, size = model.partition("-")
    position = c.model.position.type if c.model.type == "bert" else None
    assert (c.model.type, position, c.data.objective.type, c.train.precision) == FAMILIES[family]
    assert (c.model.n_layers, c.model.d_model) == SIZES[size or "base"]
    assert c.optimizer.type == optimizer.lower()
    assert (c.train.batch_size, beta(c.optimizer), c.optimizer.lr) == (int(batch), float(beta_2), float(lr))
    assert c.train.steps == int(steps.replace("k", "000").replace("M", "000000"))
    schedule = SCHEDULES.get(family, SCHEDULES["encoders"])[optimizer]
    assert (c.schedule.type, c.schedule.warmup) == schedule
    # (log Z)^2 is T5's alone (A.5), at T5's 1e-4; the paper's settings clip no norm.
    assert (c.train.z_loss, c.train.clip_norm) == (1e-4 if family == "T5" else 0.0, None)
    # 0.9 in both: "typically" of Amos (section 2), Liu et al. (2019) of AdamW (A.5); Adafactor has none.
    momenta = {"amos": "momentum", "adamw": "betas"}
    momentum = getattr(c.optimizer, momenta.get(c.optimizer.type, ""), None)
    assert momentum in {"amos": (0.9,), "adamw": ((0.9, float(beta_2)),)}.get(c.optimizer.type, (None,))
    assert getattr(c.optimizer, "clip_value", None) is None


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("amos-9-")])
def test_label_smoothing_of_resnet_is_a_tenth(name: str) -> None:
    """A.9.2: "defaults to 0.1 for other experiments"; the loss of a built model has it in training alone."""
    c: Any = config(name)
    assert (c.model.label_smoothing, c.train.clip_norm, c.train.z_loss) == (0.1, None, 0.0)
    assert getattr(c.optimizer, "clip_value", None) is None
    betas = getattr(c.optimizer, "betas", None)
    assert betas == (None if c.optimizer.type == "amos" else (0.9, 0.999))


def test_amos_table_5() -> None:
    """A.7: Adam at 5e-6, batch 16, the best accuracy of each file among every 1k of 200k steps; 3 runs."""
    table = rows("Amos, Table 5")
    names = [name.strip("`") for _, _, name in table]
    for (checkpoint, steps, _), name in zip(table, names, strict=True):
        c: Any = config(name)
        assert (c.optimizer.type, c.optimizer.lr, c.train.batch_size) == ("adam", 5e-6, 16)
        assert (c.train.steps, c.train.eval_every, c.train.eval_batches) == (200_000, 1000, None)
        assert (c.data.best, list(c.data.validation)) == ("accuracy", ["matched", "mismatched"])
        assert c.checkpoint.part == "trunk"
        run, _, at = str(c.checkpoint.path).removeprefix("runs/").partition("/checkpoints/step-")
        source: Any = config(run)
        assert source.optimizer.type == checkpoint.lower()
        assert int(at or source.train.steps) == int(steps.replace("k", "000"))
        assert c.model.trunk == source.model
    sweep = load_sweep(ROOT / "configs" / "sweeps" / "papers" / "amos-5-mnli.yaml")
    assert [v.configs[0].checkpoint for v in sweep.variants] == [config(name).checkpoint for name in names]
    assert sweep.seeds == (0, 1, 2)


def test_amos_continued_and_rsqrt() -> None:
    """Figure 1a: like AdamW-300k but for the schedule."""
    parent = config("amos-4-bert-base-adamw-300k")
    for name, schedule in (
        ("cont", {"type": "linear-restart", "warmup": 10_000, "after": 200_000}),
        ("rsqrt", {"type": "rsqrt", "warmup": 10_000}),
    ):
        ours = config(f"amos-1-bert-base-adamw-{name}")
        assert ours.schedule.model_dump() == schedule
        assert ours.model_copy(update={"schedule": parent.schedule, "name": parent.name}) == parent


def etas(name: str) -> dict[str, float]:
    return {e.name: e.eta for e in Registry(built(name), eta_overrides=config(name).eta_overrides)}


@pytest.mark.parametrize(
    ("name", "parent", "width", "count", "was"),
    [
        ("1-rpe-base-amos-scale", "4-rpe-base-amos", 768, 12, 0.5),
        ("2-bert-large-amos-scale", "4-bert-large-amos", 1024, 24, (2 / 4096) ** 0.5),
    ],
)
def test_amos_scale(name: str, parent: str, width: int, count: int, was: float) -> None:
    """A.4: sqrt(1 / d) instead of 0.5 for relative positions, of sqrt(2 / m) for the MLP's second kernel."""
    ours, theirs = etas(f"amos-{name}"), etas(f"amos-{parent}")
    changed = [n for n in ours if ours[n] != pytest.approx(theirs[n], rel=1e-6)]
    assert len(changed) == count
    assert [ours[n] for n in changed] == pytest.approx([width**-0.5] * count, rel=1e-6)
    assert [theirs[n] for n in changed] == pytest.approx([was] * count)


def test_amos_a8() -> None:
    expected = {"No_Reduce": "none", "Reduce_1Axis": "one_axis", "Reduce_Dense": "dense"}
    found = {setting: name.strip("`") for setting, name in rows("Amos, A.8")}
    optimizers: dict[str, Any] = {setting: config(name).optimizer for setting, name in found.items()}
    assert {setting: o.reduction for setting, o in optimizers.items()} == expected
    memory = {
        setting: sum(
            math.prod(s) for e in Registry(built(name)) for s in optimizers[setting].slots(e).values()
        )
        for setting, name in found.items()
    }
    adamw: Any = config("amos-4-bert-base-adamw-300k").optimizer
    moments = sum(math.prod(s) for e in Registry(built(found["No_Reduce"])) for s in adamw.slots(e).values())
    assert memory["Reduce_Dense"] < memory["Reduce_1Axis"] < 0.51 * moments < moments < memory["No_Reduce"]


def test_amos_section_5_2() -> None:
    """One LSTM layer, hidden 256, memory 1024, dropout .55 and .1, length and batch 64."""
    table = rows("Amos, section 5.2")
    assert [row[0] for row in table] == ["Amos", "AdamW", "Adam"]
    for optimizer, lr, decay, name in table:
        c: Any = config(name.strip("`"))
        m = c.model
        assert (m.d_model, m.d_memory, m.hidden_dropout, m.memory_dropout) == (256, 1024, 0.55, 0.1)
        assert (c.data.context, c.train.batch_size, c.data.tokenizer.type) == (64, 64, "word")
        assert (c.optimizer.type, c.optimizer.lr) == (optimizer.lower(), float(lr))
        if optimizer != "Amos":
            assert c.optimizer.weight_decay == float(decay)
    kernels = [e for e in Registry(built("amos-5-lstm-amos")) if e.spec.fan_in_size == 512]
    assert kernels
    assert [e.eta for e in kernels] == pytest.approx([32**-0.5] * len(kernels))


def test_amos_a9() -> None:
    """ResNet-50, batch 1024; Amos with 5k steps of warm-up and no more, the others with cosine and 5 %."""
    table = rows("Amos, A.9")
    for setting, beta_2, xi, name in table:
        c: Any = config(name.strip("`"))
        assert (c.model.type, c.model.depth, c.model.classes, c.train.batch_size) == (
            "resnet",
            50,
            1000,
            1024,
        )
        if setting.startswith("Amos"):
            assert (c.optimizer.type, c.optimizer.beta, c.optimizer.lr) == ("amos", float(beta_2), float(xi))
            assert (c.schedule.type, c.schedule.warmup) == ("constant", 5000)
            assert c.optimizer.extra_l2 == (0.001 if setting == "Amos-Extra" else 0)
            coefficient = 1 / 16 if setting.endswith("1/16") else 1 / 4
            assert (c.optimizer.c_coef, c.optimizer.d_coef) == (coefficient, coefficient)
            assert bool(c.eta_overrides) == (setting == "Amos-*Scale")
        else:
            steps = {"Adam": 140_000, "AdamW": 187_000}[setting]
            assert (c.optimizer.type, c.optimizer.betas) == (setting.lower(), (0.9, 0.999))
            assert (c.schedule.type, c.train.steps, c.schedule.warmup) == ("cosine", steps, steps // 20)
            assert (c.optimizer.weight_decay > 0) == (setting == "AdamW")
    assert pytest.approx((1281167 / 1024) ** -0.5, rel=0.02) == 0.028
    ours, theirs = etas("amos-9-amos-scale"), etas("amos-9-amos")
    changed = [n for n in ours if ours[n] != pytest.approx(theirs[n])]
    assert [theirs[n] for n in changed] == pytest.approx([math.sqrt(2 * math.log(9) / 64)])
    assert [ours[n] for n in changed] == pytest.approx([64**-0.5])
