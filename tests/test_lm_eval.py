"""The harness gets the same answers here as, from the exported run, by its own class for transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from local_tasks import TASKS, no_network, write_tasks
from tiny_runs import TEXT, tiny
from torch.nn import functional as F

from zoo import build_model, load_model, save_model
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.evaluation.harness import ZooLM
from zoo.evaluation.likelihood import log_likelihoods
from zoo.evaluation.offline import offline
from zoo.evaluation.tasks import load_tasks
from zoo.evaluation.warnings_only import warnings_only
from zoo.hub.export import export
from zoo.models import LanguageModel, Model
from zoo.sampling import generate
from zoo.train.run import train
from zoo.utils.errors import DataError, ZooError

CONTEXT = 48
WESAR = ("init=he", "reparam.type=wesar", "optimizer={type: amos, lr: 0.05}", f"data.context={CONTEXT}")
PIECES = ("data.tokenizer={type: sentencepiece, vocab_size: 300}", "model.vocab_size=300")
LLAMA: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
}


@pytest.fixture(scope="module", autouse=True)
def without_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with no_network(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("local") / "tasks")


@pytest.fixture(scope="module", params=[(), PIECES], ids=["byte", "sentencepiece"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with WeSaR and Amos, and the same exported."""
    base = tmp_path_factory.mktemp("trained")
    run = train(tiny(base, *WESAR, *request.param, steps=60)).folder
    assert export(run, base / "exported").tokenizer
    return run, base / "exported"


def ours(path: Path, **options: Any) -> ZooLM:
    return ZooLM(path, **{"device": "cpu", "batch_size": 7, **options})


def theirs(path: Path) -> Any:
    return HFLM(pretrained=str(path), device="cpu", batch_size=7, dtype="float32")


def answers(model: Any, folder: Path, fewshot: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a model answers to all tasks, and the scores it gets."""
    with offline(), warnings_only():
        loaded = load_tasks(list(TASKS), folder, fewshot=fewshot, limit=None, context=CONTEXT)
        results: Any = evaluate(model, loaded, log_samples=True, bootstrap_iters=0)
    samples = {name: [s["resps"] for s in results["samples"][name]] for name in TASKS}
    return samples, results["results"]


def assert_equal(left: Any, right: Any) -> None:
    """Texts, choices and accuracies exactly, log-likelihoods and what is made of them up to 1e-4."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_equal(a, b)
    elif isinstance(left, float):
        assert left == pytest.approx(right, abs=1e-4, rel=1e-5)
    else:
        assert left == right


@pytest.mark.parametrize("fewshot", [None, 2])
def test_equal_answers_and_scores(both: tuple[Path, Path], folder: Path, fewshot: int | None) -> None:
    run, exported = both
    expected = answers(theirs(exported), folder, fewshot)
    assert_equal(answers(ours(run), folder, fewshot), expected)
    assert_equal(answers(ours(exported), folder, fewshot), expected)
    samples, scores = expected
    assert len({text for ((text,),) in samples["write"]}) > 1
    assert 0 < scores["quiz"]["acc,none"] < 1
    assert 0 < scores["last_word"]["acc,none"] < 1


def test_equal_logits(both: tuple[Path, Path]) -> None:
    run, exported = both
    tokens = torch.tensor([ours(run).tok_encode(TEXT)[:CONTEXT]])
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(exported)
    with torch.no_grad():
        torch.testing.assert_close(load_model(run)(tokens), opened(tokens).logits, atol=1e-4, rtol=0)


def test_the_batch_does_not_matter(both: tuple[Path, Path], folder: Path) -> None:
    one, seven = (answers(ours(both[0], batch_size=size), folder) for size in (1, 7))
    assert_equal(one, seven)


def test_a_tokenizer_that_opens_texts(tmp_path: Path, folder: Path) -> None:
    """As Llama's: its beginning is in front of every prompt, and of what has none."""
    words = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        TEXT.splitlines(),
        tokenizers.trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
        ),
    )
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA, vocab_size=300, bos_token_id=0, eos_token_id=1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path)
    model, other = ours(tmp_path), theirs(tmp_path)
    assert model.context == other.max_length == CONTEXT
    assert model.tok_encode("the quick") == other.tok_encode("the quick")
    assert model.tok_encode("the quick")[0] == model.prefix_token_id == 0
    assert_equal(answers(model, folder), answers(other, folder))

    # Llama 3 and others end a text at several tokens, of which the tokenizer knows one.
    asked = [request("generate_until", prompt, {"max_gen_toks": 12}) for prompt in ("the quick", "a")]
    unended = model.generate_until(asked)
    prompt = model.tok_encode("the quick")
    written = generate(load_model(tmp_path), torch.tensor([prompt]), 12, temperature=0)[
        0, len(prompt) :
    ].tolist()
    end = next(token for token in written[2:] if token not in written[:2])
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1, end], "pad_token_id": 1})
    )
    ended = ours(tmp_path).generate_until(asked)
    assert ended == theirs(tmp_path).generate_until(asked)
    assert unended[0].startswith(ended[0])
    assert len(ended[0]) < len(unended[0])


def in_one_pass(model: Model, context: list[int], continuation: list[int]) -> float:
    """ln p by the model's own forward pass and torch's cross entropy."""
    ids = torch.tensor([*context, *continuation])
    with torch.no_grad():
        logits = model(ids[None, :-1])[0, -len(continuation) :]
    return -F.cross_entropy(logits.double(), ids[-len(continuation) :], reduction="sum").item()


@pytest.mark.parametrize("name", ["gpt", "ngpt", "lstm"])
def test_against_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the same is read once, however it is cut into context and continuation."""
    sizes: dict[str, Any] = {"d_memory": 12} if name == "lstm" else {"n_layers": 2, "n_heads": 2}
    model = build_model(name, vocab_size=50, d_model=16, **sizes).eval()
    text = torch.randint(50, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    pairs = [(text[:cut], text[cut:]) for cut in (1, 4, 11)] + [(text[:4], [7]), ([3], [9, 2])]
    read: list[torch.Size] = []

    def counted(tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        read.append(tokens.shape)
        return hidden_states(tokens, **cache)

    assert isinstance(model, LanguageModel)
    hidden_states = model.hidden_states
    monkeypatch.setattr(model, "hidden_states", counted)
    for batch_size, shapes in ((1, [(1, 11), (1, 4), (1, 2)]), (2, [(2, 11), (1, 2)])):
        read.clear()
        found = log_likelihoods(model, pairs, 20, batch_size)
        assert read == shapes
        assert [nats for nats, _ in found] == pytest.approx([in_one_pass(model, *p) for p in pairs], rel=1e-5)
    likeliest = [int(model(torch.tensor([text]))[0, -1].argmax())]
    told: list[int] = []
    ((_, greedy), (_, other)) = log_likelihoods(
        model, [(text, likeliest), (text, [(likeliest[0] + 1) % 50])], 20, 4, told.append
    )
    assert (greedy, other, told) == (True, False, [2])
    ((cut, _),) = log_likelihoods(model, [(text, [5, 6])], 4, 1)
    assert cut == pytest.approx(in_one_pass(model, text[-3:], [5, 6]), rel=1e-5)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (([], [1]), "has no token"),
        (([1], []), "has no token"),
        (([1], [1, 2, 3]), "a continuation has 3 tokens; expected at most 2, the context"),
    ],
)
def test_what_cannot_be_scored(pair: tuple[list[int], list[int]], message: str) -> None:
    model = build_model("gpt", vocab_size=50, d_model=16, n_layers=1, n_heads=2)
    assert isinstance(model, LanguageModel)
    with pytest.raises(DataError, match=message):
        log_likelihoods(model, [([1], [2]), pair], 2, 4)


def request(kind: Any, *arguments: Any) -> Any:
    return Instance(kind, {}, arguments, 0, metadata=("here", 0, 1))


def lstm(folder: Path, **fields: Any) -> Path:
    model = build_model("lstm", vocab_size=256, d_model=12, d_memory=20, **fields)
    file = save_model(model, folder)
    ByteTokenizer().save(folder)
    return file


def test_a_model_that_cannot_be_padded(tmp_path: Path) -> None:
    """LSTMs answer in batches of one length, and the same as alone."""
    path = lstm(tmp_path)
    prompts = ["a", "the", "cat", "sat on", "", "x"]
    asked = [request("generate_until", p, {"until": ["q"], "max_gen_toks": 5}) for p in prompts]
    assert ours(path, context=32).generate_until(asked) == ours(
        path, context=32, batch_size=1
    ).generate_until(asked)


def test_a_carried_state_has_no_context(tmp_path: Path) -> None:
    path = lstm(tmp_path, streams=2)
    text = "The quick brown fox. " * 20
    (nats,) = ours(path).loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert nats == pytest.approx(in_one_pass(load_model(path).eval(), [255], list(text.encode())), rel=1e-5)


def test_chance(both: tuple[Path, Path]) -> None:
    """Drawn texts differ from each other, repeat with the seed, and are the likeliest ones at top_k 1."""
    model = ours(both[0], batch_size=2)
    drawn = {"until": ["."], "max_gen_toks": 8, "do_sample": True, "temperature": 1.5}
    asked = [request("generate_until", "the", drawn)] * 6
    texts = model.generate_until(asked)
    assert len(set(texts)) > 2
    assert texts == model.generate_until(asked)
    top, likeliest = (
        model.generate_until([request("generate_until", "the", {"max_gen_toks": 8, **kwargs})])
        for kwargs in (drawn | {"top_k": 1}, {"until": ["."], "top_k": 0, "top_p": 0.5})
    )
    assert top == likeliest


SETTINGS = [
    ({"max_gen_toks": CONTEXT}, "max_gen_toks is 48, but a prompt .* expected 1 to 47"),
    ({}, "max_gen_toks is 256"),
    ({"max_gen_toks": 4, "num_beams": 3}, "no setting called 'num_beams'; known: do_sample, max_gen_toks"),
    ({"max_gen_toks": 4, "topk": 3}, "no setting called 'topk'; did you mean 'top_k'"),
    ({"max_gen_toks": 4, "do_sample": True, "temperature": 0.0}, "do_sample needs a temperature"),
    ({"max_gen_toks": 4, "do_sample": True, "temperature": 1.0, "top_p": 2.0}, "top_p is 2.0"),
    ({"max_gen_toks": 4, "temperature": 1.0, "top_p": "0.9"}, "top_p is '0.9'; expected a number"),
    ({"max_gen_toks": 4, "temperature": 1.0, "top_k": 40.0}, "top_k is 40.0; expected a whole number"),
    ({"max_gen_toks": 4, "until": [3]}, 'until has 3; expected texts, such as "3"'),
]


@pytest.mark.parametrize(("settings", "message"), SETTINGS, ids=lambda value: str(value)[:40])
def test_settings_of_generation(both: tuple[Path, Path], settings: dict[str, Any], message: str) -> None:
    good = request("generate_until", "a", {"max_gen_toks": 4})
    with pytest.raises(ZooError, match=message):
        ours(both[0]).generate_until([good, request("generate_until", "a", settings)])


def test_the_name_in_the_harness(both: tuple[Path, Path]) -> None:
    model: Any = get_model("zoo").create_from_arg_obj({"path": str(both[0])}, {"batch_size": "3"})
    assert isinstance(model, ZooLM)
    assert (model.batch_size, model.context) == (3, CONTEXT)
    with pytest.raises(DataError, match="task 'here': a continuation is empty"):
        model.loglikelihood([request("loglikelihood", "a", "")])


@pytest.mark.parametrize("batch_size", [0, 2**31, "auto"])
def test_batches_that_are_no_number(both: tuple[Path, Path], batch_size: Any) -> None:
    with pytest.raises(ZooError, match=f"batch_size is {batch_size}; expected a number of at least 1"):
        ours(both[0], batch_size=batch_size)
