"""Which optimizers of torch and pytorch_optimizer train zoo's models: the table of docs/optimizers.md.

    python tests/optimizer_table.py        write the table into docs/optimizers.md

Every class is tried on three tiny models: two steps, a resume from the saved state, and the same on two
ranks of gloo, whose weights are compared with those of one process.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_optimizer
import torch
from torch.optim import Optimizer
from two_ranks import on_two_ranks

from zoo import build_model, build_optimizer
from zoo.checkpoint.safetensors import read_tensors, write_tensors
from zoo.models import Model
from zoo.optim.attach import spheres
from zoo.optim.averages import evaluation_weights
from zoo.optim.state import flatten, load_state_by_name, state_by_name, unflatten
from zoo.train.distributed import World
from zoo.utils.errors import ConfigError
from zoo.utils.sharded import gathered, whole

RANKS_FILE = Path(tempfile.gettempdir(), "zoo-optimizers-on-ranks.json")
PAGE = Path(__file__).parent.parent / "docs" / "optimizers.md"
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 12, "n_layers": 1, "n_heads": 2, "d_mlp": 7, "seed": 0}
# With gates of size 1: those of the paper's sigma are 158, and small steps would vanish in float32.
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"source": "gpt"},
    "ngpt": {"source": "ngpt"},
    "wesar": {"source": "gpt", "init": "he", "reparam": {"type": "wesar", "sigma2": 1.0}},
}
LR = 0.01
RATES = dict.fromkeys(
    ("Prodigy", "DAdaptAdaGrad", "DAdaptAdam", "DAdaptAdan", "DAdaptLion", "DAdaptSGD"), 1.0
)
"""Learning rates of optimizers that estimate their own and multiply it by this one."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "BSAM": {"num_data": 1},
    "Ranger21": {"num_iterations": 10},
    "AdaShift": {"keep_num": 1},
}
"""Arguments without default, and one by which the first step would be the tenth."""


def classes() -> dict[str, type[Optimizer]]:
    """Every class of optimizers of torch and pytorch_optimizer, by its path."""
    modules = {"torch.optim": torch.optim, "pytorch_optimizer": pytorch_optimizer}
    found = {f"{path}.{n}": c for path, module in modules.items() for n, c in vars(module).items()}
    ours = {path: c for path, c in found.items() if isinstance(c, type) and issubclass(c, Optimizer)}
    reexported = {c for c in ours.values() if c.__module__.startswith("torch.")}
    return {
        path: c
        for path, c in sorted(ours.items(), key=lambda item: item[0].lower())
        if c is not Optimizer and (c not in reexported or path.startswith("torch."))
    }


def build(model: Model, cls: type[Optimizer]) -> Optimizer:
    name = cls.__name__
    return build_optimizer(model, cls, lr=RATES.get(name, LR), **ARGUMENTS.get(name, {}))


def model_of(kind: str) -> Model:
    return build_model(**MODELS[kind], **SIZES)


def step(model: Model, optimizer: Optimizer, seed: int) -> float:
    """One step on made-up tokens; returns the loss before it."""
    torch.manual_seed(seed)  # some optimizers draw random numbers,
    np.random.seed(seed)  # noqa: NPY002  # Kron draws from numpy
    tokens = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    loss = model.loss(tokens[:, :-1], tokens[:, 1:]).total
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.item()


def train(kind: str, cls: type[Optimizer]) -> str:
    """Two steps, and a third one by a resumed twin: "yes", or what is wrong."""
    model = model_of(kind)
    optimizer = build(model, cls)
    try:
        return trained(kind, cls, model, optimizer)
    except RuntimeError as error:  # LoRARite wants parameters in pairs
        return type(error).__name__


def trained(kind: str, cls: type[Optimizer], model: Model, optimizer: Optimizer) -> str:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moved: set[str] = set()
    for seed in range(2):
        if not math.isfinite(step(model, optimizer, seed)):
            return "not finite"
        moved |= {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    if not all(p.isfinite().all() for p in model.parameters()):
        return "not finite"
    if largest := sphere_error(model):
        return f"norm off by {largest:.0e}"
    if not moved:
        return "nothing moves"
    if resumed := resumes(kind, cls, model, optimizer):
        return resumed
    return "yes" if len(moved) == len(before) else f"{len(moved)} of {len(before)} tensors move"


def resumes(kind: str, cls: type[Optimizer], model: Model, optimizer: Optimizer) -> str:
    """Save and load through a file and compare the next step bit for bit: what differs, or nothing."""
    twin = model_of(kind)
    with evaluation_weights(optimizer, model):
        twin.load_state_dict(model.state_dict())
    other = build(twin, cls)
    with tempfile.TemporaryDirectory() as folder:
        tensors, structure = flatten(state_by_name(optimizer))
        write_tensors(Path(folder, "state"), gathered(tensors), structure)
        load_state_by_name(other, unflatten(*read_tensors(Path(folder, "state"))))
    step(model, optimizer, 2)
    step(twin, other, 2)
    same = [torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)]
    return "" if all(same) else "resumes inexactly"


def sphere_error(model: Model) -> float:
    """How far a norm on a sphere is from 1; 0 if it is not far."""
    errors = [(p.detach().norm(dim=dim) - 1).abs().max().item() for _, p, dim in spheres(model)]
    return largest if (largest := max(errors, default=0.0)) > 1e-6 else 0.0


def on_ranks(ours: World, kind: str, cls: type[Optimizer]) -> str:
    """Three steps of a sharded model and of a whole one: "yes" if they agree, otherwise what is wrong."""
    single, sharded = model_of(kind), model_of(kind)
    ours.shard(sharded)
    try:
        optimizers = [build(single, cls), build(sharded, cls)]
        for seed in range(3):
            for model, optimizer in zip((single, sharded), optimizers, strict=True):
                step(model, optimizer, seed)
        pairs = zip(single.parameters(), sharded.parameters(), strict=True)
        same = [torch.allclose(whole(b.detach()), a.detach(), rtol=1e-5, atol=1e-6) for a, b in pairs]
    except ConfigError:
        return "one process"
    except Exception as error:  # whatever an optimizer does with a DTensor
        return type(error).__name__
    return "yes" if all(same) else "differs"


def refusal(path: str) -> str:
    """Why an optimizer is refused, or nothing."""
    try:
        build(model_of("gpt"), classes()[path])
    except ConfigError as error:
        return str(error).removeprefix("optimizer: ").partition(": ")[2]
    return ""


def all_ranks(ours: World) -> None:
    """On a rank: try every optimizer that is served, and leave what came out in `RANKS_FILE`."""
    served = {path: cls for path, cls in classes().items() if not refusal(path)}
    results = {}
    for path, cls in served.items():
        if ours.is_main:
            print(path, flush=True)
        results[path] = {kind: on_ranks(ours, kind, cls) for kind in MODELS}
    if ours.is_main:
        RANKS_FILE.write_text(json.dumps(results), "utf-8")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def served_row(path: str, on_one: Mapping[str, str], on_two: Mapping[str, str]) -> list[str]:
    """A line of the table of what is served."""
    return [f"`{path}`", *on_one.values(), *on_two.values()]


def refused_row(path: str) -> list[str]:
    """A line of the table of what is refused."""
    return [f"`{path}`", refusal(path).replace("|", "\\|")]


SERVED_HEAD = ("class", *MODELS, *(f"{kind}, 2 ranks" for kind in MODELS))
REFUSED_HEAD = ("class", "why")


def main() -> None:
    """Write both tables between the markers of the page."""
    on_two_ranks(all_ranks)
    on_two = json.loads(RANKS_FILE.read_text("utf-8"))
    served, refused = [], []
    for path, cls in classes().items():
        if refusal(path):
            refused.append(refused_row(path))
        else:
            served.append(served_row(path, {kind: train(kind, cls) for kind in MODELS}, on_two[path]))
    page = PAGE.read_text("utf-8")
    for name, text in (("served", table(SERVED_HEAD, served)), ("refused", table(REFUSED_HEAD, refused))):
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + text + end + rest.partition(end)[2]
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
