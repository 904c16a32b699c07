"""How often the data are read, and how much of the validation text is in the training text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sweeps import base, sweep_file

from zoo.ablate.caveats import caveats
from zoo.ablate.data_cautions import data_cautions
from zoo.ablate.execute import execute
from zoo.ablate.ladder_verdict import judge_ladder
from zoo.ablate.results import read_results
from zoo.ablate.scale.sources import read_table
from zoo.ablate.sweep import load_sweep
from zoo.ablate.verdict import judge
from zoo.commands.cli import main
from zoo.config.yaml import dump_yaml
from zoo.data.text import overlap as module
from zoo.data.text.overlap import overlap
from zoo.data.tokens import TokenFile


def tokens(file: Path, ids: list[int]) -> TokenFile:
    np.array(ids, dtype="<u2").tofile(file)
    return TokenFile(file, "uint16", len(ids))


def documents(ids: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token in ids:
        if token:
            found[-1].append(token)
        else:
            found.append([])
    return [document for document in found if document]


def counted(train: list[int], validation: list[int], length: int) -> float:
    """The definition, word by word."""
    inside = {tuple(train[i : i + length]) for i in range(len(train) - length + 1)}
    whole = {tuple(document) for document in documents(train)}
    found = 0
    for document in documents(validation):
        if len(document) < length:
            found += len(document) * (tuple(document) in whole)
            continue
        for i in range(0, len(document) - length + 1, length):
            found += length * (tuple(document[i : i + length]) in inside)
        found += len(document) % length * (tuple(document[-length:]) in inside)
    return found / sum(map(len, documents(validation)))


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_overlap_is_what_its_definition_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, length: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    random = np.random.default_rng(chunk * length)
    for size in (3, 40, 200):
        train, held_out = (random.integers(0, 4, n).tolist() for n in (size, 60))
        found = overlap(tokens(tmp_path / "a", train), tokens(tmp_path / "b", held_out), 0, length)
        assert found == pytest.approx(counted(train, held_out, length), abs=1e-12)


def words(seed: int, count: int) -> str:
    letters = np.random.default_rng(seed).integers(97, 123, (count, 6)).astype(np.uint8)
    return " ".join(bytes(word).decode() for word in letters)


def test_a_ladder_says_that_its_text_was_read_twice_and_that_half_of_the_validation_is_known(
    tmp_path: Path,
) -> None:
    train, new = words(0, 400), words(1, 100)
    (tmp_path / "train.txt").write_text(train)
    (tmp_path / "held.txt").write_text(train[700:1400] + new[:700])
    common: dict[str, Any] = base(tmp_path, eval_every=100, checkpoint_every=100)
    corpora = {name: {"type": "text", "paths": [str(tmp_path / f"{name}.txt")]} for name in ("train", "held")}
    common["data"] |= {"corpus": corpora["train"], "validation_corpus": corpora["held"], "validation": None}
    common["schedule"] = {"type": "cosine", "warmup": 1}
    fields = {
        "base": common,
        "axes": {"init": ["he", "small"]},
        "scale": {"sizes": [{"model.d_model": 8}], "budgets": {"steps": [40, 160]}, "seeds": 2},
        "out": str(tmp_path / "sweeps"),
        "lines": "lines.csv",
    }
    (tmp_path / "ladder.yaml").write_text(dump_yaml(fields))
    sweep = load_sweep(tmp_path / "ladder.yaml")
    execute(sweep, 1)
    for table in (read_table([sweep.folder]), read_table([tmp_path / "lines.csv"])):
        assert {run.passes for run in table.runs} == {steps * 32 / (len(train) + 1) for steps in (40, 160)}
        (share,) = {run.overlap for run in table.runs}
        assert share == pytest.approx(600 / 1400, abs=1e-3)  # three and a half windows of 200 bytes are old
    warnings = judge_ladder(sweep.folder).verdicts["init=small"].warnings
    assert any("the data were read up to 1.83 times" in warning for warning in warnings)
    assert any("of the validation text is in the training text" in warning for warning in warnings)


def test_a_plain_sweep_says_so_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same cautions, in the report of a sweep that was trained."""
    train, new = words(0, 400), words(1, 100)
    (tmp_path / "train.txt").write_text(train)
    (tmp_path / "held.txt").write_text(train[700:1400] + new[:700])
    common: dict[str, Any] = base(tmp_path, steps=160, eval_every=100, checkpoint_every=100)
    corpora = {name: {"type": "text", "paths": [str(tmp_path / f"{name}.txt")]} for name in ("train", "held")}
    common["data"] |= {"corpus": corpora["train"], "validation_corpus": corpora["held"], "validation": None}
    sweep = load_sweep(sweep_file(tmp_path, base=common, seeds=[0]))
    execute(sweep, 1)
    told = caveats(judge(read_results([sweep.folder])))
    passes = 160 * 32 / (len(train) + 1)
    assert f"the data were read up to {passes:.3g} times; nothing is claimed of more than one pass" in told
    assert any(caution.startswith("42.9% of the validation text is in the training text") for caution in told)
    with pytest.raises(SystemExit):
        main(["report", str(sweep.folder), "--out", str(tmp_path / "page")])
    assert "the data were read up to" in (tmp_path / "page/report.html").read_text()


def test_one_pass_over_new_text_has_no_caution() -> None:
    assert list(data_cautions([None, 1.0, 0.5], [None, 0.0])) == []
