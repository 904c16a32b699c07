"""Steps of an unknown optimizer on small tensors: whether zoo's training loop can serve it, and how."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoo.optim.param_group import ParamGroup
from zoo.optim.state import flatten, load_state_by_name, state_by_name, unflatten
from zoo.utils.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

CLOSURE = "it needs a closure that evaluates the loss again; zoo computes one gradient for each step"
SECOND_ORDER = "it needs a second backward pass through the gradient; zoo computes the gradient alone"

HESSIAN = (
    "its `update_hessian` has to be called between the steps, which zoo does not; expected a class whose "
    "`step` does all"
)

SHAPES = ((6, 4), (5,))
SHARDS = (slice(0, 3), slice(3, None))
"""The rows of the parameters that each of two ranks would hold."""

ELEMENTWISE_STEPS = 10
TOLERANCE = 1e-4
"""Largest difference of two updates that count as equal, relative to the largest movement."""


@dataclass(frozen=True)
class Trial:
    """The optimizer that is tried out, and its settings.

    Attributes:
        optimizer_class: The class of the optimizer.
        build: A function that builds it from groups whose `params` are pairs of a name and a parameter.
        lr: The learning rate.
        vector_options: The options of the group of vectors; matrices have the defaults.
    """

    optimizer_class: type[Optimizer]
    build: Callable[[list[ParamGroup]], Optimizer]
    lr: float
    vector_options: Mapping[str, object]

    def start(self, values: Sequence[Tensor]) -> tuple[list[Tensor], Optimizer]:
        """Copies of a matrix and a vector as parameters, and the optimizer that trains them."""
        matrix, vector = parameters = [value.detach().clone().requires_grad_() for value in values]
        groups: list[ParamGroup] = [
            {"params": [("matrix", matrix)], "lr": self.lr},
            {"params": [("vector", vector)], "lr": self.lr, **self.vector_options},
        ]
        return parameters, self.build(groups)

    def step(
        self, parameters: Sequence[Tensor], optimizer: Optimizer, seed: int, rows: slice = slice(None)
    ) -> None:
        """Take a step with gradients drawn from `seed` for whole parameters, or with some rows of them."""
        torch.manual_seed(seed)
        gradients = [1 + torch.randn(shape) for shape in SHAPES]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[rows].to(parameter.dtype, copy=True)
        with explained(self.optimizer_class, "a step"):
            optimizer.step()


def check_trial(trial: Trial) -> None:
    """Take two steps, save and load the state, and compare the third step of both optimizers bit by bit.

    Raises:
        ConfigError: The optimizer cannot be built, stepped or resumed; the message says why.
    """
    with undisturbed():
        parameters, optimizer = trial.start(_values())
        trial.step(parameters, optimizer, 1)
        trial.step(parameters, optimizer, 2)
        if any(group["lr"] != trial.lr for group in optimizer.param_groups):
            raise ConfigError("it changes the learning rate of its groups, which the schedule sets")
        try:
            tensors, metadata = flatten(state_by_name(optimizer))
        except CheckpointError as error:
            raise ConfigError(f"its state cannot be saved: {error}") from error
        copies, twin = trial.start(parameters)
        saved = {name: tensor.contiguous() for name, tensor in tensors.items()}
        load_state_by_name(twin, unflatten(saved, metadata))
        trial.step(parameters, optimizer, 3)
        trial.step(copies, twin, 3)
        if not _same(parameters, copies):
            raise ConfigError("a step depends on more than its state and its groups: it cannot be resumed")


def ignores(trial: Trial, key: str, values: Iterable[float]) -> bool:
    """Whether steps move the parameters, and by the same with every value of a key of the groups."""
    start = _values()
    moved = []
    with undisturbed():
        for value in values:
            parameters, optimizer = trial.start(start)
            for group in optimizer.param_groups:
                group[key] = value
            for seed in range(2):
                trial.step(parameters, optimizer, seed)
            moved.append(parameters)
    return not _same(moved[0], start) and all(_same(moved[0], others) for others in moved[1:])


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all entries are equal or both NaN."""
    pairs = zip(some, others, strict=True)
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)


def is_elementwise(trial: Trial) -> bool:
    """Whether two optimizers that have half of the rows each update them as one that has all rows."""
    with undisturbed():
        values = [value.double() for value in _values()]
        whole, optimizer = trial.start(values)
        parts = [(rows, *trial.start([value[rows] for value in values])) for rows in SHARDS]
        try:
            for seed in range(ELEMENTWISE_STEPS):
                trial.step(whole, optimizer, seed)
                for rows, parameters, part in parts:
                    trial.step(parameters, part, seed, rows)
        except ConfigError:
            return False
        return all(
            bool(((parameter[rows] - shard).abs() <= TOLERANCE * (parameter - value).abs().max()).all())
            for rows, shards, _ in parts
            for parameter, value, shard in zip(whole, values, shards, strict=True)
        )


def check_sharded_steps(trial: Trial, like: DTensor) -> None:
    """Take two steps with sharded parameters on all ranks, because not every operation supports them.

    Args:
        trial: What is tried out.
        like: A parameter whose ranks and placements the trial takes.

    Raises:
        ConfigError: A step fails; the message says why.
    """
    from torch.distributed.tensor import distribute_tensor

    with undisturbed():
        values = [distribute_tensor(value, like.device_mesh, like.placements) for value in _values()]
        parameters, optimizer = trial.start(values)
        for _ in range(2):
            for parameter, value in zip(parameters, values, strict=True):
                parameter.grad = value.clone()
            with explained(trial.optimizer_class, "a step with sharded parameters"):
                optimizer.step()


def depends_on_weights(trial: Trial) -> bool:
    """Whether the displacement differs for other weights and the same gradients, beyond a common factor."""
    with undisturbed():
        starts = [[value.double() for value in _values()], [torch.zeros(s).double() for s in SHAPES]]
        runs = [(start, *trial.start(start)) for start in starts]
        directions = []
        for start, parameters, optimizer in runs:
            for seed in range(ELEMENTWISE_STEPS):
                trial.step(parameters, optimizer, seed)
            moved = parameters[0].detach() - start[0]
            directions.append(moved / moved.norm().clamp_min(torch.finfo(moved.dtype).tiny))
        return bool((directions[0] - directions[1]).abs().max() > TOLERANCE)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hide warnings, and restore the random state at the end."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def explained(cls: type[Optimizer], what: str) -> Iterator[None]:
    """Turn whatever a class of optimizers raises into a `ConfigError` that says why it is not served.

    Args:
        cls: The class of optimizers.
        what: The operation that raises, in words.
    """
    try:
        yield
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        if "closure" in text.lower():
            raise ConfigError(CLOSURE) from error
        if "does not require grad" in text:
            raise ConfigError(SECOND_ORDER) from error
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{f.filename}:{f.lineno}" for f in frames if f.filename == inspect.getsourcefile(cls)]
        installed = not lines or "site-packages" in lines[-1]
        place = "" if installed else f" ({lines[-1]})"
        raise ConfigError(f"{what} raises {type(error).__name__}: {text}{place}") from error


def _values() -> list[Tensor]:
    """The initial parameters of the trial: a matrix and a vector."""
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in SHAPES]
