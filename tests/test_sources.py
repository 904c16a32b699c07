"""What is asked of runs before they are compared, whether zoo is to train them or others have done so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import curve, write_run
from tiny_sweeps import base, sweep_file

from zoo.ablate.caveats import caveats
from zoo.ablate.results import read_results
from zoo.ablate.scale.sources import LoggerExport, read_table
from zoo.ablate.sweep import load_sweep
from zoo.ablate.verdict import judge
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
