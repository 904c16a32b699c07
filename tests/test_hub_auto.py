"""nGPT in transformers: opened, generated from and saved by their own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from zoo import Registry, build_model, generate, load_model
from zoo.hub import register_auto
from zoo.hub.export import export_model
from zoo.models import Model
from zoo.utils.errors import CheckpointError, DataError

OPTIONS: list[dict[str, Any]] = [
    {},
    {"n_kv_heads": 2, "tied": True, "d_head": 6, "s_qk": {"kind": "scalar"}, "update": "slerp"},
    {"alpha": {"kind": "fixed"}, "s_z": {"init": 2.0}, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"attention": {"gate": "head"}},
]


def model(**changes: Any) -> Model:
    sizes: dict[str, Any] = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return build_model("ngpt", **sizes, seed=1, **changes)


def opened(folder: Path) -> Any:
    register_auto()
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_there_and_back(tmp_path: Path, options: dict[str, Any]) -> None:
    ours = model(**options)
    export_model(ours, tmp_path / "first")
    theirs = opened(tmp_path / "first")
    tokens = ours.example(2)[0]
    assert torch.equal(theirs(tokens).logits, ours(tokens))
    theirs.save_pretrained(tmp_path / "second")
    for folder in ("first", "second"):
        again = load_model(tmp_path / folder)
        assert again.recipe.model == ours.recipe.model
        assert all(torch.equal(t, again.state_dict()[name]) for name, t in ours.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@torch.no_grad()
def test_it_opens_in_the_dtype_that_is_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    """By default in that of the file, as every model of transformers."""
    export_model(model(), tmp_path / "out", dtype=dtype)
    register_auto()
    other = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
    for asked, expected in (({}, dtype), ({"dtype": other}, other)):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", **asked)
        assert {theirs.dtype, *(p.dtype for p in theirs.parameters())} == {expected}
    assert torch.get_default_dtype() == torch.float32


@torch.no_grad()
def test_generation(tmp_path: Path) -> None:
    """Greedy, with their cache and without, is ours; beams share the cache too."""
    ours = model(n_kv_heads=2)
    export_model(ours, tmp_path / "out")
    theirs = opened(tmp_path / "out")
    prompt = ours.example(2, 7)[0]
    expected = generate(ours, prompt, 20, temperature=0.0)
    for use_cache in (True, False):
        found = theirs.generate(prompt, max_new_tokens=20, do_sample=False, use_cache=use_cache)
        assert torch.equal(found, expected)
    beams = [
        theirs.generate(prompt, max_new_tokens=9, do_sample=False, num_beams=3, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    assert torch.equal(*beams)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@torch.no_grad()
def test_a_cache_by_both_of_its_names(name: str) -> None:
    """transformers 5.24 renamed it; a name that is unknown would lead to text without the earlier tokens."""
    theirs = new()
    first, then = torch.tensor([[3, 1, 4]]), torch.tensor([[1, 5]])
    cache = transformers.DynamicCache()
    theirs(first, **{name: cache})
    assert cache.get_seq_length() == 3
    kept = theirs(then, **{name: cache}).logits
    torch.testing.assert_close(kept, theirs(torch.cat([first, then], 1)).logits[:, 3:])
    assert any(value is cache for value in theirs(then, **{name: cache}).values())
    with pytest.raises(DataError, match="keys: a cache by an unknown name; expected cache or past_key"):
        theirs(then, keys=cache)


def new() -> Any:
    """Made by their `from_config`."""
    register_auto()
    config = transformers.AutoConfig.for_model("zoo-ngpt", model=model().recipe.model.model_dump())
    make: Any = transformers.AutoModelForCausalLM
    return make.from_config(config)


def test_their_loss_is_ours() -> None:
    theirs = new()
    tokens, targets = theirs.model.example(2)
    loss = theirs(tokens, labels=tokens).loss
    targets[:, -1] = -1
    torch.testing.assert_close(loss, theirs.model.loss(tokens, targets).total)


def test_a_new_model_lies_on_the_sphere(tmp_path: Path) -> None:
    """Every matrix has unit vectors, every scaling its start; and it can be saved for zoo."""
    theirs = new()
    theirs.save_pretrained(tmp_path)
    assert load_model(tmp_path).recipe.model == model().recipe.model
    for entry in Registry(theirs.model):
        parameter = theirs.model.get_parameter(entry.name)
        if entry.sphere_dim is None:
            assert (parameter == entry.spec.start).all()
        else:
            torch.testing.assert_close(
                parameter.norm(dim=entry.sphere_dim), torch.ones(parameter.shape[1 - entry.sphere_dim])
            )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_a_classifier_there_and_back(tmp_path: Path, options: dict[str, Any]) -> None:
    """Right padding is not seen; the loss is the mean cross entropy; what they save is read again."""
    trunk = model(**options).recipe.model.model_dump()
    ours = build_model("classifier", trunk=trunk, classes=3, pool="last", seed=2)
    labels = ["bad", "so so", "good"]
    result = export_model(ours, tmp_path / "first", labels=labels)
    assert result.architecture == "ZooNGPTForSequenceClassification"
    register_auto()
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "first")
    assert theirs.config.id2label == dict(enumerate(labels))
    tokens, segments, mask, targets = ours.example(3, 8)
    found = theirs(tokens, attention_mask=mask.long(), labels=targets)
    torch.testing.assert_close(found.logits, ours(tokens, segments, mask), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.loss, ours.loss(tokens, segments, mask, targets).total)
    theirs.save_pretrained(tmp_path / "second")
    for folder in ("first", "second"):
        again = load_model(tmp_path / folder)
        assert again.recipe.model == ours.recipe.model
        assert all(torch.equal(t, again.state_dict()[name]) for name, t in ours.state_dict().items())


def test_padding_is_refused(tmp_path: Path) -> None:
    export_model(model(), tmp_path / "out")
    mask = torch.tensor([[0, 1, 1]])
    with pytest.raises(DataError, match="attention_mask: has zeros; expected texts of one length"):
        opened(tmp_path / "out")(torch.ones(1, 3, dtype=torch.int64), attention_mask=mask)


def test_without_its_fields(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "zoo-ngpt"}')
    with pytest.raises(CheckpointError, match="d_model: missing"):
        load_model(tmp_path)
