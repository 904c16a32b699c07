"""Tiny tokenizers of the Hugging Face hub, one for each way there is to make one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = ["the quick brown fox jumps over 13 lazy dogs, café 漢字\n", "def f(x):\n    return  x + 1\n"] * 8


def byte_level() -> Any:
    """As GPT-2's and Llama 3's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def byte_fallback() -> Any:
    """As Llama 2's: a blank in front, bytes for rare characters, a token that begins a text."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = sorted({c for text in TEXT for c in text.replace(" ", "\u2581") if c.isascii() or c == "\u2581"})
    vocab = {piece: i for i, piece in enumerate([*special, *(f"<0x{b:02X}>" for b in range(256)), *pieces])}
    model = models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram() -> Any:
    """As T5's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "byte-level": (byte_level, None, "<|endoftext|>"),
    "byte-fallback": (byte_fallback, "<s>", "</s>"),
    "unigram": (unigram, None, "</s>"),
}
"""How each is made, and the tokens that begin a text and end a document."""


def saved(name: str, folder: Path, added: tuple[str, ...] = ()) -> Path:
    """A tokenizer of `TOKENIZERS` in a folder, as its makers publish it, and special tokens after its own."""
    make, bos, eos = TOKENIZERS[name]
    folder.mkdir(exist_ok=True)
    tokenizer = make()
    tokenizer.add_special_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"clean_up_tokenization_spaces": False}), encoding="utf-8"
    )
    return folder
