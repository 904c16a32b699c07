"""What a user sees while something takes long: bars on terminals, flushed lines elsewhere."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from command_line import zoo
from rich.console import Console
from tiny_runs import TEXT, assert_same, environment, tiny, tiny_fields

from zoo import build_model, save_model
from zoo.commands.app import common_options
from zoo.commands.terminal import InertConsole
from zoo.config.yaml import dump_yaml
from zoo.evaluation.perplexity import TokenizedText, evaluate
from zoo.models import LanguageModel
from zoo.train.lines import CLOSED, validation_in_words
from zoo.train.run import train
from zoo.utils import progress as shown
from zoo.utils.measures import MEASURES
from zoo.utils.pace import Pace
from zoo.utils.progress import Progress, progress
from zoo.utils.run_folder import RunFolder


class Stream(StringIO):
    """Text that remembers what it contained whenever it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        self.flushed.append(self.getvalue())


@pytest.fixture(autouse=True)
def _restored() -> object:
    yield
    Progress.console, Progress.quiet = None, False


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Where progress goes, with a line for every report."""
    monkeypatch.setattr(shown, "SECONDS_PER_LINE", 0.0)
    stream = Stream()
    Progress.console = Console(file=stream, width=80)
    return stream


def test_training_prints_a_flushed_line_for_each_interval(tmp_path: Path) -> None:
    stream = Stream()
    run = train(tiny(tmp_path, steps=6, log_every=2, eval_every=3), console=Console(file=stream, width=30))
    records = RunFolder(run.folder).read_metrics()
    said = re.findall(r"^step (\d+)/6: loss (\d+\.\d{4}), lr \S+, [\d,]+ tokens/s", stream.getvalue(), re.M)
    measured = [(r["step"], r["cross_entropy"]) for r in records if r["kind"] == "train"]
    assert said == [(str(step), f"{loss:.4f}") for step, loss in measured]
    assert [step for step, _ in measured] == [2, 4, 6]
    line = r"^step (\d+)/6: validation loss (\d+\.\d{4}) \((\d+\.\d{4}) bits/byte\)$"
    validated = re.findall(line, stream.getvalue(), re.M)
    kept = [r for r in records if r["kind"] == "validation"]
    expected = [(r["step"], r["cross_entropy"], r["bits_per_byte"]) for r in kept]
    assert validated == [(str(step), f"{loss:.4f}", f"{bits:.4f}") for step, loss, bits in expected]
    # Each line was flushed before the next one was written, and no line was broken at 30 columns.
    every = stream.getvalue().splitlines(keepends=True)
    assert set(stream.flushed) >= {"".join(every[: i + 1]) for i in range(len(every))}


def test_the_first_line_comes_with_the_first_step(tmp_path: Path) -> None:
    stream = Stream()
    train(tiny(tmp_path, steps=5, log_every=5, eval_every=5), console=Console(file=stream), until=1)
    assert re.search(r"^step 1/5: [\d,]+ parameters$", stream.getvalue(), re.M)


def config(folder: Path, **settings: object) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(dump_yaml(tiny_fields(folder, **{"steps": 6, **settings})), encoding="utf-8")
    return file


def test_records_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo("train", config(tmp_path), "--log-json")
    out, err = capsys.readouterr()
    assert out == (tmp_path / "runs/tiny/metrics.jsonl").read_text(encoding="utf-8")
    assert {json.loads(line)["kind"] for line in out.splitlines()} >= {"train", "validation", "size"}
    zoo("train", tmp_path / "runs/tiny", "--log-json")
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing to do" in err


class Left(StringIO):
    """A stream whose reader leaves after some writes; what is written after the error is discarded."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes

    def write(self, text: str) -> int:
        self.writes -= 1
        if self.writes == -1:
            raise BrokenPipeError
        return super().write(text)


@pytest.mark.parametrize("as_json", [True, False])
def test_training_stops_and_saves_when_its_reader_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    stream = Left(3)  # the validation before the first step, the parameters, the first step
    shown = {"records": stream} if as_json else {"console": InertConsole(file=stream)}
    stopped = train(tiny(tmp_path, steps=20), **shown)
    assert (stopped.step, stopped.finished, stopped.signalled) == (3, False, False)
    assert capsys.readouterr().err == f"{CLOSED}\n"
    whole = train(tiny(tmp_path, "name=whole", steps=20))
    assert_same(whole.folder, train(tiny(tmp_path, steps=20), resume=True).folder)


@pytest.mark.parametrize("errors_too", [False, True])
def test_the_status_of_a_run_whose_reader_left(tmp_path: Path, errors_too: bool) -> None:
    """Nothing is left in a buffer that Python cannot write at its end, which would change the status."""
    command = [sys.executable, "-m", "zoo", "train", str(config(tmp_path, steps=500)), "--log-json"]
    errors = subprocess.STDOUT if errors_too else subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"size" in line:
                break
        process.stdout.close()
        said = None if process.stderr is None else process.stderr.read().decode()
        assert process.wait() == 130, said
    assert said is None or (CLOSED in said and "Stopped and saved at step" in said)
    assert RunFolder(tmp_path / "runs/tiny").checkpoint() is not None


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo("train", config(tmp_path), "--quiet")
    assert capsys.readouterr() == ("", "")
    zoo("train", config(tmp_path), "--quiet", "--log-json", status=2)
    assert "--quiet has no effect with --log-json" in capsys.readouterr().err


def test_every_predicted_token_is_progress() -> None:
    model = build_model("gpt", vocab_size=16, d_model=8, n_layers=1, n_heads=1).eval()
    assert isinstance(model, LanguageModel)
    text = TokenizedText("text", torch.arange(100) % 16, 1, 99, True)
    reported: list[tuple[int, int]] = []
    short = TokenizedText("short", torch.arange(7), 1, 6, True)
    windows, texts = [(10, 5), (20, 10)], [text, short]
    scores = evaluate(model, texts, windows, 1, lambda done, kind=0: reported.append((kind, done)))
    for kind in (0, 1):
        assert sum(done for stage, done in reported if stage == kind) == 99 + 6
    order = [kind for kind, _ in reported]
    assert order == [0] * 10 + [1] * 10 + [0] * 10  # each begins before one goes on
    for each, of_texts in zip(windows, scores, strict=True):
        for one, score in zip(texts, of_texts, strict=True):
            [[alone]] = evaluate(model, [one], [each], 1)
            assert alone == score


@pytest.mark.parametrize("warm_up", [0.0, 40.0])
def test_the_time_left_of_stages_that_cost_different_amounts(
    warm_up: float, lines: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small windows cost ten times as much for a token as large ones, and the first batch much more."""
    now, costs, tokens = 100.0, (0.010, 0.004, 0.001), (30_000, 30_000, 30_000)
    monkeypatch.setattr(Progress, "clock", lambda: now)
    batches = [(stage, 1000) for stage in (0, 1, 2) for _ in range(3)]
    batches += [(stage, 1000) for stage in (0, 1, 2) for _ in range(27)]
    begin = now
    with progress("perplexity", tokens) as advance:
        for i, (stage, done) in enumerate(batches):
            now += done * costs[stage] + (warm_up if i == 0 else 0.0)
            advance(done, stage)
    said = lines.getvalue().splitlines()
    assert len(said) == 90 and now - begin == pytest.approx(450 + warm_up)
    assert all("left" not in line for line in said[:7])
    assert said[7] == "perplexity: 9%, 7 min left"  # 27 batches of 10 s and of 4 s, and 28 of 1 s
    assert said[8 + 27] == "perplexity: 40%, 2 min left"
    assert said[-1] == "perplexity: 100%, 0 s left"


def test_one_report_says_nothing_of_the_rest() -> None:
    pace = Pace([10], 0.0)
    assert (pace.share, pace.left) == (0.0, None)
    pace.add(5, 0, 60.0)
    assert (pace.share, pace.left) == (0.5, None)
    pace.add(2, 0, 62.0)
    assert pace.left == pytest.approx(3.0)
    assert (Pace([], 0.0).share, Pace([0], 0.0).left) == (1.0, 0)


@pytest.mark.parametrize("total", [4, None])
def test_lines_tell_the_share_and_the_time_left(lines: Stream, total: int | None) -> None:
    with progress("counting [x]", total) as advance, progress("inside", 1) as inner:
        for _ in range(4):
            advance(1)
            inner(1)
    said = lines.getvalue().splitlines()
    assert len(said) == 4  # nothing of the task inside
    assert all(line.startswith("counting [x]: ") for line in said)
    assert said[1] == ("counting [x]: 50%, 0 s left" if total else "counting [x]: 0 s so far")
    assert lines.flushed[-1] == lines.getvalue()


def test_nothing_is_shown_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("counting", 2) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal() -> None:
    stream = StringIO()
    Progress.console = Console(file=stream, force_terminal=True, width=80, markup=False)
    with progress("counting", 2) as advance:
        advance(1)
        assert Progress.console is None
    assert "counting" in stream.getvalue()


def test_an_error_ends_the_bar() -> None:
    Progress.console = console = Console(file=StringIO(), width=80)
    with pytest.raises(ValueError, match="gone"), progress("counting", 2):
        raise ValueError("gone")
    assert Progress.console is console


@pytest.mark.parametrize("command", ["import", "export", "convert", "perplexity"])
def test_commands_report(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "SECONDS_PER_LINE", 0.0)
    monkeypatch.chdir(tmp_path)
    model = build_model("gpt", vocab_size=256, d_model=16, n_layers=2, n_heads=2, d_mlp=32)
    save_model(model, "model.safetensors")
    Path("text.txt").write_text(TEXT[:2000], encoding="utf-8")
    act: dict[str, Callable[[], None]] = {
        "import": lambda: zoo("import", "hub", "imported"),
        "export": lambda: zoo("export", "model.safetensors", "hub"),
        "convert": lambda: zoo("convert", "model.safetensors", "out", "--to", "wesar"),
        "perplexity": lambda: zoo(
            *("eval", "byte", "--contexts", "8,16", "--perplexity", "text.txt"),
        ),
    }
    if command == "import":
        act["export"]()
        capsys.readouterr()
    if command == "perplexity":
        train(tiny(tmp_path, steps=6, runs_dir=".", eval_batches=1), folder=RunFolder(Path("byte")))
    act[command]()
    err = capsys.readouterr().err
    expected = {"import": "reading tensors", "export": "writing tensors", "perplexity": "perplexity"}
    assert re.search(rf"^{expected.get(command, 'writing')}.*: 100%$|100%, 0 s left$", err, re.M)


def test_the_command_line_shows_progress_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    common_options()
    assert Progress.console is not None
    Progress.console.print("here")
    assert capsys.readouterr() == ("", "here\n")
    common_options(quiet=True)
    assert Progress.console is None


def test_what_a_validation_has_measured() -> None:
    loss = {"cross_entropy": 0.5}
    assert validation_in_words(loss) == "0.5000"
    assert validation_in_words(loss | {"bits_per_byte": 1.25}) == "0.5000 (1.2500 bits/byte)"
    measured = loss | {"accuracy": 0.75, "f1": 0.7}
    assert validation_in_words(measured) == "0.5000, accuracy 0.7500"
    assert validation_in_words(measured, MEASURES["accuracy"]) == "0.5000, accuracy 0.7500"
    assert validation_in_words(measured, MEASURES["f1"]) == "0.5000, accuracy 0.7500, F1 0.7000"
    of_text = loss | {"bits_per_byte": 1.25}
    assert validation_in_words(of_text, MEASURES["bits_per_byte"]) == "0.5000 (1.2500 bits/byte)"
    shown = validation_in_words(of_text, MEASURES["perplexity"])
    assert shown == "0.5000 (1.2500 bits/byte), perplexity 1.6487"
