"""The command line: what each command prints, and how it fails."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from zoo import load_model
from zoo.commands.cli import main
from zoo.utils.errors import DivergenceError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def zoo(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else int(code is not None)), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(
        "\n\n".join(f"paragraph {i} of some text to train on" for i in range(400)), encoding="utf-8"
    )
    return file


def tiny(text: Path, *more: str) -> list[str]:
    corpus = f"data.corpus={{type: text, paths: ['{text}'], document: passage}}"
    return [corpus, "data.validation=0.2", "train.steps=4", "schedule.warmup=0", *more]


def test_help_teaches(zoo: Run) -> None:
    status, out, _ = zoo("--help")
    assert status == 0
    for command in ("train", "generate", "explain", "list", "schema", "report", "eval", "import", "export"):
        assert command in out
    assert "zoo train quickstart-ngpt" in out


@pytest.mark.parametrize(
    "command", ["train", "generate", "explain", "list", "schema", "report", "eval", "import", "export"]
)
def test_every_command_has_help(zoo: Run, command: str) -> None:
    status, out, _ = zoo(command, "--help")
    assert status == 0
    assert "Usage: zoo" in out


def test_explain_prints_rows_and_totals(zoo: Run) -> None:
    status, out, _ = zoo("explain", "ngpt-tiny", "model.n_layers=3")
    assert status == 0
    for word in ("embedding.weight", "sphere", "sigma", "eta", "parameters", "FLOPs"):
        assert word in out


def test_explain_of_ranks(zoo: Run) -> None:
    status, out, _ = zoo("explain", "ngpt-tiny", "--ranks", "2", "--device", "H200", "--json")
    assert status == 0
    found = json.loads(out)
    assert [way["fits"] for way in found["activations"]] == [True] * 3
    assert found["ranks"] == 2


def test_explain_for_programs(zoo: Run) -> None:
    status, out, _ = zoo("explain", "wesar-13b", "--json", "data.context=64")
    assert status == 0
    # WeSaR, Table 2: 12,911.0 M without the gates.
    totals = json.loads(out)["totals"]
    assert f"{(totals['parameters'] - totals['gates']) / 1e6:,.1f}" == "12,911.0"


def test_list(zoo: Run) -> None:
    status, out, _ = zoo("list")
    assert status == 0
    for name in (
        "models",
        "ngpt",
        "amos",
        "wesar",
        "cosine",
        "python-docs",
        "digits",
        "causal",
        "sentencepiece",
        "quickstart-gpt",
    ):
        assert name in out
    status, out, _ = zoo("list", "optimizer")
    assert status == 0
    assert "amos" in out
    assert "ngpt" not in out


def test_schema_is_json(zoo: Run) -> None:
    status, out, _ = zoo("schema")
    assert status == 0
    assert set(json.loads(out)["properties"]) >= {"extends", "model", "optimizer", "train"}


def test_train_generate_report(zoo: Run, text: Path) -> None:
    assert zoo("train", "gpt-tiny", *tiny(text))[0] == 0
    status, out, _ = zoo(
        "generate", "runs/gpt-tiny", "--prompt", "par", "--max-new-tokens", "5", "--top-k", "3"
    )
    assert status == 0
    assert out.startswith("par")
    assert Path("runs/gpt-tiny/sample.txt").read_text("utf-8") == out[:-1]
    assert (
        zoo("generate", "runs/gpt-tiny", "--prompt", "par", "--max-new-tokens", "5", "--top-k", "3")[1] == out
    )
    status, out, _ = zoo("report", "runs/gpt-tiny", "-o", "page")
    assert status == 0
    assert "wrote page/report.html" in out
    assert Path("page/report.html").is_file()
    status, _, err = zoo("train", "gpt-tiny", *tiny(text, "train.steps=6"))
    assert status == 2
    assert "--resume" in err
    assert zoo("train", "gpt-tiny", "--resume", *tiny(text, "train.steps=6"))[0] == 0


def test_import(zoo: Run) -> None:
    golden = sorted((Path(__file__).parent / "golden" / "ngpt").rglob("*.safetensors"))
    foreign = next(file for file in golden if is_of_the_authors(file))
    status, out, _ = zoo(
        "import", str(foreign), "ours.safetensors", "--format", "ngpt-reference", "--n-heads", "4"
    )
    assert status == 0
    assert "ours.safetensors" in out
    theirs = load_model(foreign, format="ngpt-reference", n_heads=4)
    tokens = torch.arange(8)[None]
    assert torch.equal(load_model("ours.safetensors")(tokens), theirs(tokens))


def is_of_the_authors(file: Path) -> bool:
    """Whether the file is a state dict of the nGPT authors' code."""
    with safe_open(file, "pt") as opened:
        return "transformer.wte.weight" in opened.keys()  # noqa: SIM118  (not a dict)


FILE = "foreign.safetensors"
BAD = [
    (["explain", "ngpt-tinny"], r"error: no config called 'ngpt-tinny'; did you mean 'ngpt-tiny'?"),
    (
        ["explain", "ngpt-tiny", "model.d_model=33"],
        "override 'model.d_model=33': model: d_model 33 is not divisible by n_heads 4",
    ),
    (["explain", "ngpt-tiny", "model.d_modle=3"], "model.d_modle: unknown key; did you mean 'd_model'?"),
    (["explain", "ngpt-tiny", "--fold", "--json"], "--fold has no effect with --json"),
    (["explain", "ngpt-tiny", "--fold", "--ranks", "2"], "--fold has no effect with --ranks"),
    (["explain", "ngpt-tiny", "--device", "h200"], "--device has no effect without --ranks"),
    (
        ["explain", "ngpt-tiny", "--ranks", "2", "--device", "h300"],
        "device 'h300': not known; expected one of a100",
    ),
    (["explain", "ngpt-tiny", "--ranks", "64"], "train.batch_size 4 does not divide among 64 processes"),
    (["train", "nothing.yaml"], "error: nothing.yaml: no such file"),
    (["train", "gpt-tiny", "--resume"], "there is no run to resume"),
    (["train", "gpt-tiny", "train.device=gpu"], "train.device: value 'gpu'"),
    (["train", "gpt-tiny", "data.corpus={type: text, paths: [nowhere]}"], "nowhere"),
    (["train", "gpt-tiny", "model.vocab_size=100"], "100"),
    (["list", "modles"], "error: list: no kind called 'modles'; did you mean 'models'?"),
    (["generate", "nowhere", "--prompt", "x"], "error: nowhere: no such file or folder"),
    (["report", "nowhere"], "nowhere"),
    (
        ["import", "nowhere.safetensors", "x", "--format", "ngpt-reference", "--n-heads", "4"],
        "nowhere.safetensors",
    ),
    (["import", "foreign.safetensors", "x", "--format", "ngpt-referenz"], "did you mean 'ngpt-reference'?"),
    (["import", "foreign.safetensors", "x", "--format", "ngpt-reference"], "the option --n-heads of"),
    (
        ["import", "foreign.safetensors", "x", "--format", "ngpt-reference", "--n-heads", "4"],
        "foreign.safetensors",
    ),
    (
        ["import", "foreign.safetensors", "x"],
        "foreign.safetensors: is a file; expected its --format (ngpt-reference), or a folder",
    ),
    (
        ["import", "folder.json", "x", "--n-heads", "3"],
        "folder.json: --n-heads is for a file with --format (ngpt-reference)",
    ),
    (["generate", "nowhere", "--chat", "--temperature", "-1"], "temperature is -1.0; expected 0 or more"),
    (["generate", "nowhere", "--chat", "--max-new-tokens", "0"], "max_new_tokens is 0; expected at least 1"),
    (["generate", "nowhere", "--chat", "--stop", ""], "stop is ''; expected at least one character"),
    (["generate", "nowhere", "--chat", "--cuda-graph", "--device", "cpu"], "cuda_graph has no effect on cpu"),
    (["generate", "nowhere", "--prompt", "x", "--num-return", "0"], "0 texts; expected at least 1"),
    (
        ["generate", "nowhere", "--prompt", "x", "--temperature", "0", "--seed", "0"],
        "seed has no effect at temperature 0",
    ),
    (
        ["classify", "nowhere", "--file", "x.tsv", "--columns", "text=a,label=b"],
        "--columns label has no effect with --file",
    ),
    (["coord-check", "gpt-tiny", "--out", FILE], f"{FILE}: cannot be written: {FILE} is no folder"),
    (["inspect", "nowhere", "--out", f"{FILE}/x"], f"{FILE}/x: cannot be written: {FILE} is no folder"),
    (["report", "nowhere", "--out", FILE], f"{FILE}: cannot be written: {FILE} is no folder"),
    (["verdict", "x.csv", "--baseline", "a", "--out", FILE], f"{FILE} is no folder; expected one"),
    (["export", "nowhere", f"{FILE}/x"], f"{FILE}/x: cannot be written: {FILE} is no folder"),
    (
        ["convert", "nowhere", f"{FILE}/x", "--to", "wesar"],
        f"{FILE}/x: cannot be written: {FILE} is no folder",
    ),
    (["import", "nowhere", f"{FILE}/x"], f"{FILE}/x: cannot be written: {FILE} is no folder"),
    (
        ["eval", "nowhere", "--perplexity", "x.txt", "--out", "folder.json"],
        "folder.json: is a folder; expected the name of a file",
    ),
    (
        ["eval", "nowhere", "--perplexity", "x.txt", "--contexts", "8,16", "--out", "plot.json"],
        "plot.png: is a folder; expected the name of a file",
    ),
    (["eval", "nowhere", "--perplexity", "x.txt", "--out", f"{FILE}/x.json"], f"{FILE} is no folder"),
    (["eval", "nowhere", "--tasks", "quiz", "--out", "folder.json"], "folder.json: is a folder"),
    (["eval", "nowhere", "--perplexity", "x.txt", "--json", "--wide"], "--wide has no effect with --json"),
    (["eval", "nowhere", "--perplexity", "x.txt", "--out", "/proc/x.json"], "cannot be written into /"),
    (["eval", "nowhere", "--perplexity", "x.txt", "--out", ""], "empty; expected a path"),
    (["inspect", "nowhere", "--out", ""], "empty; expected a path"),
    (["coord-check", "gpt-tiny", "--out", ""], "empty; expected a path"),
    (["explain"], "Missing argument 'CONFIG'"),
    (["trian"], "No such command 'trian'"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_mistakes_get_one_message_and_status_2(zoo: Run, arguments: list[str], message: str) -> None:
    save_file({"x": torch.zeros(1)}, FILE)
    for folder in ("folder.json", "plot.png"):
        Path(folder).mkdir()
    status, _, err = zoo(*arguments)
    assert status == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_divergence_is_not_the_users_mistake(zoo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*arguments: object, **options: object) -> None:
        raise DivergenceError("loss is nan at step 3")

    monkeypatch.setattr("zoo.train.run.train", diverge)
    status, _, err = zoo("train", "gpt-tiny")
    assert status == 1
    assert err == "error: loss is nan at step 3\n"


def test_an_interrupted_run_says_so_with_its_status(
    zoo: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from zoo.train.run import RunResult

    monkeypatch.setattr("zoo.train.run.train", lambda *a, **k: RunResult(tmp_path, 3, 20, None, None))
    assert zoo("train", "gpt-tiny")[0] == 130


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("can't start new thread"),
            "error: no more threads can be started; the limits",
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "error: Too many open files; this process may open more",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "there"),
            "error: there: Permission denied; this user must",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "error: File name too long; names and paths"),
        (MemoryError(), "error: the memory is exhausted"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "error: the memory is exhausted"),
    ],
)
def test_what_the_machine_lacks(
    zoo: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("zoo.config.compose.find_config", fails)
    status, _, shown = zoo("train", "gpt-tiny")
    assert status == 2 and message in shown


def test_an_error_is_told_without_a_console(zoo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four descriptors there is none to import rich with."""

    def fails(**_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("zoo.commands.cli.console", fails)
    status, _, shown = zoo("train", "nothing")
    assert status == 2 and shown.startswith("error: no config called 'nothing'")


def test_a_mistake_of_zoo_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file", "there")

    monkeypatch.setattr("zoo.config.compose.find_config", fails)
    with pytest.raises(FileNotFoundError):
        main(["train", "gpt-tiny"])
