"""Whether a run may start or continue in its folder, and at which step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from zoo.config.compose import PLUGINS
from zoo.run.config import load_config, plain, with_value
from zoo.run.job import Job
from zoo.run.train_config import SpikeConfig
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import CheckpointFolder, RunFolder
from zoo.utils.untyped import Json

Auto = Literal["auto"]
PLACES = frozenset(
    {
        "checkpoint.path",
        "data.cache_dir",
        "data.corpus.paths",
        "data.validation_corpus.paths",
        "data.tokenizer.path",
        "data.tokenizer.model",
        "data.train",
        "data.validation",
    }
)
"""Settings that are paths of files, which may differ for a run that was moved: the contents are compared by a
fingerprint (`check_same_data`), and the tokenizer is kept with the run. A corpus in a mixture has the same
ones.
"""
PART_OF_MIXTURE = re.compile(r"\.corpora\.\d+\.corpus(?=\.)")
"""What stands in the key of a setting between a mixture and the setting of one of its corpora."""

MAY_CHANGE = {"metric", "description"} | frozenset(
    f"train.{key}"
    for key in (
        "steps",
        "log_every",
        "eval_every",
        "monitor_every",
        "diagnose_every",
        "checkpoint_every",
        "keep_last",
        "device",
        "accumulation",
        "runs_dir",
        "loggers",
        "recompute",
        "stop_signal",
        *(f"parallel.{key}" for key in ("shard", "replicate", "reshard_after_forward", "sync", "timeout")),
        "spikes",
        *(f"spikes.{key}" for key in SpikeConfig.model_fields),
    )
)
"""Settings that may change when a run resumes: none of them affects the steps already taken."""


@dataclass(frozen=True)
class Start:
    """The point at which a session of training starts.

    Attributes:
        step: number of optimizer steps done before the session.
        checkpoint: the state after those steps; None: the run begins from its first weights.
    """

    step: int = 0
    checkpoint: CheckpointFolder | None = None

    @property
    def owes_evaluation(self) -> bool:
        """Whether the earlier session stopped before the evaluation after its last step was complete."""
        return self.checkpoint is not None and self.checkpoint.owes_evaluation

    def is_finished(self, steps: int) -> bool:
        """Whether nothing is left to do in a run of `steps` steps."""
        return self.step >= steps and not self.owes_evaluation

    @classmethod
    def at_last_checkpoint(cls, run: RunFolder) -> Start:
        """The start at the last checkpoint of a run, or at step 0 if it was killed before its first one."""
        checkpoint = run.checkpoint("last")
        return cls() if checkpoint is None else cls(checkpoint.step, checkpoint)


def choose_start(job: Job, resume: bool | Auto) -> Start:
    """Decide where a session begins; nothing is written.

    Args:
        job: the run to train, with its folder.
        resume: whether to continue the run in the folder; "auto": continue if there is a run.

    Returns:
        The start; at the last step or after it there is nothing left to do.

    Raises:
        ConfigError: The folder exists and `resume` is false, `resume` is true and there is no run, or the run
            was started with another configuration.
    """
    folder = job.folder
    if folder.is_vacant:
        if resume is True:
            raise ConfigError(f"{folder}: there is no run to resume; leave out --resume to start it")
        return Start()
    if not folder.exists:
        raise ConfigError(
            f"{folder}: exists and is not a run (no {folder.CONFIG}); choose another name, e.g. name=..."
        )
    start = Start.at_last_checkpoint(folder)
    recorded, wanted = plain(load_config(folder.config)), plain(job.config)
    # Records of plugins follow from the classes that other keys name; `load_config` has compared them.
    derived = {key: recorded[key] for key in ("name", PLUGINS)}
    changed = list(differences(recorded, wanted | derived))
    if not resume and (changed or not start.is_finished(job.train.steps)):
        raise ConfigError(
            f"{folder}: a run is there already, at step {start.step}; add --resume to go on with it, "
            "give another name (name=...), or delete the folder"
        )
    refused = [
        f"{key} was {old!r}, is {new!r}" for key, old, new in changed if not _may_change(key, old, new)
    ]
    if refused:
        raise ConfigError(
            f"{folder}: cannot resume with another configuration: {'; '.join(refused)}. "
            "Undo the change, or give another name (name=...); what may change: "
            f"{', '.join(sorted(MAY_CHANGE))}, and where data lies"
        )
    return start


def with_recorded_starts(job: Job, resume: bool | Auto) -> Job:
    """The run with the numbers that `auto` stood for when it began: they depend on settings that may change.

    Args:
        job: the run to train.
        resume: whether to continue the run in the folder, as for `choose_start`.
    """
    if not resume or not job.folder.exists:
        return job
    config = job.config
    for key, old, _ in differences(plain(load_config(job.folder.config)), plain(config)):
        keys = tuple(key.split("."))
        written, found = config.origin.given.find(keys)
        if found and keys[0] == "model" and written.value == "auto":
            config = with_value(config, keys, old)
    return Job.of(config, job.folder)


def _may_change(key: str, old: Json, new: Json) -> bool:
    """Whether a run may resume with the new value of a setting, whose dotted key is given."""
    words = PART_OF_MIXTURE.sub("", key).split(".")
    # Of a mapping of files each may change, so that the settings above this one count as well.
    names = {".".join(words[:end]) for end in range(1, len(words) + 1)}
    is_share = any(isinstance(value, int | float) for value in (old, new))  # data.validation of texts
    return not names.isdisjoint(MAY_CHANGE) or not (is_share or names.isdisjoint(PLACES))


def differences(
    old: Mapping[str, Json], new: Mapping[str, Json], above: str = ""
) -> Iterator[tuple[str, Json, Json]]:
    """Yield (dotted key, old value, new value) wherever two nested mappings differ.

    The items of two lists of as many mappings are compared one by one, by their numbers as keys.
    """
    for key in sorted({*old, *new}):
        before, after = _numbered(old.get(key), new.get(key))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{above}{key}.")
        elif before != after:
            yield f"{above}{key}", before, after


def _numbered(old: Json, new: Json) -> tuple[Json, Json]:
    """Two values; lists of as many mappings become mappings, whose keys are the numbers of the items."""
    are_lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if not are_lists or not all(isinstance(item, Mapping) for item in (*old, *new)):
        return old, new
    return {str(i): item for i, item in enumerate(old)}, {str(i): item for i, item in enumerate(new)}
