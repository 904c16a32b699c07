"""Bits per byte beside nats: wherever the bytes of the validation text are known, and nowhere else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import of_kind, tiny

from zoo.data.text.dataset import TextDataset
from zoo.data.tokenizers.base import SAMPLE
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.word import WordTokenizer
from zoo.run.job import Job
from zoo.train.run import train

SHORT: dict[str, Any] = {"steps": 2, "eval_every": 2, "monitor_every": None, "diagnose_every": None}


def test_bits_are_those_of_the_whole_validation_text(tmp_path: Path) -> None:
    """With pieces of several bytes each: nats of all targets, over the bytes of the documents, over ln 2."""
    documents = [f"{letter * 3} " * 40 + "é\n" for letter in "abcdefgh"]
    held_out = "".join(f"{document}\n" for document in documents[:2])
    (tmp_path / "held.txt").write_text(held_out, encoding="utf-8")
    pieces = {"type": "sentencepiece", "vocab_size": 360}
    config = tiny(
        tmp_path,
        f"data.tokenizer={pieces}".replace("'", ""),
        f"data.validation_corpus={{type: text, paths: [{tmp_path / 'held.txt'}]}}",
        "data.validation=null",
        "schedule.warmup=0",
        "model.vocab_size=360",
        **SHORT,
    )
    job = Job.of(config)
    dataset: Any = job.data.prepare(job.model)
    tokens = len(dataset.corpus.validation)
    size = len((tmp_path / "held.txt").read_bytes())
    assert tokens < 0.9 * size
    run = train(config).folder
    lines = of_kind(run, "validation")
    assert len(lines) == 2
    for line in lines:
        assert line["bits_per_byte"] == pytest.approx(line["cross_entropy"] * tokens / size / math.log(2))


@pytest.mark.parametrize("change", ["data.objective=mlm", "data.tokenizer=word", "data.validation=0"])
def test_none_where_the_targets_are_not_the_text(tmp_path: Path, change: str) -> None:
    """Masked tokens are a part of the text; words between blanks are a text without its blanks."""
    data: Any = tiny(tmp_path, change).data
    assert TextDataset(data, None).bytes_per_target is None


def test_what_keeps_a_text() -> None:
    words = WordTokenizer(["<eos>", "<unk>", *sorted(set(SAMPLE.split()))], "here")
    assert ByteTokenizer().keeps_text
    assert not words.keeps_text  # every word is known, and a line end has become a blank
