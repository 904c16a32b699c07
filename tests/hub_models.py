"""Tiny random models of transformers, one for each thing a family can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT2: dict[str, Any] = {"vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


def _llama(**changes: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-all-heads-tied": lambda: _llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-own-head-size": lambda: _llama(head_dim=12, rms_norm_eps=1e-5),
    "llama-3-rope": lambda: _llama(rope_parameters=LLAMA3),
    "llama-linear-rope": lambda: _llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=None)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, head_dim=20, tie_word_embeddings=True)
    ),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, pad_token_id=None)),
    "phi3-tied": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SIZES, pad_token_id=None, tie_word_embeddings=True)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "gpt2-untied": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**GPT2, n_inner=40, tie_word_embeddings=False)
    ),
}


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A model of `MODELS` with every parameter random, norms and biases too, written to a folder."""
    model = random_(MODELS[name]().to(dtype))
    model.save_pretrained(folder, **options)
    return model


def random_(model: Any) -> Any:
    """The model with every parameter drawn anew, for evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            centre = 1.0 if p.dim() == 1 else 0.0
            nn.init.normal_(p, centre, 0.2, generator=generator)
    return model.eval()
