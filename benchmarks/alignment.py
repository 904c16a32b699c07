"""How much of an update adds up while nGPT learns: whether nuGPT's m^-3/4 is what a coordinate check sees.

    python -m benchmarks.alignment                       two minutes of processor time
    python -m benchmarks.alignment --rule "nugpt, full" --steps 60

In a step the output of a linear map moves by rms(dW x) = gain rms(dW) rms(x). A gain that grows with the
width as m^a asks for rates that fall as m^-a; with m^-3/4 the movement grows as m^(a - 3/4). Measured is a
between two widths, for every linear map in the blocks, after single steps of a training on text, on a batch
that is held out. nuGPT's authors weigh a by the fall of the loss (arXiv 2604.27077, section 3.2), and so does
the last line.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor, nn

from benchmarks.coordinates import SIDES, SMALLEST, configuration
from zoo.data.dataset import Batch, BatchSpec
from zoo.diagnose.coordinate_axes import DEPTH, WIDTH
from zoo.nn.linear import Linear
from zoo.run.config import RunConfig, load_config
from zoo.run.first_weights import initial_model
from zoo.run.job import Job
from zoo.run.optimizer import build_optimizer

Batches = Callable[[int], Batch]
"""The batch of a step."""
BATCH, LENGTH = 16, 64
FINAL = 0.1
"""Of the learning rate, which falls as a cosine."""
AT = (1, 2, 4, 8, 16, 32, 64, 100, 150, 200, 300)
"""Steps after which the gains are measured."""


def gains(
    config: RunConfig, width: int, steps: int, batches: Batches
) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Train a model.

    Args:
        config: the configuration of the model at the base size.
        width: the width of the model.
        steps: the number of training steps.
        batches: the batches, of which the first is held out.

    Yields:
        At every step of `AT` its number, the loss before it, and the gain of every linear map in the blocks.
    """
    assert config.model is not None
    assert config.optimizer is not None
    run = config.model_copy(update={"model": WIDTH.resized(config.model, width)})
    model = initial_model(run).model
    optimizer = build_optimizer(model, config.optimizer, transfer=config.transfer)
    inside = {module for layer in model.layers for module in layer.modules()}
    maps = {name: m for name, m in model.named_modules() if m in inside and isinstance(m, Linear)}
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(1, steps + 1):
        factor = FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.zero_grad()
        loss = model.loss(*batches(step)).total
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        before = (
            {name: m.virtual("weight").detach().clone() for name, m in maps.items()} if step in AT else {}
        )
        optimizer.step()
        if step in AT:
            inputs = _inputs(model, maps, batches(0))
            changes = {name: m.virtual("weight").detach() - before[name] for name, m in maps.items()}
            yield step, loss.item(), {name: _gain(changes[name], inputs[name]) for name in maps}


def _inputs(model: nn.Module, maps: Mapping[str, Linear], batch: Batch) -> dict[str, Tensor]:
    """What every map reads of a batch."""
    found: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def record(_: nn.Module, given: tuple[Tensor, ...], __: object) -> None:
            found[name] = given[0]

        return record

    hooks = [module.register_forward_hook(watch(name)) for name, module in maps.items()]
    with torch.no_grad():
        model(*batch[:-1])
    for hook in hooks:
        hook.remove()
    return found


def _gain(change: Tensor, x: Tensor) -> float:
    """rms(dW x) over rms(dW) rms(x)."""

    def rms(tensor: Tensor) -> float:
        return tensor.square().mean().sqrt().item()

    return rms(x @ change.T) / (rms(change) * rms(x))


def exponents(small: Mapping[str, float], large: Mapping[str, float], ratio: float) -> dict[str, float]:
    """a of every map, from its gains at two widths of this ratio."""
    return {name: math.log(large[name] / small[name]) / math.log(ratio) for name in small}


def weighted(means: Sequence[float], losses: Sequence[float]) -> float:
    """The mean of a over the training, weighted by the fall of the loss from each measurement to the next."""
    falls = [max(0.0, before - after) for before, after in pairwise(losses)]
    middles = [fmean(pair) for pair in pairwise(means)]
    return sum(a * fall for a, fall in zip(middles, falls, strict=True)) / sum(falls)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--rule", choices=SIDES["ngpt"][1], default="nugpt")
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--factor", type=int, default=8, help="the larger width over the smaller one")
    given = options.parse_args()
    config = configuration("ngpt", given.rule, SMALLEST[DEPTH.name])
    data = {"corpus": "python-docs", "tokenizer": "byte", "context": LENGTH}
    train = {"steps": given.steps, "batch_size": BATCH}
    job = Job.of(
        load_config({**config.model_dump(mode="json"), "name": "alignment", "data": data, "train": train})
    )
    dataset = job.data.prepare(job.model)

    def batch(step: int) -> Batch:
        return dataset.train_batch(BatchSpec(0, step, BATCH, 0, 1))

    small, large = (
        list(gains(config, width, given.steps, batch))
        for width in (SMALLEST[WIDTH.name], SMALLEST[WIDTH.name] * given.factor)
    )
    print("| step | loss at the smaller and the larger width | a, mean | lowest | highest |")
    print("|---|---|---|---|---|")
    means = []
    for (step, loss, of_small), (_, other, of_large) in zip(small, large, strict=True):
        found = exponents(of_small, of_large, given.factor)
        means.append(fmean(found.values()))
        low, high = (
            f"{pick(found, key=found.__getitem__)} {pick(found.values()):.2f}" for pick in (min, max)
        )
        print(f"| {step} | {loss:.3f} {other:.3f} | {means[-1]:.3f} | {low} | {high} |")
    print(f"Weighted by the fall of the loss: {weighted(means, [loss for _, loss, _ in large]):.3f}")


if __name__ == "__main__":
    main()
