"""Tokenizers of the Hugging Face hub: the tokens are those of transformers, and a run can keep them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hub_tokenizers import TEXT, TOKENIZERS, saved
from tokenizers import decoders

from zoo.data.instructions.files import Message
from zoo.data.instructions.jinja import JinjaTemplate
from zoo.data.tokenizers.base import check_vocabulary, load_tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import WITH_SEGMENTS, HuggingFaceConfig, HuggingFaceTokenizer
from zoo.data.tokenizers.parts import decodes_in_parts
from zoo.data.tokenizers.saved import SavedConfig, find_tokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceConfig
from zoo.models import ModelConfig
from zoo.run.config import load_config
from zoo.run.trained import check_together
from zoo.sampling import TextStreamer
from zoo.utils.errors import DataError, ZooError

SAMPLES = [*TEXT[:2], "", " ", "  two  blanks ", "tab\tline\r\n\n", "🙂 é e\u0301", "x" * 40]


def unread() -> Iterator[str]:
    raise AssertionError("read")


def opened(name: str, folder: Path, **fields: Any) -> HuggingFaceTokenizer:
    return HuggingFaceConfig(path=saved(name, folder), **fields).build(unread)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    ours, theirs = opened(name, tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    _, bos, eos = TOKENIZERS[name]
    assert (ours.vocab_size, ours.eos_id) == (len(theirs), theirs.convert_tokens_to_ids(eos))
    assert ours.prefix_ids == ([] if bos is None else [theirs.convert_tokens_to_ids(bos)])
    assert theirs.encode(TEXT[0])[: len(ours.prefix_ids)] == ours.prefix_ids
    assert ours.start_id == (ours.eos_id if bos is None else ours.prefix_ids[0])
    for text in SAMPLES:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode([ours.start_id, *ids, ours.eos_id]) == theirs.decode(ids, skip_special_tokens=True)
        if name != "unigram":  # which knows neither blanks in a row nor other characters
            assert ours.decode(ids) == text


def test_a_token_behind_texts_is_no_prefix(tmp_path: Path) -> None:
    """Also if it is not the one that ends documents."""
    folder = saved("byte-level", tmp_path, ("<behind>", "<end>"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    behind = tokenizer.token_to_id("<behind>")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <behind>", special_tokens=[("<behind>", behind)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = HuggingFaceConfig(path=folder, eos="<end>").build(unread)
    assert (ours.prefix_ids, ours.start_id) == ([], ours.eos_id)


def test_the_end_of_a_document_may_be_in_front_of_texts(tmp_path: Path) -> None:
    """As GPT-2's tokenizer with a beginning-of-text token has it: prompts begin with it."""
    folder = saved("byte-level", tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(TOKENIZERS["byte-level"][2])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = HuggingFaceConfig(path=folder).build(unread)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (ours.prefix_ids, ours.start_id, ours.eos_id) == ([end], end, end)
    assert [*ours.prefix_ids, *ours.encode(TEXT[0])] == theirs.encode(TEXT[0])


def test_names_of_special_tokens_beside_the_settings(tmp_path: Path) -> None:
    """Chat templates get those of special_tokens_map.json too, as older folders have them."""
    folder = saved("byte-level", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    names = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in settings.items() if not key.endswith("_token")})
    )
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    ours = HuggingFaceConfig(path=folder).build(unread)
    assert ours.named_special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_in_a_text_are_text(tmp_path: Path, name: str) -> None:
    """But not in the markers of a template; the end of a document never comes from a text."""
    ours = opened(name, tmp_path)
    eos = TOKENIZERS[name][2]
    text = f"a fox {eos} and a dog"
    assert ours.eos_id not in ours.encode(text)
    if name != "unigram":
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode_with_special_tokens(text).count(ours.eos_id) == 1
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode_with_special_tokens(text) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_end_that_was_added_as_a_word_is_special(tmp_path: Path, name: str) -> None:
    """As by transformers' `add_tokens` and `eos_token = ...`, which counts it among the special tokens."""
    plain = opened(name, tmp_path / "plain")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    theirs.add_tokens(["<end>"])
    theirs.eos_token = "<end>"
    theirs.save_pretrained(tmp_path / "made")
    content = (tmp_path / "made/tokenizer.json").read_bytes()
    assert [t["special"] for t in json.loads(content)["added_tokens"] if t["content"] == "<end>"] == [False]
    ours = find_tokenizer(tmp_path / "made")
    assert isinstance(ours, HuggingFaceTokenizer)
    assert ours.is_special(ours.eos_id) and "<end>" in ours.special_tokens
    text = "a fox <end> and a dog"
    assert ours.encode(text) == plain.encode(text)
    reopened = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    assert "<end>" in reopened.all_special_tokens
    assert ours.encode_with_special_tokens(text) == reopened.encode(text, add_special_tokens=False)
    template = JinjaTemplate(source="{% for m in messages %}{{ m.content }} <end>{% endfor %}")
    talk = [Message("user", "fox"), Message("assistant", "dog")]
    tokens, learned = template.encode(talk, ours)
    assert (tokens[-1], learned[-1]) == (ours.eos_id, True)
    with pytest.raises(DataError, match="message 1 spells out '<end>', a special token of the tokenizer"):
        template.encode([Message("user", "a <end> b"), talk[1]], ours)


def test_a_tokenizer_whose_end_became_special_is_opened(tmp_path: Path) -> None:
    """A run of an earlier version has its former hash; that of other tokenizers is as it was."""

    def former(tokenizer: HuggingFaceTokenizer, folder: Path) -> str:
        content = (folder / "tokenizer.json").read_bytes()
        return hashlib.sha256(content + f"\neos {tokenizer.eos_id}".encode()).hexdigest()

    plain = opened("byte-level", tmp_path / "hub")
    assert (plain.hash, plain.former_hash) == (former(plain, tmp_path / "hub"), None)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "hub/tokenizer.json"))
    library.add_tokens(["<end>"])
    library.save(str(tmp_path / "hub/tokenizer.json"))
    ours = HuggingFaceConfig(path=tmp_path / "hub", eos="<end>").build(unread)
    ours.save(tmp_path)
    assert ours.former_hash == former(ours, tmp_path) != ours.hash
    description = tmp_path / "zoo-tokenizer.json"
    description.write_text(description.read_text().replace(ours.hash, ours.former_hash))
    assert load_tokenizer(tmp_path).hash == ours.hash


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_come_as_they_are_written(tmp_path: Path, name: str) -> None:
    ours = opened(name, tmp_path)
    ids = ours.encode(SAMPLES[0])
    writer = TextStreamer(ours.decode, ids[:3], is_final=ours.is_final)
    pieces = [writer.add(token) for token in ids[3:]]
    assert "".join([*pieces, writer.end()]) == ours.decode(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 5


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, True),
        (decoders.ByteLevel(), True),
        (decoders.WordPiece(), True),
        (decoders.BPEDecoder(), True),
        (
            decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
            True,
        ),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), False),
        (decoders.Strip(" ", 0, 1), False),
        (decoders.CTC(), False),
    ],
    ids=str,
)
def test_decoders_that_work_in_parts(decoder: Any, expected: bool) -> None:
    assert decodes_in_parts(decoder) == expected


def test_bytes_may_change_until_another_token_comes(tmp_path: Path) -> None:
    """One byte that is wrong makes all bytes beside it wrong, so that none is shown before the last one."""
    ours = opened("byte-fallback", tmp_path)
    byte, letter = (ours.encode(text)[-1] for text in ("\x00", "a"))
    assert ours.decode([letter, byte, letter]) == "a\x00a"
    assert ours.is_final([byte, letter])
    assert not ours.is_final([letter, byte])
    for without_text in (ours.eos_id, ours.vocab_size):
        assert not ours.is_final([letter, byte, without_text])
        assert ours.is_final([letter, without_text])
    assert opened("byte-level", tmp_path).is_final([ours.eos_id])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_it_survives_its_folder(tmp_path: Path, name: str) -> None:
    ours = opened(name, tmp_path / "hub")
    kept = tmp_path / "kept"
    kept.mkdir()
    ours.save(kept)
    assert (kept / "tokenizer.json").read_bytes() == (tmp_path / "hub/tokenizer.json").read_bytes()
    for again in (load_tokenizer(kept), find_tokenizer(kept), SavedConfig(path=kept).build(unread)):
        assert (again.hash, again.eos_id, again.start_id) == (ours.hash, ours.eos_id, ours.start_id)
        assert again.encode(SAMPLES[0]) == ours.encode(SAMPLES[0])
    assert len(transformers.AutoTokenizer.from_pretrained(kept)) == ours.vocab_size


def test_truncation_and_padding_in_the_file_are_off(tmp_path: Path) -> None:
    make = TOKENIZERS["byte-level"][0]
    tokenizer = make()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = HuggingFaceConfig(path=tmp_path, eos="<|endoftext|>").build(unread)
    assert ours.encode(TEXT[0]) == opened("byte-level", tmp_path / "plain").encode(TEXT[0])


def with_settings(folder: Path, **settings: Any) -> Path:
    """A tokenizer with other values in its tokenizer_config.json, which frames texts and pairs."""
    saved("byte-level", folder)
    file, content = folder / "tokenizer_config.json", folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    tokenizer = tokenizers.Tokenizer.from_file(str(content))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <|im_end|>", pair="$A <|im_end|> $B:1 <|im_end|>:1", special_tokens=[("<|im_end|>", 2)]
    )
    tokenizer.save(str(content))
    return folder


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_on_the_side_that_is_named(tmp_path: Path, side: str) -> None:
    ours = find_tokenizer(with_settings(tmp_path, truncation_side=side))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(ours, HuggingFaceTokenizer)
    for pair in (None, "a lazy dog"):
        expected = theirs(TEXT[0], pair, truncation=True, max_length=7)["input_ids"]
        ids, _, cut = ours.encode_framed(TEXT[0], pair, 7)
        assert (ids, cut) == (expected, True)


@pytest.mark.parametrize("names", [None, ["input_ids"], ["input_ids", "token_type_ids", "attention_mask"]])
def test_segments_are_those_that_transformers_returns(tmp_path: Path, names: list[str] | None) -> None:
    settings = {} if names is None else {"model_input_names": names}
    ours = find_tokenizer(with_settings(tmp_path, **settings))
    given = transformers.AutoTokenizer.from_pretrained(tmp_path)("good film", "bad film")
    assert isinstance(ours, HuggingFaceTokenizer)
    ids, segments, _ = ours.encode_framed("good film", "bad film", None)
    assert ids == given["input_ids"]
    assert segments == given.get("token_type_ids", [0] * len(ids))


def test_classes_that_return_segments(tmp_path: Path) -> None:
    """Those of BERT, and so does a tokenizer that leaves its class to the model, also if a run keeps it."""
    for name in WITH_SEGMENTS:
        assert "token_type_ids" in getattr(transformers, name).model_input_names
    folder = with_settings(tmp_path)
    file = folder / "tokenizer_config.json"
    file.write_text('{"eos_token": "<|endoftext|>"}')
    (tmp_path / "kept").mkdir()
    find_tokenizer(folder).save(tmp_path / "kept")
    for path in (folder, tmp_path / "kept"):
        ours = find_tokenizer(path)
        assert isinstance(ours, HuggingFaceTokenizer)
        assert set(ours.encode_framed("a", "b", None)[1]) == {0, 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"truncation_side": "top"}, "truncation_side: 'top'; expected 'right' or 'left'"),
        (
            {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer"},
            "add_prefix_space: true; expected false, as in the tokenizer.json: the tokens of a GPT2Tokenizer",
        ),
        (
            {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizerFast"},
            "of a RobertaTokenizer would",
        ),
    ],
    ids=str,
)
def test_settings_that_contradict_the_file(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"tokenizer_config.json: .*{message}"):
        find_tokenizer(with_settings(tmp_path, **settings))


def test_settings_that_transformers_ignores(tmp_path: Path) -> None:
    """The generic class takes the blank in front of texts from the tokenizer.json."""
    ours = find_tokenizer(with_settings(tmp_path, add_prefix_space=True))
    assert ours.encode("fox") == transformers.AutoTokenizer.from_pretrained(tmp_path).encode(
        "fox", add_special_tokens=False
    )


def test_special_tokens_that_templates_could_not_spell_out(tmp_path: Path) -> None:
    ours = find_tokenizer(with_settings(tmp_path, split_special_tokens=True))
    assert ours.encode("fox") == find_tokenizer(saved("byte-level", tmp_path / "plain")).encode("fox")
    with pytest.raises(DataError, match="split_special_tokens: true; expected false, because templates"):
        ours.encode_with_special_tokens("fox<|im_end|>")


ENDS: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({"tokenizer_config.json": {"eos_token": "</s>"}}, {}, 2),
    ({"tokenizer_config.json": {"eos_token": {"content": "</s>", "special": True}}}, {}, 2),
    ({"special_tokens_map.json": {"eos_token": "<unk>"}}, {}, 0),
    ({"config.json": {"eos_token_id": 2}}, {}, 2),
    ({"generation_config.json": {"eos_token_id": [2, 0]}, "config.json": {"eos_token_id": 0}}, {}, 2),
    ({"tokenizer_config.json": {"eos_token": "</s>"}, "config.json": {"eos_token_id": 0}}, {}, 2),
    ({"tokenizer_config.json": {"eos_token": None, "sep_token": "<unk>"}}, {}, 0),
    ({"tokenizer_config.json": {"eos_token": "</s>"}}, {"eos": "<s>"}, 1),
    ({}, {"eos": 2}, 2),
]


@pytest.mark.parametrize(("files", "fields", "expected"), ENDS, ids=str)
def test_where_the_end_is_found(
    tmp_path: Path, files: dict[str, Any], fields: dict[str, Any], expected: int
) -> None:
    saved("byte-fallback", tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours = HuggingFaceConfig(path=tmp_path / "tokenizer.json", **fields).build(unread)
    assert ours.eos_id == expected
    kept = tmp_path / "kept"
    kept.mkdir()
    ours.save(kept)
    assert load_tokenizer(kept).eos_id == expected


BAD: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"tokenizer.json": "{}"}, {}, r"tokenizer\.json: not a tokenizer\.json: "),
    ({"tokenizer.json": "\x00"}, {}, r"tokenizer\.json: not a tokenizer\.json: "),
    ({"tokenizer_config.json": "[]"}, {}, r"tokenizer_config\.json: a list; expected an object"),
    ({"tokenizer_config.json": "{"}, {}, r"tokenizer_config\.json: not JSON: "),
    (
        {"tokenizer_config.json": "{}"},
        {},
        r"tokenizer\.json: no file in its folder says which token ends a document \(.*, eos: '</s>'",
    ),
    ({}, {"eos": "<end>"}, r"the end of a document is '<end>', which is no token of the 300 there"),
    ({}, {"eos": 300}, r"the end of a document is 300, which is no token of the 300 there"),
    ({}, {"eos": -1}, r"the end of a document is -1, which is no token of the 300 there"),
]


@pytest.mark.parametrize(("files", "fields", "message"), BAD, ids=str)
def test_what_cannot_be_used(
    tmp_path: Path, files: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    saved("byte-level", tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        HuggingFaceConfig(path=tmp_path, **fields).build(unread)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json: No such file"):
        HuggingFaceConfig(path=tmp_path).build(unread)
    with pytest.raises(DataError, match=r"nothing\.json: No such file"):
        HuggingFaceConfig(path=tmp_path / "nothing.json").build(unread)


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("byte-level", tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"package tokenizers: pip install '\.\[hf\]'"):
        HuggingFaceConfig(path=tmp_path).build(unread)


def test_the_tokenizer_of_any_folder(tmp_path: Path) -> None:
    """A tokenizer.json before a tokenizer.model; a folder called `tokenizer` before both."""
    pieces = SentencePieceConfig(vocab_size=300).build(lambda: iter(TEXT))
    (tmp_path / "tokenizer.model").write_bytes(pieces.processor.serialized_model_proto())
    assert find_tokenizer(tmp_path).hash == pieces.hash
    assert find_tokenizer(tmp_path / "tokenizer.model").hash == pieces.hash
    saved("byte-level", tmp_path)
    assert find_tokenizer(tmp_path).type == "huggingface"
    (tmp_path / "tokenizer").mkdir()
    ByteTokenizer().save(tmp_path / "tokenizer")
    assert find_tokenizer(tmp_path).type == "byte"
    (tmp_path / "tokenizer/empty").mkdir()
    for nothing, where in (("tokenizer/empty", "empty"), ("nowhere", "nowhere, which is no folder")):
        expected = r"expected zoo-tokenizer\.json, tokenizer\.json or tokenizer\.model there or in its folder"
        with pytest.raises(DataError, match=rf"no tokenizer in .*{where}: {expected} 'tokenizer'"):
            find_tokenizer(tmp_path / nothing)


def prepared(folder: Path, tokenizer: Path, vocab_size: int) -> None:
    """Prepare a text for a training of a model with a vocabulary."""
    (folder / "text.txt").write_text("\n\n".join(TEXT), encoding="utf-8")
    data = load_config(
        {
            "data": {
                "corpus": {"type": "text", "paths": [str(folder / "text.txt")]},
                "tokenizer": {"type": "huggingface", "path": str(tokenizer)},
                "validation": 0,
                "context": 8,
                "cache_dir": str(folder / "cache"),
            },
            "model": {"type": "gpt", "vocab_size": vocab_size, "d_model": 16, "n_layers": 1, "n_heads": 2},
        }
    )
    assert data.data is not None
    assert isinstance(data.model, ModelConfig)
    data.data.prepare(data.model)


def test_special_tokens_that_no_text_becomes_need_no_room(tmp_path: Path) -> None:
    """Gemma 3's tokenizer has one for images, which its model for text does not have."""
    plain = opened("byte-fallback", tmp_path / "plain")
    tokenizer = find_tokenizer(saved("byte-fallback", tmp_path / "image", added=("<image>",)))
    assert (plain.needed_size, plain.vocab_size) == (294, 294)
    assert (tokenizer.needed_size, tokenizer.vocab_size) == (294, 295)
    assert max(tokenizer.encode("a <image>")) < 294
    assert tokenizer.encode_with_special_tokens("a <image>")[-1] == 294
    ends = HuggingFaceConfig(path=tmp_path / "image", eos="<image>").build(unread)
    assert ends.needed_size == 295
    check_vocabulary(tokenizer, 294)
    check_together(tmp_path, tokenizer, 294)
    prepared(tmp_path, tmp_path / "image", 294)
    with pytest.raises(DataError, match="'huggingface' has 295 tokens, but the model 293"):
        check_vocabulary(tokenizer, 293)


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path: Path) -> None:
    """Before anything is trained."""
    with pytest.raises(ZooError, match=r"'huggingface' has 300 tokens, but model\.vocab_size is 299"):
        prepared(tmp_path, saved("byte-level", tmp_path / "hub"), 299)
