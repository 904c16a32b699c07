"""How often the ranks of a run talk to each other in a step: counted on eight ranks of which one is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import build_model, build_optimizer
from zoo.checkpoint.recipe import assemble
from zoo.init import Registry
from zoo.models import Model
from zoo.optim import Adafactor, adafactor
from zoo.optim.distributed_matrices import owners
from zoo.optim.matrices import is_hidden
from zoo.train.distributed import World
from zoo.train.monitor import Monitor
from zoo.train.step import global_norm
from zoo.utils.sharded import local

RANKS, LAYERS = 8, 3
SIZES: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": LAYERS, "n_heads": 2, "d_mlp": 48}
MODELS: dict[str, dict[str, Any]] = {"gpt": {}, "gpt-wesar": {"reparam": "wesar", "init": "he"}, "ngpt": {}}
GATHER, SCATTER = "_allgather_base_", "_reduce_scatter_base_"
REDUCE, EXCHANGE = "allreduce_", "alltoall_base_"

# The first is about changes in place, which no block makes; the second about a hook of CommDebugMode.
pytestmark = [
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

STEPS = [
    ("adamw", "gpt", {}),  # elementwise: nothing to exchange
    ("adamw", "gpt-wesar", {}),
    ("adamw", "ngpt", {REDUCE: 1}),  # the norms of the matrices whose vectors are columns
    ("amos", "gpt", {REDUCE: 1}),  # means over all entries of vectors
    ("adafactor", "gpt", {REDUCE: 2}),
    ("adafactor", "ngpt", {REDUCE: 3}),
    ("muon", "gpt", {EXCHANGE: 2}),
    ("muon", "ngpt", {EXCHANGE: 2, REDUCE: 1}),
    ({"type": "muon", "split_heads": True}, "gpt", {EXCHANGE: 2}),  # also over matrices that are split
    ({"type": "muon", "cautious": True}, "gpt", {EXCHANGE: 2, REDUCE: 1}),  # the kept entries
    ("normuon", "gpt", {EXCHANGE: 2, REDUCE: 1}),  # the norms
    ({"type": "normuon", "split_heads": True}, "gpt", {EXCHANGE: 2, REDUCE: 1}),
    ({"type": "adamw", "cautious": True}, "gpt", {REDUCE: 1}),
    ("lion", "gpt", {}),
    ("mars", "gpt", {REDUCE: 1}),
    ("ademamix", "gpt", {}),
    ("schedule_free", "gpt", {}),
    ("prodigy", "gpt", {REDUCE: 1}),  # both sums of the estimate
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    dist.init_process_group("fake", rank=3, world_size=RANKS, store=FakeStore())
    yield World(3, RANKS, torch.device("cpu"), init_device_mesh("cpu", (RANKS,)))
    dist.destroy_process_group()


def counts(work: Callable[[], object]) -> dict[str, int]:
    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]  # torch does not annotate it
        work()
    return {str(kind).rpartition(".")[2]: n for kind, n in mode.get_comm_counts().items() if n}


def sharded(name: str, world: World) -> Model:
    recipe = build_model(name.split("-")[0], **SIZES, **MODELS[name], device="meta").recipe
    return assemble(recipe, 0, prepare=world.shard)


def backward(model: Model) -> None:
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    torch.autograd.backward(model.loss(tokens[:, :-1], tokens[:, 1:]).total)


def test_forward_and_backward(world: World) -> None:
    """Every block is gathered twice, the rest once, and each reduced once."""
    model = sharded("gpt", world)
    assert counts(lambda: backward(model)) == {GATHER: 2 * LAYERS + 1, SCATTER: LAYERS + 1}


@pytest.mark.parametrize(("optimizer", "name", "expected"), STEPS)
def test_update(world: World, optimizer: str | dict[str, Any], name: str, expected: dict[str, int]) -> None:
    model = sharded(name, world)
    built = build_optimizer(
        model, {"lr": 0.01, **({"type": optimizer} if isinstance(optimizer, str) else optimizer)}
    )
    backward(model)
    built.step()
    assert counts(built.step) == expected


def test_ranks_cut_a_step_of_adafactor_alike(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the ranks is of the same matrices on all of them, however many of the 9 rows a rank has."""
    assert world.mesh is not None
    matrices = [distribute_tensor(torch.ones(9, 8), world.mesh, [Shard(0)]) for _ in range(4)]
    optimizer = Adafactor([nn.Parameter(matrix) for matrix in matrices], lr=0.01)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    sums = counts(optimizer.step)[REDUCE]
    monkeypatch.setattr(adafactor, "ENTRIES_AT_A_TIME", 2 * 9 * 8)
    assert counts(optimizer.step) == {REDUCE: 2 * sums}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Bytes that this rank hands to each kind of collective."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            kind = func._schema.name.rpartition("::")[2]
            given = args[1] if kind == EXCHANGE else args[0]
            self.given[kind] += sum(t.nbytes for t in (given if isinstance(given, list) else [given]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("optimizer", "numbers"), [("muon", 0), ("normuon", 2)])
def test_bytes_of_an_orthogonal_update(world: World, optimizer: str, numbers: int) -> None:
    """Own rows there and own matrices back, in bfloat16; NorMuon: two numbers for each matrix."""
    model = sharded("gpt", world)
    built = build_optimizer(model, optimizer, lr=0.01)
    backward(model)
    built.step()
    with Traffic() as traffic:
        built.step()
    hidden = [entry.parameter for entry in Registry(model) if is_hidden(entry.spec)]
    sizes = [p.numel() for p in hidden]
    mine = sum(sizes[i] for i in owners(sizes, RANKS)[world.rank])
    rows = sum(local(p.detach()).numel() for p in hidden)
    assert traffic.given[EXCHANGE] == 2 * (rows + mine)
    assert traffic.given.get(REDUCE, 0) == 4 * numbers * len(hidden)
    assert mine <= sum(sizes) / RANKS + max(sizes)


def test_measurements(world: World) -> None:
    """The global norm takes one sum, the monitor two, whatever the number of matrices is."""
    model = sharded("gpt", world)
    backward(model)
    assert sum(counts(lambda: global_norm(p.grad for p in model.parameters())).values()) == 1
    monitor = Monitor(Registry(model))
    assert counts(monitor.see_gradient) == counts(monitor.measure) == {REDUCE: 1}


def test_work_is_shared_evenly() -> None:
    sizes = [16, 16, 16, 16, 64, 48, 48] * 5
    mine = owners(sizes, 8)
    assert sorted(i for theirs in mine for i in theirs) == [*range(len(sizes))]
    assert max(sum(sizes[i] for i in theirs) for theirs in mine) <= 1.1 * sum(sizes) / 8
