"""What became of a checkpoint's tensors: which were read, and which may be missing or left over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor

from zoo.checkpoint.safetensors import some
from zoo.utils.errors import CheckpointError, ZooError


@dataclass(frozen=True)
class Report:
    """What became of a checkpoint's tensors, by the names they have there.

    Attributes:
        architecture: what the checkpoint says it is.
        loaded: the tensors that were read.
        missing: expected, not there and allowed: initialised instead.
        unexpected: there, without a place in such a model, and allowed.
        skipped: what holds nothing trained or repeats another tensor.
        unused: of a part that the model is made without: the read-out, under a classifier's head.
        new: the model's own tensors that no checkpoint of this kind has: that head. By their names in
            the model.
    """

    architecture: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    new: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.architecture}: {len(self.loaded)} tensors loaded"]
        for what in ("missing", "unexpected", "skipped", "unused", "new"):
            names = list(getattr(self, what))
            parts += [f"{len(names)} {what} ({some(names)})"] if names else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Plan:
    """What is to be read, decided before anything is allocated.

    Attributes:
        report: what will become of the tensors.
        fills: names, in the model's state dict, of what will be filled.
        fill: fills them in a state dict with these names.
    """

    report: Report
    fills: frozenset[str]
    fill: Callable[[Mapping[str, Tensor]], None]


def reconcile(
    place: str,
    what: str,
    known: Sequence[str],
    needed: Collection[str],
    found: Sequence[str],
    allow: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compare what is there with what should be; only what is allowed may differ.

    Args:
        place: the checkpoint, for messages.
        what: what it should be, for messages.
        known: names of the tensors that such a checkpoint has.
        needed: those of them that the model has use for.
        found: names of those there are.
        allow: patterns (``cls.*``) of names that may be missing or without a place.

    Returns:
        The missing and the unexpected names.

    Raises:
        CheckpointError: some of them are not allowed.
        ZooError: a pattern that matches none of them.
    """
    all_known, there = set(known), set(found)
    missing = [name for name in known if name in needed and name not in there]
    unexpected = [name for name in found if name not in all_known]
    for pattern in allow:
        if not any(fnmatchcase(name, pattern) for name in missing + unexpected):
            raise ZooError(f"allow: '{pattern}' has no effect: nothing missing or unexpected is called so")
    problems = []
    for verb, names in (("lacks", missing), ("has no place for", unexpected)):
        if refused := [n for n in names if not any(fnmatchcase(n, pattern) for pattern in allow)]:
            problems.append(f"{verb} {some(refused)}")
    if problems:
        raise CheckpointError(f"{place}: as a {what} it {'; it '.join(problems)}")
    return tuple(missing), tuple(unexpected)
