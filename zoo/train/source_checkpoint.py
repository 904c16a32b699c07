"""Runs that start from a checkpoint: the check of the tokenizer, and the report of what was loaded."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from zoo.data.tokenizers.base import Tokenizer
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.run.first_weights import ETAS, SIGMAS, InitialModel
from zoo.run.from_checkpoint import TOKENIZER, CheckpointConfig
from zoo.utils.errors import DataError
from zoo.utils.run_folder import RunFolder, model_folder


def check_tokenizer(source: CheckpointConfig, tokenizer: Tokenizer | None) -> None:
    """Refuse a tokenizer by which the token ids of the checkpoint have other meanings.

    Args:
        source: the checkpoint; a checkpoint without a tokenizer is not compared.
        tokenizer: the tokenizer of the run; None: its data has no tokens.

    Raises:
        DataError: The tokenizers differ and `source.allow` does not permit it, or it does and they are equal.
    """
    allowed = TOKENIZER in source.allow
    try:
        theirs = find_tokenizer(model_folder(source.path).path)
    except DataError:
        theirs = None
    differs = tokenizer is not None and theirs is not None and tokenizer.hash != theirs.hash
    if tokenizer is not None and theirs is not None and differs and not allowed:
        raise DataError(
            f"data.tokenizer: a '{tokenizer.type}' of {tokenizer.vocab_size} tokens, but the weights in "
            f"{source.path} were trained on those of another one ('{theirs.type}', {theirs.vocab_size} "
            f"tokens); leave data.tokenizer out to use that, or allow another: checkpoint: "
            f"{{allow: [{TOKENIZER}]}}"
        )
    if allowed and not differs:
        raise DataError(
            f"checkpoint.allow: '{TOKENIZER}' has no effect: the tokenizer is no other than the checkpoint's"
        )


def report_loading(initial: InitialModel, run: RunFolder, console: Console | None) -> None:
    """Write loaded.json and print what was loaded; do nothing for a model that was not loaded.

    Args:
        initial: the model before its first step.
        run: the run folder.
        console: where to print; None: nothing is printed.
    """
    report, conversion = initial.report, initial.conversion
    if report is None:
        return
    run.write_loaded(
        {
            **asdict(report),
            "conversion": None if conversion is None else asdict(conversion),
            ETAS: initial.measured_etas,
            SIGMAS: initial.measured_sigmas,
        }
    )
    if console is not None:
        console.print(str(report))
        if conversion is not None:
            console.print(
                f"reparameterised: {conversion.tensors} tensors, largest difference of a logit "
                f"{conversion.max_difference:.1e}"
            )
