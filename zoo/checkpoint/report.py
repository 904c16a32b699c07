"""The report of loading a checkpoint: which tensors were loaded, missing, unexpected or unused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor

from zoo.utils.errors import CheckpointError, ZooError
from zoo.utils.printable import first_few


@dataclass(frozen=True)
class LoadReport:
    """The outcome for every tensor of a checkpoint, by its name in the checkpoint.

    Attributes:
        architecture: the architecture that the checkpoint names.
        loaded: tensors that were loaded.
        missing: tensors that the checkpoint lacks, as allowed, and that were initialised at random.
        unexpected: tensors of the checkpoint that such a model does not have, as allowed.
        skipped: tensors that are not trained or that repeat another one.
        unused: tensors of a part that the model does not have, such as the LM head of a checkpoint from which
            a classifier is made, or an image encoder; and what belongs to the run that wrote the checkpoint,
            such as the state that an LSTM carries from batch to batch.
        new: tensors that no checkpoint of this architecture has, such as the classifier's head, by their
            names in the model.
    """

    architecture: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The report as one line."""
        parts = [f"{self.architecture}: {len(self.loaded)} tensors loaded"]
        for what in ("missing", "unexpected", "skipped", "unused", "new"):
            names = list(getattr(self, what))
            parts += [f"{len(names)} {what} ({first_few(names)})"] if names else []
        return ", ".join(parts)


@dataclass(frozen=True)
class LoadPlan:
    """The tensors of a checkpoint that are to be loaded, chosen before memory is allocated.

    Attributes:
        report: the report of the loading.
        fills: the names, in the model's state dict, of the tensors that will be loaded.
        fill: a function that copies these tensors into a state dict with these names.
    """

    report: LoadReport
    fills: frozenset[str]
    fill: Callable[[Mapping[str, Tensor]], None]


def compare_names(
    place: str,
    what: str,
    known: Sequence[str],
    needed: Collection[str],
    stored: Sequence[str],
    allow: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compare the names of a checkpoint's tensors with the expected ones.

    Args:
        place: the path of the checkpoint, for messages.
        what: the architecture of the checkpoint, for messages.
        known: names of the tensors that a checkpoint of this architecture has.
        needed: names of the tensors that the model needs.
        stored: names of the tensors of the checkpoint.
        allow: patterns (``cls.*``) of names that may be missing or unexpected.

    Returns:
        The missing and the unexpected names.

    Raises:
        CheckpointError: A tensor is missing or unexpected, and no pattern allows it.
        ZooError: A pattern matches no missing or unexpected tensor.
    """
    all_known, there = set(known), set(stored)
    missing = [name for name in known if name in needed and name not in there]
    unexpected = [name for name in stored if name not in all_known]
    for pattern in allow:
        if not any(fnmatchcase(name, pattern) for name in missing + unexpected):
            raise ZooError(f"allow: '{pattern}' has no effect: nothing missing or unexpected is called so")
    problems = []
    for verb, names in (("lacks", missing), ("has no place for", unexpected)):
        if refused := [n for n in names if not any(fnmatchcase(n, pattern) for pattern in allow)]:
            problems.append(f"{verb} {first_few(refused)}")
    if problems:
        raise CheckpointError(f"{place}: as a {what} it {'; it '.join(problems)}")
    return tuple(missing), tuple(unexpected)
