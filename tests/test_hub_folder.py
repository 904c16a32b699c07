"""Folders of the hub: what is damaged, unsafe or does not belong is refused; memory is that of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import saved
from safetensors.torch import load_file, save_file
from tiny_runs import ROOT, environment
from torch import Tensor

from zoo import load_model, save_model
from zoo.hub.export import export
from zoo.hub.folder import load_folder
from zoo.run.warm.convert import convert
from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.permissions import Permissions

SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
READ_OUT, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE)


def change_json(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def test_load_model_opens_it(tmp_path: Path) -> None:
    theirs = saved("llama", tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    tokens = model.example()[0]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)
    save_model(model, tmp_path / "ours")
    assert torch.equal(load_model(tmp_path / "ours")(tokens), model(tokens))


def test_names_and_copies_of_old_versions(tmp_path: Path) -> None:
    """Without the prefix, with masks as buffers, and with the tied read-out stored besides."""
    saved("gpt2", tmp_path)
    expected = load_model(tmp_path).state_dict()

    def age(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        tensors["h.1.attn.masked_bias"] = torch.tensor(-1e4)
        tensors[READ_OUT] = tensors["wte.weight"].clone()

    change(tmp_path, age)
    model, report = load_folder(tmp_path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert sorted(report.skipped) == ["h.0.attn.bias", "h.1.attn.masked_bias", READ_OUT]
    change(tmp_path, lambda tensors: tensors[READ_OUT].add_(1))
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from transformer.wte.weight, though"):
        load_folder(tmp_path)


def test_what_is_allowed(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    expected = load_model(tmp_path)

    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors[READ_OUT]
        tensors["score.weight"] = torch.zeros(2, 32)

    change(tmp_path, edit)
    with pytest.raises(CheckpointError) as caught:
        load_folder(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: as a LlamaForCausalLM it lacks lm_head.weight; it has no place for score.weight"
    )
    model, report = load_folder(tmp_path, allow=["lm_head.*", "score.weight"])
    assert (report.missing, report.unexpected) == ((READ_OUT,), ("score.weight",))
    assert str(report) == (
        "LlamaForCausalLM: 20 tensors loaded, 1 missing (lm_head.weight), 1 unexpected (score.weight)"
    )
    assert torch.equal(model.get_parameter("norm.scale"), expected.get_parameter("norm.scale"))
    assert 0.01 < model.get_parameter("read_out.matrix.weight").std() < 0.03
    with pytest.raises(ZooError, match=r"allow: 'cls.\*' has no effect"):
        load_model(tmp_path, allow=["lm_head.*", "score.*", "cls.*"])


def truncated(folder: Path) -> None:
    os.truncate(folder / SINGLE, (folder / SINGLE).stat().st_size - 100)


def pickled(folder: Path) -> None:
    (folder / SINGLE).unlink()
    torch.save({}, folder / "pytorch_model.bin")


def pickle_in_disguise(folder: Path) -> None:
    torch.save({}, folder / SINGLE)


def without_tensors(folder: Path) -> None:
    (folder / SINGLE).unlink()


def without_config(folder: Path) -> None:
    (folder / CONFIG).unlink()


def broken_config(folder: Path) -> None:
    (folder / CONFIG).write_text("{")


def config_is_a_list(folder: Path) -> None:
    (folder / CONFIG).write_text("[]")


def lying_sizes(folder: Path) -> None:
    change_json(folder / CONFIG, lambda c: c.update(vocab_size=10**9))


def lying_layers(folder: Path) -> None:
    """As many as zoo reads, and more than there are tensors."""
    change_json(folder / CONFIG, lambda c: c.update(num_hidden_layers=10**5))


def endless_layers(folder: Path) -> None:
    """So many that declaring them would never end."""
    change_json(folder / CONFIG, lambda c: c.update(num_hidden_layers=10**12))


def integers(folder: Path) -> None:
    change(folder, lambda t: t.update({READ_OUT: t[READ_OUT].to(torch.int8)}))


def wide_floats(folder: Path) -> None:
    change(folder, lambda t: t.update({READ_OUT: t[READ_OUT].double()}))


def two_spellings(folder: Path) -> None:
    change(folder, lambda t: t.update({"norm.weight": t["model.norm.weight"].clone()}))


DAMAGED = [
    (truncated, "model.safetensors: not a complete safetensors file"),
    (
        pickled,
        "expected model.safetensors or model.safetensors.index.json; it has pytorch_model.bin: zoo never",
    ),
    (pickle_in_disguise, "it looks like torch.save's pickle"),
    (without_tensors, "expected model.safetensors or model.safetensors.index.json"),
    (without_config, "no config.json in it; expected a folder as on the Hugging Face hub"),
    (broken_config, "config.json: not JSON"),
    (config_is_a_list, "config.json: a list; expected an object"),
    (
        lying_sizes,
        "model.embed_tokens.weight is F32 [61, 32], expected F32 or BF16 or F16 [1000000000, 32], lm_h",
    ),
    (lying_layers, "num_hidden_layers is 100000, but there are 21 tensors"),
    (endless_layers, "config.json: num_hidden_layers: value 1000000000000; expected at most 100000"),
    (integers, "lm_head.weight is I8 [61, 32], expected F32 or BF16 or F16 [61, 32]"),
    (wide_floats, "lm_head.weight is F64 [61, 32], expected F32 or BF16 or F16 [61, 32]"),
    (two_spellings, "model.norm.weight is there twice, once as"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED, ids=[d.__name__ for d, _ in DAMAGED])
def test_damaged(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    saved("llama", tmp_path)
    damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


def first_shard(folder: Path) -> Path:
    return min(folder.glob("model-*.safetensors"))


def missing_shard(folder: Path) -> None:
    first_shard(folder).unlink()


def truncated_shard(folder: Path) -> None:
    os.truncate(first_shard(folder), 400)


def moved_tensor(folder: Path) -> None:
    other = max(folder.glob("model-*.safetensors")).name
    change_json(folder / INDEX, lambda index: index["weight_map"].update({TABLE: other}))


def doubled_tensor(folder: Path) -> None:
    other = max(folder.glob("model-*.safetensors"))
    save_file(load_file(other) | {TABLE: torch.zeros(61, 32)}, other)


def invented_tensor(folder: Path) -> None:
    name = first_shard(folder).name
    change_json(folder / INDEX, lambda index: index["weight_map"].update({"model.ghost": name}))


def indexed(target: Any) -> Callable[[Path], None]:
    """An index that sends a tensor somewhere else."""
    return lambda folder: change_json(
        folder / INDEX, lambda index: index["weight_map"].update({TABLE: target})
    )


def index_without_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


SHARDS: list[tuple[Callable[[Path], None], str]] = [
    (missing_shard, "no file 'model-00001-of-"),
    (truncated_shard, "not a complete safetensors file"),
    (moved_tensor, f"{TABLE}: not in the file it names"),
    (doubled_tensor, f"{TABLE} is in model-0"),
    (invented_tensor, "model.ghost: not in the file it names"),
    (index_without_map, "weight_map: expected an object of tensors and files"),
    (
        indexed("../secret.safetensors"),
        "'../secret.safetensors'; expected the name of a .safetensors file in its folder",
    ),
    (indexed("/etc/secret.safetensors"), "'/etc/secret.safetensors'; expected the name"),
    (indexed("pytorch_model.bin"), "'pytorch_model.bin'; expected the name"),
    (indexed(7), "7; expected the name"),
    (indexed("x" * 300 + ".safetensors"), "no file 'xxxx"),
    (indexed("x\0.safetensors"), "no file 'x\\x00.safetensors'"),
]


@pytest.mark.parametrize(("damage", "message"), SHARDS, ids=[m for _, m in SHARDS])
def test_damaged_shards(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    saved("llama", tmp_path, max_shard_size="20KB")
    damage(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


def test_a_tensor_of_two_parameters_is_copied(tmp_path: Path) -> None:
    """transformers 5 initialises the head of a T5 v1.1 as its table and saves one of them; zoo trains two."""
    sizes: dict[str, Any] = {
        "vocab_size": 61,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 1,
        "num_heads": 4,
    }
    sizes |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    model = load_folder(tmp_path / "t5")[0]
    table, head = model.get_parameter("embedding.weight"), model.get_parameter("read_out.matrix.weight")
    assert torch.equal(table, head)
    with torch.no_grad():
        table.zero_()
    assert head.any()
    made = convert(tmp_path / "t5", tmp_path / "wesar", to="wesar")
    assert made.logits is not None and made.logits < 1e-5


def test_a_folder_that_was_saved_again_with_larger_shards(tmp_path: Path) -> None:
    """transformers leaves the index of the smaller shards there, and reads the single file."""
    saved("llama", tmp_path, max_shard_size="20KB")
    saved("llama", tmp_path)
    assert {"model.safetensors", "model.safetensors.index.json"} <= {file.name for file in tmp_path.iterdir()}
    assert load_folder(tmp_path)[0].recipe.model.type == "gpt"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: no such folder \(nothing is downloaded\); "):
        load_folder(tmp_path / "nowhere")


def test_sizes_that_no_number_of_bytes_has(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    change_json(tmp_path / CONFIG, lambda c: c.update(vocab_size=10**30))
    with pytest.raises(ZooError, match="a parameter of vocab 1000000000000000000000000000000, embed 32; exp"):
        load_folder(tmp_path)


MEASURE = """
import sys
from pathlib import Path
from zoo.run.config import load_config
from zoo.run.first_weights import initial_model

def kilobytes(of):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(of))

warm, measured = sys.argv[1:]
initial_model(load_config({'model': {'from': warm}}))  # the code that is loaded with the first model
before = kilobytes("VmRSS")
model = initial_model(load_config({'model': {'from': measured}})).model
print(kilobytes("VmHWM") - before, sum(p.nbytes for p in model.parameters()))
"""


def in_files(folder: Path, width: int, rows: int, layers: int) -> int:
    """A folder of the hub with a Llama of zeros, a file for each layer; returns the size of the largest."""
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": rows}
    config |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 8}
    config |= {"intermediate_size": width, "tie_word_embeddings": True}
    (folder / CONFIG).write_text(json.dumps(config))
    matrices = {f"self_attn.{x}_proj": (width, width) for x in "qkvo"}
    matrices |= {f"mlp.{x}_proj": (width, width) for x in ("up", "gate", "down")}
    shards: list[dict[str, Tensor]] = [
        {TABLE: torch.zeros(rows, width).bfloat16(), "model.norm.weight": torch.ones(width).bfloat16()}
    ]
    for i in range(layers):
        part = {f"model.layers.{i}.{n}.weight": torch.zeros(s).bfloat16() for n, s in matrices.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            part[f"model.layers.{i}.{norm}.weight"] = torch.ones(width).bfloat16()
        shards.append(part)
    weight_map: dict[str, str] = {}
    for i, part in enumerate(shards):
        save_file(part, folder / f"part-{i}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{i}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return max(file.stat().st_size for file in folder.glob("*.safetensors"))


def test_memory_is_that_of_the_model_and_one_shard(tmp_path: Path) -> None:
    """The peak of a process that begins a run with 55 MB of bfloat16 in eight files, 110 MB in float32."""
    in_files(tmp_path / "warm", width=32, rows=8, layers=1)
    largest = in_files(tmp_path / "measured", width=720, rows=4096, layers=7)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "warm"), str(tmp_path / "measured")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(),
    )
    peak, model = (int(word) for word in done.stdout.split())
    rest = 2 * 2**20  # headers and modules; measured: 0.6 to 0.7 MiB
    assert peak * 1024 < model + largest + rest


def test_training_leaves_the_files_alone(tmp_path: Path) -> None:
    """What is float32 there is mapped into memory: pages that are written to are copies."""
    saved("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    before = file.read_bytes()
    model, _ = load_folder(tmp_path)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert file.read_bytes() == before
    assert any(p.any() for p in load_folder(tmp_path)[0].parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    saved("llama", tmp_path)
    change(tmp_path, lambda tensors: tensors[TABLE][3].fill_(value))
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors: {TABLE} has entries that are not finite"
    ):
        load_model(tmp_path)
    monkeypatch.setattr(Permissions, "non_finite", True)
    load_model(tmp_path)


def test_a_flipped_bit_in_a_folder_that_zoo_wrote(tmp_path: Path) -> None:
    saved("llama", tmp_path / "theirs")
    export(tmp_path / "theirs", tmp_path / "ours")
    file = tmp_path / "ours" / SINGLE
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* is damaged: its checksum"):
        load_model(tmp_path / "ours")
