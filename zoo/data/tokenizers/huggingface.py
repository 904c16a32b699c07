"""Tokenizer `huggingface`: a tokenizer.json, read by Hugging Face's own library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field

from zoo.config.inputs import READS_FILES
from zoo.config.registry import TOKENIZERS
from zoo.data.files import read_bytes, read_object, read_text, sha256
from zoo.data.tokenizers.base import Tokenizer, TokenizerConfig
from zoo.data.tokenizers.bounds import require_growth, require_tables
from zoo.data.tokenizers.end_of_text import BY_ID, BY_TEXT, find_eos, token_text
from zoo.data.tokenizers.parts import byte_tokens, decodes_in_parts
from zoo.utils.errors import DataError
from zoo.utils.extras import install
from zoo.utils.files import expand_home
from zoo.utils.untyped import JsonObject

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
"""The file of the chat template in newer folders; older ones have it in tokenizer_config.json."""
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
BESIDE = (
    CHAT_TEMPLATE_FILE,
    SPECIAL_TOKENS_FILE,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
"""Files of a folder that are kept unchanged; tokenizer.json does not need them, but other readers may."""
SPECIAL_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LONGEST = 2**31
"""Limit of plausible lengths; files whose authors set none have about 10^30."""
READER = "PreTrainedTokenizerFast"
"""The class of transformers that can open any tokenizer.json."""
SEGMENTS = "token_type_ids"
"""transformers' name of the segments, in ``model_input_names``."""
WITH_SEGMENTS = frozenset({"BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"})
"""The classes of transformers that return segments without ``model_input_names``."""
OWN_PREFIX = frozenset(
    {"GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"}
)
"""The classes whose ``add_prefix_space`` counts in transformers, and not the one of the tokenizer.json."""
SIDES = ("right", "left")


def _is_around(token: tuple[int, int | None]) -> bool:
    """Whether a token of `HuggingFaceTokenizer._framed_example` is none of the text."""
    return token[1] is None


def _library() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(f"a {TOKENIZER_FILE} is read by the package tokenizers: {install('hf')}") from error
    return tokenizers


@contextmanager
def _survived(what: str) -> Iterator[None]:
    """Turn every failure of the library into an error about the file, because it panics on some files.

    Raises:
        DataError: The library failed.
    """
    try:
        yield
    except BaseException as error:
        # A panic of Rust is no Exception; the library raises nothing more precise than Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DataError(f"{what}: {error}") from error
        raise


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the Hugging Face hub.

    `encode` treats the spelling of a special token as ordinary text; `encode_with_special_tokens`, used for
    the markers of a template, turns it into the token.

    Args:
        content: content of a tokenizer.json.
        settings: content of the tokenizer_config.json in the same folder; it may be empty.
        eos: text or id of the token that ends a document.
        place: the file, for messages.
        beside: the contents, by name, of further files of the folder, which `save` writes unchanged.

    Attributes:
        special_tokens: texts of the special tokens, in the order of their ids.

    Raises:
        DataError: The content is not a tokenizer.json, `eos` is not one of its tokens, or a setting of the
            tokenizer_config.json contradicts the tokenizer.json or cannot be followed.
    """

    type = "huggingface"

    def __init__(
        self,
        content: bytes,
        settings: JsonObject,
        eos: str | int,
        place: str | Path,
        beside: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        library = _library()
        self._place = place
        with _survived(f"{place}: not a {TOKENIZER_FILE}"):
            require_tables(content)
            self._tokenizer = library.Tokenizer.from_str(content.decode("utf-8"))
            require_growth(self._tokenizer.normalizer, "normalizer")
            require_growth(self._tokenizer.decoder, "decoder")
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
            self._in_parts = decodes_in_parts(self._tokenizer.decoder)
        self._bytes = byte_tokens(vocabulary)
        self._content = content
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)
        self.eos_id = self._id(eos, "the end of a document", place)
        self._settings = dict(settings)
        self._check_settings()
        became_special = self._make_end_special()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = {i for i, token in added.items() if token.special}
        self.special_tokens = [added[i].content for i in sorted(self._special_ids)]
        if token_text(settings.get("eos_token")) != (end := self._tokenizer.id_to_token(self.eos_id)):
            self._settings["eos_token"] = end
        self._beside = beside
        key = content + f"\neos {self.eos_id}".encode()
        self.hash = sha256(key)
        if became_special:
            self.hash, self.former_hash = sha256(key + b" special"), self.hash

    def _make_end_special(self) -> bool:
        """Make the end of a document a special token if it was added to the vocabulary as a word.

        transformers counts the `eos_token` among the special tokens, whatever the file says of it.

        Returns:
            Whether it was a word in the file.
        """
        end = self._tokenizer.get_added_tokens_decoder().get(self.eos_id)
        if end is None or end.special:
            return False
        end.special = True
        with _survived(f"{self._place}: cannot make the end of a document a special token"):
            self._tokenizer.add_special_tokens([end])
        return True

    def _check_settings(self) -> None:
        """Refuse settings by which transformers would read other tokens than the tokenizer.json describes."""
        place = f"{self._place}: {SETTINGS_FILE}"
        if (side := self._settings.get("truncation_side", "right")) not in SIDES:
            raise DataError(f"{place}: truncation_side: {side!r}; expected 'right' or 'left'")
        prefix, inner = self._settings.get("add_prefix_space"), self._adds_prefix
        if self._class in OWN_PREFIX and None not in (prefix, inner) and bool(prefix) != inner:
            raise DataError(
                f"{place}: add_prefix_space: {json.dumps(prefix)}; expected {json.dumps(inner)}, as in the "
                f"{TOKENIZER_FILE}: the tokens of a {self._class} would be others than those described there"
            )

    @property
    def _class(self) -> str | None:
        """The name of transformers' class for the files, without "Fast"; None: they leave it to the model."""
        named = self._settings.get("tokenizer_class")
        return named.removesuffix("Fast") if isinstance(named, str) else None

    @property
    def _adds_prefix(self) -> bool | None:
        """Whether the file's byte-level pre-tokenizer puts a blank in front of texts; None: it has none."""
        if (splitter := self._tokenizer.pre_tokenizer) is None:
            return None
        described = json.loads(splitter.__getstate__())
        parts = described.get("pretokenizers", [described])
        return next((bool(p["add_prefix_space"]) for p in parts if p["type"] == "ByteLevel"), None)

    @property
    def gives_segments(self) -> bool:
        """Whether transformers gives a model the segments of a pair.

        A tokenizer without a named class is read with the one of the model, which returns segments for BERT,
        the one family of models that has them.
        """
        names = self._settings.get("model_input_names")
        if isinstance(names, list):
            return SEGMENTS in names
        return self._class is None or self._class in WITH_SEGMENTS

    def _id(self, token: str | int, purpose: str, place: str | Path) -> int:
        """The id of a token that is given by its text or its id."""
        known = self.token_id(token) if isinstance(token, str) else token
        if known is None or known < 0 or self._tokenizer.id_to_token(known) is None:
            raise DataError(
                f"{place}: {purpose} is {token!r}, which is no token of the {self.vocab_size} there"
            )
        return int(known)

    @property
    def needed_size(self) -> int:
        """The vocabulary that a model needs to read every text.

        Special tokens that were added to the vocabulary count only if the file's post-processor puts them
        around texts, or if they end documents. Gemma 3's has one more, for images, than its models for text.
        """
        with _survived(f"{self._place}: cannot encode a text"):
            around: list[int] = self._tokenizer.encode("", "", add_special_tokens=True).ids
            pieces: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
            words: set[int] = self._tokenizer.get_added_tokens_decoder().keys() - self._special_ids
        return 1 + max(self.eos_id, *around, *pieces.values(), *words)

    @property
    def prefix_ids(self) -> list[int]:
        """Ids that the file's post-processor puts before a text, such as Llama's beginning-of-text token."""
        return [token for token, _ in takewhile(_is_around, self._framed_example())]

    @property
    def suffix_ids(self) -> list[int]:
        """Ids that the file's post-processor puts behind a text, such as BERT's ``[SEP]``."""
        return [token for token, _ in takewhile(_is_around, reversed(self._framed_example()))][::-1]

    def _framed_example(self) -> list[tuple[int, int | None]]:
        """The ids of a text with those around it, and for each the number of its text; None: it is added."""
        with _survived(f"{self._place}: cannot encode a text"):
            encoded = self._tokenizer.encode("a", add_special_tokens=True)
        return list(zip(encoded.ids, encoded.sequence_ids, strict=True))

    @property
    def max_length(self) -> int | None:
        """The number of tokens at which the authors truncate texts; None: the files do not name one."""
        named = self._settings.get("model_max_length")
        return named if isinstance(named, int) and 0 < named <= LONGEST else None

    @property
    def chat_template(self) -> str | None:
        """The Jinja program that turns a conversation into text; None: there is none."""
        if CHAT_TEMPLATE_FILE in self._beside:
            return self._beside[CHAT_TEMPLATE_FILE].decode("utf-8-sig")
        template = self._settings.get("chat_template")
        if isinstance(template, list):  # several templates as {name, template}
            named = [item for item in template if isinstance(item, dict)]
            template = next((item.get("template") for item in named if item.get("name") == "default"), None)
        return template if isinstance(template, str) else None

    @property
    def named_special_tokens(self) -> dict[str, str]:
        """The special tokens by their names, such as ``bos_token``.

        The names are those of tokenizer_config.json or, where it has none, of special_tokens_map.json.
        """
        others: JsonObject = {}
        if SPECIAL_TOKENS_FILE in self._beside:
            with _survived(f"{self._place}: {SPECIAL_TOKENS_FILE}: not a JSON object"):
                others = dict(json.loads(self._beside[SPECIAL_TOKENS_FILE]))
        texts = {name: token_text((others | self._settings).get(name)) for name in SPECIAL_TOKENS}
        return {name: text for name, text in texts.items() if text is not None}

    @property
    def named_special_ids(self) -> dict[str, int]:
        """The ids of `named_special_tokens`, as far as the vocabulary has them."""
        ids = {name: self._tokenizer.token_to_id(text) for name, text in self.named_special_tokens.items()}
        return {name: token for name, token in ids.items() if token is not None}

    def token_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary, special or not; None: there is none."""
        known: int | None = self._tokenizer.token_to_id(token)
        return known

    def is_special(self, token: int) -> bool:
        """Whether an id is that of a special token."""
        return token in self._special_ids

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without special tokens."""
        return [token for token in self._encoding(text, special=False).ids if token != self.eos_id]

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Turn the text of a template into ids; special tokens that are spelled out become their ids."""
        return self.encode_with_offsets(text)[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Like `encode_with_special_tokens`, with the positions [start, end) of each token's characters.

        Raises:
            DataError: The settings say that special tokens in a text are text, ``split_special_tokens``.
        """
        if self._settings.get("split_special_tokens"):
            raise DataError(
                f"{self._place}: {SETTINGS_FILE}: split_special_tokens: true; expected false, because "
                "templates mark the parts of a text by special tokens"
            )
        encoding = self._encoding(text, special=True)
        return encoding.ids, encoding.offsets

    def encode_framed(
        self, text: str, pair: str | None, max_length: int | None
    ) -> tuple[list[int], list[int], bool]:
        """Turn a text or a pair into ids with the special tokens that the authors put around them.

        Args:
            text: the text.
            pair: the second text of a pair; None: there is none.
            max_length: number of tokens at which the longer text is truncated; None: neither is truncated.

        Returns:
            The ids, the segment of each (0 if transformers returns none), and whether a text was truncated.
        """
        side = self._settings.get("truncation_side", "right")
        self._tokenizer.encode_special_tokens = True
        with _survived(f"{self._place}: cannot encode a text"):
            if max_length is not None:
                self._tokenizer.enable_truncation(max_length, direction=side)
            try:
                encoding = self._tokenizer.encode(text, pair)
            finally:
                self._tokenizer.no_truncation()
        segments = encoding.type_ids if self.gives_segments else [0] * len(encoding.ids)
        return encoding.ids, segments, bool(encoding.overflowing)

    def _encoding(self, text: str, special: bool) -> Any:  # Any: the class of an optional package
        self._tokenizer.encode_special_tokens = not special
        with _survived(f"{self._place}: cannot encode a text"):
            return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text; special tokens are skipped."""
        kept = self.without_eos(ids)
        with _survived(f"{self._place}: cannot decode tokens"):
            text: str = self._tokenizer.decode(kept, skip_special_tokens=True)
        return text

    def is_final(self, ids: Sequence[int]) -> bool | None:
        """Return False behind a byte of a character, and None if the decoder does not work part by part."""
        if not self._in_parts:
            return None
        with_text = (i for i in reversed(ids) if i < self.vocab_size and not self._is_skipped(i))
        return next(with_text, -1) not in self._bytes

    def _is_skipped(self, token: int) -> bool:
        """Whether `decode` leaves out an id."""
        return token == self.eos_id or self.is_special(token)

    def save(self, folder: Path) -> None:
        """Write all files unchanged but tokenizer_config.json, which gets the `eos_token`."""
        (folder / TOKENIZER_FILE).write_bytes(self._content)
        settings = json.dumps(self._settings, indent=2, ensure_ascii=False)
        (folder / SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")
        for name, content in self._beside.items():
            (folder / name).write_bytes(content)
        super().save(folder)


@TOKENIZERS.register
class HuggingFaceConfig(TokenizerConfig):
    """Hugging Face: a tokenizer.json, or a folder with one."""

    type: Literal["huggingface"] = "huggingface"
    path: Annotated[Path, READS_FILES] = Field(description="tokenizer.json, or the folder it is in")
    eos: str | int | None = Field(
        default=None,
        description="the token that ends a document, or its id; null: the one that the other files name",
    )

    def build(self, texts: Callable[[], Iterator[str]]) -> HuggingFaceTokenizer:
        """Read the files; the texts are not read."""
        path = expand_home(self.path)
        file = path / TOKENIZER_FILE if path.is_dir() else path
        content = read_bytes(file)
        eos = find_eos(file.parent) if self.eos is None else self.eos
        if eos is None:
            raise DataError(
                f"{file}: no file in its folder says which token ends a document (eos_token in "
                f"{' or '.join(BY_TEXT)}, eos_token_id in {' or '.join(BY_ID)}); name it: "
                f"{{type: huggingface, path: {self.path}, eos: '</s>'}}"
            )
        settings_file = file.with_name(SETTINGS_FILE)
        settings = read_object(settings_file) if settings_file.is_file() else {}
        beside = {name: read_bytes(file.with_name(name)) for name in BESIDE if file.with_name(name).is_file()}
        if CHAT_TEMPLATE_FILE in beside:
            read_text(file.with_name(CHAT_TEMPLATE_FILE))  # raises if the file cannot be read
        if self.eos is not None:
            beside.pop(SPECIAL_TOKENS_FILE, None)  # the file may name another end token
        return HuggingFaceTokenizer(content, settings, eos, file, beside)

    @classmethod
    def load(cls, folder: Path) -> HuggingFaceTokenizer:
        """Load the files that `save` wrote."""
        return cls(path=folder).build(lambda: iter(()))
