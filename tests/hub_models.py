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
NEOX = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
HALF_ROTATED = NEOX | {"rotary_pct": 0.5}
GEMMA = SIZES | {"head_dim": 12, "sliding_window": 5, "pad_token_id": None, "num_hidden_layers": 3}
GEMMA3 = GEMMA | {"sliding_window_pattern": 2, "rope_local_base_freq": 100.0, "rope_theta": 1000.0}
GEMMA3 |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "query_pre_attn_scalar": 20}
PARTLY_ROTATED = SIZES | {"partial_rotary_factor": 0.75}
LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 36,
    },
    "original_max_position_embeddings": 36,
    "pad_token_id": None,
}
"""The tests read 40 tokens at once, with the long factors, and write 31, with the short ones."""
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
    "llama-yarn": lambda: _llama(
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 3.0,
            "beta_slow": 0.5,
        }
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=None)
    ),
    "mistral-window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, sliding_window=7)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen2-window": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, head_dim=20, tie_word_embeddings=True)
    ),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, pad_token_id=None)),
    "phi3-window": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SIZES, pad_token_id=None, sliding_window=6)
    ),
    "phi3-partly-rotated": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**PARTLY_ROTATED, pad_token_id=None)
    ),
    "phi3-longrope": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**{**SIZES, "max_position_embeddings": 128}, **LONGROPE)
    ),
    "phi3-tied": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SIZES, pad_token_id=None, tie_word_embeddings=True)
    ),
    "olmo2": lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SIZES, pad_token_id=None)),
    "olmo2-tied": lambda: transformers.Olmo2ForCausalLM(
        transformers.Olmo2Config(**SIZES, pad_token_id=None, tie_word_embeddings=True)
    ),
    "smollm3": lambda: transformers.SmolLM3ForCausalLM(
        transformers.SmolLM3Config(**SIZES, pad_token_id=None, no_rope_layer_interval=2)
    ),
    "smollm3-window-untied": lambda: transformers.SmolLM3ForCausalLM(
        transformers.SmolLM3Config(
            **{**SIZES, "num_hidden_layers": 3},
            pad_token_id=None,
            no_rope_layers=[0, 1, 0],
            use_sliding_window=True,
            sliding_window=5,
            tie_word_embeddings=False,
        )
    ),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **GEMMA,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "gemma2-untied-uncapped": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **GEMMA, tie_word_embeddings=False, attn_logit_softcapping=None, final_logit_softcapping=None
        )
    ),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**GEMMA3)),
    "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**HALF_ROTATED)),
    "neox-serial-tied": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**NEOX, use_parallel_residual=False, tie_word_embeddings=True)
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
            centre = p.mean().round().item() if p.dim() == 1 else 0.0  # a scale's 1, a bias's 0
            nn.init.normal_(p, centre, 0.2, generator=generator)
    return model.eval()
