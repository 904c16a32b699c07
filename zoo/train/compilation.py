"""torch.compile of a model's loss: of the whole model, or block by block."""

from __future__ import annotations

import torch

from zoo.kernels.graph_cache import cache_options, keep_every_graph, replays_graphs
from zoo.models import Model
from zoo.run.train_config import Compile
from zoo.train.step import Loss
from zoo.utils.errors import ConfigError


def compiled_loss(model: Model, how: Compile) -> Loss:
    """The loss of a model, compiled as configured.

    Args:
        model: the model; its `compiled_parts` are replaced by compiled ones where `how` is "blocks".
        how: `train.compile`.

    Raises:
        ConfigError: `how` is "blocks", but the model has no blocks, or torch is to replay CUDA graphs.
    """
    if not how:
        return model.loss
    keep_every_graph()
    options = cache_options()
    if how == "blocks":
        if replays_graphs(next(model.parameters()).device):
            raise ConfigError(
                "train.compile: blocks: torch is told to replay CUDA graphs (TORCHINDUCTOR_CUDAGRAPHS=1), in "
                "which a block would overwrite the output of the one before; expected true"
            )
        if not model.compiled_parts:
            raise ConfigError(
                f"train.compile: blocks: model '{getattr(model.config, 'type', '')}' has no blocks; "
                "expected true or false"
            )
        for module, method in model.compiled_parts:
            # Sizes are constants, so that a run's numbers do not depend on what was compiled before it.
            function = getattr(module, method)
            setattr(module, method, torch.compile(function, dynamic=False, fullgraph=True, options=options))
        return model.loss
    return torch.compile(model.loss, options=options)
