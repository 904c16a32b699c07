"""Bits per byte beside nats: wherever the bytes of the validation text are known, and nowhere else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hub_tokenizers import saved
from tiny_runs import of_kind, tiny, tiny_fields

from zoo.data.text.dataset import TextDataset
from zoo.data.tokenizers.base import SAMPLE
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.word import WordTokenizer
from zoo.run.config import load_config
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


@pytest.mark.parametrize("kind", ["byte", "byte-level", "byte-fallback"])
def test_bits_of_answers(tmp_path: Path, kind: str) -> None:
    """The nats of all answers and their ends, over the bytes of the answers."""
    talks = [
        [("user", "ask"), ("assistant", "é" * i + " yes"), ("user", "more"), ("assistant", "the fox")]
        for i in range(1, 5)
    ]
    rows = [{"messages": [{"role": r, "content": c} for r, c in talk]} for talk in talks]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer: Any = {"type": "byte"} if kind == "byte" else {"type": "huggingface", "path": str(tmp_path)}
    if kind != "byte":
        saved(kind, tmp_path)
    data = {"type": "instructions", "train": str(file), "validation": str(file), "tokenizer": tokenizer}
    fields = tiny_fields(tmp_path, **SHORT)
    fields["data"] = {**data, "template": "chat", "context": 128}
    fields["model"]["vocab_size"] = 360
    fields["schedule"] = {**fields.get("schedule", {}), "warmup": 0}
    config = load_config(fields)
    job = Job.of(config)
    encoder = job.data.prepare(job.model).tokenizer
    assert encoder is not None
    answers = [text for talk in talks for role, text in talk if role == "assistant"]
    targets = sum(len(encoder.encode(answer)) + 1 for answer in answers)
    size = sum(len(answer.encode()) for answer in answers)
    lines = of_kind(train(config).folder, "validation")
    assert len(lines) == 2
    for line in lines:
        assert line["bits_per_byte"] == pytest.approx(line["cross_entropy"] * targets / size / math.log(2))


def test_answers_of_which_words_are_lost_have_none(tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text('{"prompt": "a", "response": "b c"}\n{"prompt": "d", "response": "e"}\n')
    data = {"type": "instructions", "train": str(file), "validation": str(file), "tokenizer": "word"}
    config = load_config({**tiny_fields(tmp_path), "data": {**data, "context": 16}})
    job = Job.of(config)
    assert "bits_per_byte" not in job.data.measures
    assert job.data.prepare(job.model).bytes_per_target is None


def test_what_keeps_a_text() -> None:
    words = WordTokenizer(["<eos>", "<unk>", *sorted(set(SAMPLE.split()))], "here")
    assert ByteTokenizer().keeps_text
    assert not words.keeps_text  # every word is known, and a line end has become a blank
