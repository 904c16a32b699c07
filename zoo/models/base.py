"""The interface of every model, whatever its inputs and predictions are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from zoo.config.registry import Config
from zoo.models.starts import Reach
from zoo.nn.loss import LossParts
from zoo.spec import Module
from zoo.utils.untyped import Json


class ModelConfig(Config):
    """The fields that determine the architecture of a model.

    A model is one file: a subclass of this class with a field ``type: Literal["name"] = "name"``, decorated
    with ``@MODELS.register``, whose `build` makes a subclass of `Model`.

    Attributes:
        default_init: name of the initialisation that the architecture was published with.
        objectives: names of the training objectives the model can be trained by, one of which the data
            has to have (`zoo.data.dataset.DataConfig.objective_name`).
    """

    default_init: ClassVar[str]
    objectives: ClassVar[frozenset[str]]

    @property
    def max_seq_len(self) -> int | None:
        """The largest number of tokens in a sequence, or None if a sequence may have any length."""
        return None

    @property
    def ties_embedding(self) -> bool:
        """Whether the language model head multiplies by the table of the input embedding."""
        return False

    def check_batch(self, batch_size: int, accumulation: int, ranks: int) -> None:
        """Check that the model can be trained on batches that are divided in this way.

        Args:
            batch_size: examples of an optimizer step, those of all ranks and parts together.
            accumulation: number of parts of a batch, computed one after the other.
            ranks: number of processes.

        Raises:
            ConfigError: The model needs batches of another size, or whole ones.
        """

    def with_starts(self, reach: Reach | None) -> Self:
        """The fields with a number in the place of every `auto` of a scaling's start.

        Args:
            reach: how far the run can move a parameter; None: no run is configured.

        Raises:
            NoRuleError: There is no rule for an `auto`.
        """
        return self

    def transferred(self, base_width: int, depth: float) -> Self:
        """The configuration with the starts that nuGPT gives to scalings; most models have none.

        Args:
            base_width: d_model at the base size, at which nothing changes.
            depth: the number of layers divided by that of the base size.
        """
        return self

    @abstractmethod
    def build(self) -> Model:
        """The model, uninitialised, on the current default device."""
        raise NotImplementedError


class Model(Module):
    """The base class of architectures: what they offer besides ``model(*inputs) -> logits``.

    Attributes:
        config: the sizes.
        recipe: the `zoo.checkpoint.recipe.Recipe` that the model was made from, set by
            `zoo.checkpoint.recipe.declare`. It is untyped because recipes belong to a layer above models.
        published: the contents of the settings files, as JSON, of the folder of another library that the
            model was read from. They stay with the model through training and are part of its checkpoints, so
            that an export can write settings that zoo itself does not use. Empty for other models.
    """

    config: ModelConfig
    recipe: Any  # Any: layers above know its class
    published: Mapping[str, Json] = MappingProxyType({})

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The submodules that FSDP gathers one at a time; the remaining parameters form one more unit."""
        return ()

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The blocks, in the order in which the model applies them: by default its FSDP units."""
        return self.fsdp_units

    @property
    def depth(self) -> int:
        """The number of blocks that rules for depth follow: of an encoder-decoder those of the encoder."""
        return len(self.layers)

    @property
    def compiled_parts(self) -> Sequence[tuple[nn.Module, str]]:
        """Pairs of a submodule and its method for ``train.compile: blocks``: the FSDP units' `forward`."""
        return [(unit, "forward") for unit in self.fsdp_units]

    def predict(self, *inputs: Tensor) -> Tensor:
        """The logits of a training batch.

        Args:
            *inputs: the batch as `loss` takes it, without the targets.
        """
        logits: Tensor = self(*inputs)
        return logits

    def target_logits(self, *batch: Tensor) -> Tensor:
        """The logits from which `loss` is computed: those of all targets, unless a model skips ignored ones.

        Args:
            *batch: the batch as `loss` takes it; the targets may be on the CPU and all else on meta.
        """
        *inputs, _ = batch
        return self.predict(*inputs)

    def padding_mask(self, *batch: Tensor) -> Tensor | None:
        """Which positions of a training batch are data, and which are padding.

        Args:
            *batch: the batch as `loss` takes it, with the targets.

        Returns:
            (batch, time) bool, False for padding; None: there is no padding.
        """
        return None

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, ...]:
        """A batch for trying the model out: inputs as `forward` takes them, then targets, on the CPU.

        Args:
            batch: number of examples, the first dimension of every tensor.
            time: length of a sequence, or height and width of an image; cut to what the model can read.
        """
        raise NotImplementedError

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """Mean cross entropy of the targets.

        Args:
            *batch: the inputs as `forward` takes them, then the targets, int64; targets of -1 are ignored.
            z_loss: coefficient of mean(log Z ^ 2); 0 adds nothing to the loss.

        Returns:
            Total, cross entropy and z-loss (multiplied by its coefficient), 0-dim each.
        """
        raise NotImplementedError
