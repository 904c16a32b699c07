"""Tasks in the chat template: the prompts, answers and scores of the harness's class for transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from local_tasks import no_network, write_tasks
from test_chat_templates import folder, reader
from test_lm_eval import assert_equal
from tiny_runs import tiny_fields

from zoo.evaluation.harness import ZooLM
from zoo.evaluation.offline import offline
from zoo.evaluation.task_report import tasks
from zoo.evaluation.tasks import load_tasks
from zoo.evaluation.warnings_only import warnings_only
from zoo.hub.export import export_model
from zoo.run.config import load_config
from zoo.run.first_weights import initial_model
from zoo.sampling import steps
from zoo.train.run import train
from zoo.utils.errors import DataError, ZooError

NAMES = ["quiz", "write"]


@pytest.fixture(scope="module", autouse=True)
def without_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with no_network(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("local") / "tasks")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in the format of the hub, with ChatML."""
    place = tmp_path_factory.mktemp("model")
    sizes = {"type": "gpt", "vocab_size": 310, "d_model": 16, "n_layers": 1, "n_heads": 2}
    made = initial_model(load_config({"model": sizes, "seed": 1})).model
    export_model(made, place / "hub", tokenizer=reader(folder(place, "chatml")))
    return place / "hub"


def test_scores_are_those_of_transformers(model: Path, questions: Path) -> None:
    """With a system message and a solved example as an earlier turn."""

    def answers(asked: Any) -> Any:
        with offline(), warnings_only():
            loaded = load_tasks(NAMES, questions, fewshot=None, limit=None, context=256)
            loaded["tasks"]["quiz"].set_config(key="num_fewshot", value=1)
            results: Any = evaluate(
                asked,
                loaded,
                log_samples=True,
                bootstrap_iters=0,
                system_instruction="Be brief.",
                apply_chat_template=True,
                fewshot_as_multiturn=True,
            )
        samples = results["samples"]
        arguments = [[s["arguments"] for s in samples[name]] for name in NAMES]
        return arguments, [[s["resps"] for s in samples[name]] for name in NAMES], results["results"]

    theirs = answers(HFLM(pretrained=str(model), device="cpu", batch_size=7, dtype="float32"))
    ours = answers(ZooLM(model, context=256, device="cpu", batch_size=7))
    assert ours[0] == theirs[0]
    assert_equal(ours[1:], theirs[1:])


def test_tokens_that_the_tokenizer_does_not_have(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a vocabulary that was rounded up have no text, as in transformers."""
    sizes = {"type": "gpt", "vocab_size": 900, "d_model": 16, "n_layers": 1, "n_heads": 2}
    made = initial_model(load_config({"model": sizes, "seed": 1})).model
    export_model(made, tmp_path / "hub", tokenizer=reader(folder(tmp_path, "chatml")))
    drawn: list[int] = []

    def answers(asked: Any) -> Any:
        with offline(), warnings_only():
            loaded = load_tasks(["write"], questions, fewshot=None, limit=None, context=256)
            results: Any = evaluate(asked, loaded, log_samples=True, bootstrap_iters=0)
        return [sample["resps"] for sample in results["samples"]["write"]]

    def watched(*given: Any, **settings: Any) -> Any:
        for new in steps(*given, **settings):
            drawn.extend(new.flatten().tolist())
            yield new

    monkeypatch.setattr("zoo.evaluation.continuation.steps", watched)
    ours = answers(ZooLM(tmp_path / "hub", context=256, device="cpu"))
    assert max(drawn) >= reader(tmp_path).vocab_size
    assert ours == answers(HFLM(pretrained=str(tmp_path / "hub"), device="cpu", dtype="float32"))


def test_what_is_in_front_of_a_text_without_a_context(model: Path, tmp_path: Path) -> None:
    """What the harness's class takes: a token of the tokenizer, which config.json may not name, as Qwen's."""
    shutil.copytree(model, tmp_path / "hub")
    place = tmp_path / "hub" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text("utf-8")) | {"bos_token_id": 7}), "utf-8")
    ours = ZooLM(tmp_path / "hub", context=256, device="cpu")
    assert ours.evaluated.start_id == 7
    theirs = HFLM(pretrained=str(tmp_path / "hub"), device="cpu", dtype="float32")
    assert ours.prefix_token_id == theirs.prefix_token_id == ours.evaluated.tokenizer.token_id("<|im_end|>")


def test_a_special_token_in_until(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the text, as tasks with the ends of several models ask for."""
    asked = ZooLM(model, context=256, device="cpu")
    tokens = asked.evaluated.tokenizer.encode_with_special_tokens(" over<|im_start|> dogs")

    def fixed(*_: object, **given: Any) -> Any:
        assert asked.evaluated.tokenizer.token_id("<|im_start|>") in given["eos_id"]
        for token in tokens:
            yield torch.tensor([[token]])

    monkeypatch.setattr("zoo.evaluation.continuation.steps", fixed)
    settings = {"until": ["<|im_start|>"], "max_gen_toks": 8}
    request = Instance("generate_until", {}, ("fox", settings), 0)
    assert asked.generate_until([request]) == [" over"]


def trained(place: Path, template: object) -> Path:
    """A short run on a conversation, whose tokenizer has Phi-3's template."""
    talk = {"prompt": "fox?", "response": "jumps"}
    (place / "talk.jsonl").write_text(json.dumps(talk), encoding="utf-8")
    settings = tiny_fields(place, steps=5)
    settings["model"]["vocab_size"] = 310
    settings["data"] = {
        "type": "instructions",
        "train": str(place / "talk.jsonl"),
        "validation": None,
        "template": template,
        "tokenizer": {"type": "huggingface", "path": str(folder(place, "phi-3"))},
        "context": 256,
    }
    return train(load_config(settings)).folder


def test_an_answer_ends_where_the_template_of_the_training_ends_it(tmp_path: Path) -> None:
    asked = ZooLM(trained(tmp_path, "jinja"), device="cpu").evaluated
    ends = {asked.tokenizer.token_id(token) for token in ("<|end|>", "<|endoftext|>")}
    assert asked.end_ids == ends


def test_a_run_is_not_asked_in_another_template_than_that_of_its_training(
    questions: Path, tmp_path: Path
) -> None:
    """Although the folder of its tokenizer has one."""
    settings: dict[str, Any] = {"task_path": questions, "device": "cpu", "out": tmp_path / "tasks.json"}
    with pytest.raises(DataError, match=r"trained with data\.template 'chat', in which the harness"):
        tasks(trained(tmp_path, "chat"), ["quiz"], chat_template=True, **settings)
    assert not (tmp_path / "tasks.json").exists()


def test_the_report_says_how_it_was_asked(model: Path, questions: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task_path": questions, "device": "cpu", "contexts": [256]}
    plain, _ = tasks(model, ["quiz"], out=tmp_path / "plain.json", **settings)
    settings |= {"chat_template": True, "system": "Be brief."}
    asked, _ = tasks(model, ["quiz"], out=tmp_path / "asked.json", **settings)
    assert (plain.chat_template, plain.system) == (False, None)
    assert (asked.chat_template, asked.system) == (True, "Be brief.")


def test_what_cannot_be_asked_so(model: Path, questions: Path, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="system message has no effect without the chat template"):
        tasks(model, ["quiz"], task_path=questions, system="a", out=tmp_path / "a.json")
    with pytest.raises(DataError, match="begins the answer"):
        ZooLM(model, context=256, device="cpu").apply_chat_template([], add_generation_prompt=False)
    shutil.copytree(model, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((tmp_path / "bare" / "tokenizer_config.json").read_text("utf-8"))
    settings.pop("chat_template", None)
    (tmp_path / "bare" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(DataError, match="comes without a chat template"):
        tasks(
            tmp_path / "bare",
            ["quiz"],
            task_path=questions,
            contexts=[256],
            device="cpu",
            chat_template=True,
            out=tmp_path / "a.json",
        )
    assert not (tmp_path / "a.json").exists()
