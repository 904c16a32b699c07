"""A model to evaluate, with its tokenizer and facts about its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from zoo.checkpoint.model import load_model
from zoo.config.registry import type_of
from zoo.data.corpora.text import TextCorpus
from zoo.data.instructions.dataset import InstructionData
from zoo.data.instructions.template import Template
from zoo.data.text.dataset import TextData
from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceTokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.models import LanguageModel
from zoo.run.trained import check_together, data_of, published_ends, tokenizer_of
from zoo.utils.errors import DataError

POSITIONS = "max_position_embeddings"
"""The field of a config.json with the context of the model's training."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that predicts each token from those before it, and how it was trained.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: the tokenizer of its training.
        start_id: the token in front of a text.
        task_start_id: the token in front of a text without a context in a task: that of lm-evaluation-harness
            for a folder in the hub's format, and `start_id` for a model that zoo trained.
        end_ids: the tokens that end a generated text.
        prefix_ids: the tokens in front of a prompt: those of the tokenizer, or none if the model was trained
            on plain text, which has no prefix.
        context: number of tokens in a sequence of its training, or its number of positions; None: unknown.
        lines: whether each line of its training text was a document.
        separates_documents: whether tokens saw only those of their own document (`documents: masked`).
        template: the template of its training on conversations; None: it was trained on none.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    start_id: int
    task_start_id: int
    end_ids: frozenset[int]
    prefix_ids: list[int]
    context: int | None
    lines: bool
    separates_documents: bool
    template: Template | None


def load_evaluated_model(path: Path, tokenizer: Path | None, device: torch.device) -> EvaluatedModel:
    """Load a model together with the facts about its training.

    Args:
        path: a run, one of its checkpoints, a .safetensors file, or a folder in the hub's format.
        tokenizer: the folder of the tokenizer; None: the one that is stored with the model.
        device: the device of the model.

    Raises:
        DataError: The model does not predict the next token, there is no tokenizer, the tokenizer has more
            tokens than the model, or config.json names a first token that the model does not have.
        ZooError: There is no model at `path`.
    """
    model = load_model(path, device=device).eval()
    config = model.recipe.model
    if not isinstance(model, LanguageModel) or model.writes != "continuation":
        raise DataError(
            f"{path}: a model of type '{config.type}' is trained by {' or '.join(sorted(config.objectives))} "
            "and gives a text no probability; expected one that predicts the next token, as gpt does"
        )
    model_tokenizer = _tokenizer(path, tokenizer)
    check_together(path, model_tokenizer, config.vocab_size)
    start_id, prefix_ids = model_tokenizer.start_id, model_tokenizer.prefix_ids
    context, lines, separates_documents = config.max_seq_len, False, False
    template: Template | None = None
    task_start_id: int | None = None
    data = data_of(path)
    end_ids = published_ends(path, model, data) | {model_tokenizer.eos_id}
    if data is not None:
        context = data.length
        if isinstance(data, TextData):
            if not data.objective.predicts_every_token:
                raise DataError(
                    f"{path}: the model was trained by the objective '{type_of(data.objective)}', whose "
                    "targets are not the next tokens of the text (predicts_every_token is False); expected "
                    "a model that was trained to predict every token from those before it, as by causal"
                )
            start_id, prefix_ids = model_tokenizer.eos_id, []
            separates_documents = data.separates_documents
            lines = isinstance(data.corpus, TextCorpus) and data.corpus.document == "line"
        elif isinstance(data, InstructionData):
            template = data.template
            end_ids |= {data.prompting.eos_id(model_tokenizer)}
    elif (hub_config := model.published.get("config")) is not None:
        context, bos_id = context or hub_config.get(POSITIONS), hub_config.get("bos_token_id")
        start_id = start_id if bos_id is None else bos_id
        if isinstance(model_tokenizer, HuggingFaceTokenizer):
            task_start_id = model_tokenizer.named_special_ids.get("bos_token", model_tokenizer.eos_id)
        if not isinstance(start_id, int) or not 0 <= start_id < config.vocab_size:
            raise DataError(
                f"{path}: bos_token_id is {start_id!r}; expected a token below "
                f"{config.vocab_size}, or null for the one that ends documents"
            )
    return EvaluatedModel(
        model,
        model_tokenizer,
        start_id,
        start_id if task_start_id is None else task_start_id,
        end_ids,
        prefix_ids,
        context,
        lines,
        separates_documents,
        template,
    )


def _tokenizer(model: Path, tokenizer: Path | None) -> Tokenizer:
    """The tokenizer in a folder, or the one that is stored with a model."""
    try:
        return tokenizer_of(model) if tokenizer is None else find_tokenizer(tokenizer)
    except DataError as error:
        raise DataError(
            f"{error}; name the folder of the one that made the model's tokens, e.g. --tokenizer "
            "runs/my-run/tokenizer"
        ) from error
