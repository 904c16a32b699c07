"""A run that starts from a checkpoint: whether the tokenizer is the same, and what was loaded."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from zoo.data import Tokenizer, find_tokenizer
from zoo.run.first_weights import Beginning
from zoo.run.from_checkpoint import TOKENIZER, CheckpointConfig
from zoo.utils.errors import CheckpointError, DataError
from zoo.utils.run_folder import RunFolder, model_folder

ETAS = "measured_eta"


def check_tokenizer(source: CheckpointConfig, own: Tokenizer | None) -> None:
    """Refuse a tokenizer under which the checkpoint's tokens mean something else.

    Args:
        source: the checkpoint; where no tokenizer is with it there is nothing to compare.
        own: the run's; None: it has none.

    Raises:
        DataError: it is not the checkpoint's and not allowed, or allowed without need.
    """
    allowed = TOKENIZER in source.allow
    try:
        theirs = find_tokenizer(model_folder(source.path).path)
    except DataError:
        theirs = None
    differs = own is not None and theirs is not None and own.hash != theirs.hash
    if own is not None and theirs is not None and differs and not allowed:
        raise DataError(
            f"data.tokenizer: a '{own.type}' of {own.vocab_size} tokens, but the weights in {source.path} "
            f"were trained on those of another one ('{theirs.type}', {theirs.vocab_size} tokens); leave "
            f"data.tokenizer out to use that, or allow another: checkpoint: {{allow: [{TOKENIZER}]}}"
        )
    if allowed and not differs:
        raise DataError(
            f"checkpoint.allow: '{TOKENIZER}' has no effect: the tokenizer is no other than the checkpoint's"
        )


def tell(beginning: Beginning, run: RunFolder, console: Console | None) -> None:
    """Say what was loaded: on the console, and in the run folder.

    Args:
        beginning: of the run; without a checkpoint there is nothing to say.
        run: its folder.
        console: None: silent.
    """
    report, conversion = beginning.report, beginning.conversion
    if report is None:
        return
    run.write_loaded(
        {
            **asdict(report),
            "conversion": None if conversion is None else asdict(conversion),
            ETAS: beginning.measured,
        }
    )
    if console is not None:
        console.print(str(report))
        if conversion is not None:
            console.print(
                f"reparameterised: {conversion.tensors} tensors, largest difference of a logit "
                f"{conversion.max_difference:.1e}"
            )


def read_measured(run: RunFolder) -> dict[str, float]:
    """The etas that `tell` has written, for a run that goes on.

    Raises:
        CheckpointError: the file is not as it was written.
    """
    try:
        etas: dict[str, float] = run.read_loaded()[ETAS]
        return {str(name): float(eta) for name, eta in etas.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{run.loaded}: expected the etas that were measured when the run began"
        ) from error
