"""Template `jinja`: the chat template of a checkpoint, with the positions of the assistant's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

from pydantic import Field, field_validator

from zoo.config.registry import TEMPLATES
from zoo.data.instructions.files import Message
from zoo.data.instructions.rendering import ChatTemplateError, Rendered, chat_renderer
from zoo.data.instructions.template import EncodedConversation, Template
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer
from zoo.utils.errors import DataError

Span = tuple[int, int]
ANSWER = "The answer."
"""What a template is given to see how it ends answers."""


@TEMPLATES.register
class JinjaTemplate(Template):
    """The chat template that comes with a Hugging Face tokenizer, rendered as transformers renders it.

    The text, and therefore the tokens, are those of transformers' `apply_chat_template`. The model learns the
    parts that the template marks with ``{% generation %}`` or, if it marks nothing, each answer from the
    first token that its prompt does not have to the special token that ends the answer.
    """

    type: Literal["jinja"] = "jinja"
    source: str | None = Field(None, description="text of a template; null: the one of the tokenizer")

    @field_validator("source")
    @classmethod
    def _is_text(cls, source: str | None) -> str | None:
        if source is not None and not any(mark in source for mark in ("{{", "{%")):
            raise ValueError(
                f"source {source!r} writes nothing of a conversation; expected the text of a chat template, "
                "not the name of its file"
            )
        return source

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer) -> EncodedConversation:
        """Render and tokenise a conversation, without the text after the end of the last answer.

        Raises:
            DataError: The template cannot express the conversation, see `Template.encode`, or a message
                spells out a special token, by which it could imitate another role.
        """
        reader = _reader(tokenizer)
        for i, message in enumerate(messages):
            for token in reader.special_tokens:
                if token in message.content:
                    raise DataError(f"message {i + 1} spells out {token!r}, a special token of the tokenizer")
        text, spans, are_marked = self._answers(messages, reader)
        tokens, places = reader.encode_with_offsets(text)
        mask = [False] * len(tokens)
        for span in spans:
            inside = [i for i, place in enumerate(places) if _is_in(place, span)]
            if inside and not are_marked:
                inside = [*range(_behind_prompt(text[: span[0]], tokens, places, reader), inside[-1] + 1)]
            for i in inside:
                mask[i] = True
        if not any(mask):
            raise DataError("the chat template leaves out what the assistant says")
        length = len(mask) - mask[::-1].index(True)
        return EncodedConversation(tokens[:length], mask[:length])

    def encode_prompt(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """Render and tokenise a conversation with the beginning of the answer."""
        return tokenizer.encode_with_special_tokens(self.render_prompt(messages, tokenizer))

    def render_prompt(self, messages: Sequence[Message], tokenizer: Tokenizer) -> str:
        """The text of a conversation with the beginning of the answer.

        Raises:
            DataError: The tokenizer has no template, or the template refuses the conversation.
        """
        [rendered] = self._render([(messages, True)], _reader(tokenizer))
        return rendered.text

    def identity(self, tokenizer: Tokenizer) -> object:
        """The text of the template and the special tokens that it may use."""
        reader = _reader(tokenizer)
        return [self._text(reader), reader.named_special_tokens]

    def end_id(self, tokenizer: Tokenizer) -> int:
        """The last learned token of an answer if it is a special token, or else the end-of-document id.

        Blanks that are learned behind it do not count. If it cannot be told what is learned, as where the
        prompt begins a reasoning that conversations leave out, it is the first special token behind an
        answer.
        """
        reader = _reader(tokenizer)
        talk = [Message("user", "The question."), Message("assistant", ANSWER)]
        try:
            learned = zip(*self.encode(talk, tokenizer), strict=True)
        except ChatTemplateError:
            raise
        except DataError:
            [rendered] = self._render([(talk, False)], reader)
            return _special_behind(rendered.text, reader)
        texts = [(token, reader.decode([token]).strip()) for token, is_learned in learned if is_learned]
        last = next((token for token, text in reversed(texts) if text or reader.is_special(token)), None)
        return last if last is not None and reader.is_special(last) else tokenizer.eos_id

    def _render(
        self, requests: Sequence[tuple[Sequence[Message], bool]], reader: HuggingFaceTokenizer
    ) -> list[Rendered]:
        return chat_renderer(self._text(reader), tuple(reader.named_special_tokens.items())).render(requests)

    def _text(self, reader: HuggingFaceTokenizer) -> str:
        """The text of the template."""
        text = reader.chat_template if self.source is None else self.source
        if text is None:
            raise DataError(
                "data.template: the tokenizer comes without a chat template; expected one in its "
                "tokenizer_config.json or chat_template.jinja, data.template.source, or another template"
            )
        return text

    def _answers(
        self, messages: Sequence[Message], reader: HuggingFaceTokenizer
    ) -> tuple[str, list[Span], bool]:
        """The text of a conversation, the positions of what is learned, and whether the template marks it."""
        answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
        whole: tuple[Sequence[Message], bool] = (messages, False)
        conversation, *prompts = self._render([whole, *((messages[:i], True) for i in answers)], reader)
        text = conversation.text
        if conversation.generated:
            return text, conversation.generated, True
        spans = []
        for i, prompt in zip(answers, prompts, strict=True):
            start, content = len(prompt.text), messages[i].content.strip()
            if not text.startswith(prompt.text):
                raise DataError(
                    f"which tokens of message {i + 1} are learned cannot be told: the chat template writes "
                    "the messages before it in another way when the answer is there, and marks no "
                    "{% generation %}"
                )
            begin = text.find(content, start)
            if begin < 0:
                raise DataError(
                    f"which tokens of message {i + 1} are learned cannot be told: the chat template leaves "
                    "out or changes its text, and marks no {% generation %}"
                )
            end = begin + len(content)
            following = messages[i + 1].content.strip() if i + 1 < len(messages) else ""
            limit = text.find(following, end) if following else -1
            limit = len(text) if limit < 0 else limit
            spans.append((start, _end_of_turn(text, end, limit, reader.special_tokens)))
        return text, spans, False


def _is_in(place: Span, span: Span) -> bool:
    """Whether a token has a character of a span, or is an empty token within the span."""
    return span[0] <= place[0] < span[1] or place[0] < span[0] < place[1]


def _behind_prompt(
    prompt: str, tokens: Sequence[int], places: Sequence[Span], reader: HuggingFaceTokenizer
) -> int:
    """The index of the first token of a conversation that a prompt, the beginning of its text, does not have.

    It is the one at whose first character the prompt ends, unless a token has characters of both sides, such
    as a special token with the blanks behind it, or the positions of a token leave out its blanks.
    """
    end = len(prompt)
    first = next((i for i, place in enumerate(places) if place[1] > end), len(places))
    around = [*places[max(0, first - 1) : first + 1]]
    if around and around[-1][0] == end and all(begin < behind for begin, behind in around):
        return first
    pairs = zip(reader.encode_with_special_tokens(prompt), tokens, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _end_of_turn(text: str, start: int, limit: int, special_tokens: Sequence[str]) -> int:
    """The end of the first special token that begins between `start` and `limit`; otherwise `start`.

    One that begins at `limit` counts: a message has no special token, so that its text is found there only
    because the token begins with it, as ``<|im_end|>`` does with ``<``.
    """
    tokens = [(at, -len(token)) for token in special_tokens if 0 <= (at := text.find(token, start)) <= limit]
    if not tokens:
        return start
    at, length = min(tokens)
    return at - length


def _special_behind(text: str, reader: HuggingFaceTokenizer) -> int:
    """The first special token behind `ANSWER`; the end-of-document id if there is none, or no answer."""
    begin = text.rfind(ANSWER)
    if begin < 0:
        return reader.eos_id
    end, pairs = begin + len(ANSWER), zip(*reader.encode_with_offsets(text), strict=True)
    behind = (token for token, (start, _) in pairs if start >= end and reader.is_special(token))
    return next(behind, reader.eos_id)


def own_template(tokenizer: Tokenizer) -> JinjaTemplate:
    """The template that comes with a tokenizer, for a model that was not trained on conversations.

    Raises:
        DataError: The tokenizer is of a kind that has none.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise DataError(
            f"the model was not trained on conversations, and its tokenizer '{tokenizer.type}' has no chat "
            "template; expected a run of data `instructions`, or a tokenizer of a Hugging Face folder"
        )
    return JinjaTemplate()


def _reader(tokenizer: Tokenizer) -> HuggingFaceTokenizer:
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise DataError(
            f"data.template: 'jinja' needs the tokenizer of a Hugging Face folder, found '{tokenizer.type}'; "
            "expected data.tokenizer: {type: huggingface, path: ...}, or another template"
        )
    return tokenizer
