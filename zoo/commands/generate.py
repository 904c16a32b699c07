"""Text in, text out: a model continues a prompt, or answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from zoo.checkpoint.model import load_model
from zoo.data.prompting import HubPrompting, Prompting
from zoo.models import LanguageModel, Model
from zoo.run.trained import check_together, data_of, tokenizer_of
from zoo.sampling import Sampling, TextStreamer, steps
from zoo.utils.atomic import write_text
from zoo.utils.errors import DataError
from zoo.utils.run_folder import RunFolder


def complete(
    path: Path,
    prompt: str,
    max_new_tokens: int,
    sampling: Sampling,
    *,
    stop: Sequence[str] = (),
    show: Callable[[str], object] | None = None,
    compile: bool = False,
) -> str:
    """Continue or answer a prompt; in a run's folder the text is left where reports look for it.

    Args:
        path: a run, one of its checkpoints, an imported model, or a folder as on the Hugging Face hub.
        prompt: at least one character. A model trained on instructions gets it in their template; for
            one trained by span corruption, ``<extra_id_0>`` and so on stand for what is to be filled in.
        max_new_tokens: tokens to add at most; a document may end earlier.
        sampling: how tokens are chosen.
        stop: strings before which the continuation or answer ends, if they come.
        show: given the text piece by piece while it is being written; None: nobody looks on.
        compile: see `zoo.generate`.

    Returns:
        The prompt and its continuation, or the answer.

    Raises:
        ZooError: no model, one that was not trained on text, no tokenizer or one of other tokens, an empty
            prompt or stop string, or a setting out of range.
    """
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"prompt: character {error.start} is not UTF-8; expected text") from error
    model = load_model(path)
    prompting, tokenizer = _prompting(path, model), tokenizer_of(path)
    check_together(path, tokenizer, model.recipe.model.vocab_size)
    ids = prompting.encode(prompt, tokenizer)
    if not ids:
        raise DataError("prompt: empty; expected some text to continue")
    writer = TextStreamer(
        lambda tokens: prompting.decode(tokens, tokenizer), ids if prompting.continues_prompt else (), stop
    )
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if show:
            show(piece)

    start, end = prompting.decoder_start_id, prompting.eos_id(tokenizer)
    tokens = steps(
        model,
        torch.tensor([ids]),
        max_new_tokens,
        sampling,
        eos_id=end,
        start_id=start,
        compile=compile,
    )
    for token in tokens:
        write(writer.add(int(token)))
        if writer.stopped:
            break
    write(writer.end())
    text = "".join(pieces)
    run = RunFolder(path)
    if run.exists:
        write_text(run.sample, text)
    return text


def _prompting(path: Path, model: Model) -> Prompting:
    """How the model was trained to be asked; models of others are asked as over there."""
    data = data_of(path)
    if data is not None:
        if data.prompting is None:
            raise DataError(f"{path}: was not trained to write text, so it cannot be given any")
        return data.prompting
    if not isinstance(model, LanguageModel) or model.writes is None:
        raise DataError(f"{path}: a model of type '{model.recipe.model.type}' writes no text")
    return HubPrompting(model.writes == "answer")
