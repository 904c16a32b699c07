"""Budgets as branches of one trunk: runs that differ only in length share the steps before they cool down.

The longest run of a seed is the trunk. At the step where a shorter run begins to differ from it, the shorter
one continues from a copy of the trunk's folder, as a run that was interrupted there. The result is therefore
the same, bit for bit, as if the run had been trained by itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from zoo.run.config import RunConfig, dump_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.atomic import create_folder, link, write_text
from zoo.utils.run_folder import RunFolder


def train_with_branches(config: RunConfig, branches: list[tuple[RunConfig, int]], until: int) -> bool:
    """Train a trunk up to the start of its last branch, and start all branches that have not started.

    A branch whose starting point the trunk has passed already, in a session that was killed, is trained by
    itself.

    Args:
        config: the configuration of the trunk.
        branches: the configurations of the branches, and the number of steps that each shares with the trunk.
        until: the last step that the trunk may take.

    Returns:
        Whether the trunk may continue; otherwise it was interrupted and is saved.

    Raises:
        Exception: The trunk failed; a note about its branches is added to the exception.
    """
    trunk = Job.of(config).folder
    for branch, step in sorted(branches, key=lambda item: item[1]):
        last = trunk.checkpoint() if trunk.exists else None
        folder = Job.of(branch).folder
        try:
            if step <= until and (last is None or last.step < step):
                if train(config, resume=trunk.exists, until=step).step < step:
                    return False
                last = trunk.checkpoint()
            if last is not None and last.step == step and folder.is_vacant:
                begin_branch(trunk, folder, branch)
        except Exception as error:
            error.add_note(
                f"{branch.name} had not branched off at step {step}: it and longer branches are trained by "
                "themselves"
            )
            raise
    return True


def begin_branch(trunk: RunFolder, folder: RunFolder, config: RunConfig) -> None:
    """Copy the present state of a run under another configuration.

    Args:
        trunk: the run, which no process may train at the same time.
        folder: the folder of the branch, which appears by one rename.
        config: the configuration of the branch.
    """
    text = dump_config(config)

    def fill(partial: Path) -> None:
        branch = RunFolder(partial)
        for name in ("metrics", "environment", "loaded", "labels", "tokenizer", "plugins"):
            there: Path = getattr(trunk, name)
            if there.is_dir():
                shutil.copytree(there, getattr(branch, name))
            elif there.is_file():
                shutil.copyfile(there, getattr(branch, name))
        # The files of a checkpoint are never written to again, so that links suffice.
        shutil.copytree(trunk.path / trunk.CHECKPOINTS, partial / trunk.CHECKPOINTS, copy_function=_link)
        for checkpoint in branch.checkpoints():
            write_text(checkpoint.config, text)
        write_text(branch.config, text)

    create_folder(folder.path, fill)


def _link(there: str, here: str) -> None:
    link(Path(there), Path(here))
