"""Export of a model's tokenizer, which is kept only if transformers encodes texts as zoo does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from zoo.data.classification.encoding import FramedTextEncoder, TextPairEncoder
from zoo.data.objectives.mlm import MASK
from zoo.data.tokenizers.base import DESCRIPTION, Tokenizer
from zoo.data.tokenizers.huggingface import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    HuggingFaceConfig,
    HuggingFaceTokenizer,
)
from zoo.hub.pretrained import from_pretrained
from zoo.hub.tokenizer_json import (
    SAMPLE,
    frame,
    name_segments,
    samples,
    special_token,
    truncate_on_the_right,
    use_generic_class,
    write_tokenizer,
)
from zoo.utils.atomic import remove

EXAMPLES = (("a", None), ("a", "b"))
"""A text and a pair for comparing the special tokens around texts."""


def export_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    special: Sequence[str],
    end: int | None,
    texts: TextPairEncoder | None = None,
    segments: int = 1,
) -> str | None:
    """Write a tokenizer and compare it with the original in transformers, if that is installed.

    Args:
        tokenizer: the tokenizer of the model.
        folder: the model's folder, to which the tokenizer's files are added.
        special: names of the ids after the tokenizer's vocabulary, in their order.
        end: id at which generation stops; None: the tokenizer's `eos_id`.
        texts: the encoder of texts and pairs that a classifier was trained with; None: the model is no
            classifier, or it is not known.
        segments: number of segments of a classifier.

    Returns:
        None, or the reason why there is no tokenizer; nothing is written then.
    """
    trial = folder / "tokenizer"  # removed again, so that a failure leaves no files
    trial.mkdir()
    last = tokenizer.eos_id if end is None else end
    try:
        reason = write_tokenizer(tokenizer, trial)
        if reason is None and special:
            (trial / DESCRIPTION).unlink()  # it describes the tokenizer without the special tokens
            _add_special_tokens(trial, special, tokenizer.vocab_size, last)
        roomy = None if texts is None else replace(texts, context=1024)
        if reason is None and roomy is not None:
            _write_frame(trial, roomy)
        given = isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.gives_segments
        if reason is None and segments > 1 and (given or roomy is not None):
            name_segments(trial)
        if reason is None and not _encodes_the_same(tokenizer, trial, special, last, roomy):
            use_generic_class(trial)
            if not _encodes_the_same(tokenizer, trial, special, last, roomy):
                reason = "transformers reads other tokens with it"
        if reason is None:
            for file in trial.iterdir():
                file.rename(folder / file.name)
        return reason
    finally:
        remove(trial)


def _add_special_tokens(folder: Path, names: Sequence[str], first: int, end: int) -> None:
    """Add the special tokens of an objective (mask, sentinels and their end) to a written tokenizer.

    Args:
        folder: a folder with tokenizer.json and tokenizer_config.json.
        names: names of the tokens, in the order of their ids.
        first: id of the first one.
        end: id at which generation stops; if it is one of them, it becomes the tokenizer's `eos_token`, and
            ends sources as it does in training.
    """
    files = [folder / TOKENIZER_FILE, folder / SETTINGS_FILE]
    tokenizer, settings = (json.loads(file.read_text("utf-8")) for file in files)
    tokenizer["added_tokens"] += [special_token(name, first + i) for i, name in enumerate(names)]
    if end >= first:
        settings["eos_token"] = names[end - first]
        tokenizer["post_processor"] = frame(None, end)
    if MASK in names:
        settings["mask_token"] = MASK
    for file, content in zip(files, (tokenizer, settings), strict=True):
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_frame(folder: Path, texts: TextPairEncoder) -> None:
    """Have transformers add the special tokens that a classifier was trained with, unless it does already."""
    truncate_on_the_right(folder)
    tokenizer, framed = texts.tokenizer, None
    if isinstance(tokenizer, HuggingFaceTokenizer):
        framed = FramedTextEncoder(tokenizer, texts.context, texts.segments)
        if all(framed.encode(*example) == texts.encode(*example) for example in EXAMPLES):
            return
    file = folder / TOKENIZER_FILE
    content = json.loads(file.read_text("utf-8"))
    start = tokenizer.start_id if texts.starts else None
    content["post_processor"] = frame(start, tokenizer.eos_id, texts.segments)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if framed is not None:  # a Hugging Face tokenizer, whose description has the hash of the file
        (folder / DESCRIPTION).unlink()
        HuggingFaceConfig.load(folder).save(folder)


def _encodes_the_same(
    tokenizer: Tokenizer,
    folder: Path,
    special: Sequence[str],
    end: int,
    classified: TextPairEncoder | None,
) -> bool:
    """Whether transformers encodes a few texts as `tokenizer` does; True if it is not installed."""
    if find_spec("transformers") is None:
        return True
    texts, first = samples(tokenizer), tokenizer.vocab_size
    try:
        reopened = from_pretrained("AutoTokenizer", folder)
        special_ids = reopened.convert_tokens_to_ids(list(special))
        encoded = [reopened.encode(text, add_special_tokens=False) for text in texts]
        framed = classified is None or all(
            _reads_the_same(reopened(*example), classified, example) for example in EXAMPLES
        )
        if special and end >= first:  # one of the special tokens, which ends sources
            framed &= reopened.encode(SAMPLE) == [*tokenizer.encode(SAMPLE), end]
    except Exception:  # a tokenizer class that does not fit the file can raise any error
        return False
    same = encoded == [tokenizer.encode(text) for text in texts]
    return same and framed and special_ids == list(range(first, first + len(special)))


def _reads_the_same(
    given: Mapping[str, list[int]], classified: TextPairEncoder, example: tuple[str, str | None]
) -> bool:
    """Whether transformers gives a model the tokens and segments of an example; zeros may be left out."""
    tokens, segments, mask = classified.collate([classified.encode(*example)])
    ids, kinds = given["input_ids"], given.get("token_type_ids")
    return ids == tokens[mask].tolist() and (kinds or [0] * len(ids)) == segments[mask].tolist()
