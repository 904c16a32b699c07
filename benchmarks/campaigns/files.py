"""Damaged files: run folders, checkpoints, folders of the hub, tokenizers, corpora, and tables of runs."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from pyarrow import Table, parquet
from torch import Tensor

from benchmarks.campaigns.common import OneByOne, Outcome, attempt, quiet
from benchmarks.campaigns.mutations import damage
from benchmarks.campaigns.tiny import difference, fields, finished, state_of
from zoo.ablate.run_metrics import read_run_metrics
from zoo.ablate.scale.runs import read_runs
from zoo.ablate.scale.verdict import judge
from zoo.checkpoint.integrity import CHECKSUMS
from zoo.checkpoint.model import load_model
from zoo.checkpoint.safetensors import Part, read_tensors, write_piece
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.hub import CONFIG
from zoo.hub.export import export_model
from zoo.models import Model
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.train.run import train
from zoo.utils.run_folder import RunFolder

CSV = "variant,size,tokens,seed,loss\n" + "".join(
    f"{variant},{size},{20 * size},{seed},{loss + shift + seed / 100}\n"
    for variant, shift in (("a", 0.0), ("b", -0.1))
    for size, loss in ((1000, 3.0), (4000, 2.8), (16000, 2.6))
    for seed in range(3)
)
LINES = "".join(f'{{"text": "Document {i} with some words in it."}}\n' for i in range(60))
KINDS = {
    "resume": 5,
    "pieces_of_ranks": 3,
    "load": 4,
    "hub": 4,
    "report": 2,
    "tokenizer": 1,
    "jsonl": 1,
    "parquet": 1,
    "csv": 1,
}
"""What is damaged and read, and how often."""


class Files(OneByOne):
    """One file is damaged; whoever reads it must notice, or come to the same as if nothing had been."""

    name = "files"
    seconds = 10.0

    def prepare(self, folder: Path) -> None:
        """Train a run, and another one that is stopped before its end; write a corpus and a table."""
        self._folder = folder
        with quiet():
            self._whole = state_of(finished(folder / "whole"))
            self._half = finished(folder / "half", until=6)
            self._weights = dict(load_model(self._half).state_dict())
        self._pieces = Path(shutil.copytree(self._half, folder / "pieces/tiny"))
        divide(RunFolder(self._pieces))
        self._settings = fields(folder / "half")
        (folder / "runs.csv").write_text(CSV)
        (folder / "corpus.jsonl").write_text(LINES)
        rows = [json.loads(line) for line in LINES.splitlines()]
        parquet.write_table(Table.from_pylist(rows), folder / "corpus.parquet", row_group_size=20)
        with quiet():
            model, tokenizer = load_model(self._half), find_tokenizer(self._half / "tokenizer")
            export_model(model, folder / "hub/one file", tokenizer=tokenizer)
            export_model(model, folder / "hub/an index", tokenizer=tokenizer, shard_bytes=2000)
        self._published = dict(load_model(folder / "hub/one file").state_dict())

    def attempt(self, chance: random.Random, folder: Path) -> Outcome:
        """Damage one file, and read it."""
        kind = chance.choices([*KINDS], [*KINDS.values()])[0]
        outcome: Outcome = getattr(self, f"_{kind}")(chance, folder)
        return outcome

    def _copy(self, folder: Path) -> RunFolder:
        return RunFolder(Path(shutil.copytree(self._half, folder / "runs/tiny")))

    def _resume(self, chance: random.Random, folder: Path) -> Outcome:
        run = self._copy(folder)
        files = sorted(path for path in run.path.rglob("*") if path.is_file())
        return self._go_on("resume", run, chance.choice(files), chance)

    def _pieces_of_ranks(self, chance: random.Random, folder: Path) -> Outcome:
        run = RunFolder(Path(shutil.copytree(self._pieces, folder / "runs/tiny")))
        pieces = sorted(run.path.glob("checkpoints/*/shard-*"))
        return self._go_on("resume from pieces", run, chance.choice(pieces), chance)

    def _go_on(self, kind: str, run: RunFolder, file: Path, chance: random.Random) -> Outcome:
        """Damage a file of a run, and resume the run."""
        case = f"{kind}, {file.relative_to(run.path)}: {damage(file, chance)}"

        def act() -> Outcome | None:
            train(load_config(self._settings), resume=True, folder=run)
            if file.name == "metrics.jsonl":  # it has no checksum, and no weights depend on it
                return None
            found = difference({**self._whole, "metrics": 0}, {**state_of(run.path), "metrics": 0})
            return Outcome("changed", case, found) if found else None

        return attempt(case, act)

    def _load(self, chance: random.Random, folder: Path) -> Outcome:
        run = self._copy(folder)
        last = run.checkpoint()
        assert last is not None
        files = [last.model, last.model, run.path / "checkpoints/last.json", run.config]
        file = chance.choice(files)
        case = f"load, {file.relative_to(run.path)}: {damage(file, chance)}"

        def act() -> Outcome | None:
            # Without last.json the latest checkpoint is taken, which is another one only if several are kept.
            return None if _same(load_model(run.path), self._weights) else Outcome("changed", case)

        return attempt(case, act)

    def _hub(self, chance: random.Random, folder: Path) -> Outcome:
        layout = chance.choice(("one file", "an index"))
        copy = Path(shutil.copytree(self._folder / "hub" / layout, folder / "hub"))
        file = chance.choice(
            sorted(path for path in copy.iterdir() if path.suffix in (".json", ".safetensors"))
        )
        case = f"folder of the hub with {layout}, {file.name}: {damage(file, chance)}"

        def act() -> Outcome | None:
            find_tokenizer(copy).encode("some text")
            same = _same(load_model(copy), self._published)
            # config.json has no checksum: with another number of heads the same files are another model.
            return None if same or file.name == CONFIG else Outcome("changed", case)

        return attempt(case, act)

    def _report(self, chance: random.Random, folder: Path) -> Outcome:
        run = self._copy(folder)
        names = ["metrics.jsonl", "environment.json", "config.yaml", "checkpoints/last.json"]
        file = run.path / chance.choice(names)
        case = f"report, {file.relative_to(run.path)}: {damage(file, chance)}"

        def act() -> None:
            read_run_metrics(run.path)

        return attempt(case, act)

    def _tokenizer(self, chance: random.Random, folder: Path) -> Outcome:
        copy = Path(shutil.copytree(self._half / "tokenizer", folder / "tokenizer"))
        file = chance.choice(sorted(copy.iterdir()))
        case = f"tokenizer, {file.name}: {damage(file, chance)}"

        def act() -> None:
            find_tokenizer(copy).encode("some text")

        return attempt(case, act)

    def _jsonl(self, chance: random.Random, folder: Path) -> Outcome:
        return self._corpus("jsonl", chance, folder)

    def _parquet(self, chance: random.Random, folder: Path) -> Outcome:
        return self._corpus("parquet", chance, folder)

    def _corpus(self, kind: str, chance: random.Random, folder: Path) -> Outcome:
        file = Path(shutil.copy(self._folder / f"corpus.{kind}", folder / f"corpus.{kind}"))
        case = f"corpus in {kind}: {damage(file, chance)}"
        corpus = {"type": kind, "paths": [str(file)]}
        data = {"corpus": corpus, "cache_dir": str(folder / "cache"), "context": 8}

        def act() -> None:
            job = Job.of(load_config({**self._settings, "data": data}))
            job.data.prepare(job.model)

        return attempt(case, act)

    def _csv(self, chance: random.Random, folder: Path) -> Outcome:
        file = Path(shutil.copy(self._folder / "runs.csv", folder / "runs.csv"))
        case = f"table of runs: {damage(file, chance)}"

        def act() -> None:
            judge(read_runs(file), "a")

        return attempt(case, act)


def divide(run: RunFolder) -> None:
    """Write the last checkpoint of a run as two ranks do, each its rows (the layout of DCP)."""
    last = run.checkpoint()
    assert last is not None
    for file in (last.model, last.optimizer):
        tensors, header = read_tensors(file)
        parts: list[dict[str, Part]] = [{}, {}]
        for name, tensor in tensors.items():
            if tensor.dim() == 0 or len(tensor) == 1:  # as plain ones, which the first rank writes
                parts[0][name] = Part(tensor, (0,) * tensor.dim())
                continue
            half, others = len(tensor) // 2, (0,) * (tensor.dim() - 1)
            parts[0][name] = Part(tensor[:half].contiguous(), (0, *others))
            parts[1][name] = Part(tensor[half:].contiguous(), (half, *others))
        metadata = {key: value for key, value in header.items() if key != CHECKSUMS}
        file.unlink()
        for rank in range(2):
            write_piece(file, parts[rank], metadata, rank, ranks=2, save="campaign")


def _same(model: Model, weights: dict[str, Tensor]) -> bool:
    """Whether a model has these weights, bit by bit."""
    found = model.state_dict()
    return found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
