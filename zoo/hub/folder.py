"""A model from a folder in the hub's layout: config.json and safetensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from zoo.errors import CheckpointError, ZooError
from zoo.hub.families import family_of
from zoo.hub.family import Family
from zoo.hub.rules import Rule, expand
from zoo.hub.shards import CONFIG, DTYPES, Entry, read_json, stream, survey
from zoo.init import initialise
from zoo.models import Model
from zoo.recipe import Recipe, declare, materialise
from zoo.reparam import NoReparam
from zoo.schema import INITS
from zoo.tensorfile import some


@dataclass(frozen=True)
class Report:
    """What became of a folder's tensors, by their names.

    Attributes:
        architecture: of the family.
        loaded: the tensors that were read.
        missing: expected, not there and allowed: initialised instead.
        unexpected: there, without a place in the model, and allowed.
        skipped: what holds nothing trained or repeats another tensor.
    """

    architecture: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.architecture}: {len(self.loaded)} tensors loaded"]
        for what in ("missing", "unexpected", "skipped"):
            names = list(getattr(self, what))
            parts += [f"{len(names)} {what} ({some(names)})"] if names else []
        return ", ".join(parts)


def load_folder(folder: Path, *, allow: Sequence[str] = ()) -> tuple[Model, Report]:
    """Read a model, tensor by tensor.

    Args:
        folder: as `transformers` writes it.
        allow: patterns (``cls.*``) of tensors, by their names, that may be missing and are then
            initialised, or that may be without a place in the model.

    Returns:
        The model, float32 on the CPU, and what became of the tensors.

    Raises:
        CheckpointError: what is in the folder is incomplete, unsafe, or makes no model of a known
            family; nothing was allocated then.
        ZooError: a pattern that matches nothing.
    """
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder}: no {CONFIG} in it; expected a folder as on the Hugging Face hub")
    config = read_json(folder / CONFIG)
    family = family_of(config, str(folder / CONFIG))
    ours = family.to_zoo(config, str(folder / CONFIG))
    model = declare(Recipe(model=ours, init=INITS[ours.default_init](), reparam=NoReparam()))
    rules = expand(family.rules, model.state_dict())
    entries, skipped = _tensors(folder, family, {r.theirs for r in rules})
    report = _compare(folder, family, rules, entries, skipped, allow)
    found = [r for r in rules if r.theirs in entries]
    _check_shapes(folder, found, entries, model.state_dict())
    materialise(model, torch.device("cpu"))
    if report.missing:
        initialise(model, model.recipe.init, seed=0)
    state = model.state_dict()
    stream([(entries[r.theirs], _filler(r, state)) for r in found])
    return model, report


def load_hub(folder: Path, *, allow: Sequence[str] = ()) -> Model:
    """`load_folder` without the report, for `zoo.load_model`."""
    return load_folder(folder, allow=allow)[0]


def _tensors(folder: Path, family: Family, expected: set[str]) -> tuple[dict[str, Entry], list[str]]:
    """The folder's tensors under today's names, and the names of those that say nothing of their own."""
    entries: dict[str, Entry] = {}
    for written, entry in survey(folder).items():
        name = family.todays_name(written, expected)
        if name in entries:
            raise CheckpointError(f"{folder}: {name} is there twice, once as {written}")
        entries[name] = entry
    skipped = [
        name
        for name in entries
        if name not in expected and (family.is_buffer(name) or _repeats(folder, name, family, entries))
    ]
    return {name: entry for name, entry in entries.items() if name not in skipped}, skipped


def _repeats(folder: Path, name: str, family: Family, entries: dict[str, Entry]) -> bool:
    """Whether a tensor is only a copy of another one: a read-out stored beside a tied embedding."""
    original = family.copies.get(name)
    if original is None or original not in entries:
        return False
    both: list[Tensor] = []
    stream([(entries[n], both.append) for n in (name, original)])
    if not torch.equal(*both):
        raise CheckpointError(f"{folder}: {name} differs from {original}, though config.json ties them")
    return True


def _compare(
    folder: Path,
    family: Family,
    rules: Sequence[Rule],
    entries: dict[str, Entry],
    skipped: Sequence[str],
    allow: Sequence[str],
) -> Report:
    """What is there against what should be; only what is allowed may differ."""
    expected = [r.theirs for r in rules]
    missing = [name for name in expected if name not in entries]
    unexpected = [name for name in entries if name not in expected]
    for pattern in allow:
        if not any(fnmatchcase(name, pattern) for name in missing + unexpected):
            raise ZooError(f"allow: '{pattern}' has no effect: nothing missing or unexpected is called so")
    problems = []
    for what, names in (("lacks", missing), ("has no place for", unexpected)):
        if refused := [n for n in names if not any(fnmatchcase(n, pattern) for pattern in allow)]:
            problems.append(f"{what} {some(refused)}")
    if problems:
        raise CheckpointError(f"{folder}: as a {family.architecture} it {'; it '.join(problems)}")
    loaded = tuple(name for name in expected if name in entries)
    return Report(family.architecture, loaded, tuple(missing), tuple(unexpected), tuple(skipped))


def _check_shapes(
    folder: Path, rules: Sequence[Rule], entries: dict[str, Entry], state: dict[str, Tensor]
) -> None:
    """Compare the files' headers with what a model on the meta device asks for."""
    wrong = []
    for r in rules:
        entry = entries[r.theirs]
        expected = tuple(r.transform.to_hf([state[name] for name in r.ours]).shape)
        if entry.shape != expected or entry.dtype not in DTYPES:
            wrong.append(
                f"{r.theirs} is {entry.dtype} {list(entry.shape)}, "
                f"expected {' or '.join(DTYPES)} {list(expected)}"
            )
    if wrong:
        raise CheckpointError(f"{folder}: {CONFIG} and tensors disagree: {some(wrong)}")


def _filler(r: Rule, state: dict[str, Tensor]) -> Callable[[Tensor], None]:
    """Copies the tensor of a rule to where it belongs."""
    targets = [state[name] for name in r.ours]

    def fill(theirs: Tensor) -> None:
        shapes = [tuple(target.shape) for target in targets]
        for target, tensor in zip(targets, r.transform.to_zoo(theirs, shapes), strict=True):
            target.copy_(tensor)

    return fill
