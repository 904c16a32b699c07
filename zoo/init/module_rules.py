"""Declarations of the parameters of PyTorch's own modules: one rule per type of module.

A layer of PyTorch does not state its ranges. Every rule takes 1 for the standard deviations of inputs and
outputs unless the type of the module says otherwise: the second kernel of `nn.TransformerEncoderLayer`
follows an activation, for instance, whose output has a standard deviation of sqrt(1/2) (Amos, Table 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch

from torch import nn

from zoo.nn.mlp import ACTIVATION_STD
from zoo.spec import Module, ParamSpec, Role

Specs = Mapping[str, ParamSpec]


@singledispatch
def parameter_specs(module: nn.Module) -> Specs:
    """Declare the parameters of a module, and those of its submodules that only this module knows.

    Each type of module registers its rule with ``parameter_specs.register``; a subclass without a rule of
    its own has that of its base.

    Args:
        module: any module; its tensors are not read.

    Returns:
        Declarations by the name relative to the module. Parameters that it lacks (a bias) may be
        included. A type without a rule has none.
    """
    return {}


def kernel(out: int, *into: int) -> ParamSpec:
    """Declare a matrix, (out, *into), that sums over all dimensions but the first."""
    axes = tuple(f"in_{i}" for i in range(len(into)))
    return ParamSpec(Role.LINEAR, (out, *into), ("out", *axes), fan_in=axes)


def bias(size: int) -> ParamSpec:
    """Declare a vector that is added to the outputs of a layer."""
    return ParamSpec(Role.BIAS, (size,), ("out",))


def scale_and_bias(*shape: int) -> Specs:
    """Declare the scale and the bias of a normalisation."""
    axes = tuple(f"feature_{i}" for i in range(len(shape)))
    return {
        "weight": ParamSpec(Role.NORM_SCALE, shape, axes),
        "bias": ParamSpec(Role.BIAS, shape, axes),
    }


def after_activation(spec: ParamSpec) -> ParamSpec:
    """Declare the same kernel for inputs that come from an activation: eta is sqrt(2 / fan_in)."""
    return replace(spec, input_std=ACTIVATION_STD)


@parameter_specs.register
def _zoo(module: Module) -> Specs:
    """Return the declarations of a zoo module, which has made them itself."""
    return module.specs


@parameter_specs.register
def _linear(module: nn.Linear) -> Specs:
    return {"weight": kernel(module.out_features, module.in_features), "bias": bias(module.out_features)}


@parameter_specs.register
def _bilinear(module: nn.Bilinear) -> Specs:
    """y_k = x_1^T W_k x_2 is a sum over all pairs of inputs."""
    weight = kernel(module.out_features, module.in1_features, module.in2_features)
    return {"weight": weight, "bias": bias(module.out_features)}


@parameter_specs.register(nn.Embedding)
@parameter_specs.register(nn.EmbeddingBag)
def _embedding(module: nn.Embedding | nn.EmbeddingBag) -> Specs:
    shape = (module.num_embeddings, module.embedding_dim)
    return {"weight": ParamSpec(Role.EMBEDDING, shape, ("rows", "embed"), fan_in=("embed",))}


@parameter_specs.register(nn.Conv1d)
@parameter_specs.register(nn.Conv2d)
@parameter_specs.register(nn.Conv3d)
def _convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Specs:
    axes = ("in", *(f"kernel_{i}" for i in range(len(module.kernel_size))))
    shape = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
    return {
        "weight": ParamSpec(Role.CONV, shape, ("out", *axes), fan_in=axes),
        "bias": bias(module.out_channels),
    }


@parameter_specs.register(nn.ConvTranspose1d)
@parameter_specs.register(nn.ConvTranspose2d)
@parameter_specs.register(nn.ConvTranspose3d)
def _transposed_convolution(module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> Specs:
    """A convolution of an input that is 0 except at one in `stride` places of every spatial dimension.

    An output reads only the channels of its group; the other channels count as 0 as well.
    """
    kernel_axes = tuple(f"kernel_{i}" for i in range(len(module.kernel_size)))
    shape = (module.in_channels, module.out_channels // module.groups, *module.kernel_size)
    std = (module.groups * math.prod(module.stride)) ** -0.5
    weight = ParamSpec(
        Role.CONV, shape, ("in", "out", *kernel_axes), fan_in=("in", *kernel_axes), input_std=std
    )
    return {"weight": weight, "bias": bias(module.out_channels)}


@parameter_specs.register
def _layer_norm(module: nn.LayerNorm) -> Specs:
    return scale_and_bias(*module.normalized_shape)


@parameter_specs.register
def _rms_norm(module: nn.RMSNorm) -> Specs:
    return scale_and_bias(*module.normalized_shape)


@parameter_specs.register
def _group_norm(module: nn.GroupNorm) -> Specs:
    return scale_and_bias(module.num_channels)


@parameter_specs.register(nn.BatchNorm1d)
@parameter_specs.register(nn.BatchNorm2d)
@parameter_specs.register(nn.BatchNorm3d)
@parameter_specs.register(nn.SyncBatchNorm)
@parameter_specs.register(nn.InstanceNorm1d)
@parameter_specs.register(nn.InstanceNorm2d)
@parameter_specs.register(nn.InstanceNorm3d)
def _batch_or_instance_norm(module: nn.BatchNorm1d | nn.InstanceNorm1d) -> Specs:
    return scale_and_bias(module.num_features)


@parameter_specs.register
def _attention(module: nn.MultiheadAttention) -> Specs:
    """Three kernels, stacked if all inputs have one size; `bias_k`, `bias_v` are an extra key and value."""
    d = module.embed_dim
    learned_vector = ParamSpec(Role.POSITION, (1, 1, d), ("batch", "time", "embed"))
    return {
        "in_proj_weight": kernel(3 * d, d),
        "q_proj_weight": kernel(d, d),
        "k_proj_weight": kernel(d, module.kdim),
        "v_proj_weight": kernel(d, module.vdim),
        "in_proj_bias": bias(3 * d),
        "bias_k": learned_vector,
        "bias_v": learned_vector,
    }


@parameter_specs.register(nn.TransformerEncoderLayer)
@parameter_specs.register(nn.TransformerDecoderLayer)
def _transformer_layer(module: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Specs:
    second = module.linear2
    return {"linear2.weight": after_activation(kernel(second.out_features, second.in_features))}


@parameter_specs.register
def _recurrent(module: nn.RNNBase) -> Specs:
    """The kernels of x and h are one kernel of [x, h], as in the paper's LSTM (section 5.2)."""
    h = module.proj_size or module.hidden_size
    gates = 4 if isinstance(module, nn.LSTM) else 3 if isinstance(module, nn.GRU) else 1
    specs: dict[str, ParamSpec] = {}
    for layer in range(module.num_layers):
        x = module.input_size if layer == 0 else h * (1 + module.bidirectional)
        for direction in ("", "_reverse"):
            for name, spec in _recurrent_kernels(gates * module.hidden_size, x, h).items():
                specs[f"{name}_l{layer}{direction}"] = spec
            specs[f"weight_hr_l{layer}{direction}"] = kernel(h, module.hidden_size)
    return specs


@parameter_specs.register
def _recurrent_cell(module: nn.RNNCellBase) -> Specs:
    gates = 4 if isinstance(module, nn.LSTMCell) else 3 if isinstance(module, nn.GRUCell) else 1
    return _recurrent_kernels(gates * module.hidden_size, module.input_size, module.hidden_size)


def _recurrent_kernels(out: int, x: int, h: int) -> Specs:
    """Declare kernels that share the sum over x and h, and their biases."""
    return {
        "weight_ih": _part_of_sum(kernel(out, x), x + h),
        "weight_hh": _part_of_sum(kernel(out, h), x + h),
        "bias_ih": bias(out),
        "bias_hh": bias(out),
    }


def _part_of_sum(spec: ParamSpec, fan_in: int) -> ParamSpec:
    """Declare a kernel that contributes a part of a sum of `fan_in` terms, and that part of its variance."""
    return replace(spec, output_std=math.sqrt(spec.fan_in_size / fan_in))
