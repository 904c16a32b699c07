"""Instructions as a data set: examples padded on the right, their prompts masked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.dataset import Batch
from zoo.data.files import sha256, sha256_file
from zoo.data.instruction_examples import Examples, fitting
from zoo.data.instruction_file import Conversation, read_conversations
from zoo.data.instructions import InstructionData
from zoo.data.layout import WIDTHS
from zoo.data.listed import Listed
from zoo.data.split import divide
from zoo.data.tokenizer import check_vocabulary
from zoo.nn.loss import IGNORED


class Instructions(Listed[Examples]):
    """Conversations, shuffled in every epoch; a batch is as long as its longest example."""

    what = "examples"
    unit = InstructionData.unit

    def __init__(self, data: InstructionData, vocab_size: int) -> None:
        """Read and tokenise the files.

        Args:
            data: where they are.
            vocab_size: of the model that will read them.

        Raises:
            DataError: a file or tokenizer that cannot be used, or no example that fits.
        """
        train, held_out = _divided(data)
        tokenizer = data.tokenizer.build(lambda: (m.content for c in train for m in c.messages))
        check_vocabulary(tokenizer, vocab_size)
        self.train = fitting(data, train, tokenizer, "training")
        self.held_out = fitting(data, held_out, tokenizer, "validation") if held_out else None
        self.tokenizer, self.fingerprint = tokenizer, _fingerprint(data, tokenizer.hash)
        self._context, self._padding = data.context, tokenizer.eos_id

    def batch(self, part: Examples, indices: NDArray[np.int64]) -> Batch:
        """Tokens and targets, (examples, time) int64; what is not learned is -1.

        Padding stands behind an example, where no token of a decoder that counts can see it.
        """
        laid = [part.laid[i] for i in indices]
        longest = max(len(each.tokens) for each in laid) - 1
        shape = (len(laid), min(self._context, -(-longest // WIDTHS) * WIDTHS))
        tokens = np.full(shape, self._padding, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        for i, each in enumerate(laid):
            tokens[i, : len(each.tokens) - 1] = each.tokens[:-1]
            targets[i, : len(each.tokens) - 1] = np.where(each.learned[1:], each.tokens[1:], IGNORED)
        return torch.from_numpy(tokens), torch.from_numpy(targets)


def _divided(data: InstructionData) -> tuple[list[Conversation], list[Conversation]]:
    """The conversations to train on, and those to evaluate on.

    By the hash of what comes before the last answer one is held out, so that all answers to the same are
    on one side.
    """
    conversations = read_conversations(Path(data.train).expanduser())
    if data.validation is None:
        return conversations, []
    if isinstance(data.validation, str):
        return conversations, read_conversations(Path(data.validation).expanduser())
    return divide(conversations, [_question(c) for c in conversations], data.validation)


def _question(conversation: Conversation) -> str:
    return json.dumps(conversation.messages[:-1])


def _fingerprint(data: InstructionData, tokenizer: str) -> str:
    files = [data.train, *([data.validation] if isinstance(data.validation, str) else [])]
    share = data.validation if isinstance(data.validation, float) else None
    settings = [share, data.template.model_dump(mode="json"), data.context, tokenizer]
    parts = [sha256_file(Path(file).expanduser()) for file in files]
    return sha256(json.dumps([*parts, *settings]).encode())
