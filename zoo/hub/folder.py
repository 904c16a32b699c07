"""A model from a folder in the hub's layout: config.json and safetensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.checkpoint.recipe import Recipe, declare, materialise
from zoo.checkpoint.report import Plan, Report, reconcile
from zoo.checkpoint.safetensors import some
from zoo.config.registry import INITS
from zoo.hub.families import family_of
from zoo.hub.family import Family
from zoo.hub.rules import Rule, expand
from zoo.hub.shards import CONFIG, DTYPES, Entry, read_json, stream, survey
from zoo.init import initialise
from zoo.models import Model
from zoo.reparam import NoReparam
from zoo.utils.errors import CheckpointError


@dataclass(frozen=True)
class HubFolder:
    """A folder whose config.json and whose files' headers were read, and no tensor yet.

    Attributes:
        path: the folder.
        family: what it is.
        recipe: the same as a model of ours.
        held: its tensors, by the names in the files.
    """

    path: Path
    family: Family
    recipe: Recipe
    held: Mapping[str, Entry]

    @classmethod
    def open(cls, path: Path) -> HubFolder:
        """Read config.json and the headers.

        Args:
            path: a folder as `transformers` writes it.

        Raises:
            CheckpointError: there is no config.json, it makes no model of a known family, files are
                missing or unsafe, or they have fewer tensors than it has layers.
        """
        if not (path / CONFIG).is_file():
            what = f"no {CONFIG} in it" if path.is_dir() else "no such folder"
            raise CheckpointError(f"{path}: {what}; expected a folder as on the Hugging Face hub")
        config = read_json(path / CONFIG)
        family = family_of(config, str(path / CONFIG))
        ours = family.to_zoo(config, str(path / CONFIG))
        recipe = Recipe(model=ours, init=INITS[ours.default_init](), reparam=NoReparam())
        held = survey(path)
        for name, layers in family.layers(ours).items():
            if layers > len(held):  # so many layers are not even declared
                what = f"{name} is {layers}, but there are {len(held)} tensors"
                raise CheckpointError(f"{path}: {CONFIG} and tensors disagree: {what}")
        return cls(path, family, recipe, held)

    def restore(self, part: Model) -> None:
        """Nothing: a model of the hub is not reparameterised."""

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> Plan:
        """Decide what to read.

        Args:
            whole: the state dict of a model that has a place for all of it; on the meta device.
            needed: names, in that state dict, of what is to be filled; others are left in the folder.
            allow: patterns (``cls.*``) of tensors, by the folder's names, that may be missing or without
                a place.

        Raises:
            CheckpointError: what is in the folder is incomplete or does not fit.
            ZooError: a pattern that matches nothing.
        """
        rules = expand(self.family.rules, whole)
        known = [r.theirs for r in rules]
        entries, skipped = _tensors(self, set(known))
        wanted = {r.theirs for r in rules if not set(r.ours).isdisjoint(needed)}
        architecture = self.family.architecture
        missing, unexpected = reconcile(str(self.path), architecture, known, wanted, list(entries), allow)
        there = [r for r in rules if r.theirs in entries]
        _check_shapes(self.path, there, entries, whole)
        found = [r for r in there if r.theirs in wanted]
        unused = [r.theirs for r in there if r.theirs not in wanted]
        loaded = tuple(r.theirs for r in found)
        report = Report(architecture, loaded, missing, unexpected, tuple(skipped), tuple(unused))
        fills = frozenset(name for r in found for name in r.ours if name in needed)

        def fill(state: Mapping[str, Tensor]) -> None:
            targets = {name: state[name] for name in fills}
            stream([(entries[r.theirs], _filler(r, whole, targets)) for r in found])

        return Plan(report, fills, fill)


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
    opened = HubFolder.open(folder)
    model = declare(opened.recipe)
    expected = model.state_dict()
    plan = opened.plan(expected, expected, allow)
    materialise(model, torch.device("cpu"))
    if plan.report.missing:
        initialise(model, model.recipe.init, seed=0)
    with torch.no_grad():
        plan.fill(model.state_dict(keep_vars=True))
    return model, plan.report


def open_hub(folder: Path) -> HubFolder:
    """`HubFolder.open`, for `zoo.checkpoint.model.open_checkpoint`."""
    return HubFolder.open(folder)


def load_hub(folder: Path, *, allow: Sequence[str] = ()) -> Model:
    """`load_folder` without the report, for `zoo.load_model`."""
    return load_folder(folder, allow=allow)[0]


def _tensors(opened: HubFolder, expected: set[str]) -> tuple[dict[str, Entry], list[str]]:
    """The folder's tensors under today's names, and the names of those that say nothing of their own."""
    folder, family = opened.path, opened.family
    entries: dict[str, Entry] = {}
    for written, entry in opened.held.items():
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


def _check_shapes(
    folder: Path, rules: Sequence[Rule], entries: dict[str, Entry], state: Mapping[str, Tensor]
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


def _filler(r: Rule, whole: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Callable[[Tensor], None]:
    """Puts the tensor of a rule where it belongs, as far as there is such a place.

    A parameter gets the mapped file itself where that holds the same numbers: the system copies a page
    when somebody writes to it, and the file never changes.
    """
    shapes = [tuple(whole[name].shape) for name in r.ours]

    def fill(theirs: Tensor) -> None:
        for name, tensor in zip(r.ours, r.transform.to_zoo(theirs, shapes), strict=True):
            target = targets.get(name)
            if isinstance(target, nn.Parameter) and _same_layout(target, tensor):
                target.data = tensor
            elif target is not None:
                target.copy_(tensor)

    return fill


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device, one.stride()) == (other.dtype, other.device, other.stride())
