"""The weights that 20 steps of each tiny configuration end with, by source trees: did the code change them?

    git worktree add ../before c657483
    python -m benchmarks.final_weights ../before .

Each tree trains its own copy of the configurations, on one thread. A hash is of the names, shapes, dtypes and
bytes of all tensors; another processor or torch may round differently, so it is compared within a call only.
Of the GPT the exported folder is compared as well, file by file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from safetensors.numpy import load_file

STEPS = 20
EXPORTED = "gpt-tiny"
DIGITS = 12
"""Digits of a hash that are shown."""


PROGRAM = """
import runpy, sys
for line in sys.stdin:
    sys.argv = ["zoo", *line.split()]
    try:
        runpy.run_module("zoo", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""
"""Runs commands one after the other in one process, which imports torch once."""


def run_commands(tree: Path, folder: Path, commands: Iterable[str]) -> None:
    """Run commands of a tree's zoo in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", PROGRAM]
    lines = "".join(f"{command}\n" for command in commands)
    subprocess.run(
        program, cwd=folder, env=environment, input=lines, text=True, check=True, stdout=subprocess.DEVNULL
    )


def hash_of(file: Path) -> str:
    """The hash of the tensors of a safetensors file, in the order of their names."""
    total = sha256()
    for name, tensor in sorted(load_file(file).items()):
        total.update(f"{name} {tensor.shape} {tensor.dtype}".encode())
        total.update(tensor.tobytes())
    return total.hexdigest()[:DIGITS]


def hashes(tree: Path) -> Mapping[str, str]:
    """The hash of each configuration's weights, and of each exported file."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configs = [file.stem for file in sorted((tree / "configs").glob("*-tiny.yaml"))]
        trainings = [f"train {config} train.steps={STEPS} name={config}" for config in configs]
        run_commands(tree, folder, [*trainings, f"export runs/{EXPORTED} exported"])
        for config in configs:
            checkpoint = folder / f"runs/{config}/checkpoints/step-{STEPS:08d}"
            found[config] = hash_of(checkpoint / "model.safetensors")
        for file in sorted((folder / "exported").iterdir()):
            found[f"{EXPORTED}, exported: {file.name}"] = sha256(file.read_bytes()).hexdigest()[:DIGITS]
    return found


def main() -> None:
    """Print a table with a column for each tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="+", help="checkouts of zoo")
    trees = [tree.resolve() for tree in parser.parse_args().trees]
    columns = [hashes(tree) for tree in trees]
    print(f"| | {' | '.join(tree.name for tree in trees)} |\n|{' --- |' * (1 + len(trees))}")
    for row in dict.fromkeys(name for column in columns for name in column):
        print(f"| {row} | {' | '.join(column.get(row, '-') for column in columns)} |")


if __name__ == "__main__":
    main()
