"""Instructions as tokens, as many of them as fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zoo.data.instructions.files import Conversation
from zoo.data.instructions.template import Laid, Template
from zoo.data.tokenizers.base import Tokenizer
from zoo.utils.errors import DataError

log = logging.getLogger("zoo")


class Examples:
    """Tokenised conversations, none longer than the context.

    One that is too long loses tokens behind its first one, so that the last answer and what stands before
    it are kept; one whose last answer alone is too long is left out.

    Attributes:
        laid: their tokens.
        cut: how many have lost tokens.
        dropped: how many were left out.
    """

    def __init__(
        self, conversations: Sequence[Conversation], template: Template, tokenizer: Tokenizer, context: int
    ) -> None:
        """Tokenise.

        Args:
            conversations: at least one.
            template: how they become texts.
            tokenizer: how texts become tokens.
            context: tokens that a model sees.
        """
        self.laid: list[Laid] = []
        self.cut = self.dropped = 0
        for conversation in conversations:
            laid = template.lay(conversation.messages, tokenizer)
            if len(laid.tokens) - 1 > context:  # the last token is only predicted
                if all(laid.learned[-context - 1 :]):
                    self.dropped += 1
                    continue
                self.cut += 1
                laid = Laid(*([part[0], *part[-context:]] for part in laid))
            self.laid.append(laid)

    def __len__(self) -> int:
        return len(self.laid)


def fitting(
    given: Sequence[Conversation], template: Template, tokenizer: Tokenizer, context: int, what: str
) -> Examples:
    """Tokenise, and tell what did not fit.

    Args:
        given: the conversations, at least one.
        template: how they become texts.
        tokenizer: how texts become tokens.
        context: tokens that a model sees.
        what: they are for, in messages.

    Raises:
        DataError: none of them fits.
    """
    examples = Examples(given, template, tokenizer, context)
    for count, fate in (
        (examples.cut, "lose their beginnings"),
        (examples.dropped, "are left out, since their answers alone are longer"),
    ):
        if count:
            log.warning(
                f"data: {count:,} of {len(given):,} {what} examples are longer than data.context "
                f"{context} and {fate}"
            )
    if not len(examples):
        raise DataError(
            f"data: no {what} example fits into data.context {context}: all {len(given):,} answers "
            "alone are longer"
        )
    return examples
