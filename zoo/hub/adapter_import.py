"""Reading adapters of the library peft, as LoRA beside the weights of the base or folded into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.checkpoint.formats import OpenedCheckpoint
from zoo.checkpoint.model import load_model, open_checkpoint
from zoo.checkpoint.named_lora import HEAD, NamedLoRA, Target, may_change, shortest_end
from zoo.checkpoint.recipe import Recipe, declare, materialise
from zoo.checkpoint.report import LoadPlan
from zoo.checkpoint.trunk import TRUNK, LanguageModelAsTrunk
from zoo.config.registry import type_of
from zoo.hub import CONFIG
from zoo.hub.adapter import BASE_NAME, TASKS
from zoo.hub.adapter_folder import AdapterFiles
from zoo.hub.classifier import classifier_family, read_classifier, write_classifier
from zoo.hub.families import family_for, family_of_origin
from zoo.hub.folder import HubFolder, is_classifier, load_folder
from zoo.hub.rules import Rule, expand
from zoo.models import Model, ModelConfig
from zoo.reparam import NoReparam
from zoo.reparam.lora import added_names
from zoo.run.conversion import merge
from zoo.spec import declared
from zoo.utils.errors import CheckpointError
from zoo.utils.printable import first_few
from zoo.utils.sharded import assign
from zoo.utils.untyped import Json, JsonObject

FOLD = "expected --fold (in Python fold=True), which puts the change into the weights"


def load_adapter(
    folder: Path,
    *,
    base: Path | str | None = None,
    fold: bool = False,
    dtype: torch.dtype | None = None,
) -> Model:
    """Read an adapter together with its base model.

    Args:
        folder: a folder with adapter_config.json and adapter_model.safetensors, as peft writes them.
        base: the base model, a Hugging Face folder or a zoo model; None: the one that the adapter names, if
            this is a folder in the current one or beside the adapter, or the one in the adapter's folder. The
            base of a classifier's adapter is a classifier, or a language model if the adapter has the head.
        fold: whether the changes are added to the weights; otherwise they are LoRA beside them, which can be
            trained and exported.
        dtype: dtype of the model; None: float32.

    Raises:
        CheckpointError: The adapter is not LoRA, has settings that zoo does not support or changes that can
            only be folded, the base does not exist, or the adapter belongs to another base.
    """
    if fold:
        return _folded(folder, base).to(dtype)
    opened = AdapterFolder.open(folder, base)
    model = declare(opened.recipe)
    model.published = opened.published
    expected = model.state_dict()
    opened.restore(model)
    plan = opened.plan(expected, expected, ())
    materialise(model.to(dtype), torch.device("cpu"))
    with torch.no_grad():
        plan.fill(model.state_dict(keep_vars=True))
    return model


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter and its base, whose weights have not been read; those of the adapter have been.

    Attributes:
        base: the opened base.
        recipe: the recipe of the base, with LoRA on the matrices that the adapter changes.
        factors: A and B by their names in the model.
        whole: tensors that the adapter has as a whole, by their names in the model: a classifier's head that
            was trained, and matrices under a change, which peft may save beside it.
        published: the published settings of the base, and the adapter's name of its base.
    """

    base: OpenedCheckpoint
    recipe: Recipe
    factors: Mapping[str, Tensor]
    whole: Mapping[str, Tensor]
    published: JsonObject

    @classmethod
    def open(cls, folder: Path, base: Path | str | None = None) -> AdapterFolder:
        """Read an adapter, and its base without the weights; see `load_adapter` for arguments and errors."""
        files = AdapterFiles.read(folder)
        place = files.find_base() if base is None else Path(base)
        hub = (place / CONFIG).is_file()
        opened = HubFolder.open(place, head=is_classifier(place)) if hub else open_checkpoint(place)
        if not isinstance(opened.recipe.reparam, NoReparam):
            kind = type_of(opened.recipe.reparam)
            raise CheckpointError(
                f"{place}: the base has reparam '{kind}', and LoRA would be another; {FOLD}"
            )
        if (headed := _headed(files, place, opened.recipe.model, opened.published)) is not None:
            opened = LanguageModelAsTrunk(opened, *headed)
        model = declare(opened.recipe)
        rules = _rules_of(files, place, model, opened.published)
        specs = {p.name: p.spec for p in declared(model)}
        refused = [f"{module}.weight" for module, pair in files.pairs.items() if pair.of_embedding]
        refused += [
            f"{n}.weight"
            for n, pair in files.pairs.items()
            if not pair.of_embedding and not all(may_change(specs[z]) for z in rules[f"{n}.weight"].zoo_names)
        ]
        refused += [
            n
            for n in files.whole
            if n.removesuffix(".weight") not in files.pairs
            and not all(HEAD in specs[z].axes for z in rules[n].zoo_names)
        ]
        if refused:
            raise CheckpointError(
                f"{folder}: {first_few(refused)}: LoRA is kept for linear maps, not for embeddings and "
                f"what is trained as a whole (modules_to_save); {FOLD}"
            )
        state = model.state_dict()
        factors: dict[str, Tensor] = {}
        whole: dict[str, Tensor] = {}
        settings: dict[str, tuple[int, float]] = {}
        for module, pair in files.pairs.items():
            for name, up in _parts(rules[f"{module}.weight"], pair.up, state):
                settings[name] = pair.rank, pair.alpha
                factors |= dict(zip(added_names(name), (pair.down, up), strict=True))
        for name, tensor in files.whole.items():
            whole |= _parts(rules[name], _flipped(rules[name], tensor), state)
        names = [name for name, spec in specs.items() if may_change(spec)]
        recipe = opened.recipe.model_copy(update={"reparam": NamedLoRA(targets=_targets(settings, names))})
        return cls(opened, recipe, factors, whole, {**opened.published, BASE_NAME: files.base_name})

    @property
    def labels(self) -> Sequence[str]:
        """The class names of the base model."""
        return self.base.labels

    def restore(self, part: nn.Module) -> None:
        """Complete a declared model with the properties that the base's recipe does not describe."""
        self.base.restore(part)

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to read, see `zoo.checkpoint.formats.OpenedCheckpoint`."""
        of_base = {name: tensor for name, tensor in whole.items() if name not in self.factors}
        plan = self.base.plan(of_base, [name for name in needed if name not in self.factors], allow)
        own = {name: t for name, t in {**self.factors, **self.whole}.items() if name in needed}

        def fill(state: Mapping[str, Tensor]) -> None:
            plan.fill({name: tensor for name, tensor in state.items() if name not in self.factors})
            for name, tensor in own.items():
                assign(state[name], tensor)

        report = replace(plan.report, loaded=(*plan.report.loaded, *own))
        return LoadPlan(report, plan.fills | own.keys(), fill)


def _headed(
    files: AdapterFiles, base: Path, config: ModelConfig, published: Mapping[str, Json]
) -> tuple[ModelConfig, JsonObject] | None:
    """The classifier on a language model, of which the adapter has the head.

    Args:
        files: the adapter.
        base: the path of its base, for messages.
        config: the configuration of the base.
        published: the published settings of the base.

    Returns:
        The configuration and the published settings of the classifier; None: the base is a classifier, or the
        adapter is none of a classifier.

    Raises:
        CheckpointError: The adapter lacks a part of the head, or the base's family has no classifier.
    """
    if hasattr(config, TRUNK) or files.config.get("task_type") != TASKS["AutoModelForSequenceClassification"]:
        return None
    family, written = family_of_origin(config, published) or family_for(config)
    head = classifier_family(family).rules[len(family.rules) :]
    if lacking := [r.hub_name for r in head if r.hub_name not in files.whole]:
        raise CheckpointError(
            f"{files.path}: the adapter lacks {first_few(lacking)} of a classifier's head, and the base "
            f"({base}) is a language model; expected the folder of the classifier as the base"
        )
    weight = next(r.hub_name for r in head if r.zoo_names == ("head.linear.weight",))
    labels = ("id2label", "label2id", "num_labels")  # of the language model, if it has any
    written = {key: value for key, value in written.items() if key not in labels}
    counted = {**written, "num_labels": len(files.whole[weight])}
    classifier = read_classifier(family, config, counted, f"{files.path}: a head on {base}")
    if "config" not in published:
        return classifier, {**published}
    return classifier, {**published, "config": write_classifier(family, classifier, written, ())}


@torch.no_grad()
def _folded(folder: Path, base: Path | str | None) -> Model:
    """The base with the changes added to its weights."""
    files = AdapterFiles.read(folder)
    place = files.find_base() if base is None else Path(base)
    model = load_folder(place)[0] if (place / CONFIG).is_file() else load_model(place)
    merge(model)
    if (headed := _headed(files, place, model.recipe.model, model.published)) is not None:
        model = _on_trunk(model, *headed, str(place))
    rules = _rules_of(files, place, model, model.published)
    lookups = [name for name, pair in files.pairs.items() if pair.of_embedding]
    if lookups and model.recipe.model.ties_embedding:
        raise CheckpointError(
            f"{folder}: {lookups[0]}: the change is one of the look-ups alone, but the base uses the table "
            "in its head as well; expected a base whose tie_word_embeddings is false"
        )
    state = model.state_dict()
    for name, tensor in files.whole.items():
        for target, part in _parts(rules[name], _flipped(rules[name], tensor), state):
            state[target].copy_(part)
    for module, pair in files.pairs.items():
        change = pair.up.float() @ pair.down.float() * (pair.alpha / pair.rank)
        for target, part in _parts(rules[f"{module}.weight"], change, state):
            state[target].add_(part)
    return model


def _on_trunk(
    language_model: Model, classifier: ModelConfig, published: Mapping[str, Json], place: str
) -> Model:
    """A classifier with the weights of a merged language model; its head is not initialised.

    Raises:
        CheckpointError: The language model, which is at `place`, has a factor on the look-ups of its tied
            embedding.
    """
    if kept := [p.name for p in declared(language_model) if p.local in p.module.reparameterised]:
        raise CheckpointError(
            f"{place}: {first_few(kept)}: its look-ups have a factor; expected the folder of a classifier as "
            "the base, or a language model without such a factor"
        )
    model = declare(language_model.recipe.model_copy(update={"model": classifier}))
    model.published = published
    materialise(model, torch.device("cpu"))
    weights = language_model.state_dict()
    for name, tensor in model.get_submodule(TRUNK).state_dict().items():
        tensor.copy_(weights[name])
    return model


def _rules_of(
    files: AdapterFiles, base: Path, model: Model, published: Mapping[str, object]
) -> dict[str, Rule]:
    """The rules of the base's tensors, by their names in the Hugging Face model.

    Raises:
        CheckpointError: The adapter belongs to another base.
    """
    config = model.recipe.model
    trunk = getattr(config, "trunk", config)
    family, _ = family_of_origin(trunk, published) or family_for(trunk)
    if trunk is not config:
        family = classifier_family(family)
    state = model.state_dict()
    of_files = expand(family.rules, state, trunk)
    rules = {name: r for r in of_files for name in (r.hub_name, family.name_in_memory(r.hub_name))}
    unknown = [name for name in files.whole if name not in rules]
    unknown += [module for module in files.pairs if f"{module}.weight" not in rules]
    copies = {c for name in family.duplicates for c in (name, family.name_in_memory(name))}
    if unknown and copies.issuperset(f"{name.removesuffix('.weight')}.weight" for name in unknown):
        raise CheckpointError(
            f"{files.path}: {first_few(unknown)}: the base ({base}) has no read-out of its own, but reads "
            "out with its embedding (tie_word_embeddings); expected an adapter that does not change it"
        )
    if unknown:
        raise CheckpointError(
            f"{files.path}: the adapter is not one of {base} ({family.architecture}), which has no "
            f"{first_few(unknown)}"
        )
    shapes = {f"{module}.weight": [len(p.up), p.down.shape[1]] for module, p in files.pairs.items()}
    shapes |= {name: list(_flipped(rules[name], t).shape) for name, t in files.whole.items()}
    expected = {
        name: list(_flipped(r, r.transform.to_hf([state[n] for n in r.zoo_names])).shape)
        for name, r in rules.items()
        if name in shapes
    }
    wrong = [
        f"{name.removesuffix('.weight')} is {shape} in the adapter and {expected[name]} in the base"
        for name, shape in shapes.items()
        if shape != expected[name]
    ]
    if wrong:
        raise CheckpointError(f"{files.path}: the adapter is not one of {base}: {first_few(wrong)}")
    return rules


def _flipped(r: Rule, tensor: Tensor) -> Tensor:
    """A tensor of the Hugging Face model, transposed if its layout is (in, out)."""
    return tensor.mT if r.transform.in_out else tensor


def _parts(r: Rule, rows: Tensor, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The names of zoo's tensors of a rule, each with its part of the rows (outputs, any)."""
    shapes = [(len(state[name]), *rows.shape[1:]) for name in r.zoo_names]
    return list(zip(r.zoo_names, r.transform.to_zoo(_flipped(r, rows), shapes), strict=True))


def _targets(settings: Mapping[str, tuple[int, float]], names: Collection[str]) -> tuple[Target, ...]:
    """Targets for matrices with their ranks and alphas, named by the shortest ends that identify them."""
    groups: dict[tuple[int, float], list[str]] = {}
    for name, setting in settings.items():
        groups.setdefault(setting, []).append(name)
    return tuple(
        Target(
            names=tuple(dict.fromkeys(shortest_end(n, group, names) for n in group)), rank=rank, alpha=alpha
        )
        for (rank, alpha), group in groups.items()
    )
