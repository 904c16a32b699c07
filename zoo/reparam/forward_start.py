"""Weight Normalization's first gains, from the forward values of the first step (WeSaR, C.1).

C.1 has one sentence: alpha is determined "from the value of the forward computation in the first step". What
follows is our reading, after Salimans and Kingma (arXiv 1602.07868, section 3): each unit's gain is 1 / std
of t = v x / ||v|| over the batch and its positions, and a bias becomes -mean(t) / std(t), so that the outputs
of the unit have mean 0 and standard deviation 1. Our choices, where the papers are silent: the variance is
the population's; padding does not count; with gradient accumulation the batch is the first part of the first
step's; layers start one after the other, each on the outputs of those already started; dropout is off; there
is no factor for the ends of residual branches; embeddings, tied ones too, keep the norms of their rows.
What comes from a checkpoint keeps its gains, and a new head in front of it starts from the forward values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from zoo.models import Model
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.nn.linear import Matrix
from zoo.reparam.weight_norm import RowNorm, norm
from zoo.spec import Declared, Role, declared
from zoo.utils.errors import ConfigError
from zoo.utils.exact import exact
from zoo.utils.sharded import assign


@torch.no_grad()
def start_from_forward(
    model: Model,
    *inputs: Tensor,
    mask: Tensor | None = None,
    loaded: Collection[str] = (),
    total: Callable[[Tensor], Tensor] = lambda values: values,
    reshard: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    """Set the gains of `weight_norm` with `start: forward` from one batch, and the biases with them.

    `zoo train` calls it before the first step. A model without such gains stays as it is.

    Args:
        model: initialised, plain or sharded.
        *inputs: a training batch without its targets.
        mask: (batch, time) bool, False for padding, which does not count: what `Model.padding_mask` returns
            of the batch with its targets. None: there is no padding.
        loaded: names of the parameters that come from a checkpoint; the gains of their rows stay.
        total: the sum of a float64 tensor over all ranks, which see different batches.
        reshard: shards a module again whose parameters the forward pass has gathered.

    Raises:
        ConfigError: A matrix belongs to a layer that is no linear map, is not used in the forward pass, or
            has a unit whose output is the same at all positions of the batch.
    """
    parameters = [p for p in declared(model) if _starts_from_forward(p) and p.name not in loaded]
    if others := [p.name for p in parameters if not isinstance(p.module, Matrix)]:
        raise ConfigError(
            f"reparam.start 'forward': {', '.join(others)}: not linear maps; expected reparam.start 'rows'"
        )
    if not parameters:
        return
    starters = [_Starter(p, mask, total) for p in parameters]
    matrices = [p.module for p in parameters if isinstance(p.module, Matrix)]
    with evaluation_mode(model):
        try:
            for matrix, starter in zip(matrices, starters, strict=True):
                matrix.prepared = starter
            model.predict(*inputs)
        finally:
            for matrix in matrices:
                matrix.prepared = None
    reshard(model)
    if unused := [starter.p.name for starter in starters if not starter.starts]:
        raise ConfigError(f"reparam.start 'forward': {', '.join(unused)}: not used in the forward pass")
    for starter in starters:
        for name, values in starter.starts.items():
            assign(starter.p.module.get_parameter(name).data, values)


def _starts_from_forward(p: Declared) -> bool:
    """Whether the parameter is a kernel whose gain is still to be set."""
    method = p.module.reparameterised.get(p.local)
    return isinstance(method, RowNorm) and method.forward_start and p.spec.role is not Role.EMBEDDING


class _Starter:
    """A function in the place of a kernel: the first input sets the gain; every input is multiplied.

    Attributes:
        starts: the gain, and the bias if there is one, by local name; empty before the first input.
    """

    def __init__(self, p: Declared, mask: Tensor | None, total: Callable[[Tensor], Tensor]) -> None:
        self.p, self.mask, self.total = p, mask, total
        self.starts: dict[str, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        module, name = self.p.module, self.p.local
        if not self.starts:
            self._start(x)
        return x @ module.virtual(name).mT

    def _start(self, x: Tensor) -> None:
        module = self.p.module
        v: Tensor = getattr(module, self.p.local)
        t = exact(x) @ (v / norm(v)).mT
        # Inputs without a row for each token have no padding: pooled texts, and a table of distances.
        if self.mask is not None and self.mask.shape == t.shape[:-1]:
            t = t[self.mask]
        t = t.flatten(0, -2)
        count = torch.tensor([float(len(t))], dtype=torch.float64, device=t.device)
        *_, everywhere = sums = self.total(torch.cat((t.sum(0, dtype=torch.float64), count)))
        mean = sums[:-1] / everywhere
        squares = (t - mean.to(t.dtype)).square().sum(0, dtype=torch.float64)
        std = (self.total(squares) / everywhere).sqrt()
        if not std.min() > 0:
            raise ConfigError(
                f"reparam.start 'forward': a unit of {self.p.name} has the same value in all of the first "
                "batch: its standard deviation is 0; expected another batch, or reparam.start 'rows'"
            )
        method = module.reparameterised[self.p.local]
        assert isinstance(method, RowNorm)  # `_starts_from_forward` has chosen it
        self.starts[method.length] = 1 / std
        if "bias" in module.specs:
            self.starts["bias"] = -mean / std
        for name, values in self.starts.items():  # for the rest of this pass, where parameters are gathered
            module.get_parameter(name).copy_(values)
