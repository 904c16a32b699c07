"""The run folder that a user's input names; found without importing torch or a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.config.compose import find_config, merge, parse_overrides, read_named
from zoo.utils.errors import ConfigError
from zoo.utils.files import expand_home
from zoo.utils.run_folder import RUNS, RunFolder

LOCATION = ("name", "train.runs_dir")
"""The keys that determine the folder of a new run."""


def named_run(source: str, overrides: Sequence[str], resume: bool) -> RunFolder | None:
    """The run folder, if the user gives one as the configuration to train.

    Args:
        source: a run folder or its configuration, any other configuration file, or the name of a
            shipped one.
        overrides: ``key=value``.
        resume: whether the run is to be resumed.

    Returns:
        The run folder, even if its configuration records another name or directory; None: `source` is no run,
        and its configuration determines the folder.

    Raises:
        ConfigError: The overrides name another folder for a run that is to be resumed.
    """
    path = Path(source)
    run = RunFolder(path)
    if path.name == RunFolder.CONFIG and RunFolder(path.parent).metrics.is_file():
        run = RunFolder(path.parent)
    if not run.exists:
        return None
    elsewhere = [text for text in overrides if _names_place(text)]
    if elsewhere and resume:
        raise ConfigError(
            f"{run}: {', '.join(elsewhere)} has no effect with --resume: the run goes on in the folder that "
            "was named; to go on elsewhere, copy or move the folder first"
        )
    return None if elsewhere else run


def _names_place(override: str) -> bool:
    """Whether an override has a key of `LOCATION`, alone or within the value of a section."""
    change = parse_overrides([override], [])  # `load_config` reports what is wrong with it
    return any(change.find(tuple(key.split(".")))[1] for key in LOCATION)


def configured_run(source: str, overrides: Sequence[str]) -> RunFolder | None:
    """The run folder that a configuration names.

    Args:
        source: a configuration file, or the name of a shipped one.
        overrides: ``key=value``.

    Returns:
        The run folder; None: a key that names it has a value that `load_config` refuses.

    Raises:
        ConfigError: A file cannot be read, or a plugin that it names cannot be used.
    """
    problems: list[str] = []  # `load_config` reports these and others again
    given = merge(read_named(find_config(source), problems), parse_overrides(overrides, problems))
    name, (folder, is_given) = given.find(("name",))[0].value, given.find(("train", "runs_dir"))
    runs = folder.value if is_given else RUNS
    if not isinstance(name, str) or not isinstance(runs, str) or "\0" in name + runs:
        return None
    return RunFolder(expand_home(runs) / name)
