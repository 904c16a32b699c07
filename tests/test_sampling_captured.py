"""A step that is captured once and replayed writes the tokens of the plain loop.

On a processor the graph is one that writes operators down; that of CUDA is in tests/test_gpu.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recorded_graphs import RecordedGraphs
from test_sampling_compiled import ANSWERING, DECODERS, PROMPTS, model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo import Model, build_model, generate
from zoo.models import LanguageModel
from zoo.sampling import left_padded
from zoo.sampling.captured import WARM_UP, captured
from zoo.utils.errors import ZooError

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{str(fields): (fields, {}) for fields in DECODERS},
    **{str(fields): (fields, {"start_id": 7}) for fields in ANSWERING},
    "neox": ({"source": "neox", "rope_fraction": 0.5}, {}),
}


def recurrent() -> Model:
    return build_model("lstm", vocab_size=30, d_model=8, d_memory=8, seed=1)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraphs]:
    """The captures of a test."""
    made: list[RecordedGraphs] = []

    def make(device: torch.device) -> RecordedGraphs:
        made.append(RecordedGraphs(device))
        return made[-1]

    monkeypatch.setattr("zoo.sampling.loop.CUDAGraphs", make)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_the_same_tokens(name: str, graphs: list[RecordedGraphs]) -> None:
    """Greedy and drawn, with and without padding."""
    fields, ends = MODELS[name]
    net, (tokens, mask) = model(**fields), left_padded(PROMPTS)
    settings: tuple[dict[str, Any], ...] = (
        {"temperature": 0, "mask": mask},
        {"seed": 3, "top_k": 20, "repetition_penalty": 1.2},
    )
    for options in settings:
        plain = generate(net, tokens, 12, **options, **ends)
        assert torch.equal(generate(net, tokens, 12, cuda_graph=True, **options, **ends), plain)
    assert [g.replays for g in graphs] == [12 - 1 - WARM_UP] * 2


def test_a_recurrent_model(graphs: list[RecordedGraphs]) -> None:
    tokens = torch.tensor([[3, 1, 4], [1, 5, 9]])
    plain = generate(recurrent(), tokens, 12, seed=3)
    assert torch.equal(generate(recurrent(), tokens, 12, seed=3, cuda_graph=True), plain)
    assert graphs[0].replays == 12 - 1 - WARM_UP


def test_texts_that_end(graphs: list[RecordedGraphs]) -> None:
    net, tokens = model(**DECODERS[0]), left_padded(PROMPTS)[0]
    plain = generate(net, tokens, 20, seed=1)
    eos = int(plain[0, -8])
    expected = generate(net, tokens, 20, seed=1, eos_id=eos)
    assert torch.equal(generate(net, tokens, 20, seed=1, eos_id=eos, cuda_graph=True), expected)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_tokens(count: int, graphs: list[RecordedGraphs]) -> None:
    """Fewer than are read before the capture."""
    net, tokens = model(**DECODERS[0]), left_padded(PROMPTS)[0]
    expected = generate(net, tokens, count, temperature=0)
    assert torch.equal(generate(net, tokens, count, temperature=0, cuda_graph=True), expected)
    assert graphs[0].replays == 0


def test_a_number_of_the_host_would_be_seen() -> None:
    """What a step takes from the host stays what it was at the capture."""
    calls = 0

    def step(tokens: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return tokens + calls

    run = captured(step, RecordedGraphs(torch.device("cpu")))
    assert [int(run(torch.tensor(10))) for _ in range(5)] == [11, 12, 13, 13, 13]


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Refuses operators that a GPU is waited for, or that have tensors of the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        assert {t.device.type for t in tensors} <= {"meta"}, name
        return result


@torch.no_grad()
@pytest.mark.parametrize("name", [*MODELS, "lstm"])
def test_a_step_stays_on_its_device(name: str) -> None:
    """No number is read or copied between two tokens; the meta device has none that could be read."""
    fields, ends = MODELS.get(name, ({}, {}))
    net = (recurrent() if name == "lstm" else model(**fields)).to("meta").eval()
    assert isinstance(net, LanguageModel)
    start = net.start_generation(torch.zeros(2, 3, dtype=torch.int64, device="meta"), 5, **ends)
    start.read(start.tokens)
    start.cache.fix_shapes()
    tokens = torch.zeros(2, 1, dtype=torch.int64, device="meta")
    with OneDevice():  # type: ignore[no-untyped-call]
        assert start.read(tokens).shape == (2, 30)
        assert start.read(tokens).shape == (2, 30)


def test_without_a_gpu() -> None:
    with pytest.raises(ZooError, match="cuda_graph has no effect on cpu; expected a model on a GPU"):
        generate(model(**DECODERS[0]), left_padded(PROMPTS)[0], 3, cuda_graph=True)
