"""Out again: what was trained here opens in transformers and computes the same there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import saved as saved_model
from hub_tokenizers import saved
from safetensors.torch import load_file
from tiny_runs import of_kind, tiny

from zoo import build_model, generate, load_model, save_model, split
from zoo.commands.cli import main
from zoo.data.objectives.span_corruption import SpanCorruption
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.hub.export import Export, export, export_model
from zoo.hub.families import family_for
from zoo.hub.family import Family
from zoo.hub.tokenizer_json import SAMPLE
from zoo.models import Model
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, ZooError

SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
GEMMA: dict[str, Any] = {
    "mlp": "geglu",
    "norms": "both",
    "centred_norms": True,
    "scaled_embedding": True,
    "tied": True,
    "init": "gpt2",
}
"""Without windows."""
LINEAR = {"type": "linear", "factor": 2}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({"source": "gpt", "d_mlp": 48, "n_kv_heads": 2, "rope_base": 500.0}, "LlamaForCausalLM"),
    "wesar": ({"source": "gpt", "init": "he", "reparam": "wesar"}, "LlamaForCausalLM"),
    "long": (
        {"source": "gpt", "rope_scaling": {"type": "llama3", "factor": 8, "context": 16}},
        "LlamaForCausalLM",
    ),
    "linear": ({"source": "gpt", "rope_scaling": LINEAR}, "LlamaForCausalLM"),
    "gemma2": ({"source": "gpt", **GEMMA}, "Gemma2ForCausalLM"),
    "gemma3": ({"source": "gpt", **GEMMA, "qk_norm": True, "rope_scaling": LINEAR}, "Gemma3ForCausalLM"),
    "qwen2": ({"source": "gpt", "qkv_bias": True, "tied": True}, "Qwen2ForCausalLM"),
    "qwen3": ({"source": "gpt", "qk_norm": True, "d_head": 12}, "Qwen3ForCausalLM"),
    "gpt2": ({"source": "gpt2", "context": 32}, "GPT2LMHeadModel"),
    "bert": ({"source": "bert"}, "BertForMaskedLM"),
    "t5": ({"source": "t5"}, "T5ForConditionalGeneration"),
}


def model(**changes: Any) -> Model:
    return build_model(**{"source": "gpt", **SIZES, "seed": 1, **changes})


@pytest.mark.parametrize("name", MODELS)
def test_opens_with_equal_logits(tmp_path: Path, name: str) -> None:
    recipe, architecture = MODELS[name]
    ours = model(**recipe)
    with torch.no_grad():  # norms and biases as well
        for p in ours.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    before = ours(*ours.example()[:-1])
    done = export_model(ours, tmp_path / "out")
    assert done.architecture == architecture
    assert done.max_difference is not None and done.max_difference < 1e-5 * max(1, done.max_logit)
    torch.testing.assert_close(load_model(tmp_path / "out")(*ours.example()[:-1]), before, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_smaller_floats_and_shards(tmp_path: Path, dtype: torch.dtype, shard_bytes: int) -> None:
    """Rounded once: what is read again is what was compared."""
    ours = model()
    export_model(ours, tmp_path / "out", dtype=dtype, shard_bytes=shard_bytes)
    files = list((tmp_path / "out").glob("*.safetensors"))
    assert (len(files) > 1) == (shard_bytes < 10**9)
    assert {t.dtype for file in files for t in load_file(file).values()} == {dtype}
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert opened.dtype == dtype
    again = load_model(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.state_dict().items())


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained here with WeSaR and Amos; exported, opened, imported again by the command line."""
    wesar = ("init=he", "reparam.type=wesar", "optimizer={type: amos, lr: 0.05}")
    run = train(tiny(tmp_path, *wesar, steps=20)).folder
    out, again = tmp_path / "out", tmp_path / "again"
    for arguments in (["export", str(run), str(out), "--to", "hf"], ["import", str(out), str(again)]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
    words = capsys.readouterr().out
    assert f"wrote {out}: LlamaForCausalLM, 21 tensors, 16 folded, tokenizer.json\n" in words
    assert "\nlargest difference of a logit " in words
    assert "LlamaForCausalLM: 21 tensors loaded\nwrote " in words
    ours: Any = load_model(run)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokens = ours.example()[0]
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-4, rtol=0)
        torch.testing.assert_close(load_model(again)(tokens), ours(tokens), atol=1e-4, rtol=0)
    config = json.loads((out / "config.json").read_text())
    assert config["max_position_embeddings"] == 16
    assert config["eos_token_id"] == 255
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 255}
    card = (out / "README.md").read_text()
    loss = [r for r in of_kind(run, "validation") if r["step"] == 20][-1]["cross_entropy"]
    assert "# tiny\n\nLlamaForCausalLM, " in card and f"| cross_entropy | {loss:.5g} |" in card
    assert "after 20 steps" in card and "type: wesar" in card and "- text.txt" in card
    assert str(tmp_path) not in card
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("def f(", return_tensors="pt").input_ids
    assert ids.tolist() == [list(b"def f(")]
    text = theirs.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(text, generate(ours, ids, 8, temperature=0.0, eos_id=255))


def test_the_end_of_a_t5_run_is_that_of_its_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the tokenizer's: span corruption ends sources and targets with the first id that is free."""
    t5 = "model={type: t5, vocab_size: 357, d_model: 16, n_layers: 1, n_heads: 2, d_mlp: 32}"
    run = train(tiny(tmp_path, t5, "data.objective=span-corruption", "data.context=24", steps=6)).folder
    export(run / "checkpoints/step-00000006", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["eos_token_id"], config["decoder_start_token_id"]) == (256, 0)
    ours, theirs = load_model(run), transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    source = ours.example()[0]
    made = theirs.generate(source, max_new_tokens=9, do_sample=False)
    found = generate(ours, source, 9, temperature=0.0, eos_id=256, start_id=0)
    assert torch.equal(made[:, 1:], found)
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (reader.eos_token_id, len(reader)) == (256, 357)
    text = "Line <extra_id_0> is <extra_id_1>"
    assert reader.encode(text) == SpanCorruption().encode(text, ByteTokenizer())
    capsys.readouterr()
    said = []
    for path in (run, tmp_path / "out"):
        with pytest.raises(SystemExit):
            main(["generate", str(path), "--prompt", text, "--temperature", "0", "--max-new-tokens", "9"])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_sources_of_a_t5_with_a_tokenizer_of_the_hub(tmp_path: Path) -> None:
    """End as in training, instead of beginning with the token that its own file puts in front."""
    tokenizer = find_tokenizer(saved("byte-fallback", tmp_path / "hub"))
    objective = SpanCorruption(sentinels=3)
    ours = build_model("t5", vocab_size=tokenizer.vocab_size + 4, d_model=16, n_layers=1, n_heads=2)
    end, special = objective.eos_id(tokenizer), objective.special_tokens
    done = export_model(ours, tmp_path / "out", tokenizer=tokenizer, end=end, special=special)
    assert done.tokenizer, done.reason
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert reader.encode("a fox") == objective.encode("a fox", tokenizer) == [*tokenizer.encode("a fox"), end]


@pytest.mark.parametrize("name", ["LlamaTokenizer", "T5Tokenizer", "BertTokenizer"])
def test_a_class_that_reads_other_tokens_is_not_named(tmp_path: Path, name: str) -> None:
    """T5's adds to the file what only T5's own has."""
    settings = saved("byte-fallback" if name == "LlamaTokenizer" else "unigram", tmp_path / "hub")
    file = settings / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": name}))
    tokenizer = find_tokenizer(settings)
    assert export_model(model(vocab_size=300), tmp_path / "out", tokenizer=tokenizer).tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.encode(SAMPLE, add_special_tokens=False) == tokenizer.encode(SAMPLE)
    named = json.loads((tmp_path / "out/tokenizer_config.json").read_text())["tokenizer_class"]
    assert (named == name) == (name == "LlamaTokenizer")


def test_the_mask_of_a_bert_run(tmp_path: Path) -> None:
    bert = "model={type: bert, vocab_size: 257, d_model: 16, n_layers: 1, n_heads: 2, d_mlp: 32}"
    run = train(tiny(tmp_path, bert, "data.objective=mlm", steps=6)).folder
    assert export(run, tmp_path / "out").tokenizer
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (reader.mask_token, reader.mask_token_id, reader.eos_token_id) == ("[MASK]", 256, 255)
    assert reader.encode("a[MASK]b") == [*b"a", 256, *b"b"]


def test_what_became_of_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says why there is none; the model is written all the same."""
    run = train(tiny(tmp_path, "data.tokenizer={type: word, vocab_size: 200}", steps=6)).folder
    assert export(run, tmp_path / "word").tokenizer
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "word").eos_token == "<eos>"
    texts = "zoo.hub.tokenizer_export.samples"
    monkeypatch.setattr(texts, lambda tokenizer: [f"a{tokenizer.decode([2])}<eos>"])
    other = export(run, tmp_path / "other")
    assert "no tokenizer: transformers reads other tokens with it\n" in str(other)
    names = {file.name for file in (tmp_path / "other").iterdir()}
    assert names == {"config.json", "generation_config.json", "README.md", "model.safetensors"}
    save_model(load_model(run), tmp_path / "alone.safetensors")
    alone = export(tmp_path / "alone.safetensors", tmp_path / "alone")
    assert f"no tokenizer: no tokenizer in {tmp_path}: expected zoo-tokenizer.json" in str(alone)
    assert "no tokenizer: it was given none" in str(export_model(model(), tmp_path / "memory"))


def test_a_split_model(tmp_path: Path) -> None:
    ours = model()
    split(ours, "wesar")
    assert export_model(ours, tmp_path / "out").folded == 16


def test_other_logits_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(config: Any) -> tuple[Family, dict[str, Any]]:
        family, written = family_for(config)
        return family, written | {"rms_norm_eps": 1.0}

    monkeypatch.setattr("zoo.hub.export.family_for", wrong)
    with pytest.raises(
        CheckpointError, match=r"LlamaForCausalLM computes other logits: .* expected a difference"
    ):
        export_model(model(), tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"eos_token_id": "x"}, "StrictDataclassFieldValidationError: .* 'eos_token_id'"),
        ("gemma2", {"sliding_window": None}, "TypeError: "),
    ],
)
def test_what_transformers_refuses_is_one_error(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    """A field of the folder that the model came from, which has no effect here."""
    saved_model(name, tmp_path / "hub")
    file = tmp_path / "hub/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(
        CheckpointError, match=rf"transformers fails with what would be written: {message}"
    ) as caught:
        export(tmp_path / "hub", tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {**GEMMA, "qk_norm": True, "attention": {"window": [5, None]}, "rope_scaling": LINEAR},
        "Gemma3ForCausalLM: model.rope_window_base: null with rope_scaling; expected a number",
    ),
    ({"mlp": "gelu"}, "LlamaForCausalLM: model.mlp: 'gelu'; expected 'swiglu'"),
    (
        {"init": "he", "tied": True},
        "no family of the hub has a scale on the lookups of a tied embedding: embedding",
    ),
]


@pytest.mark.parametrize(("recipe", "message"), REFUSED, ids=str)
def test_refused(tmp_path: Path, recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        export_model(model(**recipe), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="no format called 'gguf'; known: hf"):
        export(tmp_path, tmp_path / "out", to="gguf")
    with pytest.raises(ZooError, match="no dtype called 'int8'"):
        export(tmp_path, tmp_path / "out", dtype="int8")
    with pytest.raises(ZooError, match="is there already; expected the name of a new folder"):
        export_model(model(), tmp_path)


def test_without_transformers_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.hub.export.find_spec", lambda name: None)
    done = export_model(model(), tmp_path / "out")
    assert isinstance(done, Export)
    assert str(done).endswith("not compared: transformers is not installed")
