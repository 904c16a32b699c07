"""What is asked of runs before they are compared, whether zoo is to train them or others have done so."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import curve, write_run
from test_verdict_worlds import world
from tiny_sweeps import base, sweep_file

from zoo.ablate.caveats import caveats
from zoo.ablate.results import read_results
from zoo.ablate.scale.sources import LoggerExport, read_table
from zoo.ablate.sweep import load_sweep
from zoo.ablate.verdict import judge
from zoo.commands.cli import main
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.utils.errors import ConfigError, DataError, ZooError

PIECES = {"type": "sentencepiece", "vocab_size": 450}
OTHER_PIECES = {"type": "sentencepiece", "vocab_size": 600}
LADDER = {"sizes": [{"model.d_model": 8}, {"model.d_model": 16}], "budgets": {"steps": [12, 24]}}
OTHER_TOKENIZERS = "have different tokenizers, whose tokens hold different amounts of text; expected bits_per"


def sweep_over(folder: Path, tokenizers: list[Any], **fields: Any) -> Path:
    common = base(folder)
    common["model"]["vocab_size"] = 600
    file = sweep_file(folder, base=common, axes={"data.tokenizer": tokenizers}, **fields)
    if "scale" in fields:
        content = json.loads(file.read_text())
        del content["seeds"]
        file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("fields", [{}, {"metric": "perplexity"}, {"scale": LADDER}])
def test_tokenizers_are_compared_in_bits_per_byte_only(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Refused before any work."""
    with pytest.raises(ConfigError, match=OTHER_TOKENIZERS):
        load_sweep(sweep_over(tmp_path, [PIECES, OTHER_PIECES], **fields))
    load_sweep(sweep_over(tmp_path, [PIECES, OTHER_PIECES], **{**fields, "metric": "bits_per_byte"}))
    assert not (tmp_path / "cache").exists()


def test_the_same_tokenizer_under_two_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    ByteTokenizer().save(tmp_path / "kept")
    kept = {"type": "saved", "path": str(tmp_path / "kept")}
    assert len(load_sweep(sweep_over(tmp_path, ["byte", kept])).variants) == 2


def with_pieces(folder: Path, tokenizer: dict[str, Any], bits: float) -> Path:
    """A run folder whose tokenizer is not recorded, or only by its settings."""
    overrides = [f"data.tokenizer={json.dumps(tokenizer)}", "model.vocab_size=600"]
    run = write_run(folder, curve(3.0), overrides=overrides)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "bits_per_byte": bits}) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text)
    return run


def test_run_folders_of_two_objectives_have_other_data(tmp_path: Path) -> None:
    """A verdict of a ladder warns of sides whose `data` differ."""
    masked = ["model.type=bert", "data.objective=mlm"]
    runs = [write_run(tmp_path / str(i), curve(3.0), overrides=masked[: 2 * i]) for i in range(2)]
    causal, other = read_table(runs).runs
    assert causal.objective == '{"type": "causal"}'
    assert '"type": "mlm"' in other.objective


def test_run_folders_of_two_tokenizers(tmp_path: Path) -> None:
    runs = [with_pieces(tmp_path / "a", PIECES, 1.5), with_pieces(tmp_path / "b", OTHER_PIECES, 1.4)]
    with pytest.raises(ZooError, match=rf"^report: metric: 'cross_entropy' .* {OTHER_TOKENIZERS}"):
        read_results(runs)
    with pytest.raises(DataError, match=rf"^--metric: 'cross_entropy' .* {OTHER_TOKENIZERS}"):
        read_table(runs)
    assert read_results(runs, metric="bits_per_byte").variants == ["a", "b"]
    for number, run in enumerate(runs):  # what is kept with a run tells more than its settings
        (run / "tokenizer").mkdir()
        (run / "tokenizer/zoo-tokenizer.json").write_text(json.dumps({"hash": str(number)}))
    told = caveats(judge(read_results(runs, metric="bits_per_byte")))
    assert any(re.match("the runs differ in tokenizer", caution) for caution in told)
    (runs[1] / "tokenizer/zoo-tokenizer.json").write_text(json.dumps({"hash": "0"}))
    assert read_results(runs).measure.is_loss


def test_a_run_folder_that_diverged_has_no_finite_loss(tmp_path: Path) -> None:
    """Its budget is that of its configuration, as of a run that a sweep calls failed."""
    reason = {"kind": "diverged", "step": 57, "reason": "the loss is nan"}
    whole = write_run(tmp_path / "whole", curve(3.0))
    diverged = write_run(tmp_path / "diverged", curve(3.0)[:6], seed=1, more=[reason])
    runs = read_table([whole, diverged]).runs
    assert [run.loss for run in runs] == [3.0, math.inf]
    assert [run.tokens for run in runs] == [6400, 6400]
    assert [run.seconds for run in runs] == [50, None]
    early = write_run(tmp_path / "early", curve(3.0)[:1], seed=2, more=[{**reason, "step": 1}])
    with pytest.raises(
        DataError, match=r"early: diverged \(step 1: the loss is nan\) before a step was logged"
    ):
        read_table([whole, early])


@pytest.mark.parametrize("column", ["Name", "ID", "run_id", "Run ID"])
def test_an_exported_history_is_no_ladder(tmp_path: Path, column: str) -> None:
    """Several rows of a run are its steps; runs of one name differ in their seeds."""
    file = tmp_path / "history.csv"
    columns = LoggerExport({"variant": "optimizer", "size": "params", "loss": "eval/loss"})
    header = f"{column},optimizer,params,tokens,seed,eval/loss"

    def rows(name: str) -> list[str]:
        of_runs = ((v, t, s) for v in ("adamw", "muon") for t in (1, 2, 4) for s in (0, 1))
        return [f"{name.format(v=v, t=t, s=s)},{v},1M,{t}M,{s},{3 / t + s / 9}" for v, t, s in of_runs]

    file.write_text("\n".join([header, *rows("{v}-{s}")]))
    with pytest.raises(DataError, match=rf":4: {column}: value 'adamw-0' stands in line 2 already"):
        read_table([file], columns)
    for name in ("{v}-{t}-{s}", "{v}-{t}"):
        file.write_text("\n".join([header, *rows(name)]))
        assert len(read_table([file], columns).runs) == 12


def sizes_of(folder: Path, changes: list[list[str]]) -> list[Path]:
    """Run folders of one seed each, whose sizes grow."""
    return [
        write_run(
            folder / f"run{i}", curve(3 - i / 10), overrides=of_size, size={"parameters": 1000 * (i + 1)}
        )
        for i, of_size in enumerate(changes)
    ]


@pytest.mark.parametrize("change", ["model.tied=true", "optimizer.weight_decay=0.5", "data.context=8"])
def test_sizes_of_a_variant_have_the_same_settings(tmp_path: Path, change: str) -> None:
    key, value = change.split("=")
    message = (
        rf"run1: {key}: {value.title()}, and .* in .*run0: both would be sizes or budgets of the variant"
    )
    with pytest.raises(DataError, match=message):
        read_table(sizes_of(tmp_path, [["model.d_model=16"], ["model.d_model=32", change]]))


def test_shape_steps_and_rate_may_differ_between_sizes(tmp_path: Path) -> None:
    changes = [
        ["model.d_model=16", "optimizer.lr=1e-3", "schedule={type: cosine, warmup: 5}"],
        [
            "model.d_model=32",
            "model.n_layers=2",
            "model.d_mlp=null",
            "optimizer.lr=2e-3",
            "schedule={type: cosine, warmup: 9}",
        ],
    ]
    assert [run.size for run in read_table(sizes_of(tmp_path, changes)).runs] == [1000, 2000]


def shaped(folder: Path, kinds: dict[str, list[list[str]]]) -> list[Path]:
    """Run folders of several variants, a size each, with as many parameters as the place of the size."""
    return [path for name, changes in kinds.items() for path in sizes_of(folder / name, changes)]


def nests(widths: tuple[int, ...], starts: tuple[float, ...], *more: str) -> list[list[str]]:
    """nGPT at these widths, whose s_z starts as stated."""
    model = "model={{type: ngpt, vocab_size: 256, d_model: {}, n_layers: 1, n_heads: 2, s_z: {{init: {}}}}}"
    return [
        [model.format(width, start), "init=ngpt", *more] for width, start in zip(widths, starts, strict=True)
    ]


def test_a_number_that_follows_the_shape_is_of_the_size(tmp_path: Path) -> None:
    """s_z starts at sqrt(d_model), as the sizes of a ladder of nGPT may have it; written to seven digits."""
    good = nests((16, 32, 64), (4.0, 5.656854, 8.0))
    assert [run.size for run in read_table(sizes_of(tmp_path / "one", good)).runs] == [1000, 2000, 3000]
    odd = nests((16, 32, 64), (4.0, 5.6, 8.0))
    with pytest.raises(
        DataError, match=r"run1: model.s_z.init: 5.6, and 4.0 in .*both would be sizes or budgets"
    ):
        read_table(sizes_of(tmp_path / "odd", odd))
    same = nests((16, 16), (4.0, 5.656854))
    seeds = sizes_of(tmp_path / "same", same)
    with pytest.raises(DataError, match="both would be sizes or budgets"):
        read_table(seeds)


def test_what_all_variants_change_alike_is_of_the_size(tmp_path: Path) -> None:
    """Two variants with the same settings by size; one that has its own at a size is refused."""
    starts = (1.0, 5.0, 6.0)
    amos = ["optimizer={type: amos, lr: 0.01}"]
    both = {"adamw": nests((16, 32, 64), starts), "amos": nests((16, 32, 64), starts, *amos)}
    assert len(read_table(shaped(tmp_path / "both", both)).variants) == 2
    other = {**both, "amos": nests((16, 32, 64), (1.0, 5.0, 7.0), *amos)}
    with pytest.raises(DataError, match=r"model.s_z.init: 5.0, and 1.0 in"):
        read_table(shaped(tmp_path / "other", other))
    fewer = {**both, "amos": nests((16, 32), (1.0, 5.0), *amos)}
    with pytest.raises(DataError, match=r"model.s_z.init: 5.0, and 1.0 in"):
        read_table(shaped(tmp_path / "fewer", fewer))


def event_folders(folder: Path) -> list[Path]:
    """Runs of two sizes and seeds of a variant and the baseline in TensorBoard's event files."""
    writers = pytest.importorskip("torch.utils.tensorboard")
    for run in world([1.3, 1.3], tau=0.01, seeds=2, sizes=(1e6, 2e6)):
        name = f"{run.variant}-{run.size:.0f}-{run.tokens:.0f}-s{run.seed}"
        with writers.SummaryWriter(str(folder / name)) as writer:
            for step in range(4):
                writer.add_scalar("loss", run.loss + 0.1 * (3 - step), step)
    return sorted(folder.iterdir())


def test_an_event_file_that_was_cut_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its run counts with the last whole record, and all others as they are; a damaged record is the same."""
    folders = event_folders(tmp_path / "runs")
    export = LoggerExport(pattern="{variant}-{size}-{tokens}-s{seed}", tag="loss")
    whole = read_table(folders, export).runs
    assert not any(run.broken for run in whole)
    (file,) = folders[0].iterdir()
    content = file.read_bytes()
    for cut in (content[:-9], content[:-9] + bytes(9)):
        file.write_bytes(cut)
        first, *others = read_table(folders, export).runs
        assert first.broken == str(file)
        assert first.loss == pytest.approx(whole[0].loss + 0.1)
        assert others == list(whole[1:])
    command = [*map(str, folders), "--baseline", "a", "--pattern", str(export.pattern), "--tag", "loss"]
    with pytest.raises(SystemExit) as done:
        main(["verdict", *command])
    assert done.value.code == 0
    told = capsys.readouterr().out
    assert f"not read to the end, because a record is cut off or damaged: {file};" in told
    file.write_bytes(content[:30])
    with pytest.raises(DataError, match=r"--tag loss: expected one of no scalar; .* ends inside a record"):
        read_table(folders, export)


def test_scalars_that_are_tensors_or_no_numbers_and_variants_with_hyphens(tmp_path: Path) -> None:
    """Scalars are read as TensorFlow 2 stores them; a run whose last loss is NaN diverged."""
    writers = pytest.importorskip("torch.utils.tensorboard")
    runs = {"adam-w-1M-s0": (9.0, 3.0), "gpt-2-1.5M-s1": (9.0, math.nan), "a-3M-s2": (math.nan, 2.0)}
    for name, losses in runs.items():
        with writers.SummaryWriter(str(tmp_path / name)) as writer:
            for step, loss in enumerate(losses, 1):
                writer.add_scalar("loss", loss, step, new_style=name.startswith("adam"))
    (tmp_path / "b-1M-s3.csv").write_text("Wall time,Step,Value\n0,1,nan\n0,2,4\n")
    (tmp_path / "b-1M-s4.csv").write_text("Wall time,Step,Value\n0,1,4\n0,2,NaN\n")
    export = LoggerExport(pattern="{variant}-{size}-s{seed}", tag="loss", tokens_per_step=1e3)
    table = read_table(sorted(tmp_path.iterdir()), export)
    assert [(r.variant, r.size, r.tokens, r.seed, r.loss) for r in table.runs] == [
        ("a", 3e6, 2e3, 2, 2.0),
        ("adam-w", 1e6, 2e3, 0, 3.0),
        ("b", 1e6, 2e3, 3, 4.0),
        ("b", 1e6, 2e3, 4, math.inf),
        ("gpt-2", 1.5e6, 2e3, 1, math.inf),
    ]
    with pytest.raises(DataError, match=r"a-3M-s2: event files of TensorBoard, .* --pattern '{variant}-"):
        read_table([tmp_path / "a-3M-s2"])
    (tmp_path / "a-3M-s2").rename(tmp_path / "a-small-s2")
    with pytest.raises(DataError, match="size: value 'small': expected a number above 0"):
        read_table([tmp_path / "a-small-s2"], export)


def test_the_baseline_against_itself_names_runs_at_other_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As without --aa, for each half; runs of the tuning are none of them."""
    runs = [
        replace(run, rate=5e-4 if run.seed == 3 and run.tokens == 16e6 else 1e-3)
        for run in world([1.0] * 5, tau=0.02, seeds=6)
        if run.variant == "a"
    ]
    tried = [replace(run, seed=9, rate=rate) for run in runs[:1] for rate in (5e-4, 1e-3, 2e-3)]
    file = tmp_path / "runs.csv"
    rows = [f"{r.variant},{r.size},{r.tokens},{r.seed},{r.loss},{r.rate}" for r in [*runs, *tried]]
    file.write_text("\n".join(["variant,size,tokens,seed,loss,rate", *rows]))
    with pytest.raises(SystemExit) as done:
        main(["verdict", str(file), "--baseline", "a", "--aa"])
    assert done.value.code == 0
    told = capsys.readouterr().out
    assert "a again: 5 runs are left out of the comparison, at 1M, 2M, 4M, 8M, 16M (" in told
    assert "the rate is 0.0005, most runs have 0.001" in told
    assert "the baseline: " not in "".join(line for line in told.splitlines() if "left out" in line)
