"""State dicts of the nGPT authors' code, and of their GPT baseline.

In these files, the matrices u and nu of the MLP are concatenated (``c_fc``, ``suv``), and one s_qk vector
holds all heads. A file with scaling vectors is an nGPT, otherwise it is a GPT. The number of heads is an
argument, as a state dict does not contain it; s_init and s_scale are the paper's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from zoo.checkpoint.recipe import Recipe, declare, materialise
from zoo.checkpoint.safetensors import check_match, read_tensors
from zoo.init import GPT2Init, Init, NGPTInit
from zoo.models import DecoderConfig, GPTConfig, Model, NGPTConfig
from zoo.reparam import NoReparam
from zoo.utils.errors import CheckpointError
from zoo.utils.untyped import Kwargs

EMBEDDING, LM_HEAD, S_Z = "transformer.wte.weight", "lm_head.weight", "sz"
BASELINE_EPS = 1e-6
"""Epsilon of RMSNorm in the authors' baseline."""

MODEL = {"embedding.weight": EMBEDDING, "read_out.matrix.weight": LM_HEAD}
BLOCK = {
    "attention.q.weight": "query.weight",
    "attention.k.weight": "key.weight",
    "attention.v.weight": "value.weight",
    "attention.o.weight": "att_c_proj.weight",
    "mlp.down.weight": "mlp_c_proj.weight",
}
NGPT_BLOCK = {
    "attention_residual.alpha.scale": "attn_alpha",
    "mlp_residual.alpha.scale": "mlp_alpha",
    "attention.qk.s_qk.scale": "sqk",
}
GPT_BLOCK = {
    "attention_residual.norm.scale": "rmsnorm_att.weight",
    "mlp_residual.norm.scale": "rmsnorm_mlp.weight",
}
STACKED = {"c_fc.weight": ("mlp.u.weight", "mlp.nu.weight"), "suv": ("mlp.s_u.scale", "mlp.s_nu.scale")}


def load_ngpt_reference(path: Path, *, n_heads: int) -> Model:
    """Read a safetensors file with the authors' names.

    Args:
        path: the file.
        n_heads: number of attention heads, which the file does not contain.

    Returns:
        An `NGPT` if the file has scaling vectors, otherwise a `GPT`; float32 on the CPU.

    Raises:
        CheckpointError: The file is not such a state dict, tensors are missing or unexpected, or shapes are
            inconsistent.
    """
    tensors = {name.removeprefix("_orig_mod."): t for name, t in read_tensors(path)[0].items()}
    config = _config(path, tensors, n_heads)
    init: Init = NGPTInit() if isinstance(config, NGPTConfig) else GPT2Init()
    model = declare(Recipe(model=config, init=init, reparam=NoReparam()))
    state = _float32_with_heads(_rename(path, tensors, config), n_heads)
    check_match(path, state, model.state_dict())
    materialise(model, torch.device("cpu"))
    model.load_state_dict(state)
    return model


def _config(path: Path, tensors: dict[str, Tensor], n_heads: int) -> DecoderConfig:
    first = "transformer.h.0."
    needed = [EMBEDDING, first + "key.weight", first + "c_fc.weight"]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{path}: not a state dict of the nGPT authors' code: no {', '.join(missing)}; "
            f"it has {', '.join(sorted(tensors)[:3])}, ..."
        )
    for name in needed:
        if tensors[name].dim() != 2:
            raise CheckpointError(f"{path}: {name} has shape {tuple(tensors[name].shape)}; expected a matrix")
    if n_heads < 1:
        raise CheckpointError(f"{path}: n_heads is {n_heads}; expected at least 1")
    vocab_size, d_model = tensors[EMBEDDING].shape
    if d_model == 0 or d_model % n_heads:
        raise CheckpointError(f"{path}: width {d_model} is not divisible by n_heads={n_heads}")
    head_size = d_model // n_heads
    # Those between them that are missing, and names without a number, are found when tensors are compared.
    layers = {name.split(".")[2] for name in tensors if name.startswith("transformer.h.")}
    is_ngpt = any(name in (S_Z, first + "attn_alpha", first + "sqk", first + "suv") for name in tensors)
    sizes: Kwargs = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "n_layers": sum(map(str.isdecimal, layers)),
        "n_heads": n_heads,
        "n_kv_heads": max(1, tensors[first + "key.weight"].shape[0] // head_size),
        "d_mlp": tensors[first + "c_fc.weight"].shape[0] // 2,
        "tied": LM_HEAD not in tensors,
    }
    try:
        return NGPTConfig(**sizes) if is_ngpt else GPTConfig(**sizes, norm_eps=BASELINE_EPS)
    except ValueError as error:
        raise CheckpointError(f"{path}: with n_heads={n_heads} the sizes make no model: {error}") from error


def _rename(path: Path, tensors: dict[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    is_ngpt = isinstance(config, NGPTConfig)
    single = dict(MODEL)
    single |= {"read_out.s_z.scale": S_Z} if is_ngpt else {"norm.scale": "transformer.rmsnorm_f.weight"}
    if config.tied:
        del single["read_out.matrix.weight"]
    if "rmsnorm_f.weight" in tensors:
        single["norm.scale"] = "rmsnorm_f.weight"
    stacked: dict[str, tuple[str, str]] = {}
    for i in range(config.n_layers):
        block = BLOCK | (NGPT_BLOCK if is_ngpt else GPT_BLOCK)
        single |= {
            f"blocks.{i}.{zoo_name}": f"transformer.h.{i}.{file_name}"
            for zoo_name, file_name in block.items()
        }
        halves = STACKED if is_ngpt else {"c_fc.weight": STACKED["c_fc.weight"]}
        stacked |= {
            f"transformer.h.{i}.{file_name}": (f"blocks.{i}.{u}", f"blocks.{i}.{nu}")
            for file_name, (u, nu) in halves.items()
        }
    expected = {*single.values(), *stacked}
    missing, unexpected = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
    if missing or unexpected:
        raise CheckpointError(f"{path}: missing {missing or 'nothing'}, unexpected {unexpected or 'nothing'}")
    state = {zoo_name: tensors[file_name] for zoo_name, file_name in single.items()}
    for file_name, parts in stacked.items():
        state |= dict(zip(parts, tensors[file_name].chunk(2), strict=True))
    return state


def _float32_with_heads(state: dict[str, Tensor], n_heads: int) -> dict[str, Tensor]:
    """All tensors in float32, and s_qk reshaped to (heads, h)."""
    return {
        name: tensor.float().reshape(n_heads, -1) if name.endswith("s_qk.scale") else tensor.float()
        for name, tensor in state.items()
    }
