"""Models of zoo in lm-evaluation-harness, under the name `zoo`; this file needs the extra `eval`.

import zoo.evaluation.harness
lm_eval.simple_evaluate("zoo", {"path": "runs/demo"}, tasks=["my_task"])
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from zoo.evaluation.continuation import batches, continuations
from zoo.evaluation.likelihood import Answer, log_likelihoods
from zoo.evaluation.perplexity import choose_windows
from zoo.evaluation.subject import load_subject
from zoo.evaluation.writing import Writing
from zoo.utils.device import find_device
from zoo.utils.errors import DataError, ZooError

UNLIMITED = 1 << 30
"""The context of a model that carries a state."""


@register_model("zoo")
class ZooLM(TemplateLM):  # type: ignore[misc]
    """A decoder or an LSTM with its tokenizer, as the harness asks for it.

    Requests are cut and scored as by the harness's own class for transformers (HFLM), so that a model
    has the same scores here and, exported, there: the token that begins a text stands in front of
    texts without a context, contexts lose their beginning where they are too long, texts longer than
    the context are read in windows that do not overlap.

    Attributes:
        context: tokens that the model reads at most.
        batch_size: requests at once.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: str | Path | None = None,
        context: int | None = None,
        device: str = "auto",
        batch_size: int | str = 8,
    ) -> None:
        """Open a model.

        Args:
            path: a run, one of its checkpoints, a file of zoo, or a folder as on the Hugging Face hub.
            tokenizer: the tokenizer's folder; None: it is with the model.
            context: tokens that the model reads at most; None: as in its training.
            device: where to compute, see `find_device`.
            batch_size: requests at once.

        Raises:
            DataError: a model that gives a text no probability, or a tokenizer that does not fit it.
            ZooError: no model there, or a setting out of range.
        """
        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise ZooError(f"eval: batch_size is {batch_size}; expected a number of at least 1")
        self.batch_size = int(batch_size)
        self._device = find_device(device)
        self.subject = load_subject(Path(path), None if tokenizer is None else Path(tokenizer), self._device)
        contexts = [] if context is None else [int(context)]
        windows = choose_windows(self.subject, contexts, None, self.batch_size)[0]
        self.context = UNLIMITED if windows is None else windows[0]

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.subject.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The token that stands in front of a text without a context."""
        return self.subject.start

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Turn text into ids.

        Args:
            string: the text; special tokens that are written out in it are text.
            add_special_tokens: whether to put in front what the tokenizer's makers do; None: yes.
        """
        ids = self.subject.tokenizer.encode(string)
        return ids if add_special_tokens is False else [*self.subject.opening, *ids]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[Answer]:
        """ln p of each continuation given its context, and whether it is the likeliest one.

        Args:
            requests: of (context, continuation).
            disable_tqdm: show no progress.

        Raises:
            DataError: a continuation without tokens, or too long for the model.
        """
        for request in requests:
            if not request.args[1]:
                raise DataError(f"task '{request.task_name}': a continuation is empty: {request.args}")
        answers: list[Answer] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[Answer]:
        """The same for tokens, which the class above has made of the requests."""
        pairs = [(context, continuation) for _, context, continuation in requests]
        with tqdm(total=len(pairs), desc="continuations", file=sys.__stderr__, disable=None) as bar:
            return log_likelihoods(self.subject.model, pairs, self.context, self.batch_size, bar.update)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """ln p of whole texts, in windows without overlap.

        Args:
            requests: of (text,).
            disable_tqdm: show no progress.
        """
        windows, owners = [], []
        for i, (text,) in enumerate(request.args for request in requests):
            cut = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.context,
                context_len=1,
            )
            for window in cut:
                windows.append((None, *make_disjoint_window(window)))
                owners.append(i)
        sums = [0.0 for _ in requests]
        for i, (nats, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[i] += nats
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model writes behind each prompt, up to a stop string.

        Args:
            requests: of (prompt, settings); see `Writing.of` for these.
            disable_tqdm: show no progress.

        Raises:
            ZooError: a setting that is unknown or out of range, or no room for a prompt; nothing was
                written then.
        """
        wanted = [Writing.of(request.args[1], self.context) for request in requests]
        texts: dict[int, str] = {}
        with tqdm(total=len(requests), desc="texts", file=sys.__stderr__, disable=None) as bar:
            for writing in dict.fromkeys(wanted):
                members = [i for i, other in enumerate(wanted) if other == writing]
                prompts = [self._prompt(requests[i].args[0], writing.count) for i in members]
                for number, batch in enumerate(batches(self.subject.model, prompts, self.batch_size)):
                    written = continuations(
                        self.subject.model,
                        self.subject.tokenizer.decode,
                        [prompts[i] for i in batch],
                        # Or the same question asked twice would get the same answer.
                        replace(writing, sampling=replace(writing.sampling, seed=number)),
                        self.eot_token_id,
                    )
                    for i, text in zip(batch, written, strict=True):
                        texts[members[i]] = postprocess_generated_text(text, list(writing.stop), None)
                    bar.update(len(batch))
        return [texts[i] for i in range(len(requests))]

    def _prompt(self, text: str, count: int) -> list[int]:
        """The tokens of a prompt, as many of the last ones as leave room for `count` more."""
        return (self.tok_encode(text) or [self.prefix_token_id])[-(self.context - count) :]
