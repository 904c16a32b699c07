"""The tokenizers of a comparison: losses per token of different tokenizers cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence

from zoo.ablate.run_metrics import RunMetrics
from zoo.data.tokenizers.base import TokenizerConfig
from zoo.run.config import RunConfig, plain
from zoo.utils.errors import DataError
from zoo.utils.measures import PER_TARGET, Measure


def mixed_tokenizers(names: Sequence[str], tokenizers: Sequence[str | None], measure: Measure) -> str:
    """The reason, without its place, why runs cannot be compared by a measure; empty if they can.

    A token of one tokenizer holds more text than that of another, so that a loss per token is larger.

    Args:
        names: names of the runs or of their variants, for the message.
        tokenizers: the tokenizer of each run or variant, see `tokenizers_of` and `tokenizers_of_runs`; runs
            without one, and those that are not validated, have no loss per token.
        measure: the measure of the comparison.
    """
    if measure.is_task or measure.name.rpartition("/")[2] not in PER_TARGET:
        return ""
    first_of: dict[str, str] = {}
    for name, tokenizer in zip(names, tokenizers, strict=True):
        if tokenizer is not None:
            first_of.setdefault(tokenizer, name)
    if len(first_of) < 2:
        return ""
    one, other, *_ = first_of.values()
    return (
        f"'{measure.name}' is a mean over tokens, and {one} and {other} have different tokenizers, whose "
        "tokens hold different amounts of text; expected bits_per_byte"
    )


def tokenizers_of(configs: Sequence[RunConfig]) -> list[str | None]:
    """An identifier of the tokenizer of each configuration; None if it validates no tokens.

    Files are read only where the settings differ: they may hold the same tokenizer all the same.
    """
    declared = [_declared(config) for config in configs]
    if len(set(declared)) < 2:
        return list(declared)
    built = {key: _built(config) or key for key, config in zip(declared, configs, strict=True) if key}
    return [None if key is None else built[key] for key in declared]


def tokenizers_of_runs(runs: Sequence[RunMetrics]) -> list[str | None]:
    """An identifier of the tokenizer of each run: from its files or, where a run has none, its settings."""
    declared = tokenizers_of([run.config for run in runs])
    if any(key is not None and run.tokenizer is None for key, run in zip(declared, runs, strict=True)):
        return declared
    return [None if key is None else run.tokenizer for key, run in zip(declared, runs, strict=True)]


def _tokenizer(config: RunConfig) -> TokenizerConfig | None:
    """The tokenizer whose tokens are the targets."""
    tokenizer = getattr(config.data, "tokenizer", None)
    are_targets = config.data is not None and "perplexity" in config.data.measures
    return tokenizer if are_targets and isinstance(tokenizer, TokenizerConfig) else None


def _declared(config: RunConfig) -> str | None:
    """The settings of the tokenizer, and of the text that it is trained on."""
    tokenizer = _tokenizer(config)
    if tokenizer is None:
        return None
    text = [getattr(config.data, key, None) for key in ("corpus", "validation")]
    return json.dumps(plain([tokenizer, *(text if tokenizer.is_trained else [])]), sort_keys=True)


def _built(config: RunConfig) -> str | None:
    """The hash of a tokenizer that is not trained; None if its files cannot be read."""
    tokenizer = _tokenizer(config)
    if tokenizer is None or tokenizer.is_trained:
        return None
    try:
        return tokenizer.build(lambda: iter(())).hash
    except DataError:
        return None
