"""Files of others that carry code: whatever is done with them, it does not run unless an option allows it."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from command_line import zoo
from hub_models import GPT2
from hub_tokenizers import saved
from lm_eval.tasks import TaskManager
from local_tasks import write_tasks
from synthetic_runs import write_sweep
from tiny_runs import ROOT, environment, tiny, tiny_fields

from zoo.checkpoint.model import load_model
from zoo.config.yaml import dump_yaml
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.evaluation import tasks as evaluated_tasks
from zoo.evaluation.offline import offline
from zoo.evaluation.tasks import load_tasks
from zoo.evaluation.warnings_only import warnings_only
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.errors import ZooError
from zoo.utils.lock import locked
from zoo.utils.run_folder import RunFolder

SHORT = {"steps": 6, "checkpoint_every": 2, "eval_every": 2, "monitor_every": None, "diagnose_every": 2}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the code of this file's tests makes if it runs; nobody may be asked whether it shall either."""
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("zoo asked whether foreign code may run"))
    return tmp_path / "ran"


def code(ran: Path) -> str:
    """A module that leaves a trace, and has whatever it is asked for."""
    return (
        f"import pathlib\npathlib.Path({str(ran)!r}).mkdir()\n"
        "from torch.optim import AdamW as Evil\ndef __getattr__(name): return Evil\n"
    )


class Payload:
    """What leaves a trace when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.ran),)


def write_pickle(file: Path, ran: Path, kind: str) -> None:
    file.unlink(missing_ok=True)
    if kind == "torch.save":
        torch.save({"weight": Payload(ran)}, file)
    elif kind == "numpy":
        np.save(file.with_suffix(".npy"), np.array([Payload(ran)], dtype=object), allow_pickle=True)
        file.with_suffix(".npy").rename(file)
    else:
        file.write_bytes(pickle.dumps(Payload(ran)))


def test_the_payloads_do_run(tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    for kind in ("torch.save", "numpy", "pickle"):
        write_pickle(tmp_path / kind, tmp_path / f"ran {kind}", kind)
    torch.load(tmp_path / "torch.save", weights_only=False)
    np.load(tmp_path / "numpy", allow_pickle=True)
    pickle.loads((tmp_path / "pickle").read_bytes())
    exec(code(tmp_path / "ran code"), {})
    assert len([*tmp_path.glob("ran *")]) == 4


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped."""
    folder = tmp_path_factory.mktemp("half")
    return train(tiny(folder, **SHORT), until=3).folder


@pytest.fixture
def run(half: Path, tmp_path: Path) -> RunFolder:
    """A run folder from elsewhere."""
    return RunFolder(Path(shutil.copytree(half, tmp_path / "elsewhere")))


def resume(run: RunFolder) -> None:
    train(load_config(run.path), resume=True, folder=run)


@pytest.mark.parametrize("kind", ["torch.save", "numpy", "pickle"])
@pytest.mark.parametrize("name", ["model", "optimizer", "random", "diagnosis"])
def test_pickles_in_a_run_folder(run: RunFolder, ran: Path, name: str, kind: str) -> None:
    last = run.checkpoint()
    assert last is not None
    write_pickle(getattr(last, name), ran, kind)
    with pytest.raises(ZooError, match=f"{name}.safetensors: "):
        resume(run)
    if name == "model":
        with pytest.raises(ZooError, match=f"{name}.safetensors: "):
            load_model(run.path)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.bin", "model.pt"])
def test_pickles_in_a_folder_of_the_hub(tmp_path: Path, ran: Path, name: str) -> None:
    folder = hub_folder(tmp_path / "hub")
    (folder / "model.safetensors").unlink()
    write_pickle(folder / name, ran, "torch.save")
    with pytest.raises(ZooError, match="safetensors"):
        load_model(folder)
    index = {"weight_map": {"transformer.wte.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ZooError, match=r"pickle|safetensors"):
        load_model(folder)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["script", "pickles", "arrow", "parquet"])
def test_a_folder_of_datasets(tmp_path: Path, ran: Path, kind: str) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "dataset.py").write_text(code(ran))
    (folder / "dataset_info.json").write_text(json.dumps({"builder_name": "dataset", "splits": {}}))
    listed = "data.arrow" if kind == "arrow" else "data.pt"
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": listed}]}))
    for name in ("data.pt", "data.pkl", *(["data.arrow", "data.parquet"] if kind == "pickles" else [])):
        write_pickle(folder / name, ran, "torch.save")
    if kind in ("arrow", "parquet"):
        field = pa.field(
            "text",
            pa.string(),
            metadata={
                "ARROW:extension:name": "arrow.py_extension_type",
                "ARROW:extension:metadata": pickle.dumps(Payload(ran)),
            },
        )
        table = pa.Table.from_arrays(
            [pa.array(["some text that is long enough"] * 20)], schema=pa.schema([field])
        )
        if kind == "arrow":
            with (
                pa.OSFile(str(folder / "data.arrow"), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as out,
            ):
                out.write_table(table)
        else:
            pa.parquet.write_table(table, folder / "data.parquet")
    fields = tiny_fields(tmp_path)
    fields["data"]["corpus"] = {"type": "parquet", "paths": [str(folder)]}
    job = Job.of(load_config(fields))
    if kind in ("script", "pickles"):
        with pytest.raises(ZooError, match="dataset"):
            job.data.prepare(job.model)
    else:
        job.data.prepare(job.model)
    assert not ran.exists()


def hub_folder(folder: Path) -> Path:
    """A GPT-2 as on the hub."""
    saved("byte-level", folder)
    sizes = {**GPT2, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    return folder


def test_code_beside_a_model_of_the_hub(tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers would import with `trust_remote_code`, or ask about: zoo does neither."""
    monkeypatch.chdir(tmp_path)
    folder = hub_folder(tmp_path / "hub")
    for name in ("evil.py", "__init__.py", "modeling_gpt2.py", "tokenization.py", "handler.py"):
        (folder / name).write_text(code(ran))
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoModel": "evil--evil.Evil"}
    other = {"trust_remote_code": True, "auto_map": classes}
    (folder / "config.json").write_text(json.dumps({**config, **other}))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    evil = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil", **other}
    file.write_text(json.dumps({**settings, **evil}))
    find_tokenizer(folder).encode("some text")
    try:
        load_model(folder)
    except ZooError as error:
        assert "auto_map" in str(error) or "trust_remote_code" in str(error)
        (folder / "config.json").write_text(json.dumps(config))
    load_model(folder)
    zoo("import", folder, "imported")
    shutil.copy(folder / "evil.py", "imported/tokenizer")
    shutil.copy(folder / "evil.py", ".")
    zoo("export", "imported", "exported")
    zoo("generate", "imported", "--prompt", "the", "--max-new-tokens", "2")
    assert not ran.exists()


CLASSES = ["evil.py:Evil", "./evil.py:Evil", "evil.Evil", "subprocess.Popen", "os.system", "builtins.eval"]


@pytest.mark.parametrize("path", CLASSES)
def test_classes_that_a_run_folder_names(
    run: RunFolder, ran: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their paths: those of its own files, and those of modules that are there."""
    monkeypatch.chdir(run.path)
    (run.path / "evil.py").write_text(code(ran))
    config = json.loads(json.dumps(load_config(run.path).model_dump(mode="json")))
    config["optimizer"] = {"type": path, "lr": 0.1, "args": ["touch", str(ran)], "shell": True}
    places = [run.config, *run.path.glob("checkpoints/*/run.yaml")]
    for file in places:
        file.unlink()
        file.write_text(dump_yaml(config))
    for act in (lambda: load_config(run.path), lambda: zoo_explain(run)):
        with pytest.raises(ZooError, match=r"code is never imported from a run folder|no class|no subclass"):
            act()
    assert not ran.exists()


def zoo_explain(run: RunFolder) -> None:
    """A configuration of one's own that extends the one from elsewhere."""
    file = run.path.parent / "mine.yaml"
    file.write_text(f"extends: {run.path.name}\n")
    load_config(file)


def test_a_sweep_from_elsewhere(
    tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report reads the configurations of its runs."""
    sweep = write_sweep(tmp_path / "sweep", {"adamw": [3.0, 3.1], "lion": [2.9, 3.0]})
    monkeypatch.chdir(sweep)
    for folder in (sweep, *(sweep / "runs").iterdir()):
        (folder / "evil.py").write_text(code(ran))
    for i, folder in enumerate(sorted((sweep / "runs").iterdir())):
        text = (folder / "config.yaml").read_text()
        attack = "plugins: [evil.py]\n" if i % 2 else "extends: ../../evil.yaml\n"
        text = text.replace("type: adamw", "type: evil.py:Evil").replace("plugins: []\n", attack)
        (folder / "config.yaml").write_text(text)
    (sweep / "evil.yaml").write_text("plugins: [evil.py]\n")
    manifest = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps({**manifest, "plugins": ["evil.py"]}))
    for message in ("not a manifest that `zoo sweep` wrote", "code is never imported from a run folder"):
        zoo("report", sweep, "--out", tmp_path / "page", status=2)
        assert message in capsys.readouterr().err
        (sweep / "sweep.json").write_text(json.dumps(manifest))
    assert not ran.exists()


PACKAGE = """
import sys
from zoo.commands.cli import main
main(["train", sys.argv[1]])
"""


def test_a_package_in_the_current_folder_is_not_installed(tmp_path: Path, ran: Path) -> None:
    """Its entry point would be a plugin; the command `zoo` does not look there, as Python does with -m."""
    (tmp_path / "evil.py").write_text(code(ran))
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zoo.plugins]\nevil = evil\n")
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny_fields(tmp_path)))
    variables = {**environment(), "PYTHONPATH": str(ROOT)}
    for path, runs in (("-P", False), ("-E", True)):
        options = [path] if path == "-P" else []
        more = {} if path == "-P" else {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        with locked(RunFolder(tmp_path / "runs/tiny").starting, ""):  # before torch is imported
            ended = subprocess.run(
                [sys.executable, *options, "-c", PACKAGE, "tiny.yaml"],
                cwd=tmp_path,
                env={**variables, **more},
                capture_output=True,
                text=True,
            )
        assert "is at work on this run" in ended.stderr
        assert ran.exists() == runs


def task(ran_by: str) -> str:
    return (
        f"task: {ran_by}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: quiz.jsonl}}}}\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_target: '{{choices[0]}}'\n"
        "metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
    )


NAMES = ["evil", "evil.yaml", "./evil.yaml", "{folder}/evil.yaml", "{folder}", ".", "ev*", "../hostile/evil"]


@pytest.fixture
def tasks(tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of task files, which is the current one; that of the harness is not read, for speed."""
    folder = write_tasks(tmp_path / "hostile")
    (folder / "evil.py").write_text(code(ran) + "def text(doc): return doc['question']\n")
    (folder / "evil.yaml").write_text(task("evil") + "doc_to_text: !function evil.text\n")
    (folder / "child.yaml").write_text("include: evil.yaml\ntask: child\n")
    (folder / "script.yaml").write_text(
        task("script").replace("dataset_path: json", "dataset_path: evil.py")
        + "doc_to_text: '{{question}}'\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(evaluated_tasks, "TaskManager", partial(TaskManager, include_defaults=False))
    return folder


def loaded(names: list[str], folder: Path | None) -> Any:
    with offline(), warnings_only():
        return load_tasks(names, folder, fewshot=None, limit=1, context=16)


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_not_read_from_where_no_option_names(tasks: Path, ran: Path, name: str) -> None:
    with pytest.raises(ZooError, match="no task called"):
        loaded([name.format(folder=tasks)], None)
    assert not ran.exists()


def test_of_a_folder_that_is_named_the_code_of_the_chosen_tasks_runs(tasks: Path, ran: Path) -> None:
    loaded(["quiz"], tasks)
    assert not ran.exists()
    with pytest.raises(ZooError):  # datasets runs no scripts any more
        loaded(["script"], tasks)
    assert not ran.exists()
    loaded(["child"], tasks)
    assert ran.exists()
