"""`train.compile` changes the speed, not the result; what is compiled is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import of_kind, tiny
from torch._functorch._aot_autograd.autograd_cache import check_cacheable

from zoo import build_model
from zoo.kernels.graph_cache import cache_options, replays_graphs
from zoo.run.job import Job
from zoo.train.compilation import compiled_loss
from zoo.train.run import train
from zoo.utils.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own

ARCHITECTURES = (
    "gpt-tiny",
    "ngpt-tiny",
    "wesar-tiny",
    "bert-tiny",
    "t5-tiny",
    "ngpt-t5-tiny",
    "lstm-tiny",
    "resnet18-digits",
)


class Counter:
    """Traces, and counts the graphs; their operations run as they are: writing C++ takes a minute.

    A graph that torch would not cache, with its backward pass, is an error.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, differentiate: bool = False) -> None:
        self.graphs = 0
        original: Any = torch.compile

        def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            self.graphs += 1
            with torch._inductor.config.patch(cache_options()):
                check_cacheable(graph)
            return torch._dynamo.lookup_backend("aot_eager" if differentiate else "eager")(graph, inputs)

        torch._dynamo.reset()

        def counted(*args: Any, options: dict[str, Any], **how: bool) -> Any:
            assert options == cache_options()
            return original(*args, **how, backend=backend)

        monkeypatch.setattr(torch, "compile", counted)


@pytest.mark.parametrize(("how", "graphs"), [(True, 2), ("blocks", 4)])
def test_compiled_is_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: bool | str, graphs: int
) -> None:
    """Once for training and once for evaluation: not for a last batch, a resumed run or another run."""
    settings = {"steps": 3, "accumulation": 2, "z_loss": 1e-3, "eval_batches": None, "batch_size": 6}
    eager = train(tiny(tmp_path, "name=eager", "schedule=constant", **settings))
    counter = Counter(monkeypatch, differentiate=how is True)
    compiled = tiny(tmp_path, "name=compiled", "schedule=constant", compile=how, **settings)
    assert not train(compiled, until=2).finished
    assert counter.graphs == graphs
    folder = train(compiled, resume=True).folder
    train(tiny(tmp_path, "name=other", "schedule=constant", "seed=1", compile=how, **settings))
    assert counter.graphs == graphs
    for kind, keys in (("train", ("loss", "z_loss", "grad_norm")), ("validation", ("cross_entropy",))):
        for a, b in zip(of_kind(eager.folder, kind), of_kind(folder, kind), strict=True):
            assert [b[key] for key in keys] == pytest.approx([a[key] for key in keys], abs=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_have_no_graph_breaks_and_are_cached(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`fullgraph` makes a break an error; equal blocks share a graph."""
    model, same = build_model(name), build_model(name)
    batch = model.example(getattr(model.config, "streams", None) or 2, 16)
    torch.manual_seed(0)  # dropout
    expected = same.loss(*batch).total
    counter = Counter(monkeypatch)
    torch.manual_seed(0)
    total = compiled_loss(model, "blocks")(*batch).total
    torch.testing.assert_close(total, expected)
    kinds = {"gpt-tiny": 2, "wesar-tiny": 2, "ngpt-tiny": 3, "bert-tiny": 1, "t5-tiny": 3, "lstm-tiny": 1}
    assert counter.graphs == kinds.get(name, counter.graphs) > 0


def test_one_process_compiles_more_shapes_than_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps 8 graphs of a function; beyond, `blocks` ended with an error and `True` ran uncompiled.

    Here it keeps 2.
    """
    counter = Counter(monkeypatch)
    with torch._dynamo.config.patch(recompile_limit=2):
        for how in ("blocks", True):
            before = counter.graphs
            for heads in range(1, 5):
                model = build_model("gpt", vocab_size=16, d_model=4 * heads, n_layers=1, n_heads=heads)
                compiled_loss(model, how)(*model.example(2, 8))
            assert counter.graphs - before >= 4


def test_a_model_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.models.gpt import GPT

    monkeypatch.setattr(GPT, "compiled_parts", [])
    with pytest.raises(ConfigError, match=r"train.compile: blocks: model 'gpt' has no blocks"):
        compiled_loss(build_model("gpt-tiny"), "blocks")


def test_blocks_are_not_replayed_as_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    assert not replays_graphs(torch.device("cuda"))
    with config.patch({"triton.cudagraphs": True}):
        assert replays_graphs(torch.device("cuda"))
        assert not replays_graphs(torch.device("cpu"))
    monkeypatch.setattr("zoo.train.compilation.replays_graphs", lambda device: True)
    with pytest.raises(ConfigError, match=r"compile: blocks.*TORCHINDUCTOR_CUDAGRAPHS=1.*expected true"):
        compiled_loss(build_model("gpt-tiny"), "blocks")


def test_what_compile_may_be(tmp_path: Path) -> None:
    assert [Job.of(tiny(tmp_path, f"train.compile={how}")).train.compile for how in ("true", "blocks")] == [
        True,
        "blocks",
    ]
    with pytest.raises(ConfigError, match=r"train.compile.*value 'block'.*expected"):
        tiny(tmp_path, "train.compile=block")
