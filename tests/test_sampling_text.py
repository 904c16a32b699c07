"""Tokens to text as they come: whole characters, the right blanks, and nothing past a stop string."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import zoo
from transformers import RepetitionPenaltyLogitsProcessor

from zoo import build_model, generate
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.sentencepiece import SentencePieceConfig
from zoo.sampling import TextStreamer
from zoo.sampling.repetition import Repetition
from zoo.utils.errors import ZooError

TEXT = "naïve café — 漢字, 🙂 and  two blanks\n and so on\n"


def tokenizers() -> list[Tokenizer]:
    return [ByteTokenizer(), SentencePieceConfig(vocab_size=300).build(lambda: iter([TEXT[12:]] * 3))]


def written(tokenizer: Tokenizer, text: str, prompt: str = "", stop: tuple[str, ...] = ()) -> list[str]:
    """The pieces of a text, token by token; the prompt is in the first."""
    writer = TextStreamer(tokenizer.decode, tokenizer.encode(prompt), stop)
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
