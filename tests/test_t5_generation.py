"""Targets of encoder-decoders: with caches or without, and as transformers generates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from torch import Tensor, nn
from transformers import T5Config as HFConfig
from transformers import T5ForConditionalGeneration

from zoo import build_model
from zoo.hub.folder import load_folder
from zoo.models import EncoderDecoder
from zoo.sampling import generate
from zoo.utils.errors import DataError, ZooError

SIZES = {"vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 6}
MODELS: list[dict[str, Any]] = [
    {"source": "t5", "n_decoder_layers": 3, "init": "amos"},
    {"source": "ngpt-t5"},
    {"source": "ngpt-t5", "qk_norm": False, "update": "slerp", "init": "he", "reparam": "wesar"},
]


def model(**changes: Any) -> EncoderDecoder:
    net = build_model(**{"source": "t5", **SIZES, "seed": 1, **changes})
    assert isinstance(net, EncoderDecoder)
    return net


def sources() -> tuple[Tensor, Tensor]:
    """Sources of different lengths and their mask."""
    tokens = torch.randint(30, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    return tokens, mask


@torch.no_grad()
@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize("pieces", [[1] * 8, [5, 1, 2], [8]])
def test_cached_logits_are_those_of_the_whole(fields: dict[str, Any], pieces: list[int]) -> None:
    net = model(**fields)
    source, mask = sources()
    prefix = torch.randint(30, (3, 8), generator=torch.Generator().manual_seed(2))
    cache, memory = net.cache(3, 8, torch.device("cpu")), net.encode(source, mask)
    parts = [net.decode(piece, memory, mask, cache) for piece in torch.split(prefix, pieces, 1)]
    torch.testing.assert_close(
        net.read_out(torch.cat(parts, 1)), net(source, prefix, mask), atol=1e-5, rtol=0
    )
    with pytest.raises(DataError, match="1 more do not fit the cache: 8 of 8 positions are used"):
        net.decode(prefix[:, :1], memory, mask, cache)


@torch.no_grad()
@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_greedy_tokens_are_those_without_a_cache(fields: dict[str, Any]) -> None:
    net = model(**fields)
    source, mask = sources()
    found = generate(net, source, 20, temperature=0, start_id=7, mask=mask)
    prefix = torch.full((3, 1), 7)
    for _ in range(20):
        prefix = torch.cat((prefix, net(source, prefix, mask)[:, -1:].argmax(-1)), 1)
    assert torch.equal(found, prefix[:, 1:])
    alone = generate(net, source[1:2, :4], 20, temperature=0, start_id=7)
    assert torch.equal(alone, found[1:2]), "a source does not depend on its neighbours or its padding"


def test_the_source_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the encoder nor the keys and values of the source are computed again for every token."""
    net, calls = model(), {"encode": 0, "keys": 0}
    encode = net.encode

    def counted(*args: Any) -> Tensor:
        calls["encode"] += 1
        return encode(*args)

    monkeypatch.setattr(net, "encode", counted)
    cross = net.decoder_blocks[0].get_submodule("cross.k")
    cross.register_forward_hook(lambda *_: calls.update(keys=calls["keys"] + 1))
    generate(net, sources()[0], 10, start_id=0)
    assert calls == {"encode": 1, "keys": 1}


def test_greedy_targets_are_those_of_transformers(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "d_ff": 40, "d_kv": 6, "num_heads": 4}
    sizes |= {"num_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    sizes |= {"decoder_start_token_id": 3}
    hf: Any = T5ForConditionalGeneration(HFConfig(**sizes))
    hf.lm_head.weight = nn.Parameter(torch.empty(61, 32))
    generator = torch.Generator().manual_seed(5)
    for p in hf.parameters():
        p.data.normal_(0, 0.5, generator=generator)
    hf.eval().save_pretrained(tmp_path)
    net, _ = load_folder(tmp_path)
    source, mask = sources()
    settings = {"max_new_tokens": 30, "do_sample": False, "num_beams": 1, "eos_token_id": None}
    expected = hf.generate(source, attention_mask=mask.long(), **settings)
    found = generate(net, source, 30, temperature=0, start_id=3, mask=mask)
    assert torch.equal(found, expected[:, 1:])
    assert len(set(found[0].tolist())) > 3, "something happens"
    eos = int(found[0, 7])
    stopped = generate(net, source[:1], 30, temperature=0, start_id=3, mask=mask[:1], eos_id=eos)
    assert stopped[0].tolist() == found[0].tolist()[: found[0].tolist().index(eos) + 1]


def test_the_seed_decides() -> None:
    net, (source, _) = model(), sources()
    a, b, c = (generate(net, source, 20, seed=seed, start_id=0) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_settings_that_have_no_effect() -> None:
    source, _ = sources()
    with pytest.raises(ZooError, match="start_id is missing; the targets of an encoder-decoder"):
        generate(model(), source, 3)
    decoder = build_model("gpt", vocab_size=30, d_model=16, n_layers=1, n_heads=2)
    with pytest.raises(ZooError, match="start_id has no effect on a model that is no encoder-decoder"):
        generate(decoder, source, 3, start_id=0)


def test_a_run_fills_in_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, a prompt with a sentinel in it."""
    text = tmp_path / "text"
    text.mkdir()
    for i in range(20):
        (text / f"{i}.txt").write_text("the quick brown fox jumps over the lazy dog " * 4, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = "data.corpus={type: text, paths: [text]}"
    zoo("train", "t5-tiny", corpus, "train.steps=6", "train.eval_every=6")
    capsys.readouterr()
    prompt = ["--prompt", "the <extra_id_0> fox", "--max-new-tokens", "5", "--temperature", "0"]
    zoo("generate", "runs/t5-tiny", *prompt)
    out = capsys.readouterr().out
    assert (tmp_path / "runs/t5-tiny/sample.txt").read_text(encoding="utf-8") == out.removesuffix("\n")
