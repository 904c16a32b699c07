"""Generation: the cache changes nothing, and every setting does what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo import build_model
from zoo.models import Decoder
from zoo.sampling import generate, sample
from zoo.sampling.repetition import Repetition
from zoo.utils.errors import DataError, ZooError

SIZES = {"vocab_size": 30, "d_model": 16, "n_layers": 2, "n_heads": 4}
MODELS: list[dict[str, Any]] = [
    {"source": "gpt"},
    {"source": "gpt", "n_kv_heads": 2, "qk_norm": True, "tied": True, "init": "he", "reparam": "wesar"},
    {"source": "ngpt"},
    {"source": "ngpt", "n_kv_heads": 1, "update": "slerp"},
]
LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])


def model(**changes: Any) -> Decoder:
    net = build_model(**{"source": "gpt", **SIZES, "seed": 1, **changes})
    assert isinstance(net, Decoder)
    return net


def prompt(batch: int = 3, time: int = 5) -> Tensor:
    return torch.randint(0, 30, (batch, time), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_cached_logits_are_those_of_the_whole(fields: dict[str, Any]) -> None:
    net, tokens = model(**fields), prompt(time=12)
    whole = net(tokens)
    cache = net.cache(3, 12)
    pieces = [net(part, cache) for part in torch.split(tokens, [5, 1, 1, 3, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_greedy_tokens_are_those_without_a_cache(fields: dict[str, Any]) -> None:
    net, tokens = model(**fields), prompt()
    found = generate(net, tokens, 20, temperature=0)
    for _ in range(20):
        tokens = torch.cat((tokens, net(tokens)[:, -1:].argmax(-1)), 1)
    assert torch.equal(found, tokens)


LSTM = {"source": "lstm", "vocab_size": 30, "d_model": 8, "d_memory": 8, "seed": 1}


@pytest.mark.parametrize("fields", [{**SIZES, **fields} for fields in MODELS] + [LSTM], ids=str)
def test_of_a_prompt_only_the_last_position_is_read_out(fields: dict[str, Any]) -> None:
    """A vocabulary of a hundred thousand makes the logits of a long prompt a gigabyte."""
    net, tokens = build_model(**fields).eval(), prompt()
    seen: list[int] = []
    net.get_submodule("read_out").register_forward_hook(lambda _, __, logits: seen.append(logits.shape[1]))
    generate(net, tokens, 3, temperature=0)
    assert seen == [1, 1, 1]
    torch.testing.assert_close(net(tokens, last=True), net(tokens)[:, -1:])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    net, tokens = model(), prompt()
    together = generate(net, tokens, 10, temperature=0)
    alone = torch.cat([generate(net, row[None], 10, temperature=0) for row in tokens])
    assert torch.equal(together, alone)


def test_the_seed_decides() -> None:
    net, tokens = model(), prompt()
    a, b, c = (generate(net, tokens, 20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(a[:, :5], tokens)


def test_stops_at_the_end_token() -> None:
    net, tokens = model(), prompt(1)
    greedy = generate(net, tokens, 20, temperature=0)[0, 5:].tolist()
    eos = greedy[3]
    stopped = generate(net, tokens, 20, temperature=0, eos_id=eos)[0, 5:].tolist()
    assert stopped == greedy[: greedy.index(eos) + 1]


def test_any_of_several_tokens_ends_a_text() -> None:
    """Each row is filled up with the token that has ended it."""
    net, tokens = model(), prompt()
    free = generate(net, tokens, 20, temperature=0)[:, 5:]
    ends = {int(free[0, 2]), int(free[-1, 4])}
    found = generate(net, tokens, 20, temperature=0, eos_id=ends)[:, 5:]
    for row, unstopped in zip(found.tolist(), free.tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(unstopped) if token in ends), 20)
        assert row[:end] == unstopped[:end][: len(row)]
        assert set(row[end:]) <= {unstopped[end - 1]}
    assert torch.equal(generate(net, tokens, 20, temperature=0, eos_id=())[:, 5:], free)


def test_rows_that_have_ended_are_filled_up() -> None:
    net, tokens = model(), prompt()
    free = generate(net, tokens, 20, temperature=0)[:, 5:]
    eos = int(free[0, 2])
    found = generate(net, tokens, 20, temperature=0, eos_id=eos)[:, 5:]
    for row, unstopped in zip(found.tolist(), free.tolist(), strict=True):
        end = unstopped.index(eos) + 1 if eos in unstopped else 20
        assert row[:end] == unstopped[:end][: len(row)]
        assert set(row[end:]) <= {eos}


def test_the_mode_is_left_as_it_was() -> None:
    net = model()
    for training in (True, False):
        net.train(training)
        generate(net, prompt(), 2)
        assert net.training is training


def drawn(**settings: Any) -> Tensor:
    """The frequencies of 20000 samples."""
    generator = torch.Generator().manual_seed(0)
    arguments = {"temperature": 1.0, "top_k": None, "top_p": None, **settings}
    tokens = sample(LOGITS.expand(20_000, -1), **arguments, generator=generator)
    return torch.bincount(tokens.flatten(), minlength=5) / 20_000


DISTRIBUTIONS: list[tuple[dict[str, Any], Tensor]] = [
    ({}, LOGITS[0]),
    ({"temperature": 0.5}, 2 * LOGITS[0]),
    ({"temperature": 2.0}, LOGITS[0] / 2),
    ({"top_k": 2}, torch.tensor([2.0, 1.0, -torch.inf, -torch.inf, -torch.inf])),
    ({"top_k": 99}, LOGITS[0]),
    ({"top_p": 0.5}, torch.tensor([2.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf])),
    ({"top_p": 0.7}, torch.tensor([2.0, 1.0, -torch.inf, -torch.inf, -torch.inf])),
    ({"top_p": 1.0}, LOGITS[0]),
    ({"top_k": 3, "top_p": 0.9}, torch.tensor([2.0, 1.0, -torch.inf, -torch.inf, -torch.inf])),
]


@pytest.mark.parametrize(("settings", "logits"), DISTRIBUTIONS, ids=str)
def test_samples_follow_the_distribution(settings: dict[str, Any], logits: Tensor) -> None:
    """softmax(2, 1, 0, -1, -2) = .64 .23 .09 .03 .01."""
    torch.testing.assert_close(drawn(**settings), logits.softmax(-1), atol=0.012, rtol=0)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"prompt": torch.zeros(1, 0, dtype=torch.int64)},
        "prompt: expected (batch, time) with at least one",
    ),
    (
        {"prompt": torch.zeros(3, dtype=torch.int64)},
        "with at least one token, got (3,)",
    ),
    ({"prompt": [1, 2, 3]}, "prompt: expected a tensor (batch, time), got a list"),
    ({"mask": [[True]]}, "mask: expected a tensor (batch, time), got a list"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0; expected at least 1"),
    ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; expected a whole number"),
    ({"temperature": None}, "temperature is None; expected a number"),
    ({"temperature": "1"}, "temperature is '1'; expected a number"),
    ({"top_k": 4.0}, "top_k is 4.0; expected a whole number"),
    ({"seed": 1.5}, "seed is 1.5; expected a whole number"),
    ({"temperature": -1.0}, "temperature is -1.0; expected 0 or more"),
    (
        {"temperature": 1e-40},
        "temperature is 1e-40; expected at least 1.18e-38, because float32 divides by it",
    ),
    ({"repetition_penalty": 1e-45}, "repetition_penalty is 1e-45; expected at least 1.18e-38, because float"),
    ({"top_k": 0}, "top_k is 0; expected at least 1"),
    ({"top_p": 0.0}, "top_p is 0.0; expected more than 0 and at most 1"),
    ({"top_p": 1.5}, "top_p is 1.5; expected more than 0 and at most 1"),
    ({"temperature": 0.0, "top_k": 3}, "top_k has no effect at temperature 0"),
    ({"temperature": 0.0, "top_p": 0.5}, "top_p has no effect at temperature 0"),
    ({"temperature": 0.0, "seed": 0}, "seed has no effect at temperature 0"),
    ({"top_k": 30}, "top_k is 30, which has no effect with 30 tokens in the vocabulary"),
    ({"eos_id": 30}, "eos_id: id 30 is not in the vocabulary; expected 0 to 29"),
    ({"eos_id": [0, -1]}, "eos_id: id -1 is not in the vocabulary"),
    ({"start_id": 30}, "start_id: id 30 is not in the vocabulary"),
    ({"eos_id": "3"}, "eos_id: '3'; expected a token id, or several"),
    ({"eos_id": [2, 3.0]}, "eos_id: [2, 3.0]; expected a token id, or several"),
    ({"eos_id": torch.tensor(3.0)}, "eos_id: tensor(3.); expected a token id, or several"),
    ({"start_id": 1.5}, "start_id: 1.5; expected a token id, or several"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=str)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError) as caught:
        generate(model(), **{"prompt": prompt(), "max_new_tokens": 3, **settings})
    assert message in str(caught.value)


def test_numbers_of_numpy() -> None:
    plain = generate(model(), prompt(), 3, temperature=0.5, top_k=4, seed=1, eos_id=2)
    whole: dict[str, Any] = {"top_k": np.int64(4), "seed": np.int64(1), "eos_id": np.int64(2)}
    settings = {"temperature": np.float32(0.5), **whole}
    assert torch.equal(generate(model(), prompt(), 3, **settings), plain)


@pytest.mark.parametrize("end", [torch.tensor(4), torch.tensor([4]), np.array([4])], ids=str)
def test_the_end_of_a_text_may_be_a_tensor(end: Any) -> None:
    plain = generate(model(), prompt(), 6, temperature=0, eos_id=4)
    assert torch.equal(generate(model(), prompt(), 6, temperature=0, eos_id=end), plain)


def test_a_top_p_of_1_keeps_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those before which the sum of the probabilities, in float32, is above 1."""
    kept = []

    def draw(probabilities: Tensor, count: int, generator: torch.Generator) -> Tensor:
        kept.append(probabilities)
        return probabilities.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", draw)
    logits = torch.randn(30, 50_000, generator=torch.Generator().manual_seed(0))
    sample(logits, 1.0, None, 1.0, torch.Generator())
    assert torch.equal(kept[0], logits.sub(logits.amax(-1, keepdim=True)).softmax(-1))


@pytest.mark.parametrize("settings", [{"temperature": 2e-38}, {"top_p": 1e-300}], ids=str)
def test_the_smallest_settings_take_the_likeliest_token(settings: dict[str, Any]) -> None:
    arguments = {"temperature": 1.0, "top_k": None, "top_p": None, **settings}
    tokens = sample(100 * LOGITS.flip(1), **arguments, generator=torch.Generator())
    assert tokens.tolist() == [[4]]


def test_the_smallest_penalty_leaves_logits_finite() -> None:
    net, tokens = model(), prompt()
    assert generate(net, tokens, 5, repetition_penalty=2e-38).shape == (len(tokens), 10)
    largest = Repetition(2e-38)(100 * LOGITS, torch.tensor([[0, 1]]))[0]
    assert largest.tolist()[:2] == [torch.finfo().max] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_numbers(temperature: float) -> None:
    """A damaged file, or a training that diverged elsewhere."""
    net = model()
    torch.nn.init.constant_(net.get_parameter("embedding.weight"), torch.nan)
    with pytest.raises(ZooError, match="the model's logits are not finite"):
        generate(net, prompt(), 3, temperature=temperature)


@pytest.mark.parametrize(("token", "found"), [(30, 30), (-1, -1)])
def test_tokens_outside_the_vocabulary(token: int, found: int) -> None:
    with pytest.raises(DataError, match=rf"tokens: id {found} is not in the vocabulary; expected 0 to 29"):
        generate(model(), torch.tensor([[3, token, 4]]), 5)


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_a_model_in_bfloat16_keeps_keys_in_bfloat16(fields: dict[str, Any]) -> None:
    """Without another result: the keys are computed in it."""
    net, tokens = model(**fields).to(torch.bfloat16), prompt(time=12)
    narrow, wide = net.cache(3, 12), net.cache(3, 12, dtype=torch.float32)
    assert (narrow.layers[0].keys.dtype, wide.layers[0].keys.dtype) == (torch.bfloat16, torch.float32)
    for part in torch.split(tokens, [5, 1, 6], dim=1):
        assert torch.equal(net(part, narrow), net(part, wide))
