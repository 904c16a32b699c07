"""zoo's models in lm-evaluation-harness, registered as `zoo`; this module needs the extra `eval`.

import zoo.evaluation.harness
lm_eval.simple_evaluate("zoo", {"path": "runs/my-run"}, tasks=["my_task"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from zoo.config.registry import type_of
from zoo.data.instructions.files import Message
from zoo.data.instructions.jinja import JinjaTemplate, own_template
from zoo.data.prompting import decode_in_vocabulary, stop_ids
from zoo.data.tokenizers.base import check_ids
from zoo.evaluation.continuation import batches, continuations
from zoo.evaluation.evaluated_model import load_evaluated_model
from zoo.evaluation.generation_settings import GenerationSettings
from zoo.evaluation.likelihood import LogLikelihood, log_likelihoods
from zoo.evaluation.perplexity import BATCH_SIZE, choose_windows
from zoo.utils.device import find_device
from zoo.utils.errors import DataError, ZooError
from zoo.utils.progress import progress
from zoo.utils.untyped import JsonObject

UNLIMITED = 1 << 30
"""The context for a model that carries its state, which can read any number of tokens."""


@register_model("zoo")
class ZooLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """A model that continues text, and its tokenizer, with the interface of the harness.

    Requests are truncated and scored as in the harness's class for transformers (HFLM), so that a model has
    the same scores as after its export: texts without a context get the start token in front, contexts that
    are too long lose their beginning, and texts longer than the context are read in windows that do not
    overlap.

    Attributes:
        context: largest number of tokens that the model reads.
        batch_size: number of requests in a batch.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: str | Path | None = None,
        context: int | None = None,
        device: str = "auto",
        batch_size: int | str = BATCH_SIZE,
    ) -> None:
        """Load a model.

        Args:
            path: a run, one of its checkpoints, a .safetensors file, or a folder in the hub's format.
            tokenizer: the folder of the tokenizer; None: the one that is stored with the model.
            context: largest number of tokens that the model reads; None: the context of its training.
            device: name of the device, see `find_device`.
            batch_size: number of requests in a batch.

        Raises:
            DataError: The model does not predict the next token, or the tokenizer does not fit it.
            ZooError: There is no model at `path`, or a setting is out of range.
        """
        super().__init__()
        if not str(batch_size).isdecimal() or not 1 <= int(batch_size) < 2**31:
            raise ZooError(
                f"eval: batch_size is {batch_size}; expected a number of at least 1, and less than 2^31"
            )
        self.batch_size = int(batch_size)
        self._device = find_device(device)
        tokenizer_path = None if tokenizer is None else Path(tokenizer)
        self.evaluated = load_evaluated_model(Path(path), tokenizer_path, self._device)
        contexts = [] if context is None else [int(context)]
        windows = choose_windows(self.evaluated, contexts, stride=None, batch_size=None)[0]
        self.context = UNLIMITED if windows is None else windows[0]
        self._in_template = False

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.evaluated.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The token in front of a text without a context."""
        return self.evaluated.task_start_id

    @property
    def tokenizer_name(self) -> str:
        """The name by which the harness distinguishes tokenizers and their templates."""
        return self.evaluated.tokenizer.hash

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template of `apply_chat_template`, for the harness's records.

        Args:
            chat_template: an argument of the harness that has no effect here, because a model has one
                template.
        """
        return str(self._template.identity(self.evaluated.tokenizer))

    @property
    def _template(self) -> JinjaTemplate:
        """The chat template.

        Raises:
            DataError: The model was trained in a template that makes tokens, not a text for the harness, or
                there is no template.
        """
        template = self.evaluated.template or own_template(self.evaluated.tokenizer)
        if not isinstance(template, JinjaTemplate):
            raise DataError(
                f"the model was trained with data.template '{type_of(template)}', in which the harness "
                "cannot ask questions; expected one trained with 'jinja', or no chat template"
            )
        return template

    def apply_chat_template(
        self, chat_history: Sequence[JsonObject], add_generation_prompt: bool = True
    ) -> str:
        """Apply the chat template to a question with solved examples in front of it.

        From then on all texts except those of rolling likelihoods are read as outputs of the template.

        Args:
            chat_history: messages, each with its `role` and `content`.
            add_generation_prompt: False if the task writes the beginning of the answer itself.

        Raises:
            DataError: There is no chat template, the model was trained in another one, or it refuses the
                conversation or a begun answer.
        """
        if not add_generation_prompt:
            raise DataError("a chat template cannot be used with a task that begins the answer (gen_prefix)")
        self._in_template = True
        messages = [Message(turn["role"], turn["content"]) for turn in chat_history]
        return self._template.render_prompt(messages, self.evaluated.tokenizer)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Turn text into ids.

        Args:
            string: the text; the names of special tokens in it are encoded as text, unless it comes from a
                chat template, which has all special tokens in it.
            add_special_tokens: whether to put the prefix of a prompt in front; None: yes.

        Raises:
            DataError: The chat template has a special token that the model does not have.
        """
        if self._in_template:
            ids = self.evaluated.tokenizer.encode_with_special_tokens(string)
            check_ids(ids, self.evaluated.tokenizer, self.evaluated.model.config.vocab_size)
            return ids
        return self._encode_plain(string, add_special_tokens)

    def _encode_plain(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        ids = self.evaluated.tokenizer.encode(string)
        return ids if add_special_tokens is False else [*self.evaluated.prefix_ids, *ids]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[LogLikelihood]:
        """ln p of each continuation given its context, and whether greedy decoding would give it.

        Args:
            requests: requests whose arguments are (context, continuation).
            disable_tqdm: an argument of the harness that has no effect here.

        Raises:
            DataError: A continuation has no tokens, or is too long for the model.
        """
        for request in requests:
            if not request.args[1]:
                raise DataError(f"task '{request.task_name}': a continuation is empty: {request.args}")
        answers: list[LogLikelihood] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], **_: object
    ) -> list[LogLikelihood]:
        """Compute `loglikelihood` for the requests that `TemplateLM` has tokenised."""
        pairs = [(context, continuation) for _, context, continuation in requests]
        with progress("continuations", len(pairs)) as advance:
            return log_likelihoods(self.evaluated.model, pairs, self.context, self.batch_size, advance)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """ln p of whole texts, in windows without overlap.

        Args:
            requests: requests whose argument is (text,).
            disable_tqdm: an argument of the harness that has no effect here.
        """
        windows, request_of_window = [], []
        for i, (text,) in enumerate(request.args for request in requests):
            rolling = get_rolling_token_windows(
                token_list=self._encode_plain(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.context,
                context_len=1,
            )
            for window in rolling:
                windows.append((None, *make_disjoint_window(window)))
                request_of_window.append(i)
        sums = [0.0 for _ in requests]
        for i, (nats, _) in zip(request_of_window, self._loglikelihood_tokens(windows), strict=True):
            sums[i] += nats
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue each prompt up to a stop string.

        Args:
            requests: requests whose arguments are (prompt, `generation_kwargs`).
            disable_tqdm: an argument of the harness that has no effect here.

        Raises:
            ZooError: A setting is unknown or out of range, or leaves no room for a prompt; nothing is
                generated then.
        """
        of_requests = [GenerationSettings.from_task(request.args[1], self.context) for request in requests]
        texts: dict[int, str] = {}
        with progress("texts", len(requests)) as advance:
            for settings in dict.fromkeys(of_requests):
                members = [i for i, other in enumerate(of_requests) if other == settings]
                prompts = [self._prompt(requests[i].args[0], settings.max_new_tokens) for i in members]
                at = stop_ids(settings.stop, self.evaluated.tokenizer, self.evaluated.model.config.vocab_size)
                for number, batch in enumerate(batches(self.evaluated.model, prompts, self.batch_size)):
                    generated = continuations(
                        self.evaluated.model,
                        partial(decode_in_vocabulary, tokenizer=self.evaluated.tokenizer),
                        [prompts[i] for i in batch],
                        # With one seed for all, a question that is asked twice would get the same answer
                        # twice.
                        replace(settings, sampling=settings.sampling.with_seed(number)),
                        self.evaluated.end_ids | at,
                    )
                    for i, text in zip(batch, generated, strict=True):
                        texts[members[i]] = postprocess_generated_text(text, list(settings.stop), None)
                    advance(len(batch))
        return [texts[i] for i in range(len(requests))]

    def _prompt(self, text: str, max_new_tokens: int) -> list[int]:
        """The last tokens of a prompt, as many as leave room for `max_new_tokens` more."""
        return (self.tok_encode(text) or [self.prefix_token_id])[-(self.context - max_new_tokens) :]
