"""Tokenising a corpus once into token files, which later calls reuse."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.config.plugins import record_of_class, records_of
from zoo.config.registry import Config
from zoo.data.compression import content_suffix
from zoo.data.corpora.base import CorpusConfig, Document, SourceFile
from zoo.data.files import build_once, sha256, sha256_file
from zoo.data.objectives.base import Objective
from zoo.data.parquet import PARQUET
from zoo.data.split import Split
from zoo.data.text.encoding import encode_in_order
from zoo.data.text.manifest import VERSION, SourceEntry, SplitEntry, TokenizerEntry, TokenManifest
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig, built_tokenizer, load_tokenizer
from zoo.data.tokens import TokenFile, TokenWriter, dtype_for
from zoo.utils.errors import DataError
from zoo.utils.progress import Advance, ignore, progress
from zoo.utils.untyped import JsonObject

if TYPE_CHECKING:
    from zoo.data.text.dataset import TextData

log = logging.getLogger("zoo")

CORPUS, VALIDATION_CORPUS = "data.corpus", "data.validation_corpus"
"""The keys of the two corpora, for messages."""

LEAST_NEAR, MOST_NEAR = 100, 4096
"""A single document is divided at a blank or a line end that lies so many characters before the wanted place:
a tenth of the training text, within these bounds; otherwise it is divided at the wanted place itself."""
END_OF_TEXT = "#end"
"""Suffix of the id of the second part of a corpus that is a single document."""


@dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus that was tokenised once and is stored as files of token ids.

    Attributes:
        tokenizer: the tokenizer.
        objective: the objective of the configuration, for this tokenizer.
        train: the training tokens.
        validation: the validation tokens; None if nothing is held out.
        manifest: sources, split and counts.
        folder: folder of the files.
        fingerprint: the fingerprint of the tokens: the name of the folder, unless plugins make them.
        former_fingerprints: the fingerprints that earlier versions gave the same tokens: that of zoo 0.1,
            which also depended on the paths of the files, and that without the number of files per corpus.
    """

    tokenizer: Tokenizer
    objective: Objective
    train: TokenFile
    validation: TokenFile | None
    manifest: TokenManifest
    folder: Path
    fingerprint: str
    former_fingerprints: tuple[str, ...]


def prepare(data: TextData, vocab_size: int | None = None) -> TokenizedCorpus:
    """Tokenise a corpus, or reuse the token files of an earlier call.

    The name of the folder is a hash of the contents of the sources, of the settings, of the tokenizer and of
    the plugins that define the corpora and the tokenizer, so that a change leads to a new folder. Several
    processes may call this function at the same time.

    Args:
        data: corpus, tokenizer, split and cache folder.
        vocab_size: vocabulary of the model that will be trained on the tokens; None: it is not checked.

    Raises:
        DataError: The text, the tokenizer or the sizes cannot be used, or the disk cannot be written.
    """
    files = [corpus.sources() for corpus in _corpora(data)]
    sources = [source for of_corpus in files for source in of_corpus]
    stamps = _stamps(sources)
    entries = [
        SourceEntry(name=source.name, bytes=size, sha256=sha256_file(source.path))
        for source, (size, _) in zip(sources, stamps, strict=True)
    ]
    contents, share = [entry.model_dump() for entry in entries], data.validation_share
    flat_key = [VERSION, [corpus.rules() for corpus in _corpora(data)], share, contents]
    first_key = [VERSION, [corpus.model_dump(mode="json") for corpus in _corpora(data)], share, contents]
    # The list of contents does not say where the validation corpus begins; with one corpus the key stays.
    split_key = flat_key if len(files) == 1 else [*flat_key, [len(of_corpus) for of_corpus in files]]
    text_key = [*split_key, *_plugins(*_corpora(data))]
    tokenizer = _tokenizer(data, text_key)
    objective = data.objective.for_tokenizer(tokenizer)
    _check_vocabulary(data, objective, tokenizer, vocab_size)
    needed = objective.tokens_per_example(data.context)

    def fill(folder: Path) -> None:
        _warn_of_shared_files(files, share)
        _tokenise(data, entries, tokenizer, folder)
        if _stamps(sources) != stamps:
            raise DataError("a file of the corpus changed while it was read; start again")

    fingerprint = _digest([*split_key, tokenizer.hash])
    own = [record.model_dump() for record in record_of_class(type(tokenizer))]
    folder = data.cache_folder() / "tokens" / _digest([*text_key, *own, tokenizer.hash])
    build_once(folder, fill)
    manifest = TokenManifest.read(folder)
    train = _open(folder, manifest, manifest.train, data, needed, "training")
    entry = manifest.validation
    validation = None if entry is None else _open(folder, manifest, entry, data, needed, "validation")
    former = tuple(_digest([*key, tokenizer.hash]) for key in (flat_key, first_key))
    return TokenizedCorpus(tokenizer, objective, train, validation, manifest, folder, fingerprint, former)


def _warn_of_shared_files(files: Sequence[Sequence[SourceFile]], share: float) -> None:
    """Log a warning about files that two corpora read: each of them is divided by itself.

    Args:
        files: those of the training corpus and, if there is one, those of the validation corpus.
        share: share of the documents that is held out.
    """
    paths = [[source.path.resolve() for source in of_corpus] for of_corpus in files]
    # If nothing of the training corpus is held out, a file may be in two parts of a mixture.
    counts = Counter(chain.from_iterable(paths if share else map(dict.fromkeys, paths)))
    shared = [path for path, count in counts.items() if count > 1]
    if shared:
        log.warning(
            "data: two corpora read the same text, in %d files, the first is %s; what is held out of one can "
            "be learned from the other",
            len(shared),
            shared[0],
        )


def _check_vocabulary(
    data: TextData, objective: Objective, tokenizer: Tokenizer, vocab_size: int | None
) -> None:
    needed = objective.required_vocab_size(tokenizer)
    if vocab_size is not None and needed > vocab_size:
        extra, key = len(objective.special_tokens), objective.token_key
        more = f", and the objective '{data.objective_name}' needs {extra} more" if extra else ""
        can_name = extra and key and tokenizer.special_tokens
        named = f", or name tokens of the tokenizer by data.objective.{key}" if can_name else ""
        raise DataError(
            f"the tokenizer '{tokenizer.type}' has {tokenizer.vocab_size} tokens{more}, but "
            f"model.vocab_size is {vocab_size}: set it to {needed} or more, or use a smaller tokenizer{named}"
        )


def _corpora(data: TextData) -> list[CorpusConfig]:
    """The training corpus, and the validation corpus if there is one."""
    return [data.corpus, *([] if data.validation_corpus is None else [data.validation_corpus])]


def _stamps(sources: list[SourceFile]) -> list[tuple[int, int]]:
    """Size in bytes and time of modification of each file."""
    stats = [source.path.stat() for source in sources]
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


def _plugins(*configs: Config) -> list[JsonObject]:
    """The records of the plugins that define the classes of configurations; none for zoo's own."""
    records = {record for config in configs for record in records_of(config)}
    return sorted((record.model_dump() for record in records), key=str)


def _digest(key: object) -> str:
    return sha256(json.dumps(key, sort_keys=True).encode())[:32]


def _tokenizer(data: TextData, text_key: list[object]) -> Tokenizer:
    """The tokenizer, which is cached beside the tokens if it is trained on the training documents."""
    config: TokenizerConfig = data.tokenizer

    def texts() -> Iterator[str]:
        split = _split(data, ignore)
        return (d.text for d in _documents(data) if not split.holds_out(d.id))

    if not config.is_trained:
        return built_tokenizer(config, texts)
    settings = config.model_dump(mode="json")
    folder = data.cache_folder() / "tokenizers" / _digest([*text_key, *_plugins(config), settings])
    build_once(folder, lambda partial: built_tokenizer(config, texts).save(partial))
    return load_tokenizer(folder)


def _split(data: TextData, advance: Advance) -> Split:
    """The split of the documents of `_documents`."""

    def read() -> Iterator[str]:
        for document in _documents(data):
            advance(_utf8_bytes(document.text))
            if not document.repeated:
                yield document.id

    ids = read()
    first = list(islice(ids, 3))
    if len(first) == 2 and first[1] == first[0] + END_OF_TEXT:
        return Split(0, only=first[1])
    return Split.of(chain(first, ids), data.validation_share)


def with_text(documents: Iterator[Document], left_out: list[str] | None = None) -> Iterator[Document]:
    """The documents that are not blank.

    Args:
        documents: the documents of a corpus.
        left_out: a list to which the ids of blank documents are added; None: they are not recorded.

    Raises:
        DataError: The corpus yields no documents, or the text of one is no string.
    """
    if not isinstance(documents, Iterable):
        found = type(documents).__name__
        raise DataError(
            f"`documents` of the corpus returned {found}; expected to yield zoo.Document(id, text)"
        )
    for document in documents:
        if not isinstance(document, Document):
            found = type(document).__name__
            raise DataError(f"the corpus yields a {found}; expected zoo.Document(id, text)")
        if not isinstance(document.text, str):
            found = type(document.text).__name__
            raise DataError(f"{document.id}: the corpus yields a text that is a {found}; expected a string")
        if document.text.strip():
            yield document
        elif left_out is not None:
            left_out.append(document.id)


def _documents(data: TextData, left_out: list[str] | None = None) -> Iterator[Document]:
    """The documents of the training corpus; a single document is divided, so that its end can be held out.

    Raises:
        DataError: There is no document with text.
    """
    documents = with_text(data.corpus.documents(), left_out)
    first = next(documents, None)
    second = next(documents, None)
    if first is None:
        raise DataError(f"{CORPUS}: {data.corpus.why_empty()}")
    if second is None and data.validation_share and len(first.text) > 1:
        wanted = max(1, int(len(first.text) * (1 - data.validation_share)))
        least = wanted - min(max(wanted // 10, LEAST_NEAR), MOST_NEAR)
        cut = max(first.text.rfind(mark, max(least, 0), wanted) for mark in "\n ") + 1 or wanted
        yield Document(first.id, first.text[:cut])
        yield Document(first.id + END_OF_TEXT, first.text[cut:])
        return
    yield first
    if second is not None:
        yield second
    yield from documents


def _sides(data: TextData, split: Split, left_out: dict[str, list[str]]) -> Iterator[tuple[bool, str]]:
    """Yield every text, and whether it is held out; copies of a held-out text are left out.

    Args:
        data: the corpora.
        split: the split of the training corpus.
        left_out: for each key of a corpus, a list to which the ids of blank documents are added.

    Raises:
        DataError: A corpus has no document with text.
    """
    for document in _documents(data, left_out[CORPUS]):
        held_out = split.holds_out(document.id)
        if not (held_out and document.repeated):
            yield held_out, document.text
    if data.validation_corpus is None:
        return
    documents = with_text(data.validation_corpus.documents(), left_out[VALIDATION_CORPUS])
    first = next(documents, None)
    if first is None:
        raise DataError(f"{VALIDATION_CORPUS}: {data.validation_corpus.why_empty()}")
    for document in chain([first], documents):
        if not document.repeated:
            yield True, document.text


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8"))


def _amount(entries: list[SourceEntry]) -> int | None:
    """The bytes of the files, which approximate those of the documents; None if files are compressed."""
    paths = [Path(entry.name) for entry in entries]
    packed = any(content_suffix(path) != path.suffix or path.suffix == PARQUET for path in paths)
    return None if packed else sum(entry.bytes for entry in entries)


def _tokenise(data: TextData, entries: list[SourceEntry], tokenizer: Tokenizer, folder: Path) -> None:
    """Write train.bin, validation.bin (if something is held out) and manifest.json."""
    amount = _amount(entries)
    with progress("reading the corpus", amount) as advance:
        split = _split(data, advance)
    left_out: dict[str, list[str]] = {CORPUS: [], VALIDATION_CORPUS: []}
    carriage_returns = {False: 0, True: 0}
    dtype = dtype_for(tokenizer.vocab_size)
    names = {False: "train.bin"} | (
        {True: "validation.bin"} if split.threshold or split.only or data.validation_corpus else {}
    )
    with ExitStack() as stack:
        writers = {
            held_out: stack.enter_context(TokenWriter(folder / name, dtype, tokenizer.eos_id))
            for held_out, name in names.items()
        }
        advance = stack.enter_context(progress("tokenising", amount))
        texts = stack.enter_context(closing(encode_in_order(tokenizer, _sides(data, split, left_out))))
        for held_out, text, ids in texts:
            writers[held_out].add(ids, size := _utf8_bytes(text))
            carriage_returns[held_out] += "\r\n" in text
            advance(size)
    for key, blank in left_out.items():
        if blank:
            log.warning("%s: %d blank documents are left out, the first is %s", key, len(blank), blank[0])
    documents = {held_out: writer.documents for held_out, writer in writers.items()}
    _warn_of_carriage_returns(data, carriage_returns, documents)
    splits = {
        held_out: SplitEntry(
            file=names[held_out], documents=w.documents, tokens=w.tokens, utf8_bytes=w.utf8_bytes
        )
        for held_out, w in writers.items()
    }
    TokenManifest(
        version=VERSION,
        corpora=[corpus.model_dump(mode="json") for corpus in _corpora(data)],
        sources=entries,
        tokenizer=TokenizerEntry(
            type=tokenizer.type,
            hash=tokenizer.hash,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
        ),
        validation_share=data.validation_share,
        dtype=dtype,
        train=splits[False],
        validation=splits.get(True),
    ).write(folder)


def _warn_of_carriage_returns(
    data: TextData, carriage_returns: Mapping[bool, int], documents: Mapping[bool, int]
) -> None:
    """Log a warning about documents whose lines end with a carriage return, as files of Windows have them.

    Args:
        data: the corpora.
        carriage_returns: the numbers of such documents, False for training and True for validation.
        documents: the same for all documents.
    """
    if carriage_returns[False]:
        log.warning(
            "%s: lines of %d of %d training documents end with \\r\\n; the model learns to write the \\r, "
            "and does not expect text without it",
            CORPUS,
            carriage_returns[False],
            documents[False],
        )
    elif carriage_returns[True]:
        log.warning(
            "%s: lines of %d of %d held-out documents end with \\r\\n, and those of no training document do; "
            "a model does not expect the \\r, and can lose more by it than by everything else",
            VALIDATION_CORPUS if data.validation_corpus else CORPUS,
            carriage_returns[True],
            documents[True],
        )


def _open(
    folder: Path, manifest: TokenManifest, entry: SplitEntry, data: TextData, needed: int, split: str
) -> TokenFile:
    if entry.tokens < needed:
        raise DataError(
            f"the {split} text has {entry.tokens:,} tokens in {entry.documents:,} documents, but one "
            f"example of {data.context:,} is made from {needed:,}: add text, "
            f"{'raise data.validation, ' if split == 'validation' else ''}or lower data.context"
        )
    return TokenFile(folder / entry.file, manifest.dtype, entry.tokens)
