"""zoo's file format of a model: safetensors, with the recipe of the model in the header."""

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
from zoo.checkpoint.safetensors import TensorFile, check_match, count_entries
from zoo.config.plugins import PluginRecord, load_installed, records_of, require
from zoo.config.registry import INITS, MODELS, REPARAMS, type_of
from zoo.data.classification.class_names import read_labels
from zoo.models import Model
from zoo.reparam.gate import attach_gate
from zoo.spec import declared
from zoo.utils.errors import CheckpointError, PluginError
from zoo.utils.progress import progress
from zoo.utils.run_folder import ModelFolder, model_folder
from zoo.utils.untyped import Json

VERSION = "1"
SCALES, LOOKUPS = "gates", "lookups"
"""Keys of the header."""
PLUGINS, PUBLISHED = "plugins", "published"


@dataclass(frozen=True)
class ModelFile:
    """A model file whose header has been read, but not its tensors.

    Attributes:
        file: the file.
        recipe: the recipe of the model.
        scales: ratio of virtual and stored tensor by name, for tensors where it is not the recipe's.
        lookups: the same for the factor of embedding lookups.
        published: the contents of the settings files of the folder of another library that the model came
            from, see `zoo.models.base.Model`.
    """

    file: TensorFile
    recipe: Recipe
    scales: Mapping[str, float]
    lookups: Mapping[str, float]
    published: Mapping[str, Json]

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path

    @property
    def labels(self) -> list[str]:
        """The names of the classes, if they are stored beside the file; see `OpenedCheckpoint`."""
        folder = self.path.parent
        return read_labels(folder) if ModelFolder(folder).labels.is_file() else []

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors on the meta device, by name."""
        return self.file.tensors

    @classmethod
    def open(cls, path: Path, expected: str) -> ModelFile:
        """Read the header.

        Args:
            path: a .safetensors file.
            expected: the expected kind of file, for the message if the file has no recipe.

        Raises:
            CheckpointError: The file is missing or truncated, or zoo did not write it.
        """
        file = TensorFile.open(path)
        header = file.metadata
        if header.get("format") != "zoo" or "recipe" not in header:
            raise CheckpointError(
                f"{path}: a safetensors file, but zoo did not write it (no recipe in its header); "
                f"expected {expected}"
            )
        if header.get("version") != VERSION:
            raise CheckpointError(
                f"{path}: version {header.get('version')} of the format; expected {VERSION}"
            )
        load_installed()
        kinds = {"model": MODELS, "init": INITS, "reparam": REPARAMS}
        try:
            for plugin in json.loads(header.get(PLUGINS, "[]")):
                require(PluginRecord(**plugin), model_folder(path).plugins)
            given = json.loads(header["recipe"])
            parts = {part: kind[given[part]["type"]](**given[part]) for part, kind in kinds.items()}
            scales, lookups, published = (
                json.loads(header.get(key, "{}")) for key in (SCALES, LOOKUPS, PUBLISHED)
            )
        except PluginError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (ValidationError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _wrong_recipe(path, error) from error
        return cls(file, Recipe(**parts), scales, lookups, published)

    def declare(self) -> Model:
        """The model on the meta device.

        Raises:
            CheckpointError: The header does not describe a model.
        """
        try:
            model = declare(self.recipe)
            self.restore(model)
            model.published = self.published
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise _wrong_recipe(self.path, error) from error
        return model

    def restore(self, part: nn.Module) -> None:
        """Attach gates that the recipe does not describe, and set `scales` and `lookups`.

        Versions before 0.3 put WeSaR's gates on more of the matrices on nGPT's sphere; a model of such a file
        keeps these gates. A transfer rule puts a fixed factor on the logits of a tied table.

        Args:
            part: the model on the meta device, or a submodule that is such a model.
        """
        method = self.recipe.reparam
        with torch.device("meta"):
            for p in list(declared(part)):
                front = p.module.reparameterised
                if f"{p.name}_gate" in self.tensors and p.local not in front and method.acts_on(p.spec):
                    method.attach(p, self.recipe.init)
                if p.name in self.scales and p.spec.tied and p.local not in front:
                    attach_gate(p.module, p.local, self.scales[p.name], trained=False)
                if p.name in self.scales:
                    front[p.local].rescale(p.module, p.local, self.scales[p.name])
                if p.name in self.lookups:
                    front[p.local] = replace(front[p.local], lookup=self.lookups[p.name])

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to load.

        Args:
            whole: the state dict of a model that has all tensors of the file, on the meta device.
            needed: names of the tensors to load; others are not read.
            allow: patterns (``head.*``) of tensors that may be missing or unexpected.

        Raises:
            CheckpointError: Tensors are missing or unexpected, or have other shapes or dtypes.
            ZooError: A pattern matches no tensor.
        """
        kind = type_of(self.recipe.model)
        missing, unexpected = compare_names(
            str(self.path), kind, list(whole), needed, list(self.tensors), allow
        )
        there = [name for name in whole if name in self.tensors]
        check_match(self.path, {n: self.tensors[n] for n in there}, {n: whole[n] for n in there})
        names = [name for name in there if name in needed]
        unused = [name for name in there if name not in needed]
        report = LoadReport(kind, tuple(names), missing, unexpected, unused=tuple(unused))
        return LoadPlan(report, frozenset(names), lambda state: self.fill({n: state[n] for n in names}))

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read tensors one after the other into existing ones, plain or sharded, by their names."""
        with progress(f"reading {self.path}", count_entries(targets)) as advance:
            for name, target in targets.items():
                self.file.read(name, target)
                advance(target.numel())


def metadata(model: Model) -> dict[str, str]:
    """The header of a model's file as JSON: format, version, recipe and published settings.

    Factors that differ from those of the recipe are added: the scales of a split model, which come from its
    matrices, and the lookup factor that a merged model may have kept.
    """
    recipe: Recipe = model.recipe
    header = {"format": "zoo", "version": VERSION, "recipe": recipe.model_dump_json()}
    if plugins := records_of(recipe):
        header[PLUGINS] = json.dumps([plugin.model_dump() for plugin in plugins])
    if model.published:
        header[PUBLISHED] = json.dumps(dict(model.published))
    declaration = declare(recipe)
    for key, factors in ((SCALES, _scales), (LOOKUPS, _lookups)):
        usual = factors(declaration)
        other = {name: factor for name, factor in factors(model).items() if factor != usual.get(name)}
        if other:
            header[key] = json.dumps(other)
    return header


def _scales(model: nn.Module) -> dict[str, float]:
    """The ratio of virtual and stored tensor of all reparameterised parameters, by name."""
    return {p.name: p.spec.scale for p in declared(model) if p.local in p.module.reparameterised}


def _lookups(model: nn.Module) -> dict[str, float]:
    """The factor of embedding lookups of all reparameterised parameters, by name."""
    parameters = [p for p in declared(model) if p.local in p.module.reparameterised]
    return {p.name: p.module.reparameterised[p.local].lookup for p in parameters}


def _wrong_recipe(path: Path, error: Exception) -> CheckpointError:
    reason = str(error).splitlines()[0]
    return CheckpointError(f"{path}: the recipe in its header does not describe a model: {reason}")
