"""The models that are compared: equal sizes, untied, no biases, RMSNorm, rotary, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Workload:
    """A model's size and the batch it is trained on."""

    layers: int
    width: int
    heads: int
    mlp: int
    vocab: int
    context: int
    batch: int


WORKLOADS = {
    "small": Workload(layers=6, width=384, heads=6, mlp=1024, vocab=512, context=256, batch=8),
    "large": Workload(layers=12, width=768, heads=12, mlp=2048, vocab=32000, context=512, batch=2),
}


@dataclass(frozen=True)
class Trainee:
    """A model and how it is trained.

    Attributes:
        model: its parameters are counted.
        loss: (tokens, targets) -> 0-dim loss; this is what gets compiled.
        optimizer: AdamW, fused, all parameters.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of the peers."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def llama_sizes(w: Workload) -> dict[str, Any]:
    """A workload's sizes as transformers' LlamaConfig calls them."""
    return {
        "vocab_size": w.vocab,
        "hidden_size": w.width,
        "intermediate_size": w.mlp,
        "num_hidden_layers": w.layers,
        "num_attention_heads": w.heads,
        "tie_word_embeddings": False,
    }


def llama(w: Workload, device: str) -> Trainee:
    """transformers' LlamaForCausalLM."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**llama_sizes(w), max_position_embeddings=w.context, use_cache=False)
    config._attn_implementation = "sdpa"
    with torch.device(device):
        model = LlamaForCausalLM(config)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())

    return Trainee(model, loss, adamw(model.parameters()))


def litgpt(w: Workload, device: str) -> Trainee:
    """litgpt's GPT in its Llama form."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        name="benchmark",
        block_size=w.context,
        vocab_size=w.vocab,
        padded_vocab_size=w.vocab,
        n_layer=w.layers,
        n_head=w.heads,
        n_embd=w.width,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=w.mlp,
    )
    with torch.device(device):
        model = GPT(config)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    return Trainee(model, loss, adamw(model.parameters()))


def zoo(type: str, **recipe: Any) -> Callable[[Workload, str], Trainee]:
    """A model of ours, by its architecture's name and what `build_model` takes besides."""

    def build(w: Workload, device: str) -> Trainee:
        from zoo import build_model, build_optimizer

        model: Any = build_model(
            type,
            vocab_size=w.vocab,
            d_model=w.width,
            n_layers=w.layers,
            n_heads=w.heads,
            d_mlp=w.mlp,
            device=device,
            **recipe,
        )
        weight_decay = 0.0 if type == "ngpt" else 0.1
        optimizer = build_optimizer(model, "adamw", lr=1e-3, betas=[0.9, 0.95], weight_decay=weight_decay)

        def loss(tokens: Tensor, targets: Tensor) -> Tensor:
            total: Tensor = model.loss(tokens, targets).total
            return total

        return Trainee(model, loss, optimizer)

    return build


CONTENDERS: dict[str, Callable[[Workload, str], Trainee]] = {
    "hf-llama": llama,
    "litgpt": litgpt,
    "zoo-gpt": zoo("gpt"),
    "zoo-ngpt": zoo("ngpt"),
    "zoo-small": zoo("gpt", init="small"),
    "zoo-wesar": zoo("gpt", init="small", reparam="wesar"),
}
PEERS = ("hf-llama", "litgpt")
