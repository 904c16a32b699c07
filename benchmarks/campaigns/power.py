"""Loss of power: what was not fsync'ed is lost or kept, in any order that a file system may choose.

The operations of a run are recorded. A crash after some of them keeps what an fsync has made durable; of
everything else it keeps a random part, as in ALICE (Pillai et al., OSDI 2014): writes are lost from some
point of a file on, or leave zeros; renames, links, creations and deletions are lost one by one.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from pathlib import Path

from benchmarks.campaigns.common import OneByOne, Outcome, command, in_child
from benchmarks.campaigns.faults import Operation, Watch, watched
from benchmarks.campaigns.tiny import difference, fields, state_of
from zoo.run.config import dump_config, load_config


class Power(OneByOne):
    """The run is resumed on what a crash has left, and must end as the undisturbed one."""

    name = "power"
    seconds = 60.0

    def prepare(self, folder: Path) -> None:
        """Record the operations of a run."""
        self._folder = folder
        (folder / "tiny.yaml").write_text(dump_config(load_config(fields(folder))))
        log = folder / "operations"

        def record() -> int:
            operations: list[Operation] = []
            (folder / "runs").mkdir()
            with watched(Watch(folder / "runs", lambda number, operation: operations.append(operation))):
                status = self._train(folder)
            log.write_bytes(pickle.dumps(operations))
            return status

        assert in_child(record) == 0
        self._operations: list[Operation] = pickle.loads(log.read_bytes())
        self._whole = state_of(folder / "runs/tiny")

    def attempt(self, chance: random.Random, folder: Path) -> Outcome:
        """Crash after some operation, and go on."""
        until, keep = chance.randrange(len(self._operations) + 1), chance.choice((0.0, 0.3, 0.7, 0.9, 1.0))
        case = (
            f"crash after {until} of {len(self._operations)} operations, {keep:.0%} of what is volatile kept"
        )
        crash(self._operations[:until], folder / "runs", chance, keep)
        status = 0
        for resume in (True, False):
            status = os.waitstatus_to_exitcode(in_child(lambda: self._train(folder, resume)))  # noqa: B023
            if status == 0:
                break
            if status != 2:
                return Outcome("traceback", case, f"ends with status {status}")
        if status:
            return Outcome("lost", case, "neither --resume nor the plain command goes on")
        found = difference(self._whole, state_of(folder / "runs/tiny"))
        return Outcome("changed", case, found) if found else Outcome("same", case)

    def _train(self, folder: Path, resume: bool = False) -> int:
        more = ["--resume"] if resume else []
        return command("train", str(self._folder / "tiny.yaml"), f"train.runs_dir={folder / 'runs'}", *more)


def crash(operations: list[Operation], root: Path, chance: random.Random, keep: float) -> None:
    """Write into `root` what a crash after some operations leaves there.

    Args:
        operations: all that were made, in their order.
        root: an empty or missing folder.
        chance: decides what of the volatile operations is kept.
        keep: the probability of that.
    """
    root.mkdir(parents=True, exist_ok=True)
    last_sync: dict[str, int] = {}
    identity: dict[str, int] = {}
    sync_of: dict[int, int] = {}
    owner: list[int] = []
    count = 0
    # First pass: which file each write belongs to, and until when files and folders were made durable.
    for number, operation in enumerate(operations):
        own = -1
        if operation.kind in ("create", "append"):
            if operation.kind == "create" or operation.path not in identity:
                count += 1
                identity[operation.path] = count
            own = identity[operation.path]
        elif operation.kind == "write":
            own = identity.get(operation.path, -1)
        elif operation.kind == "fsync":
            last_sync[operation.path] = number
            if operation.path in identity:
                sync_of[identity[operation.path]] = number
        elif operation.kind in ("rename", "replace"):
            for name in [n for n in identity if n == operation.path or n.startswith(operation.path + "/")]:
                identity[operation.target + name[len(operation.path) :]] = identity.pop(name)
        elif operation.kind == "link" and operation.path in identity:
            identity[operation.target] = identity[operation.path]
        owner.append(own)
    torn: set[int] = set()
    places: dict[int, Path] = {}
    for number, operation in enumerate(operations):
        path = root / operation.path
        if operation.kind == "fsync":
            continue
        if operation.kind == "write":
            own = owner[number]
            durable = sync_of.get(own, -1) > number
            place = places.get(own)
            if place is None or not place.exists() or (own in torn and not durable):
                continue
            if not durable and chance.random() >= keep:
                torn.add(own)
                if chance.random() < 0.5:
                    continue
                data = bytes(len(operation.data))  # the size was written, the content was not
            else:
                data = operation.data
            with place.open("r+b") as file:
                file.seek(operation.offset)
                file.write(data)
            continue
        parent = str(Path(operation.target or operation.path).parent)
        durable = last_sync.get(parent, -1) > number or sync_of.get(owner[number], -1) > number
        if not durable and parent != "." and chance.random() >= keep:
            continue
        _apply(operation, root, path, places, owner[number])


def _apply(operation: Operation, root: Path, path: Path, places: dict[int, Path], own: int) -> None:
    """Make an operation, if what it needs is there."""
    target = root / operation.target
    try:
        if operation.kind == "create":
            path.unlink(missing_ok=True)
            path.touch()
            places[own] = path
        elif operation.kind == "append":
            path.touch()
            places[own] = path
        elif operation.kind == "mkdir":
            path.mkdir()
        elif operation.kind == "rmdir":
            shutil.rmtree(path)
        elif operation.kind == "unlink":
            path.unlink()
        elif operation.kind == "link":
            target.hardlink_to(path)
        elif operation.kind in ("rename", "replace"):
            path.replace(target)
            for key, place in list(places.items()):
                if place == path or path in place.parents:
                    places[key] = target / place.relative_to(path) if place != path else target
    except OSError:
        return
