"""Tokenizer `sentencepiece`: a .model file, or one trained on the corpus."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zoo.config.inputs import READS_FILES
from zoo.config.registry import TOKENIZERS
from zoo.data.files import read_bytes, sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig
from zoo.utils.errors import DataError
from zoo.utils.files import expand_home

MODEL_FILE = "tokenizer.model"


LONGEST = 1 << 20
"""Largest number of bytes of a line in training, which skips longer ones."""


class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model (Kudo and Richardson 2018, arXiv:1808.06226).

    A model trained by zoo reproduces every text exactly, with one exception that is due to sentencepiece: it
    represents a blank as U+2581, so this character is decoded as a blank. Other models may normalise the
    text.

    Args:
        model: content of a .model file.
        place: the file, for messages.

    Attributes:
        processor: the `sentencepiece.SentencePieceProcessor`.

    Raises:
        DataError: The content is not a sentencepiece model, or the model has no end-of-sentence piece.
    """

    type = "sentencepiece"

    def __init__(self, model: bytes, place: str | Path) -> None:
        import sentencepiece  # imported here, because the import takes 0.1 s

        try:
            if not model:  # to the library an empty model means "not loaded yet"
                raise ValueError("empty")
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{place}: not a sentencepiece model") from error
        self._model = model
        self.vocab_size = int(self.processor.get_piece_size())
        self.eos_id = int(self.processor.eos_id())
        self.hash = sha256(model)
        if self.eos_id < 0:
            raise DataError(
                f"{place}: the model has no end-of-sentence piece, so documents could not be separated; "
                "train it with --eos_id"
            )

    @property
    def prefix_ids(self) -> list[int]:
        """The beginning-of-sentence piece, if the model has one."""
        bos = int(self.processor.bos_id())
        return [] if bos < 0 else [bos]

    def encode(self, text: str) -> list[int]:
        """Turn text into ids of pieces."""
        ids: list[int] = self.processor.encode(text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text."""
        text: str = self.processor.decode(self.without_eos(ids))
        return text

    def is_final(self, ids: Sequence[int]) -> bool:
        """Return True, as pieces are decoded one by one; only a text's first one may lose a blank."""
        return True

    def save(self, folder: Path) -> None:
        """Write the .model file and its description."""
        (folder / MODEL_FILE).write_bytes(self._model)
        super().save(folder)


@TOKENIZERS.register
class SentencePieceConfig(TokenizerConfig):
    """Sentencepiece: load a .model file, or train one with `vocab_size` pieces on the training text.

    Training is deterministic, does not normalise the text, falls back to bytes for rare characters, and
    never sees the validation documents.
    """

    type: Literal["sentencepiece"] = "sentencepiece"
    model: Annotated[Path | None, READS_FILES] = Field(default=None, description="a .model file to load")
    vocab_size: int | None = Field(
        default=None, ge=257, description="train a model with this number of pieces"
    )
    algorithm: Literal["bpe", "unigram"] = Field(default="bpe", description="training algorithm")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.model is None) == (self.vocab_size is None):
            raise ValueError("give either 'model' (a .model file to load) or 'vocab_size' (to train one)")
        if self.model is not None and self.algorithm != "bpe":
            raise ValueError("'algorithm' has no effect on a model that is loaded: leave it out")
        return self

    @property
    def is_trained(self) -> bool:
        """True if the model is trained, False if it is loaded."""
        return self.model is None

    def build(self, texts: Callable[[], Iterator[str]]) -> SentencePieceTokenizer:
        """Load the model, or train it on the lines of `texts`."""
        if self.model is not None:
            return SentencePieceTokenizer(read_bytes(expand_home(self.model)), self.model)
        import sentencepiece

        model_file = io.BytesIO()
        lines = (part for text in texts() for line in text.splitlines() for part in _parts(line))
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=lines,
                model_writer=model_file,
                vocab_size=self.vocab_size,
                model_type=self.algorithm,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                allow_whitespace_only_pieces=True,
                split_digits=True,
                max_sentence_length=LONGEST,
                shuffle_input_sentence=False,
                num_threads=1,  # the sums of unigram training depend on the number
                unk_id=0,
                eos_id=1,
                bos_id=-1,
                pad_id=-1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise DataError(
                f"sentencepiece cannot train {self.vocab_size} pieces on this corpus: {error}"
            ) from error
        return SentencePieceTokenizer(model_file.getvalue(), "the trained model")

    @classmethod
    def load(cls, folder: Path) -> SentencePieceTokenizer:
        """Load the .model file that `save` wrote."""
        path = folder / MODEL_FILE
        return SentencePieceTokenizer(read_bytes(path), path)


def _parts(line: str) -> Iterator[str]:
    """Cut a line at blanks into parts of at most `LONGEST` bytes, or anywhere where it has no blank."""
    if len(line.encode("utf-8", "surrogatepass")) <= LONGEST:
        if line:
            yield line
        return
    most, begin = LONGEST // 4, 0  # characters, of up to four bytes
    while begin < len(line):
        end = begin + most
        if end < len(line) and (blank := line.rfind(" ", begin + 1, end)) > 0:
            end = blank
        yield line[begin:end]
        begin = end
