"""Tokens to text as they come: whole characters, the right blanks, and nothing past a stop string."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import hub_tokenizers
import pytest
import sentencepiece
import torch
from command_line import zoo
from transformers import RepetitionPenaltyLogitsProcessor

from zoo import build_model, generate, save_model
from zoo.data.objectives.span_corruption import SpanCorruption
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceConfig, SentencePieceTokenizer
from zoo.data.tokenizers.word import WordTokenizer
from zoo.evaluation.text_generator import TextGenerator
from zoo.sampling import Sampling, TextStreamer
from zoo.sampling.repetition import Repetition
from zoo.utils.errors import ZooError

TEXT = "naïve café — 漢字, 🙂 and  two blanks\n and so on\n"


def tokenizers() -> list[Tokenizer]:
    return [ByteTokenizer(), SentencePieceConfig(vocab_size=300).build(lambda: iter([TEXT[12:]] * 3))]


def written(tokenizer: Tokenizer, text: str, prompt: str = "", stop: tuple[str, ...] = ()) -> list[str]:
    """The pieces of a text, token by token; the prompt is in the first."""
    writer = TextStreamer(tokenizer.decode, tokenizer.encode(prompt), stop, tokenizer.is_final)
    pieces = []
    for token in tokenizer.encode(text):
        pieces.append(writer.add(token))
        if writer.stopped:
            break
    return [*pieces, writer.end()]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=lambda t: t.type)
def test_pieces_are_the_text(tokenizer: Tokenizer) -> None:
    pieces = written(tokenizer, TEXT[5:], prompt=TEXT[:5])
    assert "".join(pieces) == TEXT
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 10, "they come as they are written"


def published_pieces() -> SentencePieceTokenizer:
    """As Llama's and T5's: a blank in front of a text, which is removed with all others there, and bytes."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(hub_tokenizers.TEXT),
        model_writer=file,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return SentencePieceTokenizer(file.getvalue(), "published")


def of_every_kind() -> dict[str, Tokenizer]:
    own: list[Tokenizer] = [*tokenizers(), WordTokenizer(["<eos>", "<unk>", "a", "bc"], "words")]
    published = {
        name: HuggingFaceTokenizer(make().to_str().encode(), {}, eos, name)
        for name, (make, _, eos) in hub_tokenizers.TOKENIZERS.items()
    }
    return {t.type: t for t in own} | {"published sentencepiece": published_pieces()} | published


KINDS = of_every_kind()


class Counted:
    """Decodes, and counts the tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.tokens = tokenizer, 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.tokens += len(ids)
        return self.tokenizer.decode(ids)


def drawn(tokenizer: Tokenizer, seed: int, length: int) -> list[int]:
    """Random tokens of the whole vocabulary or of a few, so that blanks, bytes and special tokens repeat."""
    rng = random.Random(seed)
    few = [rng.randrange(tokenizer.vocab_size) for _ in range(4)]
    return rng.choices(few if seed % 2 else range(tokenizer.vocab_size), k=length)


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_all_tokens_decoded_at_once(kind: str) -> None:
    tokenizer = KINDS[kind]
    for seed in range(60):
        ids = drawn(tokenizer, seed, 5 + seed)
        whole, n = tokenizer.decode(ids), seed % 3
        after = len(tokenizer.decode(ids[:n]))
        middle = (after + len(whole)) // 2
        stop = (whole[middle : middle + 2], "in no text") if middle + 1 < len(whole) and seed % 5 == 0 else ()
        writer = TextStreamer(tokenizer.decode, ids[:n], stop, tokenizer.is_final)
        written = "".join(map(writer.add, ids[n:])) + writer.end()
        assert written == (whole[: whole.index(stop[0], after)] if stop else whole), (seed, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_tokens_are_decoded_as_the_text_is_long(kind: str) -> None:
    """Also of those that make no text: invalid bytes, special tokens, ends of documents."""
    tokenizer = KINDS[kind]
    alone = [[token] * 1000 for token in (0, 1, 2, 0xC3, tokenizer.eos_id) if token < tokenizer.vocab_size]
    for ids in (drawn(tokenizer, 0, 1000), *alone):
        count = Counted(tokenizer)
        writer = TextStreamer(count, ids[:100], is_final=tokenizer.is_final)
        assert "".join(map(writer.add, ids[100:])) + writer.end() == tokenizer.decode(ids)
        assert count.tokens < 20 * len(ids)


def test_sentinels_between_the_spans_of_an_answer() -> None:
    """Each span is a text of its own, whose first blank is removed."""
    tokenizer, objective = KINDS["published sentencepiece"], SpanCorruption()
    words = tokenizer.encode("the fox jumps over dogs")
    ids = [
        token for i in range(3) for token in (tokenizer.vocab_size + 100 - i, *words, tokenizer.vocab_size)
    ]
    writer = TextStreamer(lambda part: objective.decode(part, tokenizer), is_final=tokenizer.is_final)
    assert "".join(map(writer.add, ids)) == objective.decode(ids, tokenizer)


def test_a_tokenizer_that_does_not_say_what_is_final() -> None:
    """A token that changes all later ones: everything is decoded again."""

    def decode(ids: list[int]) -> str:
        text, capitals = "", False
        for token in ids:
            capitals ^= token == 0
            text += "" if token == 0 else chr(token).upper() if capitals else chr(token)
        return text

    ids = [97, 98, 0, *[99] * 20, 0, 100]
    writer = TextStreamer(decode)
    assert [writer.add(token) for token in ids] == ["a", "b", "", *"C" * 20, "", "d"]


def test_the_command_decodes_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = build_model("gpt", vocab_size=256, d_model=16, n_layers=1, n_heads=2, seed=0)
    save_model(model, tmp_path)
    (folder := tmp_path / "tokenizer").mkdir()
    ByteTokenizer().save(folder)
    tokens, decode = 0, ByteTokenizer.decode

    def counting(self: ByteTokenizer, ids: Sequence[int]) -> str:
        nonlocal tokens
        tokens += len(ids := list(ids))
        return decode(self, ids)

    monkeypatch.setattr(ByteTokenizer, "decode", counting)
    TextGenerator(tmp_path).complete("a prompt", 200, Sampling(seed=0))
    assert 200 < tokens < 12 * 200


def test_bytes_that_are_no_character_are_told_at_the_end() -> None:
    writer = TextStreamer(ByteTokenizer().decode)
    assert [writer.add(0x61), writer.add(0xE2), writer.add(0x82)] == ["a", "", ""]
    assert writer.end() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=lambda t: t.type)
@pytest.mark.parametrize("stop", [("\n",), ("🙂",), ("nd  two",), ("zzz", "two blanx", "blanks", "lanks")])
def test_the_text_ends_before_a_stop_string(tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    """Stop strings run across tokens; a part of one is not shown, unless it turns out to be none."""
    end = min(TEXT.find(s) for s in stop if s in TEXT)
    assert "".join(written(tokenizer, TEXT, stop=stop)) == TEXT[:end]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=lambda t: t.type)
def test_a_stop_string_that_never_comes(tokenizer: Tokenizer) -> None:
    assert "".join(written(tokenizer, TEXT, stop=("on\n\n", "漢子"))) == TEXT


def test_the_prompt_may_hold_the_stop_string() -> None:
    assert "".join(written(ByteTokenizer(), "b.c.", prompt="a.", stop=(".",))) == "a.b"


def test_an_empty_stop_string() -> None:
    with pytest.raises(ZooError, match="stop is ''; expected at least one character"):
        TextStreamer(ByteTokenizer().decode, stop=["x", ""])


@pytest.mark.parametrize("penalty", [0.7, 1.5])
def test_the_penalty_is_that_of_transformers(penalty: float) -> None:
    generator = torch.Generator().manual_seed(0)
    theirs, ours = RepetitionPenaltyLogitsProcessor(penalty), Repetition(penalty)
    tokens = torch.randint(12, (3, 6), generator=generator)
    for first, last in [(0, 4), (4, 5), (5, 6)]:
        logits = torch.randn(3, 12, generator=generator)
        expected = theirs(tokens[:, :last], logits.clone())
        assert torch.equal(ours(logits, tokens[:, first:last]), expected)


def test_the_penalty_is_applied() -> None:
    net = build_model("gpt", vocab_size=30, d_model=16, n_layers=1, n_heads=2, seed=1)
    prompt = torch.tensor([[1, 2, 3]])
    found = generate(net, prompt, 20, temperature=0, repetition_penalty=1e6)[0].tolist()
    assert len(set(found)) == len(found), "nothing comes twice"


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (0.0, "repetition_penalty is 0.0; expected more than 0"),
        (1.0, "repetition_penalty has no effect at 1"),
    ],
)
def test_bad_penalties(penalty: float, message: str) -> None:
    net = build_model("gpt", vocab_size=30, d_model=16, n_layers=1, n_heads=2)
    with pytest.raises(ZooError, match=message):
        generate(net, torch.tensor([[1]]), 2, repetition_penalty=penalty)


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"paragraph {i} of some text, 漢字" for i in range(400)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = f"data.corpus={{type: text, paths: ['{text}'], document: passage}}"
    zoo("train", "gpt-tiny", corpus, "data.validation=0.2", "train.steps=4", "schedule.warmup=0")
    capsys.readouterr()

    def output(*options: str) -> str:
        settings = ["--prompt", "par 漢", "--max-new-tokens", "40", "--repetition-penalty", "1.1"]
        zoo("generate", "runs/gpt-tiny", *settings, *options)
        out = capsys.readouterr().out
        assert (tmp_path / "runs/gpt-tiny/sample.txt").read_text("utf-8") == out[:-1]
        return out

    plain = output()
    assert plain.startswith("par 漢")
    assert output("--stream") == plain
    stop = plain[10:12]
    expected = plain[: plain.index(stop, 5)] + "\n"
    for options in (["--stop", stop], ["--stop", "漢字漢字", "--stop", stop, "--stream"]):
        assert output(*options) == expected
    for option, value, message in [
        ("--stop", "", "stop is ''"),
        ("--repetition-penalty", "-1", "repetition_penalty is -1.0; expected more than 0"),
    ]:
        zoo("generate", "runs/gpt-tiny", "--prompt", "par", option, value, status=2)
        assert message in capsys.readouterr().err
