"""Instructions: only answers are learned, a batch depends on its order alone, bad files are told."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_tokenizers import saved
from torch.nn import functional as F

from zoo import build_model
from zoo.data.dataset import BatchSpec
from zoo.data.instructions.dataset import EncodedConversations, InstructionDataset
from zoo.data.instructions.files import Conversation, Message, read_conversations
from zoo.data.instructions.template import ChatTemplate, PlainTemplate, Template
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceConfig
from zoo.models import Model
from zoo.run.config import load_config
from zoo.utils.errors import ConfigError, DataError

END = 255
ROWS = [{"prompt": f"Say {i}", "response": "yes " * (i % 5 + 1)} for i in range(20)]
TALK = (
    *(Message("system", "S"), Message("user", "ab"), Message("assistant", "cd")),
    *(Message("user", "e"), Message("assistant", "f")),
)


def written(folder: Path, rows: list[Any], name: str = "train.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def model(type: str = "gpt", **fields: Any) -> Model:
    sizes = {"vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2, "seed": 1}
    return build_model(type, **{**sizes, **fields})


def dataset(folder: Path, rows: list[Any], reader: Any = None, **fields: Any) -> InstructionDataset:
    data = {"type": "instructions", "train": str(written(folder, rows)), "context": 32, **fields}
    config = load_config({"data": data}).data
    assert config is not None
    prepared = config.prepare((reader or model()).recipe.model)
    assert isinstance(prepared, InstructionDataset)
    return prepared


def test_the_plain_template_by_hand() -> None:
    """What is learned is underlined: the answer and the end behind it."""
    laid = PlainTemplate().encode(TALK[1:3], ByteTokenizer())
    assert laid.tokens == [END, *b"ab\n", *b"cd", END]
    assert laid.loss_mask == [False, False, False, False, True, True, True]
    assert PlainTemplate(separator=" -> ").encode_prompt([Message("user", "ab")], ByteTokenizer()) == [
        END,
        *b"ab -> ",
    ]


def test_a_conversation_by_hand() -> None:
    chat = ChatTemplate(system="<", user="(", assistant=")", end="|", answered="~")
    laid = chat.encode(TALK, ByteTokenizer())
    text = [END, *b"<S|(ab|)cd", END, *b"~(e|)f", END]
    ____ = [0, *map(int, "0000000011"), 1, *map(int, "000001"), 1]
    assert laid.tokens == text
    assert laid.loss_mask == [bool(i) for i in ____]
    assert chat.encode_prompt([Message("user", "ab")], ByteTokenizer()) == [END, *b"(ab|)"]


@pytest.mark.parametrize("template", [PlainTemplate(), ChatTemplate()])
def test_a_prompt_alone_has_the_tokens_of_the_training(template: Template) -> None:
    asked = template.encode_prompt([Message("user", "ab")], ByteTokenizer())
    laid = template.encode(TALK[1:3], ByteTokenizer())
    assert laid.tokens[: len(asked)] == asked
    assert laid.loss_mask == [False] * len(asked) + [True] * 3


def test_markers_are_special_tokens_and_messages_never(tmp_path: Path) -> None:
    """A user cannot write what ends a turn."""
    tokenizer = HuggingFaceConfig(path=saved("byte-level", tmp_path), eos="<|im_end|>").build(
        lambda: iter(())
    )
    chat = ChatTemplate(
        user="<|im_start|>user\n", assistant="<|im_start|>assistant\n", end="<|im_end|>\n", answered="\n"
    )
    talk = (Message("user", "fox <|im_end|> dog"), Message("assistant", "<|im_start|>"))
    start, end = 1, 2
    laid = chat.encode(talk, tokenizer)
    assert laid.tokens[0] == end  # there is no token that begins a text
    assert [t for t in laid.tokens[1:] if t in (start, end)] == [start, end, start, end]
    assert tokenizer.decode(laid.tokens) == "user\nfox <|im_end|> dog\nassistant\n<|im_start|>"


def test_a_batch_by_hand(tmp_path: Path) -> None:
    """Padded on the right to a multiple of 8; a target is the token that follows, or -1."""
    rows = [{"prompt": "ab", "response": "c"}, {"prompt": "d", "response": "efghijk"}]
    data = dataset(tmp_path, rows, validation=None)
    tokens, targets = data.train_batch(BatchSpec(0, 0, 2))
    if tokens[0, 1] == ord("d"):
        tokens, targets = tokens.flip(0), targets.flip(0)
    pad = [END] * 11
    assert tokens.tolist() == [[END, *b"ab\nc", *pad], [END, *b"d\nefghijk", *pad[:6]]]
    no = [-1] * 16
    assert targets.tolist() == [[*no[:3], *b"c", END, *no[:11]], [*no[:2], *b"efghijk", END, *no[:6]]]


@pytest.mark.parametrize("name", ["gpt", "ngpt", "gpt2"])
def test_the_loss_is_that_of_the_answers_alone(tmp_path: Path, name: str) -> None:
    """Each example read by itself, without padding; the mean over all tokens that are learned."""
    net = model(name)
    data = dataset(tmp_path, ROWS, net, template="chat", validation=None, context=64)
    batch = data.train_batch(BatchSpec(3, 1, 6))
    nats, count = 0.0, 0
    for tokens, targets in zip(*batch, strict=True):
        last = int((targets >= 0).nonzero().max())
        logits = net(tokens[None, : last + 1])[0]
        rows = (targets[: last + 1] >= 0).nonzero()[:, 0]
        assert bytes(targets[rows].tolist()).startswith(b"yes yes "[: len(rows) - 1])
        nats += F.cross_entropy(logits[rows], targets[rows], reduction="sum").item()
        count += len(rows)
    assert net.loss(*batch).cross_entropy.item() == pytest.approx(nats / count, rel=1e-5)


def test_prompts_get_no_gradient_of_their_own() -> None:
    """Other tokens behind the answer change nothing, another answer does."""
    net = model()
    tokens = torch.tensor([[END, *b"ab\ncd", END, END]])
    targets = torch.tensor([[-1, -1, -1, *b"cd", END, -1, -1]])
    loss = net.loss(tokens, targets).total
    tokens[0, -2:] = 7
    assert net.loss(tokens, targets).total == loss
    targets[0, 3] = 7
    assert net.loss(tokens, targets).total != loss


def test_batches_are_a_function_of_the_order(tmp_path: Path) -> None:
    """Ranks and steps divide them; an epoch has every example once."""

    def rows(*orders: BatchSpec) -> list[tuple[int, ...]]:
        batches = [data.train_batch(order) for order in orders]
        return [tuple(row[row >= 0].tolist()) for _, targets in batches for row in targets]

    data = dataset(tmp_path, [{"prompt": "x", "response": f"answer {i}"} for i in range(20)], validation=None)
    whole = rows(BatchSpec(5, 0, 20))
    assert rows(*(BatchSpec(5, 0, 20, rank, 4) for rank in range(4))) == whole
    assert rows(*(BatchSpec(5, step, 5) for step in range(4))) == whole
    assert sorted(whole) == sorted((*f"answer {i}".encode(), END) for i in range(20))
    assert rows(BatchSpec(5, 1, 20)) != whole
    assert rows(BatchSpec(6, 0, 20)) != whole


def test_validation(tmp_path: Path) -> None:
    """The same for any ranks, filled up with what does not count; equal prompts stay together."""
    rows = [{"prompt": f"p{i // 2}", "response": f"r{i}"} for i in range(40)]
    data = dataset(tmp_path, rows, validation=0.3)
    assert data.validation_examples is not None
    assert len(data.train_examples) + len(data.validation_examples) == 40
    assert len(data.validation_examples) % 2 == 0
    order = BatchSpec(0, 0, 4)
    found = data.validation_batches(order, None)
    assert found is not None
    one = torch.cat([targets[targets >= 0] for _, targets in found])
    ranks = []
    for rank in range(4):
        part = data.validation_batches(BatchSpec(9, 7, 4, rank, 4), None)
        assert part is not None
        ranks.append(list(part))
    shared = torch.cat([t[t >= 0] for step in zip(*ranks, strict=True) for _, t in step])
    assert torch.equal(one, shared)
    assert dataset(tmp_path, rows, validation=None).validation_batches(order, 1) is None
    other = str(written(tmp_path, rows[:3], "validation.jsonl"))
    beside = dataset(tmp_path, rows, validation=other)
    assert beside.validation_examples is not None
    assert (len(beside.train_examples), len(beside.validation_examples)) == (40, 3)


def test_conversations_with_one_beginning_are_on_one_side(tmp_path: Path) -> None:
    """However they go on; what the assistant says before any user belongs to the prompt."""
    messages = [[Message("user", f"q{i}"), Message("assistant", "a")] for i in range(40)]
    messages += [[*two, Message("user", "more"), Message("assistant", "b")] for two in messages]
    messages += [[Message("assistant", "hello"), *four] for four in messages[40:]]
    rows = [{"messages": [message._asdict() for message in each]} for each in messages]
    data = dataset(tmp_path, rows, validation=0.3, context=64)
    assert data.validation_examples is not None
    sides = [
        {(text.startswith(b"hello"), text.split(b"q")[1].split(b"\n")[0]) for text in texts}
        for texts in (
            [bytes(encoded.tokens[1:-1]) for encoded in examples.encoded]
            for examples in (data.train_examples, data.validation_examples)
        )
    ]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) == 80


def test_a_changed_split_changes_the_fingerprint(tmp_path: Path) -> None:
    """Runs on single answers, or with a file to validate on, resume from earlier versions."""

    def earlier(data: InstructionDataset, share: float | None, *files: Path) -> bool:
        identity = {"type": "plain", "separator": "\n"}
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        parts = [*digests, share, identity, 32, ByteTokenizer().hash]
        return data.fingerprint == hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    one = [Message("user", "q"), Message("assistant", "a")]
    rows = [*ROWS, {"messages": [message._asdict() for message in one * 2]}]
    train, other = tmp_path / "train.jsonl", written(tmp_path, ROWS, "other.jsonl")
    assert earlier(dataset(tmp_path, ROWS, validation=0.3), 0.3, train)
    assert earlier(dataset(tmp_path, rows, validation=str(other)), None, train, other)
    assert not earlier(dataset(tmp_path, rows, validation=0.3), 0.3, train)


def talk(*words: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation("", tuple(Message(roles[i % 2], word) for i, word in enumerate(words)))  # type: ignore[arg-type]


def test_what_is_too_long_loses_its_beginning() -> None:
    """10 tokens are seen, so 11 may be used; the first one and the last answer stay whole."""
    given = [
        talk("abcd", "efgh"),
        talk("abcdefgh", "xyz"),
        talk("abcd", "efghijklm"),
        talk("a", "0123456789"),
    ]
    given += [talk("ab", "cd", "ef", "gh")]
    part = EncodedConversations(given, PlainTemplate(), ByteTokenizer(), 10)
    assert (part.n_truncated, part.n_dropped) == (3, 1)
    whole, cut, full, again = part.encoded
    assert whole.tokens == [END, *b"abcd\nefgh", END]
    assert cut.tokens == [END, *b"defgh\nxyz"[-9:], END]
    assert full.tokens == [END, *b"efghijklm", END]
    assert again.tokens == [END, *b"\ncd", END, *b"ef\ngh", END]
    for laid in part.encoded:
        assert len(laid.tokens) == len(laid.loss_mask) <= 11
    assert full.loss_mask == [False] + [True] * 10


def test_what_is_too_long_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "p", "response": "short"}, {"prompt": "p" * 40, "response": "r"}]
    rows += [{"prompt": "p", "response": "r" * 40}] * 2
    with caplog.at_level(logging.WARNING, "zoo"):
        data = dataset(tmp_path, rows, validation=None)
    assert len(data.train_examples) == 2
    longer = "training examples are longer than data.context 32 and"
    assert f"data: 1 of 4 {longer} lose their beginnings" in caplog.text
    assert f"data: 2 of 4 {longer} are left out" in caplog.text
    with pytest.raises(DataError, match=r"no training example is left of 2: 2 answers alone are longer than"):
        dataset(tmp_path, rows[2:], validation=None)


BAD_LINES: list[tuple[str, str]] = [
    ("[1]", "expected a JSON object, found list"),
    ('{"prompt": ', "not JSON: Expecting value"),
    ("{}", "expected the keys 'prompt' and 'response' or 'completion', 'messages', 'conversations', or"),
    ('{"question": "a", "answer": "b"}', "'instruction' and 'output'; found question, answer"),
    (
        '{"prompt": "a", "response": "b", "completion": "c"}',
        "has 'response' and 'completion'; expected one or",
    ),
    ('{"promt": "a", "response": "b"}', "no field 'prompt'; did you mean 'promt'"),
    ('{"mesages": []}', "expected the keys .*; did you mean 'messages'"),
    ('{"prompt": "a"}', "no field 'response'"),
    ('{"prompt": "", "response": "b"}', "field 'prompt' is empty"),
    ('{"prompt": "a", "response": " "}', "field 'response' is empty"),
    ('{"prompt": 3, "response": "b"}', "field 'prompt' must be a string, found int"),
    ('{"prompt": "a", "response": "\\ud800"}', "field 'response' has half a surrogate pair"),
    ('{"prompt": "a", "response": "b", "messages": []}', "has 'messages' and 'response'; expected one"),
    ('{"prompt": "a", "output": "b"}', "has 'prompt' and 'output'; expected one or the other"),
    ('{"prompt": "a", "response": "b", "system": 3}', "field 'system' must be a string, found int"),
    (
        '{"system": "a", "messages": [{"role": "system", "content": "b"}]}',
        "the last of the messages is the system's; expected",
    ),
    ('{"messages": []}', "'messages' must be a list of messages, found an empty list"),
    ('{"messages": "a"}', "'messages' must be a list of messages, found str"),
    ('{"messages": ["a"]}', r"messages\[0\]: expected an object with role and content, found str"),
    ('{"messages": [{"content": "a"}]}', r"messages\[0\]: no field 'role'"),
    ('{"messages": [{"role": "bot", "content": "a"}]}', r"messages\[0\]: role 'bot'; expected system, user,"),
    ('{"messages": [{"role": "user", "content": ""}]}', r"messages\[0\]: field 'content' is empty"),
    ('{"messages": [{"role": "user", "content": "a"}]}', "the last of the messages is the user's; expected"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_bad_lines_are_located(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n\n" + line + "\n")
    with pytest.raises(DataError, match=rf"bad\.jsonl:3: .*{message}"):
        read_conversations(path)


def test_lines_that_have_more_than_their_layout(tmp_path: Path) -> None:
    """The system's message in a key of its own, and a prompt that repeats the first of the messages."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [
        {"prompt": "a", "prompt_id": "1", "messages": talk},
        {"instruction": "a", "input": "", "output": "b", "prompt": "Below is an instruction", "system": ""},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "S"},
    ]
    expected = [[Message("user", "a"), Message("assistant", "b")]] * 3
    expected[2] = [Message("system", "S"), *expected[0]]
    read = read_conversations(written(tmp_path, rows))
    assert [list(conversation.messages) for conversation in read] == expected
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(rows, indent=1))
    assert [list(conversation.messages) for conversation in read_conversations(listed)] == expected
    assert read_conversations(listed)[1].place == f"{listed}: item 2"
    written(tmp_path, rows, "lines.json")
    assert len(read_conversations(tmp_path / "lines.json")) == 3
    twice = {"system": "S", "messages": [{"role": "system", "content": "T"}, *talk]}
    with pytest.raises(DataError, match=r"train\.jsonl:1: has .system. and a message of the system"):
        read_conversations(written(tmp_path, [twice]))
    listed.write_text("[]")
    with pytest.raises(DataError, match=r"list\.json: nothing here is a conversation$"):
        read_conversations(listed)
    listed.write_text("[{}, 3]")
    with pytest.raises(DataError, match=r"list\.json: item 1: expected the keys"):
        read_conversations(listed)
    skipped: list[DataError] = []
    listed.write_text(json.dumps([3, *rows]))
    assert len(read_conversations(listed, skipped)) == 3
    assert [str(error) for error in skipped] == [f"{listed}: item 1: expected an object, found int"]


def test_a_json_file_of_one_object_is_told_what_it_should_be(tmp_path: Path) -> None:
    """Its lines are no JSON by themselves, but the file is."""
    file = tmp_path / "data.json"
    row = {"prompt": "a", "response": "b"}
    file.write_text(json.dumps({"data": [row]}, indent=1))
    untold: list[DataError] = []
    for skipped in (None, untold):
        with pytest.raises(DataError, match=r"data\.json: one object; expected a list of objects, or"):
            read_conversations(file, skipped)
    file.write_text(json.dumps(row) + "\n")
    assert len(read_conversations(file)) == 1


def test_nulls_and_a_blank_input_count_as_missing(tmp_path: Path) -> None:
    """As in tables, whose rows have null in the columns of other layouts."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows: list[dict[str, Any]] = [
        {"messages": None, "prompt": "a", "response": "b"},
        {"messages": messages, "prompt": None, "response": None},
        {"instruction": "a", "input": " \n", "output": "b"},
        {"instruction": "a", "input": None, "output": "b", "system": None},
    ]
    expected = (Message("user", "a"), Message("assistant", "b"))
    read = read_conversations(written(tmp_path, rows))
    assert [conversation.messages for conversation in read] == [expected] * 4
    with pytest.raises(DataError, match=r"train\.jsonl:1: no field 'prompt'"):
        read_conversations(written(tmp_path, [{"prompt": None, "response": "b"}]))


@pytest.mark.parametrize("given", [0, [], False])
def test_an_input_that_is_no_text(tmp_path: Path, given: object) -> None:
    rows = [{"instruction": "a", "input": given, "output": "b"}]
    with pytest.raises(DataError, match=r"train\.jsonl:1: field 'input' .*string"):
        read_conversations(written(tmp_path, rows))


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"validation": 1.5}, "validation is 1.5; expected a file, a share between 0 and 1"),
    ({"template": "alpaca"}, "template.type: .*'alpaca'.*plain"),
    ({"template": {"type": "plain", "user": "U"}}, "template.user"),
    ({"context": 1}, "context: value 1"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=str)
def test_bad_settings(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset(tmp_path, ROWS, **fields)


def test_data_and_model_that_disagree(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'byte' has 256 tokens, but the model 255: expected the"):
        dataset(tmp_path, ROWS, model(vocab_size=255))
    with pytest.raises(DataError, match=r"data\.context is 32, but the model has vectors for 16 positions"):
        dataset(tmp_path, ROWS, model("gpt2", context=16))
    with pytest.raises(DataError, match="the objective is 'causal', but model 'bert' is trained by mlm"):
        dataset(tmp_path, ROWS, model("bert"))
    with pytest.raises(DataError, match=r"nowhere\.jsonl: No such file"):
        dataset(tmp_path, ROWS, validation=str(tmp_path / "nowhere.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty\.jsonl: the file is empty"):
        dataset(tmp_path, ROWS, validation=str(tmp_path / "empty.jsonl"))


def test_a_marker_that_the_model_does_not_have(tmp_path: Path) -> None:
    """Its row of the embedding would be missing at a training step."""
    tokenizer = {"type": "huggingface", "path": str(saved("byte-level", tmp_path / "hub", ("<image>",)))}
    turns = {"type": "chat", "user": "<image>", "assistant": "A", "end": "."}
    fields = {"tokenizer": tokenizer, "template": turns}
    dataset(tmp_path, ROWS, model(vocab_size=301), **fields)
    with pytest.raises(DataError, match="the text has token 300 of the tokenizer 'huggingface', but the mo"):
        dataset(tmp_path, ROWS, model(vocab_size=300), **fields)
