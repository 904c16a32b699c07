"""Bad sweep files as data: what is given, and what the message says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zoo.ablate.sweep import load_sweep
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError

BASE = "base: gpt-tiny\n"
INIT = "axes: {init: [he, small]}\n"
RATES = "tune: {grid: {optimizer.lr: [0.01, 0.1]}"
RANDOM = BASE + INIT + "tune: {random: {optimizer.lr: RANGE}}"

FILES = [
    ("axes: {init: [he, small]}", r"base: missing; expected: what all runs share"),
    (BASE, r"no axes: expected `axes` or `zip`, what the runs differ in"),
    (BASE + INIT + "sedes: [1]", r"s.yaml:3: sedes: unknown key; did you mean 'seeds'\?"),
    (BASE + INIT + "seeds: 3", r"s.yaml:3: seeds: value 3: expected a list"),
    (BASE + INIT + "seeds: [0, 0]", r"seeds: expected different numbers of at least 0"),
    (BASE + INIT + "seeds: []", r"s.yaml:3: seeds: value \[\]: expected at least 1$"),
    (BASE + INIT + "seeds: [0.5]", r"^[^\n]*s.yaml:3: seeds.0: value 0.5: expected an integer$"),
    (
        BASE + INIT + "seeds: [100000000000000000000]",
        r"seeds: expected different numbers of at least 0 and below",
    ),
    (
        "base: [gpt-tiny]\n" + INIT,
        r"s.yaml:1: base: value \['gpt-tiny'\]: expected a name, a path",
    ),
    (
        BASE + INIT + "scale: {sizes: [], budgets: {steps: [8, 16]}}",
        r"scale.sizes: value \[\]: expected a l",
    ),
    (BASE + INIT + "seeds: [-1]", r"seeds: expected different numbers of at least 0"),
    (BASE + INIT + "name: runs", r"s.yaml:3: name: value 'runs': a sweep cannot be called 'runs'"),
    (
        "base: gpt-tyni\n" + INIT,
        r"s.yaml:1: base: no config called 'gpt-tyni'; did you mean 'gpt-tiny'\?",
    ),
    ("base: 3\n" + INIT, r"s.yaml:1: base: value 3: expected a name, a path or a mapping"),
    (
        "base: {extends: gpt-tiny, trian: {steps: 3}}\n" + INIT,
        r"s.yaml:1: trian: unknown key; did you mean 'train'\?",
    ),
    ("base: {init: he}\n" + INIT, r"to train, the configuration needs model, optimizer, data, train as well"),
    (
        "base: {extends: gpt-tiny, reparam: lora, train: {clip: virtual}}\n" + INIT,
        r"s.yaml:1: train.clip: virtual is for gates \(wesar, residual\)",
    ),
    (
        "base: {extends: gpt-tiny, transfer: {type: mup}}\n" + INIT,
        r"s.yaml:1: transfer.base: no embed; expected its size at the base",
    ),
    (
        "base: {extends: gpt-tiny, transfer: {type: mup, base: {embed: 16}}}\n" + INIT,
        r"s.yaml:1: transfer.base: a matrix heads x embed grows, but heads has no base size",
    ),
    (
        "base: {extends: gpt-tiny, optimizer: {type: lion, lr: 1e-3}, "
        "transfer: {type: mup, base: {embed: 16}}}\n" + INIT,
        r"s.yaml:1: transfer: mup says nothing of the optimizer 'lion'",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1M, 2M, 4M, 8M], shape: width}, budgets: {steps: [8, 16]}, "
        "until_decided: true}",
        r"until_decided: has no effect with 4 sizes, of which all are trained; expected more than 4",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1M, 2M, 4M, 8M], shape: width}, budgets: {steps: [8, 16]}, "
        "max_seeds: 6}",
        r"max_seeds: 4 sizes; across sizes add a size, not a seed: expected one size, or until_decided",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1M], shape: width}, budgets: {steps: [8, 16]}, seeds: 3, "
        "max_seeds: 3}",
        r"max_seeds: has no effect with 3 seeds; expected more",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1M], shape: width}, budgets: {steps: [8]}, max_seeds: 6}",
        r"max_seeds: a single budget shows no token speed-up, whatever the seeds; expected two budgets",
    ),
    (
        BASE + INIT + "max_seeds: 6\nscale: {sizes: {params: [1M], shape: width}, budgets: {steps: [8, 16]}}",
        r"max_seeds: has no effect beside scale; expected scale.max_seeds",
    ),
    (BASE + INIT + "max_seeds: 3", r"max_seeds: has no effect with 3 seeds; expected more"),
    (BASE + INIT + "max_seeds: 31", r"s.yaml:3: max_seeds: value 31: .*30"),
    (BASE + INIT + "seeds: [0]\nmax_seeds: 2", r"s.yaml:4: max_seeds: value 2: .*3"),
    (
        BASE + INIT + "scale: {sizes: {params: [1M, 2M]}, budgets: {steps: [8, 16]}}",
        r"^[^\n]*s.yaml:3: scale.sizes.shape: missing; expected: what grows[^\n]*$",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1x, 2M], shape: width}, budgets: {steps: [8, 16]}}",
        r"^[^\n]*s.yaml:3: scale.sizes.params.0: value '1x': expected a number such as 2e6 or 2M$",
    ),
    (
        BASE + INIT + "scale: {sizes: [1M, 2M], budgets: {steps: [8, 16]}}",
        r"^[^\n]*s.yaml:3: scale.sizes: value \[\"1M\", \"2M\"\]: expected a list with the keys[^\n]*$",
    ),
    # axes
    (
        BASE + "axes: {init: he}",
        r"s.yaml:2: axes.init: value 'he': expected a list of values, or a mapping of named fragments",
    ),
    (BASE + "axes: {init: [he]}", r"s.yaml:2: axes.init: expected at least two values; a single one belongs"),
    (BASE + "axes: {init: [he, he]}", r"s.yaml:2: axes.init: value 'he' is written twice"),
    (BASE + "axes:\n  inti: [he, small]", r"s.yaml:3: inti: unknown key; did you mean 'init'\?"),
    (
        BASE + "axes:\n  init: [he, smal]",
        r"s.yaml:3: init.type: value 'smal': no such type; did you mean 'small'\? \(in init=smal\)",
    ),
    # what the sweep sets in every run
    (
        BASE + "axes: {seed: [1, 2]}",
        r"s.yaml:2: axes.seed: has no effect: the sweep sets it; expected `seeds`",
    ),
    (
        BASE + "axes: {train.runs_dir: [a, b]}",
        r"axes.train.runs_dir: has no effect: .*; expected `out` in the",
    ),
    (
        BASE + "axes: {train: [{runs_dir: a, steps: 8}, {runs_dir: b, steps: 9}]}",
        r"s.yaml:2: axes.train.runs_dir: has no effect",
    ),
    (BASE + "zip: [{seed: [1, 2], init: [he, small]}]", r"s.yaml:2: zip.seed: has no effect"),
    (
        BASE + "axes:\n  method:\n    a: {init: he}\n    b: {init: small, seed: 3}",
        r"s.yaml:5: axes.method.b.seed: has no effect: the sweep sets it; expected `seeds`",
    ),
    (
        "base: {extends: gpt-tiny, seed: 7}\n" + INIT,
        r"s.yaml:1: base.seed: has no effect: the sweep sets it; expected `seeds`",
    ),
    (
        "base: {extends: gpt-tiny, name: x}\n" + INIT,
        r"s.yaml:1: base.name: has no effect: the sweep sets it; expected `name` in the sweep file",
    ),
    (
        "base: {extends: gpt-tiny, train: {runs_dir: x}}\n" + INIT,
        r"s.yaml:1: base.train.runs_dir: has no effect: the sweep sets it; expected `out` in the sweep",
    ),
    (BASE + INIT + "tune: {grid: {seed: [1, 2]}}", r"s.yaml:3: tune.grid.seed: has no effect"),
    (
        RANDOM.replace("optimizer.lr", "seed").replace("RANGE", "{uniform: [1, 2]}"),
        r"s.yaml:3: tune.random.seed",
    ),
    (
        BASE + INIT + "scale: {sizes: [{model.n_layers: 1, name: a}, {model.n_layers: 2}], "
        "budgets: {steps: [8, 16]}}",
        r"s.yaml:3: scale.sizes.name: has no effect",
    ),
    (
        BASE + INIT + "scale: {sizes: {params: [1M], shape: width}, budgets: {steps: [8]}, seeds: [0, 1]}",
        r"s.yaml:3: scale.seeds: value \[0, 1\]: expected how many seeds each size has, from 1 to 1,000",
    ),
    ("out: ''\n" + BASE + INIT, r"s.yaml:1: out: value '': empty; expected the path"),
    (
        "base: {extends: gpt-tiny, schedule: {warmup: 21}}\n" + INIT,
        r"s.yaml:1: schedule.warmup 21 is longer than the run of 20 steps",
    ),
    (BASE + "axes: {optimizer..lr: [1, 2]}", r"'optimizer..lr': expected a key such as optimizer.lr"),
    (
        BASE + "axes: {method: {a: {}, b: small}}",
        r"s.yaml:2: axes.method.b: value 'small': expected a mapping",
    ),
    (
        BASE + "axes: {method: {a: {}, b: {extends: gpt-tyni}}}",
        r"s.yaml:2: extends: no config called 'gpt-tyni'; did you mean",
    ),
    (
        BASE + "zip: [{model.d_model: [32, 64], model.n_heads: [4]}]",
        r"s.yaml:2: zip: expected lists of one length: model.d_model has 2, model.n_heads has 1",
    ),
    (BASE + "zip: [{init: [he], train.steps: [10]}]", r"s.yaml:2: zip: expected at least two values"),
    (
        BASE + "zip: [{model.d_model: [32, 64, 32], model.n_heads: [2, 4, 2]}]",
        r"s.yaml:2: zip: model.d_model=32,model.n_heads=2 is written twice$",
    ),
    # what changes nothing
    (
        BASE + "zip: [{train.keep_last: [1, 2], train.checkpoint_every: [10, 20]}]",
        r"s.yaml:2: zip.train.keep_last and zip.train.checkpoint_every: changes nothing: train.keep_last=1,",
    ),
    (
        BASE + "axes:\n  train.keep_last: [1, 2]",
        r"s.yaml:3: axes.train.keep_last: changes nothing: train.keep_last=1 and train.keep_last=2 come out",
    ),
    (
        BASE + "axes:\n  method:\n    a: {init: he}\n    b: {init: {type: he}}",
        r"s.yaml:5: axes.method: changes nothing: method=a and method=b come out as the same configuration",
    ),
    (
        BASE + "axes:\n  optimizer.lr: [1, 2]\n" + RATES + "}",
        r"s.yaml:3: optimizer.lr: has no effect: s.yaml:4 puts something else in its place",
    ),
    (
        BASE + INIT + "zip: [{init: [he, small], train.steps: [10, 20]}]",
        r"s.yaml:2: init: has no effect: s.yaml:3 puts something else in its place \(in init=he",
    ),
    (
        BASE + INIT + "tune: {choose: parabola, grid: {train.batch_size: [1, 2, 4]}}",
        r"s.yaml:3: tune.grid.train.batch_size: value 1: this key takes whole numbers",
    ),
    (BASE + INIT + "tune: {grid: {train.keep_last: [1, 2]}}", r"tune: changes nothing between"),
    # exclude, baseline
    (
        BASE + INIT + "exclude: [{inti: he}]",
        r"s.yaml:3: exclude.inti: no such axis; did you mean 'init'\?",
    ),
    (
        BASE + INIT + "exclude: [{init: smal}]",
        r"s.yaml:3: exclude.init: no value 'smal'; did you mean 'small'\?",
    ),
    (
        BASE + INIT + "exclude:\n- {init: he}\n- {init: he}",
        r"s.yaml:5: exclude.init: no value 'he'",
    ),
    (BASE + INIT + "exclude: [{init: he}, {init: small}]", r"s.yaml:3: exclude: no variant is left"),
    (BASE + INIT + "baseline: {init: smal}", r"s.yaml:3: baseline.init: no value 'smal'; did you mean"),
    (
        BASE + "axes: {init: [he, small], model.n_layers: [1, 2]}\nbaseline: {init: he}",
        r"s.yaml:3: baseline: init=he: expected one variant: it is 2 variants",
    ),
    # tune
    (
        BASE + INIT + "tune: {grid: {optimizer.lr: [1]}}",
        r"s.yaml:3: tune: grid: expected at least two values",
    ),
    (
        BASE + INIT + "tune: {grid: {optimizer.lr: [1, 1]}}",
        r"tune: grid: optimizer.lr: a value is written twice",
    ),
    (BASE + INIT + "tune: {grid: {optimizer.rl: [1, 2]}}", r"s.yaml:3: optimizer.rl: unknown key"),
    (BASE + INIT + RATES + ", seeds: []}", r"s.yaml:3: tune.seeds: value \[\]"),
    (
        BASE + INIT + RATES + ",\n  grids: [{where: {init: he}, grid: {optimizer.lr: [1, 2, 3]}}]}",
        r"tune: grids: every variant is tuned over equally many values of the same keys; expected 2 of opt",
    ),
    (
        BASE + INIT + RATES + ",\n  grids: [{where: {init: he}, grid: {optimizer.lr: [0.1, 0.01]}}]}",
        r"tune: grids: \{'init': 'he'\} has the values of grid, so that it has no effect",
    ),
    (
        BASE + INIT + RATES + ",\n  grids: [{where: {init: hee}, grid: {optimizer.lr: [1, 2]}}]}",
        r"s.yaml:4: tune.grids.where.init: no value 'hee'; did you mean 'he'\?",
    ),
    (
        BASE
        + "axes: {init: [he, small], optimizer: [adamw, amos]}\nexclude: [{init: he, optimizer: amos}]\n"
        + RATES
        + ",\n  grids: [{where: {init: he, optimizer: amos}, grid: {optimizer.lr: [1, 2]}}]}",
        r"s.yaml:5: tune.grids: init=he,optimizer=amos: no such variant",
    ),
    (
        BASE + INIT + RATES + ", halving: {at: [0.5, 0.25]}}",
        r"tune.halving.at: value \[0.5, 0.25\]: expected shares between 0 and 1, rising",
    ),
    (
        BASE + INIT + RATES + ", halving: {at: [0.1]}}",
        r"s.yaml:3: tune.halving at \[0.1\] of 20 steps: with train.eval_every 10 there is no validation",
    ),
    # random search
    (BASE + INIT + "tune: {}", r"s.yaml:3: tune: expected either grid: .* or random: "),
    (BASE + INIT + RATES + ", random: {optimizer.lr: {uniform: [1, 2]}}}", r"tune: expected either grid: "),
    (
        RANDOM.replace("RANGE", "{log_uniform: [0.01, 0.001]}"),
        r"s.yaml:3: .*optimizer.lr.log_uniform: value \[0.01, 0.001\]: .*low < h",
    ),
    (
        RANDOM.replace("RANGE", "{log_uniform: [0.01, 0.01]}"),
        r"optimizer.lr.log_uniform: value \[0.01, 0.01\]: .*low < h",
    ),
    (
        RANDOM.replace("RANGE", "{uniform: [1, 0]}"),
        r"optimizer.lr.uniform: value \[1, 0\]: expected \[low, high\] with low < high",
    ),
    (
        RANDOM.replace("RANGE", "{log_uniform: [0, 1]}"),
        r"optimizer.lr.log_uniform: value \[0, 1\]: expected low > 0: a logarithm",
    ),
    (
        RANDOM.replace("RANGE", "{log_uniform: [-1, 1]}"),
        r"optimizer.lr.log_uniform: value \[-1, 1\]: expected low > 0",
    ),
    (RANDOM.replace("RANGE", "{log_uniform: [1, .inf]}"), r"optimizer.lr.log_uniform"),
    (RANDOM.replace("RANGE", "{log_uniform: [1]}"), r"optimizer.lr.log_uniform"),
    (RANDOM.replace("RANGE", "{log_uniform: [1, 2, 3]}"), r"optimizer.lr.log_uniform"),
    (RANDOM.replace("RANGE", "{log_uniform: 3}"), r"optimizer.lr.log_uniform: value 3: expected a list"),
    (
        RANDOM.replace("RANGE", "{loguniform: [1, 2]}"),
        r"optimizer.lr.loguniform: unknown key; did you mean 'log_uniform'\?",
    ),
    (
        RANDOM.replace("RANGE", "{}"),
        r"tune.random.optimizer.lr: expected either log_uniform: \[low, high\] or uniform",
    ),
    (RANDOM.replace("RANGE", "[1, 2]"), r"tune.random.optimizer.lr: value \[1, 2\]: expected a mapping"),
    (RANDOM.replace("RANGE", "{uniform: [1, 2]}, trials: 1"), r"tune.random.trials: value 1: "),
    (RANDOM.replace("RANGE", "{uniform: [1, 2]}, trails: 3"), r"tune.random.trails"),
    (RANDOM.replace("RANGE", "{uniform: [1, 2]}, seed: -1"), r"tune.random.seed: value -1: "),
    (RANDOM.replace("RANGE", "{uniform: [1, 1.00001]}"), r"tune: changes nothing between"),
    (
        RANDOM.replace("lr", "rl").replace("RANGE", "{uniform: [1, 2]}"),
        r"s.yaml:3: optimizer.rl: unknown key",
    ),
    (BASE + INIT + "tune: {random: {trials: 3}}", r"tune.random: nothing is drawn: expected a key"),
    (
        RANDOM.replace("RANGE", "{uniform: [1, 2]}").strip("}")
        + "}}, grids: [{where: {init: he}, grid: {optimizer.lr: [1, 2]}}]}",
        r"tune: grids: has no effect without grid; with random, every variant has the same points",
    ),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=str)
def test_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_sweep(Path("s.yaml"))
    assert re.search(message, str(caught.value)), caught.value
    assert len(str(caught.value).splitlines()) == 1


OVERRIDES = [
    (
        "optimizer.lr=1",
        r"override 'optimizer.lr=1': has no effect: axes, sizes or tune put something else in its",
    ),
    ("train.stesp=1", r"override 'train.stesp=1': train.stesp: unknown key; did you mean 'steps'\?"),
    ("train.steps", r"override 'train.steps': expected key=value"),
    (
        "seed=3",
        r"override 'seed=3': seed: has no effect: the sweep sets it; expected `seeds` in the sweep file",
    ),
    (
        "name=x",
        r"override 'name=x': name: has no effect: the sweep sets it; expected `name` in the sweep file",
    ),
    ("train.runs_dir=x", r"override .*: train.runs_dir: has no effect: .*; expected `out` in .*, or --out"),
    (
        "train={runs_dir: x}",
        r"override .*: train.runs_dir: has no effect: .*; expected `out` in .*, or --out",
    ),
    ("seeds=[1]", r"override 'seeds=\[1\]': seeds: is a key of the sweep file; expected a key of `base`"),
]


def test_the_file_of_a_run_and_that_of_a_sweep_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, sweep = Path("run.yaml"), Path("sweep.yaml")
    run.write_text("extends: gpt-tiny", encoding="utf-8")
    sweep.write_text("base: run.yaml\n" + INIT, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^run.yaml: the configuration of a run; expected a sweep file[^\n]*$"
    ):
        load_sweep(run)
    with pytest.raises(
        ConfigError, match=r"^sweep.yaml: a sweep file, [^\n]*expected `zoo sweep sweep.yaml`$"
    ):
        load_config(sweep)


@pytest.mark.parametrize(("override", "message"), OVERRIDES, ids=str)
def test_bad_override(tmp_path: Path, override: str, message: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(BASE + INIT + RATES + "}", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_sweep(file, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_model=8", r"has no effect: axes, sizes or tune put"),
        ("train.steps=8", r"train.steps: has no effect: the sweep sets it; expected `scale.budgets`"),
    ],
)
def test_an_override_that_a_ladder_replaces(tmp_path: Path, override: str, message: str) -> None:
    file = tmp_path / "s.yaml"
    sizes = "scale: {sizes: [{model.d_model: 16}, {model.d_model: 32}], budgets: {steps: [8, 16]}}"
    file.write_text(BASE + INIT + sizes, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"override '{override}': {message}"):
        load_sweep(file, [override])
