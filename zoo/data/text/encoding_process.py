"""The program that encodes texts in a separate process: ``python encoding_process.py FOLDER [PLUGIN ...]``.

It loads a saved tokenizer and writes None or an error message to standard output. Then it answers each list
of texts on standard input with the ids, or with a message. All of these are pickled; the other side is
`zoo.data.text.encoding`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from zoo.config.plugins import load_plugin
from zoo.data.text.encoding import encode_texts
from zoo.data.tokenizers.base import Tokenizer, load_tokenizer
from zoo.utils.errors import ZooError


def main(folder: str, plugins: Sequence[str], answers: BinaryIO) -> None:
    """Encode until the other side closes standard input.

    Args:
        folder: the folder of the tokenizer.
        plugins: the plugins to load first, as arguments of `load_plugin`.
        answers: the stream of the answers.
    """
    try:
        for plugin in plugins:
            load_plugin(plugin)
        tokenizer = load_tokenizer(folder)
    except Exception as error:  # a plugin can raise any exception
        _write(answers, f"{type(error).__name__}: {error}")
        return
    _write(answers, None)
    while True:
        try:
            texts: list[str] = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _write(answers, _encoded(tokenizer, texts))


def _encoded(tokenizer: Tokenizer, texts: list[str]) -> object:
    """The length of each text in tokens and the ids of all, or a message."""
    try:
        ids = encode_texts(tokenizer, texts)
    except ZooError as error:
        return str(error)
    return [len(row) for row in ids], np.concatenate(ids)


def _write(answers: BinaryIO, answer: object) -> None:
    pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()


if __name__ == "__main__":
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a plugin must not mix with the answers
    main(sys.argv[1], sys.argv[2:], own)
