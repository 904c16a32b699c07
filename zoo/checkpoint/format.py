"""zoo's own file of a model: safetensors with the recipe in the header, so that it rebuilds its model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from zoo.checkpoint.recipe import Recipe, declare
from zoo.checkpoint.report import LoadPlan, LoadReport, compare_names
from zoo.checkpoint.safetensors import check_match, fill, read_header
from zoo.config.plugins import PluginRecord, load_installed, records_of, require
from zoo.config.registry import INITS, MODELS, REPARAMS
from zoo.models import Model
from zoo.spec import declared
from zoo.utils.errors import CheckpointError, PluginError

VERSION = "1"
SCALES = "gates"
LOOKUPS = "lookups"
PLUGINS = "plugins"


@dataclass(frozen=True)
class ModelFile:
    """A file whose header was read, and no tensor yet.

    Attributes:
        path: the file.
        recipe: of the model in it.
        scales: where a tensor is smaller than the virtual one by another factor than the recipe tells:
            by its name, the factor.
        lookups: the same for what is looked up in a table.
        held: its tensors, without memory.
    """

    path: Path
    recipe: Recipe
    scales: Mapping[str, float]
    lookups: Mapping[str, float]
    held: Mapping[str, Tensor]

    @classmethod
    def open(cls, path: Path, expected: str) -> ModelFile:
        """Read the header.

        Args:
            path: a .safetensors file.
            expected: what to say was expected of a file without a recipe.

        Raises:
            CheckpointError: missing, truncated, or not a file that zoo wrote.
        """
        held, header = read_header(path)
        if header.get("format") != "zoo" or "recipe" not in header:
            raise CheckpointError(
                f"{path}: a safetensors file, but zoo did not write it (no recipe in its header); "
                f"expected {expected}"
            )
        if header.get("version") != VERSION:
            found = header.get("version")
            raise CheckpointError(f"{path}: version {found} of the format; expected {VERSION}")
        load_installed()
        kinds = {"model": MODELS, "init": INITS, "reparam": REPARAMS}
        try:
            for plugin in json.loads(header.get(PLUGINS, "[]")):
                require(PluginRecord(**plugin))
            given = json.loads(header["recipe"])
            parts = {part: kind[given[part]["type"]](**given[part]) for part, kind in kinds.items()}
            scales, lookups = (json.loads(header.get(key, "{}")) for key in (SCALES, LOOKUPS))
        except PluginError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise _wrong_recipe(path, error) from error
        return cls(path, Recipe(**parts), scales, lookups, held)

    def declare(self) -> Model:
        """The model, on the meta device.

        Raises:
            CheckpointError: the header describes none.
        """
        try:
            model = declare(self.recipe)
            self.restore(model)
        except (ValueError, KeyError, TypeError) as error:
            raise _wrong_recipe(self.path, error) from error
        return model

    def restore(self, part: nn.Module) -> None:
        """Give a model declared on meta the factors of the one that was saved.

        Args:
            part: the model, or the part of a larger one that is such a model.
        """
        with torch.device("meta"):
            for p in list(declared(part)):
                front = p.module.reparameterised
                if p.name in self.scales:
                    front[p.local].rescale(p.module, p.local, self.scales[p.name])
                if p.name in self.lookups:
                    front[p.local] = replace(front[p.local], lookup=self.lookups[p.name])

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide what to read.

        Args:
            whole: the state dict of a model that has a place for all of it; on the meta device.
            needed: names of what is to be filled; others are left in the file.
            allow: patterns (``head.*``) of tensors that may be missing or without a place.

        Raises:
            CheckpointError: what is in the file is incomplete or does not fit.
            ZooError: a pattern that matches nothing.
        """
        kind = str(type(self.recipe.model).model_fields["type"].default)
        missing, unexpected = compare_names(str(self.path), kind, list(whole), needed, list(self.held), allow)
        there = [name for name in whole if name in self.held]
        check_match(self.path, {n: self.held[n] for n in there}, {n: whole[n] for n in there})
        names = [name for name in there if name in needed]
        unused = [name for name in there if name not in needed]
        report = LoadReport(kind, tuple(names), missing, unexpected, unused=tuple(unused))
        return LoadPlan(
            report, frozenset(names), lambda state: fill(self.path, {name: state[name] for name in names})
        )


def metadata(model: Model) -> dict[str, str]:
    """The header of a model's file: format, version, and the recipe as JSON.

    A model that was split took its scales from its matrices, and one that was merged may have kept
    a lookup factor of the method's: no recipe tells, so they are added.
    """
    recipe: Recipe = model.recipe
    header = {"format": "zoo", "version": VERSION, "recipe": recipe.model_dump_json()}
    if plugins := records_of(recipe):
        header[PLUGINS] = json.dumps([plugin.model_dump() for plugin in plugins])
    declaration = declare(recipe)
    for key, factors in ((SCALES, _scales), (LOOKUPS, _lookups)):
        usual = factors(declaration)
        other = {name: factor for name, factor in factors(model).items() if factor != usual.get(name)}
        if other:
            header[key] = json.dumps(other)
    return header


def _scales(model: nn.Module) -> dict[str, float]:
    """By what factor each reparameterised tensor is smaller than the virtual one."""
    return {p.name: p.spec.scale for p in declared(model) if p.local in p.module.reparameterised}


def _lookups(model: nn.Module) -> dict[str, float]:
    """By what factor what is looked up in a table is larger than its rows."""
    parameters = [p for p in declared(model) if p.local in p.module.reparameterised]
    return {p.name: p.module.reparameterised[p.local].lookup for p in parameters}


def _wrong_recipe(path: Path, error: Exception) -> CheckpointError:
    reason = str(error).splitlines()[0]
    return CheckpointError(f"{path}: the recipe in its header does not describe a model: {reason}")
