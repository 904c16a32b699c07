"""`make wheel-test`: builds the wheel, installs it elsewhere and types every command away from the checkout.

The new environment sees the packages of this one, except zoo, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
TINY = """
extends: gpt-tiny
schedule: constant
model: {vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2}
data: {corpus: {type: text, paths: [book.txt]}, tokenizer: byte, context: 16, cache_dir: cache}
train: {steps: 3, batch_size: 2, device: cpu, eval_every: 3, eval_batches: 1, checkpoint_every: 3}
"""
SWEEP = """
base: tiny.yaml
axes: {init: [he, small]}
seeds: [0, 1]
"""
CLASSES = """
model: {type: classifier, classes: 2, trunk: {from: runs/tiny}}
optimizer: {type: adamw, lr: 1e-3}
data: {type: classification, train: reviews.tsv, validation: 0.2, text: text, label: label, context: 16}
train: {steps: 2, batch_size: 2, device: cpu, eval_every: 2, eval_batches: 1, checkpoint_every: 2}
"""
REVIEWS = "text\tlabel\n" + "".join(f"the {i}\tgood\na {i}\tbad\n" for i in range(20))
BOOK = "".join(f"Line {i}: the quick brown fox jumps over the lazy dog.\n\n" for i in range(200))
RUNS = "variant,size,tokens,seed,loss\n" + "".join(
    f"{variant},{size},{tokens},{seed},{2 + (factor * tokens) ** -0.3 + 0.001 * seed:.6f}\n"
    for variant, factor in (("a", 1.0), ("b", 1.3))
    for size in (1000, 4000)
    for tokens in (20, 40, 80, 160)
    for seed in (0, 1, 2)
)
FILES = {
    "tiny.yaml": TINY,
    "sweep.yaml": SWEEP,
    "classes.yaml": CLASSES,
    "reviews.tsv": REVIEWS,
    "book.txt": BOOK,
    "runs.csv": RUNS,
}
COMMANDS = """
zoo --help
zoo list
zoo list configs
zoo schema
zoo explain ngpt-0.5b --fold
zoo train tiny.yaml
zoo train tiny.yaml --resume train.steps=4
zoo generate runs/tiny --prompt "a b" --max-new-tokens 3
zoo eval runs/tiny --perplexity book.txt
zoo inspect runs/tiny
zoo train tiny.yaml name=second seed=1
zoo report runs/tiny runs/second --out report
zoo sweep sweep.yaml --dry-run
zoo verdict runs.csv --baseline a
zoo suggest-lr tiny.yaml "optimizer={type: amos, lr: 0.01}" train.steps=100 --steps 100
zoo coord-check --help
zoo export runs/tiny exported
zoo import exported imported.safetensors
zoo convert runs/tiny converted --to wesar
zoo train classes.yaml
zoo classify runs/classes --text "a b"
"""


def main() -> None:
    """Build, install, run every command; a command that fails ends the program with its status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*build, "--wheel-dir", name, str(ROOT)], check=True)
        (wheel,) = folder.glob("*.whl")
        environment = folder / "environment"
        venv.create(environment, symlinks=True)
        python = environment / "bin/python"
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
        packages = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        # A path in a .pth file does not read the .pth files there, among them that of the editable zoo.
        (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        work = folder / "work"
        work.mkdir()
        for file, text in FILES.items():
            (work / file).write_text(text, encoding="utf-8")
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        variables["OMP_NUM_THREADS"] = "1"
        variables |= {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }

        def run(command: list[str]) -> str:
            done = subprocess.run(
                command, cwd=work, env=variables, capture_output=True, text=True, check=False
            )
            print("ok    " if done.returncode == 0 else "FAILED", shlex.join(command), flush=True)
            if done.returncode != 0:
                sys.exit(f"{done.stdout}{done.stderr}")
            return done.stdout

        place = run([str(python), "-c", "import zoo; print(zoo.__file__)"]).strip()
        if not Path(place).is_relative_to(packages):
            sys.exit(f"zoo is imported from {place}; expected a place in {packages}")
        for line in COMMANDS.strip().splitlines():
            run(shlex.split(line))


if __name__ == "__main__":
    main()
