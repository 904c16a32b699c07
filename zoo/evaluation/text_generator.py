"""Text generation: a model continues a prompt, answers it, or takes part in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from zoo.checkpoint.model import load_model
from zoo.config.registry import type_of
from zoo.data.dataset import DataConfig
from zoo.data.instructions.dataset import TemplatePrompting
from zoo.data.instructions.files import Message
from zoo.data.instructions.jinja import own_template
from zoo.data.prompting import DECODER_START_ID, HubPrompting, Prompting, stop_ids
from zoo.data.tokenizers.base import check_ids
from zoo.models import LanguageModel, Model
from zoo.run.limits import require_memory
from zoo.run.trained import check_together, data_of, published_ends, tokenizer_of
from zoo.sampling import Sampling, TextStreamer, steps
from zoo.sampling.captured import CUDAGraphs
from zoo.sampling.settings import require_new_tokens
from zoo.sampling.text import require_stops
from zoo.utils.atomic import warned, write_text
from zoo.utils.device import find_device
from zoo.utils.errors import DataError, ZooError
from zoo.utils.files import check_text
from zoo.utils.run_folder import RunFolder


def require_settings(
    max_new_tokens: int, sampling: Sampling, stop: Sequence[str] = (), count: int = 1
) -> None:
    """Refuse settings with which no model writes a text, see `TextGenerator.complete`.

    Raises:
        ZooError: A number is below 1, a stop string is empty, or there are several texts at temperature 0.
    """
    require_new_tokens(max_new_tokens)
    require_stops(stop)
    if count < 1 or (count > 1 and sampling.temperature == 0):
        expected = "at least 1" if count < 1 else "1, as temperature 0 always writes the same text"
        raise ZooError(f"generate: {count} texts; expected {expected}")


class TextGenerator:
    """A trained model with its tokenizer.

    Args:
        path: a run, one of its checkpoints, an imported model, or a folder as on the Hugging Face hub.
        device: `auto`, `cpu`, `mps`, `cuda` or `cuda:N`.
        compile: whether to compile the step, see `zoo.generate`.
        cuda_graph: whether to capture its step, see there.
        dtype: the dtype of the weights, see `zoo.load_model`.

    Raises:
        ZooError: There is no model, it was not trained on text, its tokenizer is missing or has other tokens,
            or the device or the dtype does not exist, or the device cannot capture a step.
    """

    def __init__(
        self,
        path: Path,
        device: str = "auto",
        compile: bool | None = None,
        cuda_graph: bool = False,
        dtype: str = "float32",
    ) -> None:
        place = find_device(device)
        if cuda_graph:
            CUDAGraphs.require(place)  # before the model is loaded
        self._path, self._model = path, load_model(path, device=place, dtype=dtype)
        data = data_of(path)
        self._prompting, self._tokenizer = _prompting(path, self._model, data), tokenizer_of(path)
        self._compile, self._cuda_graph = compile, cuda_graph
        self._published_ends = published_ends(path, self._model, data)
        check_together(path, self._tokenizer, self._model.recipe.model.vocab_size)

    def complete(
        self,
        prompt: str,
        max_new_tokens: int,
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        count: int = 1,
        show: Callable[[str], object] | None = None,
    ) -> list[str]:
        """Continue or answer a prompt.

        Args:
            prompt: the text to continue, of at least one character. A model trained on instructions gets it
                in their template; for one trained by span corruption, ``<extra_id_0>`` and so on mark the
                gaps to fill.
            max_new_tokens: largest number of tokens to add; a document may end earlier.
            sampling: the settings of the sampling.
            stop: strings before which the continuation or answer ends, or special tokens at which it does.
            count: number of continuations.
            show: a function that receives the text of the only continuation piece by piece.

        Returns:
            The prompt and its continuation, or the answer; `count` of them.

        Raises:
            ZooError: The prompt or a stop string is empty, or a setting is out of range or without effect.
        """
        check_text(prompt, "prompt", DataError)
        ids = self._prompting.encode(prompt, self._tokenizer)
        if not ids:
            raise DataError("prompt: empty; expected some text to continue")
        return self._write(ids, self._prompting, max_new_tokens, sampling, stop, count, show)

    def answer(
        self,
        messages: Sequence[Message],
        max_new_tokens: int,
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        count: int = 1,
        show: Callable[[str], object] | None = None,
    ) -> list[str]:
        """Write the next message of a conversation, in the template of the training or the tokenizer's own.

        Args:
            messages: the conversation so far; the last message is the user's.
            max_new_tokens: largest number of tokens to write.
            sampling: the settings of the sampling.
            stop: strings before which the answer ends.
            count: number of answers.
            show: a function that receives the text of the only answer piece by piece.

        Returns:
            `count` answers.

        Raises:
            ZooError: There is no template, the template refuses the conversation, or a setting is wrong, see
                `complete`.
        """
        if not messages or not messages[-1].content:
            raise DataError("prompt: empty; expected some text to answer")
        ids = self._encoded(messages)
        return self._write(ids, self._template, max_new_tokens, sampling, stop, count, show)

    def has_room(self, messages: Sequence[Message], max_new_tokens: int) -> bool:
        """Whether the context of the model has room for a conversation and its answer.

        Raises:
            DataError: A message cannot be encoded.
        """
        max_seq_len = self._model.recipe.model.max_seq_len
        read = len(self._encoded(messages)) + max_new_tokens - 1
        return max_seq_len is None or read <= max_seq_len

    def _encoded(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation."""
        for message in messages:
            check_text(message.content, "prompt", DataError)
        try:
            return self._template.encode_messages(messages, self._tokenizer)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from error

    @property
    def _template(self) -> TemplatePrompting:
        """The template of the training, or else the tokenizer's own.

        Raises:
            DataError: The tokenizer has none.
        """
        if isinstance(self._prompting, TemplatePrompting):
            return self._prompting
        return TemplatePrompting(own_template(self._tokenizer))

    def _write(
        self,
        ids: list[int],
        prompting: Prompting,
        max_new_tokens: int,
        sampling: Sampling,
        stop: Sequence[str],
        count: int,
        show: Callable[[str], object] | None,
    ) -> list[str]:
        """Generate `count` texts after the same tokens."""
        require_settings(max_new_tokens, sampling, stop, count)
        check_ids(ids, self._tokenizer, self._model.recipe.model.vocab_size)
        self._require_memory(count, len(ids), max_new_tokens)
        start = ids if prompting.continues_prompt else ()

        def decode(tokens: list[int]) -> str:
            return prompting.decode(tokens, self._tokenizer)

        streams = [TextStreamer(decode, start, stop, self._tokenizer.is_final) for _ in range(count)]
        texts = [""] * count

        def write(i: int, piece: str) -> None:
            texts[i] += piece
            if show:
                show(piece)

        at = stop_ids(stop, self._tokenizer, self._model.recipe.model.vocab_size)
        ends = {prompting.eos_id(self._tokenizer), *self._published_ends, *at}
        ended = [False] * count
        for drawn in steps(
            self._model,
            torch.tensor([ids] * count),
            max_new_tokens,
            sampling,
            eos_id=ends,
            start_id=prompting.decoder_start_id,
            compile=self._compile,
            cuda_graph=self._cuda_graph,
        ):
            for i, token in enumerate(drawn.flatten().tolist()):
                if not ended[i]:
                    write(i, streams[i].add(token))
                    ended[i] = streams[i].stopped or token in ends
            if all(ended):
                break
        for i, stream in enumerate(streams):
            write(i, stream.end())
        return texts

    def _require_memory(self, count: int, begun: int, added: int) -> None:
        """Refuse texts whose token ids and next logits alone do not fit into memory.

        Raises:
            ConfigError: These tensors need more memory than is available.
        """
        needed = count * (8 * (begun + added) + 4 * self._model.recipe.model.vocab_size)
        key, value = ("--max-new-tokens", added) if count == 1 else ("--num-return", count)
        device = next(self._model.parameters()).device
        require_memory(key, value, needed, f"{count} texts of up to {begun + added} tokens", device)


def keep_sample(path: Path, text: str) -> None:
    """Write a text of a run's model to the file that reports read; where that is impossible, warn."""
    run = RunFolder(path)
    if run.exists:
        with warned():
            write_text(run.sample, text)


def _prompting(path: Path, model: Model, data: DataConfig | None) -> Prompting:
    """The form of prompts by which the model was trained; imported models have that of their library."""
    if data is not None:
        if data.prompting is None:
            kind = type_of(data)
            raise DataError(f"{path}: a model that is trained on data of type '{kind}' writes no text")
        return data.prompting
    if not isinstance(model, LanguageModel) or model.writes is None:
        raise DataError(f"{path}: a model of type '{model.recipe.model.type}' writes no text")
    return HubPrompting(_decoder_start_id(path, model) if model.writes == "answer" else None)


def _decoder_start_id(path: Path, model: Model) -> int:
    """The first token of an encoder-decoder's target: that of its config.json, by default T5's.

    Raises:
        DataError: It is no token of the model.
    """
    start = model.published.get("config", {}).get("decoder_start_token_id")
    start, size = DECODER_START_ID if start is None else start, model.recipe.model.vocab_size
    if type(start) is not int or not 0 <= start < size:
        raise DataError(f"{path}: decoder_start_token_id is {start!r}; expected a token below {size}")
    return start
