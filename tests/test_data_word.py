"""Word tokenizer and stream objective: the counts and the units of word-level benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.data.corpora.text import TextCorpus
from zoo.data.dataset import BatchSpec
from zoo.data.objectives.stream import Stream
from zoo.data.text.dataset import TextData
from zoo.data.text.prepare import prepare
from zoo.data.tokenizers.base import load_tokenizer
from zoo.data.tokenizers.word import WordConfig, WordTokenizer
from zoo.data.tokens import TokenFile
from zoo.utils.errors import DataError

LINES = [" the cat saw the <unk> \n", " N dogs saw the cat \n", " <eos> is not the end \n"]
CONTEXT = 8


def texts(lines: list[str] = LINES) -> WordTokenizer:
    return WordConfig().build(lambda: iter(lines))


def test_frequent_words_come_first_and_ties_go_by_the_alphabet() -> None:
    assert texts().vocabulary == ["<eos>", "<unk>", "the", "cat", "saw", "N", "dogs", "end", "is", "not"]
    assert WordConfig(vocab_size=4).build(lambda: iter(LINES)).vocabulary == ["<eos>", "<unk>", "the", "cat"]


def test_what_is_not_in_the_vocabulary_is_unknown() -> None:
    tokenizer = texts()
    assert tokenizer.encode("the <unk> purple\ncat <eos>") == [2, 1, 1, 3, 1]
    assert tokenizer.decode([2, 3, tokenizer.eos_id, 5]) == "the cat N"
    with pytest.raises(DataError, match="token 10 is outside"):
        tokenizer.decode([10])


def test_it_survives_a_folder(tmp_path: Path) -> None:
    lines = ["caf\u00e9 \u2028 \x85 \ufeffbom a\u200bb", *LINES]
    tokenizer = texts(lines)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, WordTokenizer)
    assert loaded.vocabulary == tokenizer.vocabulary
    assert loaded.hash == tokenizer.hash != texts().hash
    (tmp_path / "vocabulary.txt").write_text("<eos>\n<unk>\nother\n")
    with pytest.raises(DataError, match="the hash is"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocabulary.txt").write_text("the\ncat\n")
    with pytest.raises(DataError, match="begins <eos>, <unk>"):
        load_tokenizer(tmp_path)


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="no word"):
        texts([" <eos> <unk> \n"])


def test_the_counts_of_the_benchmark(tmp_path: Path) -> None:
    """Split at blanks and add one <eos> per line; the vocabulary is the training text's."""
    for name, lines in (("train", LINES * 9), ("valid", [" a cat saw dogs \n", " the end \n"] * 4)):
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    train, valid = (
        TextCorpus(paths=[str(tmp_path / f"{name}.txt")], document="line") for name in ("train", "valid")
    )
    corpus = prepare(
        TextData(
            corpus=train,
            validation_corpus=valid,
            tokenizer=WordConfig(),
            objective=Stream(),
            context=CONTEXT,
            cache_dir=tmp_path / "cache",
        )
    )
    words = [*" ".join(LINES * 9).split()]
    assert len(corpus.train) == len(words) + 27
    assert corpus.tokenizer.vocab_size == len(set(words) | {"<eos>", "<unk>"})
    assert corpus.validation is not None
    assert len(corpus.validation) == 4 * (4 + 2) + 8
    first = corpus.validation.windows(np.array([0]), 8)[0].tolist()
    assert first == [1, 3, 4, 6, 0, 2, 7, 0]


def counting(tmp_path: Path, length: int) -> TokenFile:
    """Tokens 0, 1, 2, ...: a token says where it stands."""
    path = tmp_path / "tokens.bin"
    np.arange(length, dtype="<u2").tofile(path)
    return TokenFile(path, "uint16", length)


def test_a_row_goes_on_where_it_was(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 1003)
    last = None
    for step in range(40):  # longer than a row: it goes on in the next one's text
        inputs, targets = Stream().train_batch(tokens, BatchSpec(3, step, 5), CONTEXT, 0)
        assert inputs.shape == targets.shape == (5, CONTEXT)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert torch.equal(targets, (inputs + 1) % 1003)
        if last is not None:
            assert torch.equal(inputs[:, 0], last)
        last = targets[:, -1]


def test_an_epoch_has_every_token_once(tmp_path: Path) -> None:
    rows, length = 5, 1000
    tokens = counting(tmp_path, length)
    for seed in (0, 1):
        batches = [Stream().train_batch(tokens, BatchSpec(seed, s, rows), CONTEXT, 0) for s in range(25)]
        seen = torch.cat([targets.flatten() for _, targets in batches])
        assert sorted(seen.tolist()) == list(range(length))
    starts = {int(Stream().train_batch(tokens, BatchSpec(s, 0, rows), CONTEXT, 0)[0][0, 0]) for s in range(9)}
    assert len(starts) == 9


def test_every_token_is_evaluated_once_the_first_one_too(tmp_path: Path) -> None:
    tokens = counting(tmp_path, 100)
    (inputs, targets), *more = Stream().validation_batches(
        tokens, BatchSpec(0, 0, 4), CONTEXT, 0, max_batches=99
    )
    assert not more
    assert targets.tolist() == [list(range(100))]
    assert inputs.tolist() == [[99, *range(99)]]
    (inputs, targets), *more = Stream().validation_batches(
        tokens, BatchSpec(0, 0, 4), CONTEXT, 0, max_batches=2
    )
    assert not more
    assert targets.tolist() == [list(range(64))]


def test_several_processes_and_short_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"stream: the state .* one process' own, but there are 2"):
        Stream().train_batch(counting(tmp_path, 100), BatchSpec(0, 0, 4, 1, 2), CONTEXT, 0)
    with pytest.raises(DataError, match="8 tokens, but one example is made from 9"):
        Stream().train_batch(counting(tmp_path, 8), BatchSpec(0, 0, 4), CONTEXT, 0)
