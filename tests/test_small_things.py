"""Small things that practitioners met: each with the message or the result that they expected."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from tiny_runs import SIZES, tiny

from zoo import build_model, load_model, save_model
from zoo.diagnose.suggest import suggest_lr
from zoo.hub.families import family_of
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, ConfigError, ZooError

SHORT = ["--", "optimizer={type: amos, lr: 0.01}", "train.steps=50", "schedule.warmup=1"][1:]


def test_another_type_on_the_command_line_keeps_what_both_have() -> None:
    gpt = {"model": {"type": "gpt", **SIZES, "mlp": "gelu"}}
    model = load_config(gpt, ["model.type=ngpt"]).model
    assert model is not None
    assert type(model).model_fields["type"].default == "ngpt"
    assert {key: getattr(model, key) for key in SIZES} == SIZES
    wider = load_config(gpt, ["model.type=ngpt", "model.d_mlp=48"]).model
    assert getattr(wider, "d_mlp", None) == 48
    with pytest.raises(ConfigError, match=r"vocab_size: missing"):
        load_config(gpt, ["model=ngpt"])  # the whole model is another one


def test_one_error_for_a_missing_checkpoint(tmp_path: Path) -> None:
    fields = {"model": {"from": str(tmp_path / "none")}, "eta": "measured"}
    with pytest.raises(ConfigError) as error:
        load_config({**fields, "optimizer": {"type": "amos", "lr": 0.01}})
    assert len(str(error.value).splitlines()) == 1
    assert "no such file or folder" in str(error.value)


@pytest.mark.parametrize(
    "named, said",
    [
        ("PhiForCausalLM", "did you mean 'Phi3ForCausalLM'"),
        ("LlamaForCausalML", "did you mean 'LlamaFor"),
        ("XverseForCausalLM", "; known: "),
    ],
)
def test_similar_architectures(named: str, said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        family_of({"architectures": [named]}, "config.json")
    assert said in str(error.value)
    assert "mean 'ZooNGPT" not in str(error.value)


def test_models_that_read_more_than_text() -> None:
    """Without a text part that is known."""
    config = {"architectures": ["PaliGemmaForConditionalGeneration"], "text_config": {"hidden_size": 2560}}
    with pytest.raises(
        CheckpointError, match=r"'PaliGemmaForConditionalGeneration' reads more than text \(its"
    ):
        family_of(config, "config.json")


def test_a_run_too_short_to_measure() -> None:
    with pytest.raises(
        ConfigError, match=r"the run has 50 steps, and one measurement needs \d+; expected train"
    ):
        suggest_lr("gpt-tiny", SHORT)


def test_fewer_steps_than_there_are(tmp_path: Path) -> None:
    run = train(tiny(tmp_path, steps=8), until=6).folder
    console = Console(record=True, width=300)
    train(tiny(tmp_path, steps=5), resume=True, console=console)
    said = " ".join(console.export_text().split())
    assert f"{run} is at step 6, and train.steps is 5: nothing to do" in said
    assert "has all its" not in said


def test_the_model_refuses_before_the_text_is_prepared(tmp_path: Path) -> None:
    """LoRA's B starts at zero, so its norm cannot be kept; the text is not even there."""
    config = tiny(
        tmp_path,
        "reparam=lora",
        "constraint=hyperball",
        "optimizer.weight_decay=0",
        f"data.corpus.paths=['{tmp_path}/none']",
    )
    with pytest.raises(ZooError, match="hyperball keeps the norm of"):
        train(config)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["bf16", "bfloat16"])
def test_both_names_of_a_dtype(tmp_path: Path, name: str) -> None:
    save_model(build_model("gpt-tiny"), tmp_path)
    model = load_model(tmp_path, dtype=name)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    settings = [f"train.precision={name}", f"train.storage={name}", f"train.parallel.gather={name}"]
    train = load_config("gpt-tiny", settings).train
    assert train is not None
    assert (train.precision, train.storage, train.parallel.gather) == ("bf16", "bf16", "bfloat16")
    with pytest.raises(ZooError, match="dtype: int4; expected one of floating point"):
        load_model(tmp_path, dtype="int4")
