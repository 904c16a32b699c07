"""The compiled step gives the tokens of the plain loop, and serves them all without compiling again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from zoo import build_model, generate
from zoo.models import Decoder, Model
from zoo.sampling import Sampling, left_padded, steps
from zoo.utils.errors import DataError, ZooError

SIZES = {"vocab_size": 30, "d_model": 16, "n_layers": 1, "n_heads": 4}
DECODERS: list[dict[str, Any]] = [
    {"source": "gpt", "n_kv_heads": 2, "qk_norm": True, "tied": True, "init": "he", "reparam": "wesar"},
    {"source": "ngpt", "n_kv_heads": 1},
    {"source": "gpt2", "context": 40},
]
ANSWERING: list[dict[str, Any]] = [{"source": "t5"}, {"source": "ngpt-t5"}]
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1], [5, 6, 7, 8, 9]]

COMPILE = torch.compile

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Traced and guarded as for the real backend, which would spend half a minute on writing C++."""
    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def model(**fields: Any) -> Model:
    return build_model(**{**SIZES, "seed": 1, **fields})


def graphs() -> int:
    """How often something was compiled."""
    return int(counters["stats"]["unique_graphs"])


def check(net: Model, *, padded: bool, **ends: Any) -> None:
    tokens, mask = left_padded(PROMPTS)
    for settings in ({"temperature": 0}, {"seed": 3, "top_k": 20, "repetition_penalty": 1.2}):
        options = {**settings, **ends, "mask": mask if padded else None}
        plain = generate(net, tokens, 30, **options)
        assert torch.equal(generate(net, tokens, 30, compile=True, **options), plain)
    generate(net, tokens, 25, compile=True, **options)
    assert graphs() == 1, "one step for all tokens of three texts"


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("fields", DECODERS, ids=str)
def test_continuing(fields: dict[str, Any], padded: bool) -> None:
    check(model(**fields), padded=padded)


@pytest.mark.parametrize("fields", ANSWERING, ids=str)
def test_answering(fields: dict[str, Any]) -> None:
    """The mask is that of the source."""
    check(model(**fields), padded=True, start_id=7)


def test_a_recurrent_model() -> None:
    check(build_model("lstm", vocab_size=30, d_model=8, d_memory=8), padded=False)


@torch.no_grad()
@pytest.mark.parametrize("pieces", [[1] * 6, [3, 2, 1]])
def test_logits_of_a_fixed_cache_are_those_of_the_whole(pieces: list[int]) -> None:
    """Whatever stands behind them in a cache with more room."""
    net, tokens = model(**DECODERS[0]), torch.arange(10).reshape(1, 10)
    assert isinstance(net, Decoder)
    cache = net.cache(1, 16)
    for layer in cache.layers:
        layer.keys.fill_(3.0)
        layer.values.fill_(-5.0)
    logits = [net(tokens[:, :4], cache)]
    cache.fix_shapes()
    logits += [net(piece, cache) for piece in torch.split(tokens[:, 4:], pieces, 1)]
    torch.testing.assert_close(torch.cat(logits, 1), net(tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize("compile", [False, True])
def test_no_more_tokens_than_positions(compile: bool) -> None:
    """Before the first token is written."""
    net = model(source="gpt2", context=12)
    tokens, _ = left_padded(PROMPTS)
    assert generate(net, tokens, 5, compile=compile).shape == (4, 13), "the last one is not read"
    with pytest.raises(DataError, match="generate: 13 tokens are read, but there are 12 positions"):
        next(steps(net, tokens, 6, Sampling(), compile=compile))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=broken))
    with pytest.raises(ZooError, match=r"the step cannot be compiled here, leave compile out: .*no compiler"):
        generate(model(**DECODERS[0]), left_padded(PROMPTS)[0], 3, compile=True)
