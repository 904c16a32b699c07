"""Task files of lm-evaluation-harness as users write them, with their data beside them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DATA: dict[str, list[dict[str, Any]]] = {
    "quiz": [
        {"question": "Line 3: 3 times 3 is", "choices": ["9", "8", "7", "19"], "answer": 0},
        {"question": "the quick brown fox jumps over the", "choices": ["lazy dog", "fox"], "answer": 0},
        {"question": "the", "choices": ["lazy", "quick dog", "naïve 字"], "answer": 1},
        {"question": "A question longer than the context of the model, so that its beginning must go",
         "choices": ["a", "b", "and an answer of several words"], "answer": 2},
    ],
    "book": [
        {"page": "Line 8: 8 times 1 is 8, and the quick brown fox jumps over the lazy dog.\n\n" * 3},
        {"page": "Short."},
        {"page": "Naïve words, twice as many 字. " * 2},
    ],
    "write": [
        {"start": "Line 3: 3 times 3 is 9, and the", "end": "quick brown fox jumps"},
        {"start": "jumps over the", "end": "lazy dog."},
        {"start": f"Line 1: {'1 times 1 is 1, and the quick fox ' * 2}jumps.\n\nLine", "end": "2"},
    ],
}  # fmt: skip

TASKS = {
    "quiz": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{answer}}"
        fewshot_split: test
        metric_list:
          - {metric: acc, aggregation: mean, higher_is_better: true}
          - {metric: acc_norm, aggregation: mean, higher_is_better: true}
    """,
    "book": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{page}}"
        metric_list:
          - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
          - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
    """,
    "write": """
        output_type: generate_until
        doc_to_text: "{{start}}"
        doc_to_target: " {{end}}"
        fewshot_split: test
        generation_kwargs: {until: [".", "x", "\\n\\n"], max_gen_toks: 12, do_sample: false}
        metric_list:
          - {metric: exact_match, aggregation: mean, higher_is_better: true}
    """,
    "last_word": """
        output_type: loglikelihood
        doc_to_text: "{{start}}"
        doc_to_target: " {{end}}"
        fewshot_split: test
        metric_list:
          - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
          - {metric: acc, aggregation: mean, higher_is_better: true}
    """,
}


def write_tasks(folder: Path) -> Path:
    """Task files as users write them, with their data beside them."""
    folder.mkdir()
    for name, questions in DATA.items():
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    for name, text in TASKS.items():
        data = {"last_word": "write"}.get(name, name)
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}.jsonl}}}}\n"
        body = "\n".join(line.removeprefix("        ") for line in text.splitlines())
        (folder / f"{name}.yaml").write_text(f"{head}test_split: test{body}\n", encoding="utf-8")
    return folder


@contextmanager
def no_network(cache: Path) -> Iterator[None]:
    """Data sets are kept in `cache`; whoever reaches for the network fails."""

    connect = socket.socket.connect

    def refuse(own: socket.socket, address: Any) -> None:
        if own.family != socket.AF_UNIX:  # by which processes of this machine talk
            raise AssertionError("the network is not for tests")
        connect(own, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
        patch.setattr(socket.socket, "connect", refuse)
        yield
