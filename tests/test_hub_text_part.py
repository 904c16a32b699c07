"""Gemma 3 from 4B on, Mistral Small from 3.1 on: the text model of one that reads images as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import SIZES, random_
from safetensors.torch import load_file, save_file

from zoo import build_model
from zoo.hub.export import export
from zoo.hub.families import family_of
from zoo.hub.folder import load_folder
from zoo.hub.text_part import text_part
from zoo.utils.errors import CheckpointError

TEXT: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 5,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "pad_token_id": 0,
}
EYES = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
EYES |= {"image_size": 8, "patch_size": 4}
LM_HEAD = "language_model.lm_head."

PUBLISHED: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"},
}
"""The fields of the 4B model's file, with some of those of the part that reads images."""


def gemma3() -> Any:
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config=EYES, mm_tokens_per_image=4, image_token_index=60
    )
    return random_(transformers.Gemma3ForConditionalGeneration(config))


def mistral3(tied: bool = False) -> Any:
    text = SIZES | {"head_dim": 8, "sliding_window": None}
    text |= {"model_type": "mistral", "tie_word_embeddings": tied}
    eyes = EYES | {"model_type": "pixtral", "head_dim": 8}
    config: Any = transformers.Mistral3Config(text_config=text, vision_config=eyes, tie_word_embeddings=tied)
    return random_(transformers.Mistral3ForConditionalGeneration(config))


def saved(model: Any, folder: Path, as_in_memory: bool = False) -> Any:
    """The model in a folder, its tensors named as in published files or as in memory."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    if as_in_memory:
        named = {
            name if name == "lm_head.weight" else f"model.{name}": tensor
            for old, tensor in tensors.items()
            for name in [old.replace("language_model.model.", "language_model.").replace(LM_HEAD, "lm_head.")]
        }
        save_file(named, folder / "model.safetensors", {"format": "pt"})
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "gemma3": gemma3,
    "mistral3": mistral3,
    "mistral3-tied": partial(mistral3, tied=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("as_in_memory", [False, True])
@torch.no_grad()
def test_logits_are_those_of_the_whole(as_in_memory: bool, name: str, tmp_path: Path) -> None:
    """For texts; and an export is the text model alone, which transformers opens as such."""
    theirs = saved(MODELS[name](), tmp_path / "hub", as_in_memory).eval()
    ours, report = load_folder(tmp_path / "hub")
    tokens = torch.randint(1, 60, (2, 19), generator=torch.Generator().manual_seed(0))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours.eval()(tokens), expected, atol=1e-5, rtol=0)
    parts = {name.removeprefix("model.").partition(".")[0] for name in report.unused}
    assert parts == {"vision_tower", "multi_modal_projector"} and "unused (" in str(report)
    export(tmp_path / "hub", tmp_path / "out")
    text: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(text).__name__ == {"gemma3": "Gemma3ForCausalLM"}.get(name, "MistralForCausalLM")
    torch.testing.assert_close(text(tokens).logits, expected, atol=1e-5, rtol=0)


def test_the_published_fields() -> None:
    part = text_part(PUBLISHED)
    assert part is not None
    config = part.config(PUBLISHED)
    assert config["eos_token_id"] == [1, 106]
    model = build_model({"model": family_of(config, "x").to_zoo(config, "x").model_dump()}, device="meta")
    layer = 2560 * (2048 + 2 * 1024 + 2048) + 2 * 256 + 3 * 2560 * 10240 + 4 * 2560
    assert sum(p.numel() for p in model.parameters()) == 262208 * 2560 + 34 * layer + 2560


def test_a_tensor_of_no_part_and_a_field_are_told(tmp_path: Path) -> None:
    saved(gemma3(), tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"audio_tower.weight": torch.ones(1)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has no place for audio_tower\.weight"):
        load_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["attention_bias"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json: text_config: attention_bias: true"):
        load_folder(tmp_path)
