"""What a killed, damaged or contested run folder does to the next `zoo train`: nothing is lost."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from io import BytesIO
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_runs import ROOT, assert_same, environment, reproducible, tiny
from xxhash import xxh3_64_hexdigest

import zoo.checkpoint.model
from zoo.ablate.run_metrics import read_run_metrics
from zoo.checkpoint import integrity
from zoo.checkpoint.model import load_model
from zoo.checkpoint.recipe import materialise
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.run.config import load_config
from zoo.train.checkpoints import WRITER
from zoo.train.run import train
from zoo.train.spikecontrol import Rollback, go_back
from zoo.utils import lock
from zoo.utils.atomic import write_file, write_folder, write_text
from zoo.utils.errors import CheckpointError, ConfigError, DivergenceError, ZooError
from zoo.utils.lock import locked
from zoo.utils.permissions import Permissions
from zoo.utils.run_folder import CheckpointFolder, RunFolder

OFTEN = {"steps": 20, "checkpoint_every": 5, "eval_every": 5, "monitor_every": None, "diagnose_every": None}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twenty steps that was left alone, checkpoints of steps 15 and 20 kept."""
    return train(tiny(tmp_path_factory.mktemp("whole"), **OFTEN)).folder


@pytest.fixture
def half(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of the run as it was after step 15; what step 20 left is still there."""
    run = RunFolder(Path(copytree(whole, tmp_path / "runs/tiny")))
    run.point("last", run.checkpoint_after(15))
    return run


def resumed(run: RunFolder, whole: Path, **train_settings: Any) -> Path:
    """Go on with a run that lies in the `runs` of some folder, on the data of the whole one."""
    config = tiny(whole.parent.parent, **{**OFTEN, **train_settings})
    return train(config, resume=True, folder=run).folder


def test_checkpoints_after_the_last_one_are_of_a_dead_timeline(half: RunFolder, whole: Path) -> None:
    """Killed between the rename of step-20 and last.json, and stopped at step 17 with keep_last: 1."""
    config = tiny(whole.parent.parent, **OFTEN, keep_last=1)
    train(config, resume=True, folder=half, until=17)
    assert half.checkpoint("last") == half.checkpoint_after(17)
    assert half.checkpoint_after(17).path.is_dir()
    assert not half.checkpoint_after(20).path.exists()
    assert_same(whole, resumed(half, whole, keep_last=2))


def test_nothing_that_a_pointer_names_is_deleted(half: RunFolder) -> None:
    (half.path / "checkpoints/best.json").unlink()
    half.prune(keep_last=1)
    assert half.checkpoint("last") is not None
    assert half.checkpoint_after(15).path.is_dir()


@pytest.mark.parametrize("partly", [False, True])
def test_a_checkpoint_that_cannot_be_deleted_is_named(
    partly: bool, half: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protected files keep it; what is left of one that was deleted in part is no checkpoint any more."""
    protected = half.checkpoint_after(15)
    half.point("best", half.checkpoint_after(20))
    half.point("last", half.checkpoint_after(20))

    def refused(path: Path) -> None:
        if partly:
            (path / "state.json").unlink(missing_ok=True)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("zoo.utils.atomic.shutil.rmtree", refused)
    half.prune(keep_last=1)
    assert protected.path.exists() is not partly
    assert "cannot be deleted" in caplog.text
    monkeypatch.undo()
    half.trim_to_last_checkpoint()
    half.prune(keep_last=1)
    assert {path.name for path in protected.path.parent.glob("*step*")} == {"step-00000020"}


def test_a_checkpoint_without_a_pointer_is_the_last(half: RunFolder, whole: Path) -> None:
    for which in ("last", "best"):
        (half.path / f"checkpoints/{which}.json").unlink()
    assert half.checkpoint("last") == half.checkpoint_after(20)
    assert_same(whole, resumed(half, whole))
    assert half.read_pointer("best") == RunFolder(whole).read_pointer("best")


def test_best_json_of_a_dead_timeline_is_taken_back(half: RunFolder, whole: Path) -> None:
    half.point("best", half.checkpoint_after(20), cross_entropy=0.0)
    half.trim_to_last_checkpoint()
    assert half.read_pointer("best") == half.checkpoint_after(15).read_state()["best"]
    assert_same(whole, resumed(half, whole))


def test_another_rhythm_and_number_of_checkpoints(half: RunFolder, whole: Path) -> None:
    """The run goes on from step 15 with a checkpoint after every third step, of which one is kept."""
    config = tiny(whole.parent.parent, **{**OFTEN, "checkpoint_every": 3}, keep_last=1)
    train(config, resume=True, folder=half, until=19)
    for which in ("last", "best"):
        assert half.checkpoint(which) is not None
    assert_same(whole, resumed(half, whole))


def test_a_copy_goes_on_beside_the_run(whole: Path, half: RunFolder, tmp_path: Path) -> None:
    """It was made while the run was trained: its lock names a process that lives."""
    copy = RunFolder(Path(copytree(half.path, tmp_path / "another folder")))
    (copy.path / "checkpoints/.step-00000025.partial").mkdir()
    with locked(half.lock, ""):
        copy.lock.write_text(half.lock.read_text())
        assert_same(whole, resumed(copy, whole))
    assert half.checkpoint("last") == half.checkpoint_after(15)


def test_leftovers_of_a_kill_are_swept_even_from_a_finished_run(whole: Path, tmp_path: Path) -> None:
    run = RunFolder(Path(copytree(whole, tmp_path / "runs/tiny")))
    copytree(run.checkpoint_after(15).path, run.checkpoint_after(5).path)
    (run.path / "checkpoints/.step-00000020.partial").mkdir()
    (run.path / ".metrics.jsonl.partial").touch()
    (run.path / ".tokenizer.partial").mkdir()
    (run.path / "checkpoints/.step-00000025.partial").touch()
    resumed(run, whole)
    assert [folder.named_step for folder in run.checkpoints()] == [15, 20]
    assert not [*run.path.rglob("*.partial")]


def test_foreign_folders_are_no_checkpoints(half: RunFolder, whole: Path) -> None:
    (half.path / "checkpoints/step-mine").mkdir()
    resumed(half, whole)
    assert (half.path / "checkpoints/step-mine").is_dir()


def spike(at: int) -> Any:
    from zoo.train.spikes import Spike

    return Spike(at, "loss", 9.0, 2.0, 10.0, 7.0, 1, 1, "rollback")


def test_a_rollback_is_logged_however_it_ends(half: RunFolder, whole: Path) -> None:
    """The record is in the checkpoint, from which the next session writes the line that a kill left out."""
    from zoo.run.train_config import SpikeConfig
    from zoo.train.distributed import World
    from zoo.train.spikecontrol import RollbackState

    settings = SpikeConfig(action="rollback", cool_steps=1)
    half.point("last", half.checkpoint_after(20))
    rollback = Rollback(spike(23), RollbackState(), settings)
    start = go_back(rollback, half, World(0, 1, torch.device("cpu")), every=5)
    assert start.step == 20
    resumed(half, whole, spikes={"action": "rollback", "cool_steps": 1}, steps=21)
    lines = [r for r in reproducible(half.path) if r["kind"] == "spike"]
    assert [(line["step"], line["at"], line["action"]) for line in lines] == [(20, 23, "rollback")]


@pytest.mark.parametrize(("every", "step"), [(5, 15), (3, 20)])
def test_a_second_rollback_goes_back_one_checkpoint_at_most(half: RunFolder, every: int, step: int) -> None:
    """With checkpoints every 3 steps, that of step 15 is only the best one."""
    from zoo.run.train_config import SpikeConfig
    from zoo.train.distributed import World
    from zoo.train.spikecontrol import RollbackState

    half.point("last", half.checkpoint_after(20))
    rollback = Rollback(spike(23), RollbackState(cool_until=30), SpikeConfig(action="rollback"))
    start = go_back(rollback, half, World(0, 1, torch.device("cpu")), every)
    assert start.step == step


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"checkpoint": 3}', "\udcff", '{"checkpoint": "step-00000007"}']
)
def test_a_damaged_best_json_is_rebuilt(half: RunFolder, whole: Path, content: str) -> None:
    (half.path / "checkpoints/best.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    assert_same(whole, resumed(half, whole))
    assert half.read_pointer("best") == RunFolder(whole).read_pointer("best")


@pytest.mark.parametrize("content", ["", "{", "[3]", "{}", "\udcff", "[" * 100_000])
def test_a_damaged_environment_is_begun_anew(
    half: RunFolder, whole: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    half.environment.write_text(content, encoding="utf-8", errors="surrogateescape")
    with caplog.at_level(logging.WARNING, "zoo"):
        assert_same(whole, resumed(half, whole))
    assert "environment.json" in caplog.text
    assert "begun anew" in caplog.text
    assert len(half.read_sessions()) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\0\0\0",
        b"\xff\xfe",
        b"[1]",
        b'{"kind": "train", "step": "a"}',
        b'{"kind": "validation", "step": 16, "cross_entropy": {}}',
        b"{" * 99999,
    ],
)
def test_a_damaged_end_of_metrics_is_written_again(
    half: RunFolder, whole: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = [r for r in half.metrics.read_bytes().splitlines(True) if json.loads(r)["step"] <= 15]
    half.metrics.write_bytes(b"".join(before) + line + b"\n")
    with caplog.at_level(logging.WARNING, "zoo"):
        assert_same(whole, resumed(half, whole))
    assert "are left out" in caplog.text


def test_a_damaged_line_among_those_that_count_is_an_error(half: RunFolder, whole: Path) -> None:
    lines = half.metrics.read_bytes().split(b"\n")
    lines[3] = b"\xff"
    half.metrics.write_bytes(b"\n".join(lines))
    with pytest.raises(ZooError, match=r"metrics.jsonl:4: expected"):
        resumed(half, whole)


LINES = [
    {"kind": "train", "step": 16},
    {"kind": "train", "step": 16, "timing": 3},
    {"kind": "spike", "step": 16},
]


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_report_of_lines_that_zoo_did_not_write(half: RunFolder, line: dict[str, Any]) -> None:
    with half.metrics.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ZooError, match=r"metrics.jsonl: a line is not as zoo wrote it"):
        read_run_metrics(half.path)


STATES = [
    "",
    "{",
    "[]",
    "{}",
    '{"step": "x", "data": ""}',
    '{"step": true, "data": ""}',
    "\udcff",
    "[" * 100_000,
]


@pytest.mark.parametrize("content", STATES)
def test_a_damaged_state_names_the_last_good_checkpoint(half: RunFolder, whole: Path, content: str) -> None:
    file = half.checkpoint_after(15).path / "state.json"
    file.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(
        CheckpointError, match=r"The last good checkpoint is .*step-00000020; to go on from it"
    ):
        resumed(half, whole)


def test_a_state_with_another_number_is_noticed(half: RunFolder, whole: Path) -> None:
    file = half.checkpoint_after(15).path / "state.json"
    file.write_text(file.read_text().replace('"step": 15', '"step": 14'))
    with pytest.raises(CheckpointError, match=r"state.json: damaged: its checksum is another"):
        resumed(half, whole)


@pytest.mark.parametrize("content", ["", "[]", '{"checkpoint": "step-00000019"}'])
def test_a_damaged_last_json_names_the_last_good_checkpoint(
    half: RunFolder, whole: Path, content: str
) -> None:
    (half.path / "checkpoints/last.json").write_text(content)
    with pytest.raises(
        CheckpointError, match=r"the last good checkpoint is .*step-00000020: delete .*last.json"
    ):
        resumed(half, whole)


FILES = ("model", "optimizer", "random")


def test_a_checkpoint_that_a_living_run_deletes_is_not_missed(
    half: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two hundred readers of a run that was being trained, some ended with FileNotFoundError."""
    old, new = half.checkpoint_after(15), half.checkpoint_after(20)
    expected = load_model(new.path).state_dict()
    half.point("last", old)

    def prune(*arguments: Any) -> None:
        materialise(*arguments)
        half.point("last", new)
        rmtree(old.path, ignore_errors=True)

    monkeypatch.setattr(zoo.checkpoint.model, "materialise", prune)
    found = load_model(half.path).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    rmtree(new.path)
    with pytest.raises(CheckpointError):
        load_model(half.path)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_noticed(half: RunFolder, whole: Path, name: str) -> None:
    file = half.checkpoint_after(15).path / f"{name}.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=rf"{name}.safetensors: \S+ is damaged.*last good checkpoint is"
    ):
        resumed(half, whole)


def test_metadata_that_are_null_are_none(tmp_path: Path) -> None:
    """Reading the checksums ended in an AttributeError; the format's own library takes null for nothing."""
    file, tensor = tmp_path / "null.safetensors", torch.arange(4.0)
    header = json.dumps({"__metadata__": None, "t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + tensor.numpy().tobytes())
    assert torch.equal(read_tensors(file)[0]["t"], tensor)


@pytest.mark.parametrize("loss", ['"a"', "{}", "null", "true"])
def test_a_loss_that_is_no_number_is_an_error(half: RunFolder, whole: Path, loss: str) -> None:
    """The end of a run ended in a TypeError when it compared the losses."""
    lines = half.metrics.read_text().splitlines(True)
    number = next(i for i, line in enumerate(lines) if '"validation"' in line)
    lines[number] = f'{{"kind": "validation", "step": 5, "cross_entropy": {loss}}}\n'
    half.metrics.write_text("".join(lines))
    with pytest.raises(ZooError, match=rf"metrics.jsonl:{number + 1}: expected .* a number .cross_entropy"):
        resumed(half, whole)


def test_another_recipe_in_the_header_is_noticed(half: RunFolder) -> None:
    file = half.checkpoint_after(15).model
    data = file.read_bytes()
    old, new = rb"n_heads\":2", rb"n_heads\":4"
    assert old in data
    file.write_bytes(data.replace(old, new))
    with pytest.raises(CheckpointError, match="damaged: the checksum of its header is another"):
        load_model(file)


@pytest.mark.parametrize("place", [0, 700_000, 1_310_719])
def test_large_tensors_are_checked_to_their_end(tmp_path: Path, place: int) -> None:
    """They are read in parts, here three, each of which is checked while the next one is read."""
    file, tensor = tmp_path / "large.safetensors", torch.arange(1_310_720, dtype=torch.float32)
    assert 2 * integrity.CHUNK < tensor.nbytes < 3 * integrity.CHUNK
    write_tensors(file, {"large": tensor}, {})
    assert torch.equal(read_tensors(file)[0]["large"], tensor)
    with safe_open(file, "pt") as opened:
        assert json.loads(opened.metadata()[integrity.CHECKSUMS])["large"] == xxh3_64_hexdigest(
            tensor.numpy().tobytes()
        )
    data = bytearray(file.read_bytes())
    data[place * 4 - tensor.nbytes] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="large is damaged: its checksum is another"):
        read_tensors(file)
    tensor[place] = float("nan")
    write_tensors(file, {"large": tensor}, {})
    with pytest.raises(CheckpointError, match="large has entries that are not finite"):
        read_tensors(file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"large\.safetensors: "):
        read_tensors(file)


def test_what_is_written_is_checked_in_parts_that_fit_a_cache() -> None:
    """Each part is written right after it was checked, and together they are what was to be written."""
    parts: list[bytes] = []

    class File(BytesIO):
        def write(self, data: Any) -> int:
            parts.append(bytes(data))
            return len(data)

    content = os.urandom(5 * integrity.WRITTEN + 7)
    assert integrity.write_checked(File(), memoryview(content)) == xxh3_64_hexdigest(content)
    assert b"".join(parts) == content
    assert {len(part) for part in parts} == {integrity.WRITTEN, 7}


def test_a_sum_that_overflows_is_no_mistake(tmp_path: Path) -> None:
    largest = torch.full((1000,), 3e38)
    write_tensors(tmp_path / "largest.safetensors", {"largest": largest}, {})
    assert torch.equal(read_tensors(tmp_path / "largest.safetensors")[0]["largest"], largest)


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_nan_is_noticed_and_can_be_allowed(
    half: RunFolder, whole: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = half.checkpoint_after(15).path / f"{name}.safetensors"
    tensors = load_file(file)
    changed = next(key for key, tensor in tensors.items() if tensor.dtype == torch.float32)
    tensors[changed].view(-1)[0] = float("nan")
    with safe_open(file, "pt") as opened:
        header = {k: v for k, v in opened.metadata().items() if k != integrity.CHECKSUMS}
    save_file(tensors, file, header)
    with pytest.raises(
        CheckpointError, match=f"{name}.safetensors: {changed} has entries that are not finite"
    ):
        resumed(half, whole)
    monkeypatch.setattr(Permissions, "non_finite", True)
    with pytest.raises(DivergenceError, match=r"step 1[67]: the loss is nan"):
        resumed(half, whole)


@pytest.mark.parametrize(
    "left", [[], [".config.yaml.partial"], [".config.yaml.999999999-0a1b2c3d.partial"], [".lock"]]
)
def test_a_start_that_was_killed_takes_no_name(tmp_path: Path, left: list[str]) -> None:
    folder = tmp_path / "runs/tiny"
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).touch()
    with pytest.raises(ConfigError, match="there is no run to resume"):
        train(tiny(tmp_path, steps=6), resume=True)
    assert train(tiny(tmp_path, steps=6)).step == 6


def test_a_run_appears_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens before the folder has its name, there is no folder of that name."""
    seen = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        seen.append((tmp_path / "runs/tiny").exists())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    train(tiny(tmp_path, steps=6))
    assert seen[0] is False
    assert (tmp_path / "runs/tiny/config.yaml").is_file()
    assert not [*(tmp_path / "runs").glob(".*")]


def test_two_processes_on_one_run(half: RunFolder, whole: Path) -> None:
    """The second is refused at once, and told by whom; a dead process holds nothing."""
    holder = "import sys, time; from pathlib import Path; from zoo.utils.lock import locked\n"
    holder += f"with locked(Path({str(half.lock)!r}), ''):\n    print('held', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        message = (
            rf"another `zoo train` is at work on this run.*\(process {other.pid} on {os.uname().nodename}\)"
        )
        with pytest.raises(ZooError, match=message):
            resumed(half, whole)
        other.kill()
        other.wait()
    assert_same(whole, resumed(half, whole))
    assert not half.lock.exists()


@pytest.mark.parametrize("name", [WRITER, "zoo-interrupt"])
def test_a_thread_that_cannot_be_started(
    half: RunFolder, whole: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where memory lacks; the error was another one, and afterwards the run goes on."""
    right = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        right(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            resumed(half, whole)
    assert_same(whole, resumed(half, whole))


def test_a_lock_ends_with_its_process_though_a_child_lives(tmp_path: Path) -> None:
    """A worker that is forked inherits the descriptor; the next sweep must not wait for its end."""
    holder = "import os, sys, time; from pathlib import Path; from zoo.utils.lock import locked\n"
    holder += f"with locked(Path({str(tmp_path / 'lock')!r}), ''):\n"
    holder += "    child = os.fork()\n    if child: print(child, flush=True)\n    time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        other.kill()
        other.wait()
        try:
            with locked(tmp_path / "lock", "held by a child"):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_of_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by its heartbeat, where the file system does not pass locks on."""
    file = tmp_path / "lock"
    file.write_text("process 7 on elsewhere\n")
    with pytest.raises(ZooError, match=r"busy \(process 7 on elsewhere\)"), locked(file, "busy"):
        pass
    os.utime(file, (time.time() - lock.STALE_SECONDS - 5,) * 2)
    with locked(file, "busy"):
        assert file.read_text() == f"process {os.getpid()} on {os.uname().nodename}\n"


@pytest.mark.parametrize(("process", "alive"), [(os.getppid(), True), (2**22 + 1, False)])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int, alive: bool
) -> None:
    def unsupported(*arguments: Any) -> None:
        raise OSError(lock.UNSUPPORTED[0], "no locks")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    file = tmp_path / "lock"
    file.write_text(f"process {process} on {os.uname().nodename}\n")
    if alive:
        with pytest.raises(ZooError, match="busy"), locked(file, "busy"):
            pass
    else:
        with (
            locked(file, "busy"),
            pytest.raises(ZooError, match=f"process {os.getpid()}"),
            locked(file, "busy"),
        ):
            pass


def test_a_file_system_that_cannot_flush_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMB shares answer with EINVAL; any other error stays one."""
    answer = errno.EINVAL

    def refused(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(os, "fsync", refused)
    write_text(tmp_path / "new/sample.txt", "whole")
    write_folder(tmp_path / "folder", lambda partial: write_text(partial / "a", "b"))
    assert (tmp_path / "new/sample.txt").read_text() == "whole"
    answer = errno.EIO
    with pytest.raises(CheckpointError, match=r"sample.txt: cannot be written: Input/output error"):
        write_text(tmp_path / "new/sample.txt", "again")


def test_a_rank_without_its_launcher_ends() -> None:
    """The launcher is killed while its child runs; the child asks itself to stop, and then ends."""
    rank = "import time, zoo.train.orphan as o; o.POLL_SECONDS = 0.05; o.GRACE_SECONDS = 0.2\n"
    rank += "import signal; signal.signal(signal.SIGTERM, lambda *a: print('asked', flush=True))\n"
    rank += "with o.ends_with_parent():\n    print('begun', flush=True)\n    while True: time.sleep(0.05)"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", launcher], cwd=ROOT, env=environment(), stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"begun\n"
        one.kill()
        assert one.stdout.readline() == b"asked\n"
        assert one.stdout.read() == b""  # closed: the child has ended


def test_two_writers_of_a_file_do_not_share_a_temporary_one(tmp_path: Path) -> None:
    file = tmp_path / "sample.txt"
    (tmp_path / ".sample.txt.999999999-0a1b2c3d.partial").touch()  # left by a process that was killed

    def fill(partial: Path) -> None:
        partial.write_text("ou")
        write_text(file, "another process")
        assert (partial.read_text(), file.read_text()) == ("ou", "another process")
        partial.write_text("outer")

    write_file(file, fill)
    assert file.read_text() == "outer"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_a_living_process_writes_is_left_alone(half: RunFolder) -> None:
    living = half.path / f".sample.txt.{os.getpid()}-0a1b2c3d.partial"
    dead = half.path / ".sample.txt.999999999-0a1b2c3d.partial"
    for file in (living, dead):
        file.touch()
    half.trim_to_last_checkpoint()
    assert living.exists()
    assert not dead.exists()


def test_a_file_that_another_host_may_write_is_left_alone(half: RunFolder) -> None:
    """Processes of other hosts cannot be asked; what they have not touched for a day is left by a kill."""
    new, old = (half.path / f".sample.txt.{host:08x}-999999999-0a1b2c3d.partial" for host in (1, 2))
    for file in (new, old):
        file.touch()
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    half.trim_to_last_checkpoint()
    write_text(half.sample, "ours")
    assert new.exists()
    assert not old.exists()


def test_an_evaluation_that_is_repeated_is_recorded_once(half: RunFolder) -> None:
    """It was logged when the session was killed, before the checkpoint said that it was made."""
    last = half.checkpoint()
    assert last is not None
    last.write_state({**last.read_state(), CheckpointFolder.OWED: True})
    train(load_config(half.config), resume=True, folder=half)
    evaluated = [r["step"] for r in half.read_metrics() if r["kind"] == "validation"]
    assert evaluated.count(last.step) == 1
    assert len(evaluated) == len(set(evaluated))
