"""The chat template of an exported folder: prompts have the tokens with which the model was trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from zoo.data.instructions.files import Message, Speaker
from zoo.data.instructions.jinja import JinjaTemplate
from zoo.data.instructions.template import MarkerTemplate, Template
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.huggingface import CHAT_TEMPLATE_FILE, HuggingFaceConfig, HuggingFaceTokenizer
from zoo.hub.tokenizer_json import remove_chat_template
from zoo.utils.errors import DataError

PROGRAM = """\
{%%- set before = %(before)s -%%}
{%%- set after = %(after)s -%%}
{{- %(start)s -}}
{%%- for message in messages -%%}
{%%- if message["role"] not in before -%%}
{{- raise_exception("expected one of the roles " + before.keys() | join(", ")) -}}
{%%- endif -%%}
{{- before[message["role"]] -}}
{%%- if message["role"] == "assistant" -%%}
{%%- generation -%%}{{- message["content"] + %(end)s -}}{%%- endgeneration -%%}
{%%- if not loop.last -%%}{{- after["assistant"] -}}{%%- endif -%%}
{%%- else -%%}
{{- message["content"] + after[message["role"]] -}}
{%%- endif -%%}
{%%- endfor -%%}
{%%- if add_generation_prompt -%%}{{- before["assistant"] -}}{%%- endif -%%}
"""
"""A chat template that does what `MarkerTemplate` does."""

EXAMPLES: Sequence[Sequence[tuple[Speaker, str]]] = (
    (
        ("user", "What is 7 x 6?"),
        ("assistant", "42"),
        ("user", "def f(x):\n\treturn x"),
        ("assistant", "So."),
    ),
    (("system", "Be brief."), ("user", "caf\u00e9, \u4e2d\u6587"), ("assistant", "\U0001f600 Yes,\nand no.")),
)
"""Conversations whose tokens are compared."""


def write_chat_template(template: Template, tokenizer: Tokenizer, folder: Path) -> str:
    """Write the chat template of a model that was trained on conversations.

    A template that puts texts around messages tokenises every message on its own, a chat template the whole
    text. It is written if both give the same tokens for a few conversations. If they do not, and for a
    template that is no `MarkerTemplate`, the folder has no chat template, because the tokenizer's own would
    ask the model in another form than that of the training.

    Args:
        template: the template of the training.
        tokenizer: the tokenizer of the training.
        folder: the model's folder, with the exported tokenizer.

    Returns:
        What became of the template, in words; "" if the tokenizer's own is right.
    """
    if isinstance(template, JinjaTemplate):
        if template.source is not None:
            _write(folder, template.source)
        return ""
    name, exported = template.model_dump()["type"], HuggingFaceConfig.load(folder)
    program = _program(template, tokenizer, exported) if isinstance(template, MarkerTemplate) else None
    if program is not None and _makes_the_same_tokens(template, tokenizer, program, exported):
        exported.save(folder)  # as of this kind, because zoo's own kinds have no chat template
        _write(folder, program)
        return f"chat template: that of the training, '{name}'"
    remove_chat_template(folder)
    return f"no chat template: none makes the tokens of the training's template, '{name}'"


def _program(template: MarkerTemplate, tokenizer: Tokenizer, exported: HuggingFaceTokenizer) -> str | None:
    """The template as a program; None: the exported tokenizer lacks the tokens around a conversation."""
    texts = {exported.token_id(text): text for text in exported.special_tokens}
    if not {tokenizer.start_id, tokenizer.eos_id} <= texts.keys():
        return None
    literals = {
        "before": {role: template.before(role) for role in get_args(Speaker)},
        "after": {role: template.after(role) for role in get_args(Speaker)},
        "start": texts[tokenizer.start_id],
        "end": texts[tokenizer.eos_id],
    }
    return PROGRAM % {key: json.dumps(value, ensure_ascii=False) for key, value in literals.items()}


def _makes_the_same_tokens(
    template: Template, tokenizer: Tokenizer, program: str, exported: HuggingFaceTokenizer
) -> bool:
    """Whether a chat template and the exported tokenizer make the tokens and masks of the training."""
    rendered = JinjaTemplate(source=program)
    talks = [[Message(*message) for message in talk] for talk in EXAMPLES]
    try:
        return all(
            rendered.encode(talk, exported) == template.encode(talk, tokenizer)
            and rendered.encode_prompt(talk[:-1], exported) == template.encode_prompt(talk[:-1], tokenizer)
            for talk in talks
        )
    except DataError:  # the markers spell out what the tokenizer or the template refuses
        return False


def _write(folder: Path, program: str) -> None:
    (folder / CHAT_TEMPLATE_FILE).write_text(program, encoding="utf-8", newline="")
