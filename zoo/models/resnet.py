"""ResNet (He, Zhang, Ren and Sun 2015), in the form that the Amos paper trains on ImageNet (A.9).

h <- ReLU(branch(h) + shortcut(h));  logits <- W mean(h) + b

A branch consists of two or three convolutions with batch normalisation and ReLU between them. The shortcut is
the identity, or a projection where the size changes. There, the 3 x 3 convolution has the stride ("v1.5"), as
is usual today, and not the 1 x 1 convolution before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.config.registry import MODELS
from zoo.models.base import Model, ModelConfig
from zoo.nn.batchnorm import BatchNorm
from zoo.nn.classification import classify
from zoo.nn.conv import Convolution, filters
from zoo.nn.linear import Linear, matrix
from zoo.nn.loss import LossParts
from zoo.nn.mlp import ACTIVATION_STD
from zoo.spec import Module
from zoo.utils.errors import DataError


class ConvNorm(Module):
    """A convolution followed by batch normalisation."""

    def __init__(
        self,
        out: int,
        into: tuple[str, int],
        size: int,
        stride: int = 1,
        *,
        input_std: float = 1.0,
        residual_branches: int = 1,
    ) -> None:
        super().__init__()
        self.conv = Convolution(filters(out, into, size, input_std), stride)
        self.norm = BatchNorm(out, residual_branches)

    def forward(self, x: Tensor) -> Tensor:
        """(n, into, h, w) -> (n, out, ceil(h / stride), ceil(w / stride))."""
        y: Tensor = self.norm(self.conv(x))
        return y


class Block(Module):
    """h <- ReLU(branch(h) + shortcut(h))."""

    expansion: ClassVar[int]
    """The number of output channels, in units of the block's width."""

    def __init__(self, into: tuple[str, int], width: int, stride: int, input_std: float) -> None:
        """Create the shortcut.

        Args:
            into: name and number of the input channels.
            width: number of channels inside the branch.
            stride: stride of the branch's 3 x 3 convolution and of the projection.
            input_std: standard deviation of the input of a projection.
        """
        super().__init__()
        out = width * self.expansion
        identity = stride == 1 and into[1] == out
        self.projection = None if identity else ConvNorm(out, into, 1, stride, input_std=input_std)

    def branch(self, h: Tensor) -> Tensor:
        """The branch, which is added to the shortcut."""
        raise NotImplementedError

    def forward(self, h: Tensor) -> Tensor:
        """(n, into, h, w) -> (n, width * expansion, ceil(h / stride), ceil(w / stride))."""
        return F.relu(self.branch(h) + (h if self.projection is None else self.projection(h)))


class Basic(Block):
    """The branch of a basic block: two 3 x 3 convolutions.

    The first one is declared with an input of standard deviation 1, even after the max-pool, where a
    projection has another one: this follows Amos, Table 7. Both are normalised next.
    """

    expansion = 1

    def __init__(
        self, into: tuple[str, int], width: int, stride: int, input_std: float, residual_branches: int
    ) -> None:
        super().__init__(into, width, stride, input_std)
        branch = ("branch", width)
        self.first = ConvNorm(width, into, 3, stride)
        self.second = ConvNorm(
            width, branch, 3, input_std=ACTIVATION_STD, residual_branches=residual_branches
        )

    def branch(self, h: Tensor) -> Tensor:
        """The branch, which is added to the shortcut."""
        y: Tensor = self.second(F.relu(self.first(h)))
        return y


class Bottleneck(Block):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, the last one to four times as many channels."""

    expansion = 4

    def __init__(
        self, into: tuple[str, int], width: int, stride: int, input_std: float, residual_branches: int
    ) -> None:
        super().__init__(into, width, stride, input_std)
        branch = ("branch", width)
        self.first = ConvNorm(width, into, 1)
        self.second = ConvNorm(width, branch, 3, stride, input_std=ACTIVATION_STD)
        self.third = ConvNorm(
            width * self.expansion,
            branch,
            1,
            input_std=ACTIVATION_STD,
            residual_branches=residual_branches,
        )

    def branch(self, h: Tensor) -> Tensor:
        """The branch, which is added to the shortcut."""
        y: Tensor = self.third(F.relu(self.second(F.relu(self.first(h)))))
        return y


DEPTHS: dict[int, tuple[type[Basic | Bottleneck], tuple[int, ...]]] = {
    18: (Basic, (2, 2, 2, 2)),
    34: (Basic, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
"""The kind of block, and the number of blocks in each stage (He et al., Table 1)."""


@MODELS.register
class ResNetConfig(ModelConfig):
    """Residual network for images: basic or bottleneck blocks, batch normalisation."""

    default_init: ClassVar[str] = "he"
    objectives: ClassVar[frozenset[str]] = frozenset({"classification"})

    type: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101, 152] = Field(description="number of layers, which determines the blocks")
    classes: int = Field(gt=1, description="number of classes")
    channels: int = Field(3, gt=0, description="channels of an image")
    width: int = Field(64, gt=0, description="channels of the stem; every stage but the first doubles them")
    stem_size: int = Field(7, gt=0, description="size of the first filters, odd; 3 for small images")
    stem_stride: int = Field(2, gt=0, description="stride of the first filters; 1 for small images")
    pool_size: int = Field(3, gt=0, description="size of the max-pool's patches, odd; 1: no pooling")
    pool_stride: int = Field(2, gt=0, description="the max-pool's stride; 1 for small images")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="label smoothing: probability spread over all classes, in training"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        for part, size, stride in (
            ("stem", self.stem_size, self.stem_stride),
            ("pool", self.pool_size, self.pool_stride),
        ):
            if size % 2 == 0:
                raise ValueError(f"{part}_size {size} is even; expected an odd number, which has a middle")
            if stride > size:
                raise ValueError(
                    f"{part}_stride {stride} is larger than {part}_size {size} and would leave out pixels"
                )
        return self

    @property
    def pooled_std(self) -> float:
        """Standard deviation of the input of the first block.

        The maximum of n normal numbers has a standard deviation of about 1 / sqrt(2 ln n) (Amos, Table 6).
        Without a max-pool, the input is the output of a ReLU.
        """
        patch = self.pool_size**2
        return ACTIVATION_STD if patch == 1 else 1 / math.sqrt(2 * math.log(patch))

    def build(self) -> ResNet:
        """The model, uninitialised, on the current default device."""
        return ResNet(self)


class ResNet(Model):
    """Residual network, from images to logits."""

    def __init__(self, c: ResNetConfig) -> None:
        super().__init__()
        self.config: ResNetConfig = c
        kind, stages = DEPTHS[c.depth]
        self.stem = ConvNorm(c.width, ("image", c.channels), c.stem_size, c.stem_stride)
        self.blocks = nn.ModuleList()
        into, input_std = ("pooled", c.width), c.pooled_std
        for stage, count in enumerate(stages):
            width = c.width * 2**stage
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                self.blocks.append(kind(into, width, stride, input_std, sum(stages)))
                into, input_std = ("stream", width * kind.expansion), 1.0
        self.classifier = Linear(matrix(("classes", c.classes), into), bias=True)

    @property
    def fsdp_units(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """Classify images.

        Args:
            images: (n, channels, height, width) floating point, normalised.

        Returns:
            Logits (n, classes).

        Raises:
            DataError: The images have another shape or dtype.
        """
        c = self.config
        if images.dim() != 4 or images.shape[1] != c.channels or not images.is_floating_point():
            raise DataError(
                f"expected images (n, {c.channels}, height, width) of a floating point dtype, "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        h = F.relu(self.stem(images))
        h = F.max_pool2d(h, c.pool_size, c.pool_stride, padding=c.pool_size // 2)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.classifier(h.mean((2, 3)))
        return logits

    def loss(self, *batch: Tensor, z_loss: float = 0.0) -> LossParts:
        """The loss described in `Model`, with smoothed labels in training, and the accuracy."""
        images, labels = batch
        smoothing = self.config.label_smoothing if self.training else 0.0
        return classify(self(images), labels, z_loss=z_loss, label_smoothing=smoothing)

    def example(self, batch: int = 1, time: int = 16) -> tuple[Tensor, Tensor]:
        """Noise, (batch, channels, time, time), and labels."""
        shape = (batch, self.config.channels, time, time)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")
        return noise, torch.arange(batch, device="cpu") % self.config.classes
