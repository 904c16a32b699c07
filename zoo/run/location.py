"""Where a run lies, from what the user has typed; neither torch nor a model is imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.config.compose import find_config, merge, parse_overrides, read_named
from zoo.utils.errors import ConfigError
from zoo.utils.run_folder import RUNS, RunFolder

LOCATION = ("name", "train.runs_dir")
"""The keys that say where a new run is made."""


def named_run(source: str, overrides: Sequence[str], resume: bool) -> RunFolder | None:
    """The run folder that a user means who gives it as the configuration to train.

    Args:
        source: a run folder or its configuration, any other configuration file, or the name of a
            shipped one.
        overrides: ``key=value``.
        resume: whether the run is to go on.

    Returns:
        The run folder, whatever name and directory its configuration was written with; None: the
        configuration says where the run is.

    Raises:
        ConfigError: the overrides name another place for a run that is to go on.
    """
    path = Path(source)
    run = RunFolder(path)
    if path.name == RunFolder.CONFIG and RunFolder(path.parent).metrics.is_file():
        run = RunFolder(path.parent)
    if not run.exists:
        return None
    elsewhere = [text for text in overrides if text.partition("=")[0] in LOCATION]
    if elsewhere and resume:
        raise ConfigError(
            f"{run}: {', '.join(elsewhere)} has no effect with --resume: the run goes on in the folder that "
            "was named; to go on elsewhere, copy or move the folder first"
        )
    return None if elsewhere else run


def configured_run(source: str, overrides: Sequence[str]) -> RunFolder | None:
    """The run folder that a configuration names.

    Args:
        source: a configuration file, or the name of a shipped one.
        overrides: ``key=value``.

    Returns:
        The run folder; None: what should name it is no text, which `load_config` refuses.

    Raises:
        ConfigError: a file cannot be read, or a plugin that it names cannot be used.
    """
    problems: list[str] = []  # `load_config` finds them again, and more
    given = merge(read_named(find_config(source), problems), parse_overrides(overrides, problems))
    name, (folder, is_given) = given.find(("name",))[0].value, given.find(("train", "runs_dir"))
    runs = folder.value if is_given else RUNS
    if not isinstance(name, str) or not isinstance(runs, str):
        return None
    return RunFolder(Path(runs, name))
