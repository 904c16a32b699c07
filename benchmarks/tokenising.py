"""Tokenising a corpus: MB/s of zoo on one core and on all, beside the batch encoder of tokenizers.

    python -m benchmarks.tokenising
    python -m benchmarks.tokenising --text book.txt --tokenizer path/to/folder --megabytes 256

Every repetition is a fresh process. zoo's time is that of preparing the data: hashing the files, dividing
them, encoding, writing. The batch encoder's is that of reading the same documents and encoding them, and
nothing is written. Both use the same tokenizer.json: the given one, or byte-level BPE with 8,192 tokens
trained on the text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Contender, Ratio, interleave, parser, serve, write
from zoo.data.corpora.python_docs import PythonDocsCorpus
from zoo.data.text.dataset import TextData
from zoo.data.text.prepare import prepare
from zoo.utils.cores import cores

VOCABULARY = 8192
SIDES = ("zoo", "encode_batch")


def corpus_of(options: Namespace, folder: Path) -> None:
    """Write the text, repeated until it is long enough, and the tokenizer into a folder."""
    if options.text:
        text = options.text.read_text(encoding="utf-8")
    else:
        text = "\n\n".join(document.text for document in PythonDocsCorpus().documents())
    times = -(-options.megabytes * 10**6 // len(text.encode()))
    for i in range(times):
        (folder / f"{i:04}.txt").write_text(text, encoding="utf-8")
    if options.tokenizer:
        return
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text.splitlines(keepends=True), trainer)
    made.save(str(folder / "tokenizer.json"))


def settings(options: Namespace, cache: Path) -> TextData:
    """The data as zoo is given it, passages of the texts in the folder."""
    tokenizer: dict[str, Any] = {"type": "huggingface", "path": options.tokenizer or options.folder}
    if not options.tokenizer:
        tokenizer["eos"] = "<|endoftext|>"
    corpus = {"type": "text", "paths": [str(options.folder)], "document": "passage"}
    return TextData.model_validate({"corpus": corpus, "tokenizer": tokenizer, "cache_dir": cache})


def once(options: Namespace) -> dict[str, float]:
    """Tokenise in this process, and from it in others, on the given number of cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    data = settings(options, options.folder / "unused")
    size = sum(source.path.stat().st_size for source in data.corpus.sources())
    if options.side == "zoo":
        with tempfile.TemporaryDirectory() as cache:
            data = settings(options, Path(cache))
            start = time.perf_counter()
            done = prepare(data).manifest
            seconds = time.perf_counter() - start
        assert done.validation is not None
        tokens = done.train.tokens + done.validation.tokens - done.train.documents - done.validation.documents
    else:
        os.environ["RAYON_NUM_THREADS"] = str(options.cores)
        from tokenizers import Tokenizer

        path = options.tokenizer or options.folder
        encoder = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        start = time.perf_counter()
        texts = [document.text for document in data.corpus.documents()]
        tokens = sum(len(e.ids) for e in encoder.encode_batch(texts, add_special_tokens=False))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": size / 1e6, "tokens": tokens}


def worker(options: Namespace) -> None:
    """Have fresh processes tokenise, as often as asked."""
    command = [sys.executable, "-m", "benchmarks.tokenising", "--once", "--side", options.side]
    command += ["--cores", str(options.cores), "--folder", str(options.folder)]
    command += ["--tokenizer", str(options.tokenizer)] if options.tokenizer else []
    found: list[dict[str, float]] = []

    def repeat() -> float:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        return found[-1]["seconds"]

    repeat()
    serve({key: found[0][key] for key in ("megabytes", "tokens")}, repeat)


def compare(options: Namespace, folder: Path) -> None:
    """Measure both sides on one core and on all in turns, and write the result."""
    corpus_of(options, folder)
    shared = ["benchmarks.tokenising", "--worker", "--folder", str(folder)]
    shared += ["--tokenizer", str(options.tokenizer)] if options.tokenizer else []
    numbers = sorted({1, options.cores or cores()})
    contenders = {
        (side, number): Contender.start(
            f"{side}, {number} core{'s' * (number > 1)}",
            [*shared, "--side", side, "--cores", str(number)],
            keep_memory=False,
        )
        for number in numbers
        for side in SIDES
    }
    interleave(list(contenders.values()), options.rounds, 1, warmup=0)
    for contender in contenders.values():
        contender.stop()
    assert len({c.about["tokens"] for c in contenders.values()}) == 1, "the same tokens"
    rows = [
        {
            "contender": contender.name,
            "seconds": f"{statistics.median(contender.rounds):.2f}",
            "MB/s": f"{contender.about['megabytes'] / statistics.median(contender.rounds):.1f}",
        }
        for contender in contenders.values()
    ]
    most = numbers[-1]
    ratios = [
        Ratio.of("zoo", contenders["zoo", most], contenders["zoo", 1]),
        Ratio.of("zoo against the batch encoder", contenders["zoo", most], contenders["encode_batch", most]),
    ]
    command = " ".join(["python -m benchmarks.tokenising", *sys.argv[1:]])
    megabytes = contenders["zoo", 1].about["megabytes"]
    title = f"Tokenising {megabytes:.0f} MB of text"
    write(options.name or "tokenising-cpu", title, command, list(contenders.values()), rows, ratios)


def main() -> None:
    """Read the options; a worker measures itself, the parent compares."""
    options = parser(__doc__ or "")
    options.add_argument("--text", type=Path, help="a UTF-8 file; default: Python's documentation")
    options.add_argument("--tokenizer", type=Path, help="a tokenizer.json or the folder it is in")
    options.add_argument("--megabytes", type=int, default=64, help="the text is repeated up to this size")
    options.add_argument("--cores", type=int, help="the larger number of cores; default: all")
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--worker", action="store_true", help="used by the parent process")
    given = options.parse_args()
    if given.once:
        print(json.dumps(once(given)))
    elif given.worker:
        worker(given)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(given, Path(folder))


if __name__ == "__main__":
    main()
