"""The lines of a ladder: a sweep goes on without its run folders, and says the same."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TEXT
from tiny_sweeps import base, sweep_file

from benchmarks.scale.recount import recount
from zoo.ablate.execute import execute, planner_of
from zoo.ablate.ladder_verdict import judge_ladder
from zoo.ablate.lines import COLUMNS, Lines, config_hash
from zoo.ablate.manifest import read_manifest, write_manifest
from zoo.ablate.progress import progress
from zoo.ablate.scale.document import document
from zoo.ablate.scale.presentation import tables
from zoo.ablate.scale.sources import read_table, sweep_table
from zoo.ablate.scale.verdict import judge
from zoo.ablate.sweep import Sweep, load_sweep
from zoo.commands.cli import main
from zoo.config.plugins import PluginRecord
from zoo.config.yaml import dump_yaml
from zoo.report.ladder_plots import ladder_plots
from zoo.utils.errors import CheckpointError, ConfigError, DataError

ONE_SIZE = {"sizes": [{"model.d_model": 8}], "budgets": {"steps": [2, 4]}, "seeds": 1}


def ladder(folder: Path, lines: str | None = "lines.csv", **changes: Any) -> Sweep:
    shared = base(folder, eval_every=100, checkpoint_every=100)
    shared["schedule"] = {"type": "cosine", "warmup": 1}
    fields = {
        "base": shared,
        "axes": {"init": ["he", "small"]},
        "scale": {
            "sizes": [{"model.d_model": width} for width in (8, 12, 16, 24)],
            "budgets": {"steps": [2, 4]},
            "seeds": 1,
        },
        "tune": {
            "grid": {"optimizer.lr": [5e-3, 1e-2, 2e-2]},
            "choose": "parabola",
            "seeds": [7],
        },
        "out": str(folder / "sweeps"),
        **({} if lines is None else {"lines": lines}),
        **changes,
    }
    file = folder / "ladder.yaml"
    file.write_text(dump_yaml(fields))
    return load_sweep(file)


def said(sweep: Sweep) -> Any:
    found = judge_ladder(sweep.folder)
    return json.loads(document(found.verdicts, found.baseline, margin=None, alpha=0.05).model_dump_json())


def test_lines_that_cannot_be_written_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sweep = ladder(tmp_path, "file/lines.csv")
    with pytest.raises(CheckpointError, match=r"file/lines.csv: cannot be written"):
        execute(sweep, 1)
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize("changes", [{}, {"tune": None}])
def test_the_largest_models_come_first_after_the_tuning(tmp_path: Path, changes: dict[str, Any]) -> None:
    two = {"sizes": [{"model.d_model": 8}, {"model.d_model": 12}], "budgets": {"steps": [2, 4]}, "seeds": 1}
    execute(ladder(tmp_path, scale=two, **changes), 1, largest_first=True)
    runs = [line.run for line in Lines(tmp_path / "lines.csv")]
    tuning, order = [r for r in runs if r.seed == 7], [(-r.size, -r.tokens) for r in runs if r.seed != 7]
    assert runs[: len(tuning)] == tuning and bool(tuning) != bool(changes)
    assert order == sorted(order) and len(set(order)) == (4 if changes else 2)


def test_a_sweep_without_sizes_has_no_largest_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--largest-first: tiny has no sizes \(scale\); expected a ladder"):
        execute(load_sweep(sweep_file(tmp_path)), 1, largest_first=True)
    assert not (tmp_path / "sweeps").exists()


def test_a_sweep_goes_on_from_its_lines(tmp_path: Path) -> None:
    sweep = ladder(tmp_path)
    execute(sweep, 1)
    whole = said(sweep)
    file = tmp_path / "lines.csv"
    header, *rows = file.read_text().splitlines()
    assert header == ",".join(COLUMNS)
    assert len(rows) == len({row["config"] for row in csv.DictReader([header, *rows])})
    assert {row["objective"] for row in csv.DictReader([header, *rows])} == {'{"type": "causal"}'}

    shutil.rmtree(tmp_path / "sweeps")  # the machine is lost
    again = ladder(tmp_path)
    result = execute(again, 1)
    assert result.finished
    assert list((tmp_path / "sweeps").glob("runs/*")) == []  # nothing was trained
    assert said(again) == whole
    assert {run.status for run in result.manifest.runs} == {"finished"}

    shutil.rmtree(tmp_path / "sweeps")  # and half of the lines with it
    half = len(rows) // 2
    file.write_text("\n".join([header, *rows[:half]]) + "\n")
    continued = ladder(tmp_path)
    execute(continued, 1)
    assert len(list((tmp_path / "sweeps").glob("runs/*"))) == len(rows) - half
    assert said(continued) == whole
    of_csv = {(r.variant, r.size, r.tokens, r.seed, r.rate, r.loss) for r in read_table([file]).runs}
    of_sweep = read_table([continued.folder]).runs
    assert of_csv == {(r.variant, r.size, r.tokens, r.seed, r.rate, r.loss) for r in of_sweep}

    with pytest.raises(ConfigError, match=r"lines.csv:2: config: value .* other settings"):
        execute(load_sweep(tmp_path / "ladder.yaml", ["optimizer.weight_decay=0.5"]), 1)

    run = planner_of(continued).plan({}).runs[0]
    edited = run.config.model_copy(update={"plugins": (PluginRecord(name="mine.py", sha256="0" * 64),)})
    assert continued.lines is not None
    with pytest.raises(ConfigError, match="the sweep file, with its plugins, now stands for a run"):
        continued.lines.outcome(run.key, edited, run.steps)

    pages = [tmp_path / name for name in ("page", "page again")]
    for page in pages:
        with pytest.raises(SystemExit) as done:
            main(["verdict", str(file), "--baseline", "init=he", "--margin", "1.1", "--out", str(page)])
        assert done.value.code == 0
    first, second = ({file.name: file.read_bytes() for file in page.iterdir()} for page in pages)
    assert first == second  # `make scale-report` leaves no diff


def test_lines_that_the_sweep_file_no_longer_plans_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seeds, doubted in ((2, False), (1, True)):
        sweep = ladder(tmp_path, tune=None, scale=ONE_SIZE | {"seeds": seeds})
        with pytest.raises(SystemExit) as done:
            main(["sweep", str(tmp_path / "ladder.yaml"), "--workers", "1"])
        assert done.value.code == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert ("does not plan" in printed) == doubted
    assert "Caution: 4 lines of runs that the sweep file does not plan, first lines.csv:" in printed
    assert "init=he with seed 1; `zoo verdict lines.csv` judges" in printed
    assert {line.run.seed for line in progress(sweep).unplanned} == {1}
    assert {run.seed for run in sweep_table(sweep.folder).runs} == {0}  # the sweep itself judges its own runs


def test_lines_of_runs_with_other_data_are_refused_before_any_work(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"scale": ONE_SIZE, "tune": None}
    execute(ladder(tmp_path, **changes), 1)
    file = tmp_path / "lines.csv"
    shutil.rmtree(tmp_path / "sweeps")
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:-1]))
    (tmp_path / "text.txt").write_text(TEXT.replace("e", "i"))
    elsewhere: dict[str, Any] = {"lines": "others.csv", "lines_of": ["lines.csv"]}
    for more in ({}, elsewhere):
        with pytest.raises(DataError, match=r"lines.csv:2: data: value \w{32}: .*expected the files"):
            execute(ladder(tmp_path, **changes, **more), 1)
    assert list((tmp_path / "sweeps").glob("runs/*")) == []


def test_operations_are_counted_again(tmp_path: Path) -> None:
    """Lines of an older zoo have those of the model alone; nothing else of a line changes."""
    rule = {"optimizer": {"type": "muon", "lr": 1e-2}}
    sweep = ladder(tmp_path, axes={"optimizer": {"adamw": {}, "muon": rule}}, tune=None)
    execute(sweep, 1)
    file = tmp_path / "lines.csv"
    now = file.read_text()
    rows = list(csv.DictReader(io.StringIO(now)))
    alone = {(row["size"], row["tokens"]): row["flops"] for row in rows if "adamw" in row["variant"]}
    older = now
    for row in rows:
        older = older.replace(f",{row['flops']},", f",{alone[row['size'], row['tokens']]},")
    file.write_text(older)
    assert recount(load_sweep(tmp_path / "ladder.yaml")) == len(rows) / 2
    assert file.read_text() == now != older
    assert recount(load_sweep(tmp_path / "ladder.yaml")) == 0


def test_the_hash_does_not_depend_on_folders(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one", "other"))
    hashes = []
    for folder in (one, other):
        folder.mkdir()
        hashes.append(config_hash(ladder(folder).ladder[0].sides[0].config))
    assert hashes[0] == hashes[1]


def test_the_hash_of_a_run_that_begins_with_a_checkpoint(tmp_path: Path) -> None:
    """Its folder and that of the tokenizer count by their names, whether they are there or not."""
    hashes = []
    for source in (tmp_path / "one/source", tmp_path / "other/source", tmp_path / "one/another"):
        begins = base(tmp_path) | {"checkpoint": {"path": str(source)}}
        begins["schedule"] = {"type": "cosine", "warmup": 1}
        begins["data"]["tokenizer"] = {"type": "saved", "path": str(source)}
        hashes.append(config_hash(ladder(tmp_path, base=begins).ladder[0].sides[0].config))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_verdict_of_lines_is_that_of_the_run_folders_in_any_measure(tmp_path: Path) -> None:
    sweep = ladder(tmp_path, scale=ONE_SIZE)
    execute(sweep, 1)
    with_lines = read_manifest(sweep.folder)
    for metric in ("cross_entropy", "bits_per_byte"):
        write_manifest(sweep.folder, with_lines)
        by_lines = {run.place: run.loss for run in sweep_table(sweep.folder, metric).runs}
        assert by_lines and all(Path(place).name.startswith("lines.csv:") for place in by_lines)
        write_manifest(sweep.folder, with_lines.model_copy(update={"lines": None}))
        by_folders = sweep_table(sweep.folder, metric).runs
        assert not any("lines.csv" in run.place for run in by_folders)
        assert sorted(by_lines.values()) == sorted(run.loss for run in by_folders)


def test_lines_of_other_measures(tmp_path: Path) -> None:
    """A sweep that was tuned in bits per byte has lines without nats per token."""
    sweep = ladder(tmp_path, metric="bits_per_byte", scale=ONE_SIZE)
    execute(sweep, 1)
    assert {run.loss for run in sweep_table(sweep.folder).runs} == {
        float(line.row["bits_per_byte"]) for line in Lines(tmp_path / "lines.csv")
    }
    with pytest.raises(DataError, match="csv:2: the line has no cross_entropy; expected the metric of its"):
        sweep_table(sweep.folder, "cross_entropy")
    found = judge_ladder(sweep.folder)
    by_file = judge(read_table([tmp_path / "lines.csv"]), found.baseline)
    for verdicts in (found.verdicts, by_file):
        pages = [table.note for table in tables(verdicts, found.baseline)]
        pages += [view.y for plot in ladder_plots(verdicts, found.baseline) for view in plot.views]
        assert "bits per byte" in str(pages) and "nats" not in str(pages)
    with pytest.raises(ConfigError, match=r"csv:2: loss: .*has bits_per_byte, and the sweep now compares by"):
        execute(ladder(tmp_path, scale=ONE_SIZE), 1)
    with pytest.raises(DataError, match="csv:2: the line has no cross_entropy"):
        execute(ladder(tmp_path, "nats.csv", lines_of=["lines.csv"], scale=ONE_SIZE), 1)


def test_lines_of_a_ladder_in_nats_are_taken_over_in_bits(tmp_path: Path) -> None:
    scale = {"scale": ONE_SIZE, "tune": None}
    execute(ladder(tmp_path, "nats.csv", **scale), 1)
    shutil.rmtree(tmp_path / "sweeps")
    execute(ladder(tmp_path, "bits.csv", lines_of=["nats.csv"], metric="bits_per_byte", **scale), 1)
    assert not list((tmp_path / "sweeps").glob("runs/*"))
    nats, bits = (list(Lines(tmp_path / f"{name}.csv")) for name in ("nats", "bits"))
    assert [line.row["loss"] for line in bits] == [line.row["bits_per_byte"] for line in nats]
    both = tmp_path / "both.csv"
    rows = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in ("nats", "bits")]
    both.write_text("\n".join([*rows[0][:3], rows[1][-1]]))
    with pytest.raises(DataError, match=r"both.csv:4: loss: value .* in bits per byte, and .* in nats"):
        read_table([both])


def test_a_run_that_diverges_before_its_first_validation_has_a_line(tmp_path: Path) -> None:
    """It has made no step that counts, and the others go on, also from the lines alone."""
    rates: dict[str, Any] = {"axes": {"optimizer.lr": [1e-2, 1e30]}, "scale": ONE_SIZE, "tune": None}
    for _ in range(2):
        result = execute(ladder(tmp_path, **rates), 1)
        assert [run.status for run in result.manifest.runs] == ["finished"] * 2 + ["failed"] * 2
        rows = [line.row for line in Lines(tmp_path / "lines.csv")]
        diverged = [(row["loss"], row["bits_per_byte"], row["flops"]) for row in rows[2:]]
        assert diverged == [("inf", "", "")] * 2 and all(float(row["flops"]) > 0 for row in rows[:2])
        shutil.rmtree(tmp_path / "sweeps")


def test_lines_of_says_which_files_are_not_there_and_names_other_files(tmp_path: Path) -> None:
    sweep = ladder(tmp_path, lines_of=["gone.csv"])
    (note,) = sweep.notes
    assert note.endswith("gone.csv does not exist; no run is taken over from it")
    with pytest.raises(ConfigError, match=r"ladder.yaml:\d+: lines_of: \./lines.csv is the file of `lines`"):
        ladder(tmp_path, lines_of=["./lines.csv"])


def test_other_ladders_are_no_source_of_runs_whose_settings_do_not_tell_all(tmp_path: Path) -> None:
    texts = {name: {"data": {"corpus": {"paths": [str(tmp_path / name)]}}} for name in ("a", "b")}
    with pytest.raises(ConfigError, match="lines_of: the variants differ in their data"):
        ladder(tmp_path, axes={"text": texts}, lines_of=[str(tmp_path / "others.csv")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": None}, "lines: has no effect without scale"),
        (
            {
                "tune": {
                    "grid": {"optimizer.lr": [5e-3, 1e-2, 2e-2]},
                    "choose": "parabola",
                    "halving": {"at": [0.5]},
                }
            },
            "lines: a run that halving stops has no line",
        ),
    ],
)
def test_where_there_are_no_lines(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ladder(tmp_path, **changes)


def test_every_run_keeps_its_own_number_of_parameters(tmp_path: Path) -> None:
    """A size is called by the baseline's; lines of older versions lack the column and are still read."""
    scale = ONE_SIZE | {"seeds": 2}
    sweep = ladder(tmp_path, axes={"model.d_mlp": [16, 64]}, scale=scale, tune=None)
    execute(sweep, 1)
    file = tmp_path / "lines.csv"
    for table in (read_table([sweep.folder]), read_table([file])):
        small, large = ({run.parameters for run in table.of(name)} for name in table.variants)
        assert large == {(next(iter(small)) or 0) + 3 * 48 * 8}
        assert len({run.size for run in table.runs}) == 1
    warnings = judge_ladder(sweep.folder).verdicts["model.d_mlp=64"].warnings
    assert any("parameters or FLOPs per token differ by" in warning for warning in warnings)
    rows = [row.split(",") for row in file.read_text().splitlines()]
    at, end = map(rows[0].index, ("parameters", "trunk"))  # what was added after it stands behind it
    file.write_text("".join(",".join(row[:at] + row[end:]) + "\n" for row in rows))
    assert {run.parameters for run in read_table([file]).runs} == {None}
    ladder(tmp_path, axes={"model.d_mlp": [16, 64]}, scale=scale, tune=None)


def test_a_ladder_without_tuning_has_its_configured_rate(tmp_path: Path) -> None:
    scale = ONE_SIZE | {"seeds": 2}
    sweep = ladder(tmp_path, scale=scale, tune=None)
    execute(sweep, 1)
    file = tmp_path / "lines.csv"
    for table in (read_table([sweep.folder]), read_table([file])):
        assert {run.rate for run in table.runs} == {1e-2}
        warnings = judge(table, "init=he")["init=small"].warnings
        assert any("the rate is not tuned in this table" in warning for warning in warnings)
        assert not any("no learning rates" in warning for warning in warnings)
    shutil.rmtree(sweep.runs)
    assert execute(ladder(tmp_path, scale=scale, tune=None), 1).finished
    assert not list(sweep.runs.glob("*"))  # every run is found by its line
