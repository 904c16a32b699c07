"""LoRA as an adapter of peft: written here and opened there, written there and opened here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import zoo
from hub_models import SIZES, saved
from safetensors.torch import load_file, save_file
from torch import Tensor

from zoo import build_model, load_model, save_model, split
from zoo.hub.export import export_model
from zoo.models import Model
from zoo.utils.errors import CheckpointError, ZooError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft

TOKENS = torch.arange(2 * 9).reshape(2, 9) % 61


def with_lora(base: Path, **fields: Any) -> Model:
    """The model of a folder with a change that is not zero."""
    model = load_model(base)
    split(model, {"type": "lora", "rank": 3, "alpha": 6.0, **fields})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("_up"):
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model.eval()


@torch.no_grad()
def theirs(base: Path, adapter: Path) -> Tensor:
    peft = pytest.importorskip("peft")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    logits: Tensor = peft.PeftModel.from_pretrained(model, adapter).eval()(TOKENS).logits
    return logits


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "phi3"])
@torch.no_grad()
def test_peft_opens_what_was_trained_here(name: str, tmp_path: Path) -> None:
    """Fused matrices too, (in, out) ones too; the folded export and the adapter compute the same."""
    base, out = tmp_path / "base", tmp_path / "out"
    saved(name, base)
    model = with_lora(base)
    expected = model(TOKENS)
    assert (expected - load_model(base)(TOKENS)).abs().max() > 0.01
    done = export_model(model, out, base="base")
    folded: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(folded(TOKENS).logits, expected, atol=1e-5, rtol=0)
    config = json.loads((out / "adapter/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["peft_type"]) == ("base", "LORA")
    again = load_model(out / "adapter", base=base)
    torch.testing.assert_close(again(TOKENS), expected, atol=1e-5, rtol=0)
    assert done.adapter.startswith(f"wrote adapter: {len(config['target_modules'])} matrices of LoRA; ")
    torch.testing.assert_close(theirs(base, out / "adapter"), expected, atol=1e-5, rtol=0)


PEFT: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 8},
    {"target_modules": ["v_proj", "lm_head"], "r": 2, "lora_alpha": 3, "use_rslora": True},
    {
        "target_modules": ["k_proj", "o_proj"],
        "r": 2,
        "rank_pattern": {"o_proj": 5},
        "alpha_pattern": {"k_proj": 9},
    },
    {"target_modules": ["embed_tokens"], "r": 3, "lora_alpha": 6},
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
]


@pytest.mark.parametrize("settings", PEFT, ids=lambda s: "-".join(s["target_modules"]))
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@torch.no_grad()
def test_what_peft_has_trained_is_read(settings: dict[str, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    model = peft.get_peft_model(saved("llama", base), peft.LoraConfig(**settings, init_lora_weights=False))
    for name, p in model.named_parameters():
        if "modules_to_save" in name:
            p.mul_(1.5)
    model.save_pretrained(adapter)
    expected = model.eval()(TOKENS).logits
    torch.testing.assert_close(load_model(adapter, base=base)(TOKENS), expected, atol=1e-5, rtol=0)


def made(folder: Path) -> tuple[Path, Path]:
    """A base and an adapter of it."""
    saved("llama", folder / "base")
    export_model(with_lora(folder / "base"), folder / "out", base="base")
    return folder / "base", folder / "out/adapter"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The base is where the adapter says, or where --base says."""
    base, adapter = made(tmp_path)
    zoo("import", adapter, tmp_path / "own", "--base", base)
    assert f"wrote {tmp_path / 'own/model.safetensors'}" in capsys.readouterr().out
    ours, folded = load_model(tmp_path / "own"), load_model(tmp_path / "out")
    torch.testing.assert_close(ours(TOKENS), folded(TOKENS), atol=1e-5, rtol=0)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(base)}))
    torch.testing.assert_close(load_model(adapter)(TOKENS), ours(TOKENS))
    zoo("import", base, tmp_path / "other", "--base", base, status=2)
    assert "--base is for an adapter, a folder with adapter_config.json" in capsys.readouterr().err


def test_another_base_is_told(tmp_path: Path) -> None:
    _, adapter = made(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"base_model_name_or_path: 'base' is no folder here; expected --base"
    ):
        load_model(adapter)
    saved("gpt2", tmp_path / "gpt2")
    with pytest.raises(
        CheckpointError, match=r"not one of .*gpt2 \(GPT2LMHeadModel\), which has no lm_head, model\.layers"
    ):
        load_model(adapter, base=tmp_path / "gpt2")
    narrow = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"intermediate_size": 40}))
    narrow.save_pretrained(tmp_path / "narrow")
    with pytest.raises(
        CheckpointError, match=r"mlp\.\w+_proj is \[.*\] in the adapter and \[.*\] in the base"
    ):
        load_model(adapter, base=tmp_path / "narrow")
    with pytest.raises(
        ZooError, match="an adapter, which is a change of a model; fold it in first: zoo import"
    ):
        build_model({"model": {"from": str(adapter)}})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type: 'IA3'; expected 'LORA'"),
    ({"use_dora": True}, "use_dora: True; expected False"),
    ({"lora_bias": True}, "lora_bias: True; expected False"),
    ({"r": 4}, "expected matrices of rank 4, as adapter_config.json says"),
    ({"lora_alpha": "x"}, "lora_alpha: 'x'; expected a positive number"),
]


def test_what_cannot_be_folded_is_told(tmp_path: Path) -> None:
    base, adapter = made(tmp_path)
    config = json.loads((adapter / "adapter_config.json").read_text())
    for change, message in BAD:
        (adapter / "adapter_config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=message):
            load_model(adapter, base=base)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    tensors = load_file(adapter / "adapter_model.safetensors")
    del tensors[min(tensors)]
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="has one of A and B; expected both"):
        load_model(adapter, base=base)


def test_what_peft_cannot_do_is_told(tmp_path: Path) -> None:
    """The folded model is written all the same."""
    model = build_model("ngpt", vocab_size=61, d_model=16, n_layers=1, n_heads=2, reparam="lora")
    done = export_model(model, tmp_path / "out")
    assert "no adapter: the matrices of nGPT are projected to the sphere" in str(done)
    assert not (tmp_path / "out/adapter").exists()
    save_model(load_model(tmp_path / "out"), tmp_path / "again.safetensors")
