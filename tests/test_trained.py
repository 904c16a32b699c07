"""Models bring along what it takes to use them: runs, copies of their checkpoints, imports, hub folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import zoo
from hub_tokenizers import saved
from tiny_runs import tiny
from torch import nn

from zoo import build_model, load_model, save_model
from zoo.evaluation.text_generator import TextGenerator
from zoo.run.trained import data_of, tokenizer_of
from zoo.sampling import Sampling
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, DataError, ZooError

T5 = "model={type: t5, vocab_size: 357, d_model: 16, n_layers: 1, n_heads: 2, d_mlp: 32}"
SIZES: dict[str, Any] = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1}


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """What `zoo generate` prints."""

    def generate(path: Path, prompt: str = "Line 3", *options: str) -> str:
        capsys.readouterr()
        settings = ("--prompt", prompt, "--max-new-tokens", "12", "--temperature", "0")
        zoo("generate", path, *settings, *options)
        return capsys.readouterr().out

    return generate


@pytest.mark.parametrize(
    "fields",
    [(), (T5, "data.objective=span-corruption", "data.context=24")],
    ids=["gpt", "t5"],
)
def test_a_copy_of_a_checkpoint_is_enough(tmp_path: Path, said: Any, fields: tuple[str, ...]) -> None:
    run = train(tiny(tmp_path, *fields, steps=6, checkpoint_every=3)).folder
    expected = said(run)
    assert (run / "sample.txt").read_text("utf-8") == expected[:-1]
    copy = tmp_path / "elsewhere"
    shutil.copytree(run / "checkpoints/step-00000006", copy)
    shutil.rmtree(run)
    assert said(copy) == expected
    assert said(copy / "model.safetensors") == expected
    assert data_of(copy) is not None
    assert tokenizer_of(copy).type == "byte"
    assert not (copy / "sample.txt").exists()


def test_a_text_is_shown_where_it_cannot_be_kept(
    tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tiny(tmp_path, steps=6)).folder
    expected = said(run)

    def refuse(path: Path, text: str) -> None:
        raise CheckpointError(f"{path}: cannot be written")

    monkeypatch.setattr("zoo.evaluation.text_generator.write_text", refuse)
    assert said(run) == expected
    assert [record.getMessage() for record in caplog.records] == [f"{run / 'sample.txt'}: cannot be written"]


def test_what_a_checkpoint_shares_costs_nothing(tmp_path: Path) -> None:
    run = train(tiny(tmp_path, steps=6, checkpoint_every=3)).folder
    for folder in sorted((run / "checkpoints").glob("step-*")):
        for own, shared in (("run.yaml", "config.yaml"), ("tokenizer/zoo-tokenizer.json",) * 2):
            assert (folder / own).samefile(run / shared)


def test_checkpoints_of_older_versions_use_their_runs(tmp_path: Path, said: Any) -> None:
    run = train(tiny(tmp_path, steps=6)).folder
    checkpoint = run / "checkpoints/step-00000006"
    expected = said(checkpoint)
    (checkpoint / "run.yaml").unlink()
    shutil.rmtree(checkpoint / "tokenizer")
    assert said(checkpoint) == expected


def llama(folder: Path, tokenizer: str) -> Any:
    heads: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**SIZES, **heads, bos_token_id=None, eos_token_id=0)
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    model.eval()
    model.save_pretrained(folder)
    saved(tokenizer, folder)
    return model


@pytest.mark.parametrize("tokenizer", ["byte-level", "byte-fallback"])
def test_a_folder_of_the_hub_and_its_import(
    tmp_path: Path, said: Any, capsys: pytest.CaptureFixture[str], tokenizer: str
) -> None:
    """They write what transformers writes, from the prompt as its tokenizer reads it."""
    theirs = llama(tmp_path / "hub", tokenizer)
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    given = reader("the fox", return_tensors="pt").input_ids
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": reader.eos_token_id}
    ids = theirs.generate(given, **options, pad_token_id=0)[0]
    expected = reader.decode(ids, skip_special_tokens=True) + "\n"
    assert said(tmp_path / "hub", "the fox") == expected
    zoo("import", tmp_path / "hub", tmp_path / "ours")
    assert f"wrote {tmp_path / 'ours/model.safetensors'}" in capsys.readouterr().out
    assert said(tmp_path / "ours", "the fox") == expected
    assert tokenizer_of(tmp_path / "ours").hash == tokenizer_of(tmp_path / "hub").hash
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox\n" * 5, encoding="utf-8")
    for folder in ("hub", "ours"):
        zoo("eval", tmp_path / folder, "--perplexity", text, "--contexts", "8", "--out", tmp_path / "p.json")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_every_published_end_ends_a_text(tmp_path: Path, said: Any, file: str) -> None:
    """A file may name several; generation_config.json comes first."""
    llama(tmp_path / "hub", "byte-level")
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    given = reader("the fox", return_tensors="pt").input_ids
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    (free,) = theirs.generate(given, **options, eos_token_id=None)[:, given.shape[1] :].tolist()
    ends = [0, free[5]]
    if file == "config.json":
        (tmp_path / "hub/generation_config.json").unlink()
    content = json.loads((tmp_path / "hub" / file).read_text("utf-8")) | {"eos_token_id": ends}
    (tmp_path / "hub" / file).write_text(json.dumps(content), encoding="utf-8")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    (ids,) = theirs.generate(given, **options).tolist()
    assert ids[-1] == ends[1] and len(ids) < given.shape[1] + 12
    expected = reader.decode(ids, skip_special_tokens=True) + "\n"
    assert said(tmp_path / "hub", "the fox") == expected
    zoo("import", tmp_path / "hub", tmp_path / "ours")
    assert said(tmp_path / "ours", "the fox") == expected
    content["eos_token_id"] = ["</s>"]
    (tmp_path / "hub" / file).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=r"eos_token_id is \['</s>'\]; expected a token or a list of tokens"):
        TextGenerator(tmp_path / "hub")


def test_a_special_token_that_the_model_does_not_have(tmp_path: Path, said: Any) -> None:
    """Gemma 3's tokenizer has one for images, which its model for text does not have."""
    llama(tmp_path, "byte-level")
    before = said(tmp_path, "the fox")
    saved("byte-level", tmp_path, added=("<image>",))
    assert said(tmp_path, "the fox") == before
    with pytest.raises(DataError, match="the text has token 300 of the tokenizer 'huggingface', but the mo"):
        TextGenerator(tmp_path).complete("the <image>", 2, Sampling())


def test_an_import_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama(tmp_path / "hub", "byte-level")
    run = train(tiny(tmp_path, steps=6)).folder
    save_model(build_model("gpt", vocab_size=8, d_model=8, n_layers=1, n_heads=1), tmp_path / "m.safetensors")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in (run, tmp_path / "m.safetensors"):
        zoo("import", tmp_path / "hub", out, status=2)
        assert f"{out}: is there already" in capsys.readouterr().err.replace("\n", "")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_import_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama(tmp_path / "hub", "byte-level")

    def stopped(*_: object) -> str:
        raise ZooError("the tokenizer cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr("zoo.run.trained.bring_tokenizer", stopped)
        zoo("import", tmp_path / "hub", tmp_path / "ours", status=2)
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]
    zoo("import", tmp_path / "hub", tmp_path / "ours")
    assert tokenizer_of(tmp_path / "ours").vocab_size == 300


def test_in_and_out_again(tmp_path: Path) -> None:
    """Model and tokenizer go back to the hub as they came."""
    theirs = llama(tmp_path / "hub", "byte-fallback")
    zoo("import", tmp_path / "hub", tmp_path / "ours")
    zoo("export", tmp_path / "ours", tmp_path / "back")
    again: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    for file in ("tokenizer.json", "tokenizer_config.json"):
        before, after = (json.loads((tmp_path / f / file).read_text("utf-8")) for f in ("hub", "back"))
        assert before == after


@pytest.mark.parametrize("first", [0, 5])
def test_an_encoder_decoder_of_the_hub(tmp_path: Path, said: Any, first: int) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
    sizes |= {"num_layers": 1, "feed_forward_proj": "gated-gelu"}
    start: dict[str, Any] = {"decoder_start_token_id": first, "tie_word_embeddings": False}
    theirs: Any = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **start))
    theirs.eval()
    theirs.lm_head.weight = nn.Parameter(torch.randn(64, 16))
    theirs.save_pretrained(tmp_path)
    saved("unigram", tmp_path)
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    source = torch.tensor([[*reader.encode("the fox", add_special_tokens=False), 1]])
    ids = theirs.generate(source, max_new_tokens=12, do_sample=False)[0]
    assert said(tmp_path, "the fox") == reader.decode(ids[1:], skip_special_tokens=True) + "\n"


def test_what_cannot_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama(tmp_path, "byte-level")

    def refused(path: Path, message: str) -> None:
        capsys.readouterr()
        zoo("generate", path, "--prompt", "x", status=2)
        assert message in capsys.readouterr().err.replace("\n", " ")

    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    refused(tmp_path, f"no tokenizer in {tmp_path}: expected zoo-tokenizer.json, tokenizer.json or")
    zoo("import", tmp_path, tmp_path / "ours")
    assert "no tokenizer in" in capsys.readouterr().out
    assert load_model(tmp_path / "ours").recipe.model.vocab_size == 300
    (tmp_path / "ours" / "tokenizer.json").write_bytes((tmp_path / "elsewhere.json").read_bytes())
    refused(tmp_path / "ours", "no file in its folder says which token ends a document")
    for kind, message in (
        ("gpt", "the tokenizer has 300 tokens, but model.vocab_size is 256: they do not belong together"),
        ("bert", "a model of type 'bert' writes no text"),
    ):
        save_model(build_model(kind, vocab_size=256, d_model=16, n_layers=1, n_heads=2), tmp_path / kind)
        saved("byte-level", tmp_path / kind)
        refused(tmp_path / kind, message)
