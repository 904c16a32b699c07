"""The compiled step gives the tokens of the plain loop, and serves them all without compiling again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from zoo import build_model, generate
from zoo.models import Decoder, LanguageModel, Model
from zoo.sampling import Sampling, left_padded, payoff, steps
from zoo.utils.errors import DataError, ZooError

SIZES = {"vocab_size": 30, "d_model": 16, "n_layers": 1, "n_heads": 4}
DECODERS: list[dict[str, Any]] = [
    {"source": "gpt", "n_kv_heads": 2, "qk_norm": True, "tied": True, "init": "he", "reparam": "wesar"},
    {"source": "ngpt", "n_kv_heads": 1},
    {"source": "gpt2", "context": 40},
]
LONG_ROPE: dict[str, Any] = {
    "source": "gpt",
    "rope_scaling": {
        "type": "longrope",
        "short": [1.0, 1.0],
        "long": [9.0, 90.0],
        "context": 40,
        "factor": 4.0,
    },
}
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


def model(**fields: Any) -> LanguageModel:
    net = build_model(**{**SIZES, "seed": 1, **fields})
    assert isinstance(net, LanguageModel)
    return net


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


@torch.no_grad()
@pytest.mark.parametrize("added", [30, 33, 34])
def test_frequencies_by_the_length_of_the_text(added: int) -> None:
    """Not by the room of the cache, which is above the original context of 40 tokens for all lengths, nor
    by the last token, which is not read."""
    net, tokens = model(**LONG_ROPE), left_padded(PROMPTS)[0]
    start = net.start_generation(tokens, added, multiple_of=64)
    whole = torch.cat((tokens, tokens.repeat(1, 5)[:, : added - 1]), 1)
    logits = [start.read(tokens)]
    start.cache.fix_shapes()
    logits += [start.read(token) for token in torch.split(whole[:, 8:], 1, 1)]
    torch.testing.assert_close(torch.stack(logits, 1), net(whole)[:, 7:], atol=1e-5, rtol=0)
    generate(net, tokens, 30, compile=True)
    generate(net, tokens, 34, compile=True)
    assert graphs() == 1


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
    with pytest.raises(
        ZooError, match=r"the step cannot be compiled here, expected compile=False: .*no compiler"
    ):
        generate(model(**DECODERS[0]), left_padded(PROMPTS)[0], 3, compile=True)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step pays after 20 tokens instead of two thousand."""
    monkeypatch.setattr(payoff, "PAYS", 20)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("fields", [*DECODERS, *ANSWERING], ids=str)
def test_compiled_by_itself(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A step is compiled from the call on that reaches the number of tokens, and only its own shape."""
    net, tokens = model(**fields), left_padded(PROMPTS)[0]
    start_id = None if fields in DECODERS else 7
    for call in range(3):
        assert torch.equal(
            generate(net, tokens, 9, temperature=0, start_id=start_id),
            generate(net, tokens, 9, temperature=0, start_id=start_id, compile=False),
        )
        # A call counts before it begins, and that it is repeated without the compiler counts too.
        assert graphs() == (1 if call else 0), call
    assert caplog.text.count("compiling the step") == 1
    generate(net, tokens[:1], 9, temperature=0, start_id=start_id)
    assert graphs() == 1, "one prompt is another shape"


@pytest.mark.usefixtures("soon")
def test_a_text_that_may_end_is_counted_when_it_is_written() -> None:
    net, prompt = model(**DECODERS[0]), torch.tensor([[3, 1, 4]])
    for compiled in (0, 1):
        generate(net, prompt, 30, temperature=0, eos_id=29)
        assert graphs() == compiled


@pytest.mark.usefixtures("soon")
def test_without_a_compiler_a_step_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is told once."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend=broken))
    net, tokens = model(**DECODERS[0]), left_padded(PROMPTS)[0]
    expected = generate(net, tokens, 30, temperature=0, compile=False)
    for _ in range(2):
        assert torch.equal(generate(net, tokens, 30, temperature=0), expected)
    assert caplog.text.count("it is taken without: ") == 1
    assert "no compiler" in caplog.text
