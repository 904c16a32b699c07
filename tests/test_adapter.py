"""LoRA as an adapter of peft: written here and opened there, written there and opened here."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import zoo
from hub_models import SIZES, random_, saved
from safetensors.torch import load_file, save_file
from tiny_runs import tiny_fields
from torch import Tensor

from zoo import build_model, load_model, save_model, split
from zoo.data.classification.class_names import read_labels
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.hub.export import export, export_model
from zoo.models import Model
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, ConfigError, ZooError

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


TARGETS = {
    "qwen2": ["down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"],
    "gpt2": ["c_attn", "c_fc", "c_proj"],
    "phi3": ["down_proj", "gate_up_proj", "lm_head", "o_proj", "qkv_proj"],
    "neox": ["dense", "dense_4h_to_h", "dense_h_to_4h", "lm_head", "query_key_value"],
}


@pytest.mark.parametrize("name", TARGETS)
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
    assert config["target_modules"] == TARGETS[name]
    again = load_model(out / "adapter", base=base)
    torch.testing.assert_close(again(TOKENS), expected, atol=1e-5, rtol=0)
    assert re.match(r"wrote adapter: \d+ matrices of LoRA; ", done.adapter)
    torch.testing.assert_close(theirs(base, out / "adapter"), expected, atol=1e-5, rtol=0)


KEPT: list[tuple[str, dict[str, Any], list[tuple[tuple[str, ...], int, float]]]] = [
    (
        "llama",
        {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 8},
        [(("down.weight", "q.weight"), 4, 8)],
    ),
    (
        "llama",
        {"target_modules": ["v_proj", "lm_head"], "r": 4, "lora_alpha": 3, "use_rslora": True},
        [(("matrix.weight", "v.weight"), 4, 6)],
    ),
    (
        "qwen2",
        {
            "target_modules": ["k_proj", "o_proj"],
            "r": 2,
            "rank_pattern": {"o_proj": 5},
            "alpha_pattern": {"k_proj": 9},
        },
        [(("k.weight",), 2, 9), (("o.weight",), 5, 8)],
    ),
    (
        "qwen2",
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "r": 3},
        [(("1.attention.q.weight",), 3, 8)],
    ),
    ("llama", {"target_modules": "all-linear", "r": 2}, []),
    ("gpt2", {"target_modules": ["c_attn"], "r": 3}, [(("k.weight", "q.weight", "v.weight"), 3, 8)]),
    ("neox", {"target_modules": ["query_key_value"]}, [(("k.weight", "q.weight", "v.weight"), 8, 8)]),
    ("neox", {"target_modules": ["dense", "lm_head"]}, [(("matrix.weight", "o.weight"), 8, 8)]),
]


def trained(name: str, folder: Path, base: Any = None, **settings: Any) -> Any:
    """A base and an adapter of peft whose matrices are random, in folders."""
    peft = pytest.importorskip("peft")
    base = base or saved(name, folder / "base")
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.LoraConfig(**settings, init_lora_weights=False))
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if "modules_to_save" in parameter:
                p.mul_(1.5)
    model.save_pretrained(folder / "adapter")
    return model.eval()


@pytest.mark.parametrize(("name", "settings", "targets"), KEPT)
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`", "ignore:.*fan_in_fan_out")
@torch.no_grad()
def test_what_peft_has_trained_is_kept(
    name: str, settings: dict[str, Any], targets: list[Any], tmp_path: Path
) -> None:
    """As LoRA of the same matrices, ranks and alphas, whose export is the adapter again; or folded."""
    expected = trained(name, tmp_path, **settings)(TOKENS).logits
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    ours = load_model(adapter, base=base)
    torch.testing.assert_close(ours(TOKENS), expected, atol=1e-5, rtol=1e-5)
    folded = load_model(adapter, base=base, fold=True)
    torch.testing.assert_close(folded(TOKENS), expected, atol=1e-5, rtol=1e-5)
    method: Any = ours.recipe.reparam
    if targets:
        assert [(tuple(sorted(t.names)), t.rank, t.alpha) for t in method.targets] == targets
    factors = {n for n, p in ours.named_parameters() if p.requires_grad}
    assert factors and all(n.endswith(("_down", "_up")) for n in factors)
    before = load_file(adapter / "adapter_model.safetensors")
    save_model(ours, tmp_path / "own")
    export_model(load_model(tmp_path / "own"), tmp_path / "out")
    after = load_file(tmp_path / "out/adapter/adapter_model.safetensors")
    changed = {key: tensor for key, tensor in before.items() if ".lora_" in key}
    assert after.keys() == changed.keys() and all(torch.equal(t, after[k]) for k, t in changed.items())
    torch.testing.assert_close(theirs(base, tmp_path / "out/adapter"), expected, atol=1e-5, rtol=1e-5)
    then, now = (
        json.loads((f / "adapter_config.json").read_text()) for f in (adapter, tmp_path / "out/adapter")
    )
    assert now["base_model_name_or_path"] == then["base_model_name_or_path"]
    if (
        not {"layers_to_transform", "use_rslora"} & settings.keys()
        and settings["target_modules"] != "all-linear"
    ):
        assert set(now["target_modules"]) == set(then["target_modules"])


FOLDED: list[tuple[dict[str, Any], str]] = [
    ({"target_modules": ["embed_tokens"], "r": 3, "lora_alpha": 6}, "embed_tokens.weight"),
    ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "lm_head.weight"),
]


@pytest.mark.parametrize(("settings", "name"), FOLDED)
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@torch.no_grad()
def test_what_can_only_be_folded(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    expected = trained("llama", tmp_path, **settings)(TOKENS).logits
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    with pytest.raises(
        CheckpointError, match=rf"{name}: LoRA is kept .*\(modules_to_save\); expected --fold"
    ):
        load_model(adapter, base=base)
    folded = load_model(adapter, base=base, fold=True)
    torch.testing.assert_close(folded(TOKENS), expected, atol=1e-5, rtol=0)


def test_a_run_goes_on_with_an_adapter(tmp_path: Path) -> None:
    """Which names its base, with its tokenizer; only A and B are trained, and an export is an adapter."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    llama = random_(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"vocab_size": 256})))
    llama.save_pretrained(base)
    ByteTokenizer().save(base)
    trained("llama", tmp_path, llama, target_modules=["q_proj", "v_proj"], r=2)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "base"}))
    fields = tiny_fields(tmp_path, steps=6) | {"model": {"from": str(adapter)}}
    run = train(load_config(fields)).folder
    before, after = load_model(adapter).state_dict(), load_model(run).state_dict()
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in after if name.endswith(("_down", "_up"))}
    export(run, tmp_path / "out")
    written = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (written["base_model_name_or_path"], written["r"]) == ("base", 2)
    assert written["target_modules"] == ["q_proj", "v_proj"]
    with torch.no_grad():
        ours = load_model(run).eval()(TOKENS)
    torch.testing.assert_close(theirs(base, tmp_path / "out/adapter"), ours, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_classifiers_head_goes_with_its_adapter(tmp_path: Path) -> None:
    """It is trained as a whole: peft's modules_to_save, out and in."""
    peft = pytest.importorskip("peft")
    kind: Any = transformers.AutoModelForSequenceClassification
    fields: dict[str, Any] = SIZES | {"num_labels": 3, "pad_token_id": 0}
    random_(kind.from_config(transformers.LlamaConfig(**fields))).save_pretrained(tmp_path / "base")
    ours = with_lora(tmp_path / "base")
    ours.get_parameter("head.linear.weight").mul_(-2)
    expected = ours(TOKENS)
    export_model(ours.train(), tmp_path / "out", base="base")
    assert ours.training
    adapter = tmp_path / "out/adapter"
    written = json.loads((adapter / "adapter_config.json").read_text())
    assert (written["task_type"], written["modules_to_save"]) == ("SEQ_CLS", ["score"])
    opened = peft.PeftModel.from_pretrained(kind.from_pretrained(tmp_path / "base"), adapter).eval()
    torch.testing.assert_close(opened(TOKENS).logits, expected, atol=1e-5, rtol=0)
    for fold in (False, True):
        again = load_model(adapter, base=tmp_path / "base", fold=fold).eval()
        torch.testing.assert_close(again(TOKENS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fold", [False, True])
@torch.no_grad()
def test_a_classifiers_adapter_on_the_language_model_it_was_trained_on(fold: bool, tmp_path: Path) -> None:
    """As transformers makes the classifier: the trunk is the language model's, the head the adapter's."""
    language_model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, pad_token_id=0))
    random_(language_model).save_pretrained(base := tmp_path / "base")
    kind: Any = transformers.AutoModelForSequenceClassification
    classifier = kind.from_pretrained(base, num_labels=3)
    settings = {"target_modules": ["q_proj"], "task_type": "SEQ_CLS"}
    expected = trained("llama", tmp_path, classifier, **settings)(TOKENS).logits
    ours = load_model(adapter := tmp_path / "adapter", base=base, fold=fold).eval()
    torch.testing.assert_close(ours(TOKENS), expected, atol=1e-5, rtol=1e-5)
    zoo("import", adapter, own := tmp_path / "own", "--base", base, *(["--fold"] if fold else []))
    assert read_labels(own) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    export(own, tmp_path / "out")
    again = kind.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(again(TOKENS).logits, expected, atol=1e-5, rtol=1e-5)
    if not fold:  # the same adapter, also on a language model that zoo has saved
        save_model(load_model(base), tmp_path / "saved")
        other = load_model(tmp_path / "out/adapter", base=tmp_path / "saved").eval()
        torch.testing.assert_close(other(TOKENS), expected, atol=1e-5, rtol=1e-5)
    file = adapter / "adapter_model.safetensors"
    save_file({k: t for k, t in load_file(file).items() if "score" not in k}, file)
    with pytest.raises(CheckpointError, match=r"lacks score\.weight .* is a language model; expected the"):
        load_model(adapter, base=base, fold=fold)


@torch.no_grad()
def test_an_adapter_in_the_folder_of_its_base(tmp_path: Path) -> None:
    expected = trained("llama", tmp_path, target_modules=["q_proj"])(TOKENS).logits
    for file in (tmp_path / "adapter").glob("adapter_*"):
        shutil.copy(file, tmp_path / "base")
    torch.testing.assert_close(load_model(tmp_path / "base")(TOKENS), expected, atol=1e-5, rtol=0)


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


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@torch.no_grad()
def test_the_read_out_of_neox_under_its_older_name(tmp_path: Path) -> None:
    """Files call it embed_out, and so did transformers in memory, where adapters find it; today: lm_head."""
    expected = trained("neox", tmp_path, target_modules=["lm_head"])(TOKENS).logits
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({key.replace("lm_head", "embed_out"): tensor for key, tensor in load_file(file).items()}, file)
    ours = load_model(tmp_path / "adapter", base=tmp_path / "base")
    torch.testing.assert_close(ours(TOKENS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_a_read_out_that_is_the_embedding(fold: bool, tmp_path: Path) -> None:
    """peft changes the copy alone that reads out, which the base does not have."""
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        trained("llama-all-heads-tied", tmp_path, target_modules=["q_proj", "lm_head"])
    with pytest.raises(CheckpointError, match=r"lm_head.weight.*: the base .* reads out with its embedding"):
        load_model(tmp_path / "adapter", base=tmp_path / "base", fold=fold)


def test_another_base_is_told(tmp_path: Path) -> None:
    _, adapter = made(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"base_model_name_or_path: 'base' is no folder here; expected the model"
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
        ZooError,
        match=r"model\.from: .*: 'base' is no folder here; .* zoo import .*adapter OUT --base FOLDER",
    ):
        build_model({"model": {"from": str(adapter)}})
    own = with_lora(tmp_path / "base")
    save_model(own, tmp_path / "own")
    with pytest.raises(
        CheckpointError, match="the base has reparam 'lora', and LoRA would be another; expect"
    ):
        load_model(adapter, base=tmp_path / "own")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type: 'IA3'; expected 'LORA'"),
    ({"use_dora": True}, "use_dora: True; expected False"),
    ({"lora_bias": True}, "lora_bias: True; expected False"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa'; expected True"),
    ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens: '\[1\]'; expected none, as zoo does not"),
    ({"r": 4}, "expected matrices of rank 4, as adapter_config.json says"),
    ({"lora_alpha": "x"}, "lora_alpha: 'x'; expected a positive number"),
    ({"rank_pattern": {"q_proj[": 2}}, "rank_pattern: .*; expected an object of patterns and numbers"),
    ({"alpha_pattern": ["q_proj"]}, "alpha_pattern: .*; expected an object of patterns and numbers"),
]


def test_what_is_not_understood_is_told(tmp_path: Path) -> None:
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


def test_a_part_of_a_fused_matrix_that_is_trained_as_a_whole_is_told(tmp_path: Path) -> None:
    """GPT-2's k and v are, and q is not: an adapter without them would be another model."""
    saved("gpt2", tmp_path / "base")
    model = with_lora(tmp_path / "base", axes=["mlp"], trains=["kv_heads"])
    done = export_model(model, tmp_path / "out")
    assert re.search(r"no adapter: transformer\.h\.0\.attn\.c_attn\.\w+ is trained in parts", done.adapter)
    assert not (tmp_path / "out/adapter").exists()


def test_a_name_that_no_matrix_has_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "extends: gpt-tiny\nreparam:\n  type: peft\n  targets:\n"
        "    - {names: [q.weight]}\n    - {names: [kk]}\n"
    )
    with pytest.raises(ConfigError, match=r"f.yaml:[456]: reparam.targets.1.names: no linear map is called"):
        build_model(str(file))
