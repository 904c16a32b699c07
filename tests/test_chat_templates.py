"""Chat templates: transformers' text, what is learned of it, and programs that have to be stopped."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import zoo
from hub_tokenizers import byte_level
from transformers import AutoTokenizer

from zoo.data.instructions.files import Message, read_conversations
from zoo.data.instructions.jinja import JinjaTemplate
from zoo.data.prompting import stop_ids
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceConfig, HuggingFaceTokenizer
from zoo.hub.export import export_model
from zoo.run.config import load_config
from zoo.run.first_weights import initial_model
from zoo.sampling import steps
from zoo.utils.errors import ConfigError, DataError

FILES = (Path(__file__).parent / "chat_templates").glob("*.jinja")
TEMPLATES = {file.stem: file.read_text("utf-8") for file in FILES}
"""Written after the documented formats of their families."""

COMMAND_R = ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"]
SPECIAL: dict[str, tuple[str | None, str, list[str]]] = {
    "chatml": (None, "<|im_end|>", ["<|im_start|>"]),
    "llama-3": ("<b>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "mistral": ("<s>", "</s>", ["[INST]", "[/INST]"]),
    "gemma": ("<bos>", "<eos>", ["<start_of_turn>", "<end_of_turn>"]),
    "phi-3": (None, "<|endoftext|>", ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]),
    "marked": (None, "<|endoftext|>", ["<|user|>", "<|assistant|>", "<|end|>"]),
    "thinking": (None, "<|im_end|>", ["<|im_start|>"]),
    "gemma-3": ("<bos>", "<eos>", ["<start_of_turn>", "<end_of_turn>"]),
    "phi-4": ("<|endoftext|>", "<|im_end|>", ["<|im_start|>", "<|im_sep|>"]),
    "olmo-2": ("<|endoftext|>", "<|endoftext|>", []),
    "smollm3": (None, "<|im_end|>", ["<|im_start|>"]),
    "mistral-tekken": ("<s>", "</s>", ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]),
    "deepseek-v3": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"]),
    "command-r": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", COMMAND_R),
    "granite-3": ("<|end_of_text|>", "<|end_of_text|>", ["<|start_of_role|>", "<|end_of_role|>"]),
    "qwen-3": (None, "<|im_end|>", ["<|im_start|>"]),
    "llama-3.2": ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
}
"""The tokens that begin a text and end a document, and the other special tokens of the template."""

END = {name: eos for name, (_, eos, _) in SPECIAL.items()}
END |= {"gemma": "<end_of_turn>", "gemma-3": "<end_of_turn>", "phi-3": "<|end|>", "marked": "<|end|>"}
"""The last token of an answer."""

BEFORE = {"mistral": [" ", " "], "thinking": ["", "<think>\n\n</think>\n\n"]}
BEFORE |= {"qwen-3": ["", "<think>\n\n</think>\n\n"]}
BEFORE |= {"smollm3": ["<|im_start|>assistant\n<think>\n\n</think>\n"] * 2}
"""What is learned in front of the two answers: what the template's prompt lacks, or what it marks."""
MARKED = {"marked", "smollm3"}
TALK = [
    *(("user", "the quick fox?"), ("assistant", "jumps over")),
    *(("user", "lazy  dogs"), ("assistant", "13\n漢字 café")),
]


def folder(tmp_path: Path, name: str, template: object = None, as_file: bool = False) -> Path:
    """A tokenizer's folder with a chat template, in one of the two places where folders keep it."""
    bos, eos, special = SPECIAL[name]
    made = byte_level()
    made.add_special_tokens([*([bos] if bos else []), eos, *special])
    made.save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
    }
    if as_file:
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name], encoding="utf-8")
    else:
        settings["chat_template"] = template or TEMPLATES[name]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tmp_path


def reader(place: Path) -> HuggingFaceTokenizer:
    return HuggingFaceConfig(path=place).build(lambda: iter(()))


def messages(talk: list[tuple[str, str]]) -> list[Message]:
    return [Message(role, content) for role, content in talk]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SPECIAL)
def test_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Of conversations and of prompts, with and without a system's message; an answer ends as it should."""
    tokenizer, template = reader(folder(tmp_path, name, as_file=name == "gemma")), JinjaTemplate()
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    talks = [TALK, TALK[:2]] + ([[("system", "Be brief."), *TALK]] if name not in ("gemma",) else [])
    for talk in talks:
        given = [{"role": role, "content": content} for role, content in talk]
        expected = theirs.apply_chat_template(given, return_dict=False)
        encoded = template.encode(messages(talk), tokenizer)
        assert encoded.tokens == expected[: len(encoded.tokens)]
        assert theirs.decode(expected[len(encoded.tokens) :]).strip() in ("", "<|endoftext|>")
        if name in MARKED:
            marks = theirs.apply_chat_template(given, return_assistant_tokens_mask=True, return_dict=True)
            assert (
                encoded.loss_mask == [mark == 1 for mark in marks["assistant_masks"]][: len(encoded.tokens)]
            )
        prompt = theirs.apply_chat_template(given[:-1], add_generation_prompt=True, return_dict=False)
        assert template.encode_prompt(messages(talk[:-1]), tokenizer) == prompt
        assert encoded.tokens[: len(prompt)] == prompt
        learned, run = [], []
        for token, wanted in [*zip(encoded.tokens, encoded.loss_mask, strict=True), (0, False)]:
            if wanted:
                run.append(token)
            elif run:
                learned.append(theirs.decode(run))
                run = []
        answers = [content + END[name] for role, content in talk if role == "assistant"]
        pairs = zip(BEFORE.get(name, ["", ""])[-len(answers) :], answers, strict=True)
        assert [text.rstrip("\n") for text in learned] == [before + answer for before, answer in pairs]
    assert theirs.decode([template.end_id(tokenizer)]) == END[name]


def test_the_named_default_of_several_templates(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ 1 }}"}]
    assert reader(folder(tmp_path, "chatml", several)).chat_template == "{{ 1 }}"


def takes_in_blanks(described: dict[str, Any]) -> None:
    """As the special tokens of Phi-3 and Phi-4 do."""
    for token in described["added_tokens"]:
        token["rstrip"] = True


def trims_offsets(described: dict[str, Any]) -> None:
    """As the tokenizer of GPT-NeoX does: the positions of tokens are without their blanks."""
    described["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }


@pytest.mark.parametrize("change", [dict, takes_in_blanks, trims_offsets])
@pytest.mark.parametrize("name", ["chatml", "llama-3", "phi-3", "phi-4", "deepseek-v3"])
def test_where_an_answer_begins_and_ends(tmp_path: Path, name: str, change: Any) -> None:
    """At the first token that its prompt does not have, and at its special token, whose beginning the next
    question may be."""
    place = folder(tmp_path, name) / "tokenizer.json"
    described = json.loads(place.read_text("utf-8"))
    change(described)
    place.write_text(json.dumps(described), encoding="utf-8")
    questions, answers = ["fox", "<", "<|", "dogs\n"], ["\n\n over", "   13 lazy ", "\tfox\n", " \n  x"]
    pairs = zip(questions, answers, strict=True)
    talk = [turn for q, a in pairs for turn in (("user", q), ("assistant", a))]
    tokens, mask = JinjaTemplate().encode(messages(talk), reader(tmp_path))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    expected = [False] * len(tokens)
    for i in range(1, len(talk), 2):
        before = [{"role": role, "content": content} for role, content in talk[:i]]
        prompt = theirs.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
        begin = next(n for n, token in enumerate(tokens) if prompt[n : n + 1] != [token])
        end = tokens.index(theirs.convert_tokens_to_ids(END[name]), begin) + 1
        expected[begin:end] = [True] * (end - begin)
    assert mask == expected


PLAIN = "{% for m in messages %}{{ {'user': 'Q: '}.get(m.role, 'A: ') + m.content + '\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("rest", "learned"),
    [
        ("{% if add_generation_prompt %}A: {% endif %}", [" jumps over", " 13\n漢字 café"]),
        (
            "{{ 'A: ' if add_generation_prompt else eos_token }}",
            [" jumps over", " 13\n漢字 café\n<|im_end|>"],
        ),
    ],
)
def test_an_answer_that_no_special_token_ends(tmp_path: Path, rest: str, learned: list[str]) -> None:
    """Is learned to its end and not to a special token behind the next question; with its first token,
    although that begins with the blank of the prompt."""
    tokenizer = reader(folder(tmp_path, "chatml"))
    tokens, mask = JinjaTemplate(source=PLAIN + rest).encode(messages(TALK), tokenizer)
    runs: list[list[int]] = [[]]
    for token, wanted in zip(tokens, mask, strict=True):
        if wanted:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.decode(run) for run in runs] == learned


@pytest.mark.parametrize("ends", [True, False])
def test_answers_that_end_nowhere_are_told(
    tmp_path: Path, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = folder(tmp_path, "chatml")
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    rest = "{{ 'A: ' if add_generation_prompt else eos_token }}" if ends else ""
    data: dict[str, Any] = {"type": "instructions", "validation": None, "context": 32}
    data |= {"train": str(tmp_path / "train.jsonl"), "template": {"type": "jinja", "source": PLAIN + rest}}
    data |= {"tokenizer": {"type": "huggingface", "path": str(place)}}
    model: Any = {"type": "gpt", "vocab_size": 310, "d_model": 16, "n_layers": 1, "n_heads": 2}
    config: Any = load_config({"model": model, "data": data})
    config.data.prepare(config.model)
    assert ("does not learn to stop there" in caplog.text) is not ends


REASONING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content }}{% else %}"
    "{{ '<|im_start|>' + m.content.split('</think>')[-1] + '<|endoftext|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|><think>\\n' }}{% endif %}"
)
"""As that of DeepSeek-R1: the prompt begins a reasoning, which conversations leave out."""


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (REASONING, "<|endoftext|>"),
        (REASONING.replace("<|endoftext|>", "."), "<|im_end|>"),
        ("<|im_start|>{% if add_generation_prompt %}The answer{% endif %}<|endoftext|>", "<|im_end|>"),
    ],
)
def test_where_answers_end_although_it_cannot_be_told_what_is_learned(
    tmp_path: Path, source: str, end: str
) -> None:
    """At the special token behind an answer; otherwise, or without an answer, where documents end."""
    tokenizer, template = reader(folder(tmp_path, "chatml")), JinjaTemplate(source=source)
    with pytest.raises(DataError, match="which tokens of message 2 are learned cannot be told"):
        template.encode(messages(TALK), tokenizer)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert template.end_id(tokenizer) == theirs.convert_tokens_to_ids(end)


def test_the_end_of_answers_that_are_marked_with_a_line_end(tmp_path: Path) -> None:
    """It is learned and ends no answer, unlike the special token in front of it."""
    source = TEMPLATES["marked"].replace("'<|end|>' }}", "'<|end|>\\n' }}")
    tokenizer, template = reader(folder(tmp_path, "marked")), JinjaTemplate(source=source)
    tokens, mask = template.encode(messages(TALK), tokenizer)
    assert mask[-1] and tokenizer.decode(tokens[-1:]) == "\n"
    assert template.end_id(tokenizer) == tokenizer.token_id("<|end|>")


def test_the_end_of_answers_of_a_template_with_a_mistake(tmp_path: Path) -> None:
    tokenizer = reader(folder(tmp_path, "chatml"))
    with pytest.raises(DataError, match="the chat template has a mistake: TemplateSyntaxError"):
        JinjaTemplate(source="{% if %}").end_id(tokenizer)


HOSTILE = {
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "more than 2 seconds",
    "{{ 10 ** 1000000000 }}": "more than 2 seconds",
    "{{ 'x' * 2000000000 }}": "MemoryError",
    "{% for i in range(9999) %}{{ 'x' * 5000 }}{% endfor %}": "more than 8,000,000 characters",
    "{% include 'secret' %}": "it asks for the file 'secret', but a chat template cannot read others",
    "{% import 'os' as os %}": "it asks for the file 'os', but",
    "{% extends '/etc/passwd' %}": "it asks for the file '/etc/passwd', but",
    "{{ messages.__class__.__mro__ }}": "unsafe",
    "{{ cycler.__init__.__globals__.os.system('touch hacked') }}": "unsafe",
    "{{ raise_exception('no tools') }}": "no tools",
    "{% if %}": "TemplateSyntaxError",
    "{{ messages[7].role.name }}": "UndefinedError",
    "{% for m in messages %}{{ m.role }}{% endfor %}": "changes its text",
    "{{ messages | length }}{{ messages[-1].content }}": "in another way when the answer is there",
}


@pytest.mark.parametrize(("source", "message"), HOSTILE.items())
def test_a_template_that_cannot_be_used(tmp_path: Path, source: str, message: str) -> None:
    tokenizer = reader(folder(tmp_path, "chatml"))
    with pytest.raises(DataError, match=message):
        JinjaTemplate(source=source).encode(messages(TALK), tokenizer)
    assert not Path("hacked").exists()


def test_the_source_is_no_file() -> None:
    template = {"type": "jinja", "source": "chat_template.jinja"}
    with pytest.raises(ConfigError, match=r"'chat_template\.jinja' writes nothing .* the name of its file"):
        load_config({"data": {"type": "instructions", "train": "a.jsonl", "template": template}})


def test_what_a_template_needs(tmp_path: Path) -> None:
    tokenizer, template = reader(folder(tmp_path, "chatml")), JinjaTemplate()
    with pytest.raises(DataError, match=r"message 1 spells out '<\|im_end\|>'"):
        template.encode(messages([("user", "a<|im_end|>"), ("assistant", "b")]), tokenizer)
    with pytest.raises(DataError, match="needs the tokenizer of a Hugging Face folder, found 'byte'"):
        template.encode(messages(TALK), ByteTokenizer())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    with pytest.raises(DataError, match="comes without a chat template"):
        template.encode(messages(TALK), reader(tmp_path))


ROWS = [
    {"prompt": "q", "response": "a"},
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    {"instruction": "q", "input": "", "output": "a", "text": "ignored"},
]
COMPLETION = {"prompt": "q", "completion": "a"}


def test_layouts_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    more = {"instruction": "Add.", "input": "1 2", "output": "3"}
    path.write_text("".join(json.dumps(row) + "\n" for row in [COMPLETION, *ROWS, more]))
    *same, last = [conversation.messages for conversation in read_conversations(path)]
    assert same == [(Message("user", "q"), Message("assistant", "a"))] * 5
    assert last == (Message("user", "Add.\n\n1 2"), Message("assistant", "3"))


def test_bad_lines_are_left_out_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those that are no conversation and those that the template refuses; otherwise their line is named."""
    place = folder(tmp_path, "mistral")
    twice = {"messages": [*ROWS[1]["messages"][:1] * 2, *ROWS[1]["messages"][1:]]}  # type: ignore[index]
    bad = ["{", '{"conversations": [{"from": "bot", "value": "a"}]}', json.dumps(twice)]
    (tmp_path / "train.jsonl").write_text("\n".join([json.dumps(row) for row in ROWS] * 3 + bad))
    data: dict[str, Any] = {"type": "instructions", "validation": None, "template": "jinja", "context": 32}
    data["train"] = str(tmp_path / "train.jsonl")
    data["tokenizer"] = {"type": "huggingface", "path": str(place)}
    model: Any = {"type": "gpt", "vocab_size": 310, "d_model": 16, "n_layers": 1, "n_heads": 2}
    config: Any = load_config({"model": model, "data": data | {"invalid": "skip"}})
    assert len(config.data.prepare(config.model).train_examples) == 12
    assert "3 lines are left out; the first: " in caplog.text and "train.jsonl:13: not JSON" in caplog.text
    (tmp_path / "train.jsonl").write_text("\n".join([json.dumps(row) for row in ROWS] + bad[2:]))
    config = load_config({"model": model, "data": data})
    with pytest.raises(DataError, match=r"train\.jsonl:5: the chat template refuses .* roles must alternate"):
        config.data.prepare(config.model)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "was stopped"),
        ("{% if %}", "the chat template has a mistake: TemplateSyntaxError"),
        (
            "{{ 'fixed' }}",
            "no training example is left of 4: .* refuses 4; the first error is: .*:1: which tokens of",
        ),
    ],
)
def test_a_template_that_no_line_is_to_blame_for_is_no_invalid_line(
    tmp_path: Path, source: str, message: str
) -> None:
    """Every line would take seconds to find that out again."""
    place = folder(tmp_path, "mistral")
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    data: dict[str, Any] = {"type": "instructions", "validation": None, "invalid": "skip", "context": 32}
    data |= {"train": str(tmp_path / "train.jsonl"), "template": {"type": "jinja", "source": source}}
    data["tokenizer"] = {"type": "huggingface", "path": str(place)}
    model: Any = {"type": "gpt", "vocab_size": 310, "d_model": 16, "n_layers": 1, "n_heads": 2}
    config: Any = load_config({"model": model, "data": data})
    with pytest.raises(DataError, match=message):
        config.data.prepare(config.model)


def test_generate_in_the_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the hub is asked in its own template, once and line by line."""
    config = load_config(
        {"model": {"type": "gpt", "vocab_size": 310, "d_model": 16, "n_layers": 1, "n_heads": 2}}
    )
    reader_ = reader(folder(tmp_path, "chatml"))
    export_model(initial_model(config).model, tmp_path / "hub", tokenizer=reader_)
    asked: list[list[int]] = []
    original = steps

    def watched(model: Any, prompt: Any, *args: Any, **options: Any) -> Any:
        asked.append(prompt[0].tolist())
        return original(model, prompt, *args, **options)

    monkeypatch.setattr("zoo.evaluation.text_generator.steps", watched)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "hub")

    def rendered(talk: list[tuple[str, str]]) -> list[int]:
        given = [{"role": role, "content": content} for role, content in talk]
        ids: list[int] = theirs.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
        return ids

    options = ["--max-new-tokens", "5", "--temperature", "0"]
    zoo("generate", tmp_path / "hub", "fox?", "--system", "Be brief.", *options)
    assert asked[-1] == rendered([("system", "Be brief."), ("user", "fox?")])
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("fox\n\nover\n"))
    zoo("generate", tmp_path / "hub", "--chat", *options)
    assert asked[-2] == rendered([("user", "fox")])
    assert asked[-1][: len(asked[-2])] == asked[-2] and len(asked[-1]) > len(asked[-2])
    zoo("generate", tmp_path / "hub", "--prompt", "fox", "--num-return", "3", "--max-new-tokens", "5")
    assert capsys.readouterr().out.count("\n---\n") == 2
    zoo("generate", tmp_path / "hub", "fox", "--system", "b", "--num-return", "2", "--max-new-tokens", "5")
    assert asked[-1] == rendered([("system", "b"), ("user", "fox")])
    assert capsys.readouterr().out.count("\n---\n") == 1
    for bad, message in {
        ("a", "--prompt", "b"): "expected one of them",
        (): "expected either a prompt or --chat",
        ("a", "--chat"): "expected either a prompt or --chat",
        ("a", "--num-return", "0"): "expected at least 1",
        ("a", "--num-return", "2", "--temperature", "0"): "writes the same text",
        ("a", "--num-return", "2", "--stream"): "--num-return has no effect",
        ("a", "--device", "cuda:9"): "device 'cuda:9'",
        ("", "--system", "b"): "prompt: empty",
    }.items():
        zoo("generate", tmp_path / "hub", *bad, status=2)
        assert message in capsys.readouterr().err
    without = tmp_path / "hub" / "tokenizer_config.json"
    settings = json.loads(without.read_text())
    settings.pop("chat_template", None)
    without.write_text(json.dumps(settings))
    (tmp_path / "hub" / "chat_template.jinja").unlink(missing_ok=True)
    zoo("generate", tmp_path / "hub", "--chat", status=2)
    assert "hub: data.template: the tokenizer comes without a chat template" in capsys.readouterr().err


def test_a_special_token_as_a_stop_string(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the text, although no text contains it; one that the model does not have is no token for it."""
    tokenizer = reader(folder(tmp_path, "chatml"))
    sizes: Any = {
        "type": "gpt",
        "vocab_size": tokenizer.vocab_size,
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
    }
    export_model(initial_model(load_config({"model": sizes})).model, tmp_path / "hub", tokenizer=tokenizer)
    written = tokenizer.encode_with_special_tokens(" over<|im_start|> dogs")

    def fixed(*_: object, **given: Any) -> Any:
        for token in written:
            yield torch.tensor([[token]])
            if token in given["eos_id"]:
                return

    monkeypatch.setattr("zoo.evaluation.text_generator.steps", fixed)
    for stop, expected in {"<|im_start|>": "fox over", "dogs": "fox over "}.items():
        zoo("generate", tmp_path / "hub", "fox", "--stop", stop)
        assert capsys.readouterr().out == expected + "\n"
    start = tokenizer.token_id("<|im_start|>")
    assert start is not None
    assert stop_ids(["<|im_start|>", "fox"], tokenizer, start + 1) == {start}
    assert stop_ids(["<|im_start|>"], tokenizer, start) == set()
