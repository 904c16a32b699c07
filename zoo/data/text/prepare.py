"""From text to token files: once, then reused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zoo.data.corpora.base import CorpusConfig, Source
from zoo.data.files import build_once, sha256, sha256_file
from zoo.data.objectives import Objective
from zoo.data.split import Split
from zoo.data.text.manifest import VERSION, Manifest, SideEntry, SourceEntry, TokenizerEntry
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig, load_tokenizer
from zoo.data.tokens import TokenFile, TokenWriter, dtype_for
from zoo.utils.errors import DataError


class TextSettings(Protocol):
    """What is read of a data configuration to prepare its text; `TextData` has all of it."""

    @property
    def corpus(self) -> CorpusConfig:
        """Where the text comes from."""
        ...

    @property
    def validation_corpus(self) -> CorpusConfig | None:
        """Where the validation text comes from, if it has a source of its own."""
        ...

    @property
    def tokenizer(self) -> TokenizerConfig:
        """How text becomes tokens."""
        ...

    @property
    def objective(self) -> Objective:
        """What is to be predicted."""
        ...

    @property
    def objective_name(self) -> str:
        """The type of the objective."""
        ...

    @property
    def context(self) -> int:
        """Tokens that the model sees in a sequence."""
        ...

    @property
    def held_out(self) -> float:
        """Share of the corpus' documents that is not trained on."""
        ...

    def cache_folder(self) -> Path:
        """The folder in which prepared data is kept."""
        ...


@dataclass(frozen=True)
class Corpus:
    """Tokens ready for training.

    Attributes:
        tokenizer: what made them.
        train: the tokens to train on.
        validation: the tokens held out; None if ``data.validation`` is 0.
        manifest: sources, split and counts.
        folder: where they lie.
    """

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile | None
    manifest: Manifest
    folder: Path


def prepare(data: TextSettings, vocab_size: int | None = None) -> Corpus:
    """Tokenise a corpus, or find it tokenised.

    The folder's name is a hash of the sources' contents, of the settings and of the tokenizer: what
    changed gets a new folder, what did not is reused, and several processes may ask at once.

    Args:
        data: what to prepare.
        vocab_size: of the model that will read the tokens; None: do not compare.

    Returns:
        The tokens.

    Raises:
        DataError: text, tokenizer or sizes that cannot be used, or a disk that cannot be written.
    """
    sources = [source for corpus in _corpora(data) for source in corpus.sources()]
    stamps = _stamps(sources)
    entries = [
        SourceEntry(name=source.name, bytes=size, sha256=sha256_file(source.path))
        for source, (size, _) in zip(sources, stamps, strict=True)
    ]
    rules = [VERSION, [corpus.model_dump(mode="json") for corpus in _corpora(data)], data.held_out]
    text_key = [*rules, [entry.model_dump() for entry in entries]]
    tokenizer = _tokenizer(data, text_key)
    extra = len(data.objective.special_tokens)
    needed = tokenizer.vocab_size + extra
    if vocab_size is not None and needed > vocab_size:
        more = f", and the objective '{data.objective_name}' needs {extra} more" if extra else ""
        raise DataError(
            f"the tokenizer '{tokenizer.type}' has {tokenizer.vocab_size} tokens{more}, but "
            f"model.vocab_size is {vocab_size}: set it to {needed} or more, or use a smaller tokenizer"
        )

    def fill(folder: Path) -> None:
        _tokenise(data, entries, tokenizer, folder)
        if _stamps(sources) != stamps:
            raise DataError("a file of the corpus changed while it was read; start again")

    folder = data.cache_folder() / "tokens" / _digest([*text_key, tokenizer.hash])
    build_once(folder, fill)
    manifest = Manifest.read(folder)
    train = _open(folder, manifest, manifest.train, data, "training")
    held_out = manifest.validation
    validation = None if held_out is None else _open(folder, manifest, held_out, data, "validation")
    return Corpus(tokenizer, train, validation, manifest, folder)


def _corpora(data: TextSettings) -> list[CorpusConfig]:
    """The corpus to train on, and the one to validate on if there is one."""
    return [data.corpus, *([] if data.validation_corpus is None else [data.validation_corpus])]


def _stamps(sources: list[Source]) -> list[tuple[int, int]]:
    states = [source.path.stat() for source in sources]
    return [(state.st_size, state.st_mtime_ns) for state in states]


def _digest(key: object) -> str:
    return sha256(json.dumps(key, sort_keys=True).encode())[:32]


def _tokenizer(data: TextSettings, text_key: list[object]) -> Tokenizer:
    """The tokenizer; one that learns from the training documents is kept beside the tokens."""
    config: TokenizerConfig = data.tokenizer

    def texts() -> Iterator[str]:
        split = _split(data.corpus, data.held_out)
        return (d.text for d in data.corpus.documents() if not split.holds_out(d.id))

    if not config.learns:
        return config.build(texts)
    folder = data.cache_folder() / "tokenizers" / _digest([*text_key, config.model_dump(mode="json")])
    build_once(folder, lambda partial: config.build(texts).save(partial))
    return load_tokenizer(folder)


def _split(corpus: CorpusConfig, share: float) -> Split:
    return Split.of((document.id for document in corpus.documents()), share)


def _tokenise(data: TextSettings, entries: list[SourceEntry], tokenizer: Tokenizer, folder: Path) -> None:
    """Write train.bin, validation.bin (if something is held out) and manifest.json."""
    split = _split(data.corpus, data.held_out)
    dtype = dtype_for(tokenizer.vocab_size)
    names = {False: "train.bin"} | (
        {True: "validation.bin"} if split.threshold or data.validation_corpus else {}
    )
    with ExitStack() as stack:
        writers = {
            held_out: stack.enter_context(TokenWriter(folder / name, dtype, tokenizer.eos_id))
            for held_out, name in names.items()
        }
        for document in data.corpus.documents():
            writers[split.holds_out(document.id)].add(document.text, tokenizer.encode(document.text))
        for document in data.validation_corpus.documents() if data.validation_corpus else ():
            writers[True].add(document.text, tokenizer.encode(document.text))
    sides = {
        held_out: SideEntry(
            file=names[held_out], documents=w.documents, tokens=w.tokens, utf8_bytes=w.utf8_bytes
        )
        for held_out, w in writers.items()
    }
    Manifest(
        version=VERSION,
        corpora=[corpus.model_dump(mode="json") for corpus in _corpora(data)],
        sources=entries,
        tokenizer=TokenizerEntry(
            type=tokenizer.type,
            hash=tokenizer.hash,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
        ),
        validation_share=data.held_out,
        dtype=dtype,
        train=sides[False],
        validation=sides.get(True),
    ).write(folder)


def _open(folder: Path, manifest: Manifest, side: SideEntry, data: TextSettings, what: str) -> TokenFile:
    tokens = TokenFile(folder / side.file, manifest.dtype, side.tokens)
    needed = data.objective.reads(data.context)
    if len(tokens) < needed:
        raise DataError(
            f"the {what} text has {len(tokens):,} tokens in {side.documents:,} documents, but one "
            f"example of {data.context:,} is made from {needed:,}: add text, "
            f"{'raise data.validation, ' if what == 'validation' else ''}or lower data.context"
        )
    return tokens
