"""Reading models from Hugging Face folders: config.json and safetensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.checkpoint.recipe import Recipe, declare, materialise
from zoo.checkpoint.report import LoadPlan, LoadReport, compare_names
from zoo.config.registry import INITS
from zoo.hub import CONFIG, GENERATION_CONFIG
from zoo.hub.classifier import SUFFIX, classifier_family, label_names, numbered_labels, read_classifier
from zoo.hub.families import family_of
from zoo.hub.family import Family
from zoo.hub.rules import Rule, expand
from zoo.hub.shards import DTYPES, TensorEntry, read_headers, read_json, stream_tensors
from zoo.hub.text_part import PART, text_part
from zoo.init import initialise
from zoo.models import Model
from zoo.reparam import NoReparam
from zoo.utils.errors import CheckpointError
from zoo.utils.printable import first_few
from zoo.utils.sharded import assign
from zoo.utils.untyped import JsonObject


@dataclass(frozen=True)
class HubFolder:
    """A folder whose config.json and tensor headers have been read, but no tensors.

    Attributes:
        path: the folder.
        family: the family of the model.
        recipe: the recipe of zoo's model.
        entries: the tensors by their names in the files.
        published: the content of config.json (``config``) and, if it is there, generation_config.json
            (``generation``), and the ``dtype`` of all tensors, or float32 if they have several.
        left_out: the names of the tensors of other parts, such as an image encoder.
    """

    path: Path
    family: Family
    recipe: Recipe
    entries: Mapping[str, TensorEntry]
    published: JsonObject
    left_out: Sequence[str] = ()

    @classmethod
    def open(cls, path: Path, head: bool = False) -> HubFolder:
        """Read config.json and the headers.

        Args:
            path: a folder as transformers writes it.
            head: whether the model is the classifier of a ``...ForSequenceClassification``, and not the
                language model on the same trunk.

        Raises:
            CheckpointError: config.json is missing or describes no model of a known family, tensor files are
                missing or unsafe, or there are fewer tensors than layers.
        """
        if not (path / CONFIG).is_file():
            problem = f"no {CONFIG} in it" if path.is_dir() else "no such folder (nothing is downloaded)"
            raise CheckpointError(f"{path}: {problem}; expected a folder as on the Hugging Face hub")
        config, place = read_json(path / CONFIG), str(path / CONFIG)
        part = text_part(config)
        if part is not None:
            config, place = part.config(config), f"{place}: {PART}"
        family = family_of(config, place)
        model = family.to_zoo(config, place)
        layers_of = family.layers(model)
        if head:
            family, model = classifier_family(family), read_classifier(family, model, config, place)
        recipe = Recipe(model=model, init=INITS[model.default_init](), reparam=NoReparam())
        entries = read_headers(path)
        entries, left_out = (entries, ()) if part is None else part.split(entries)
        for name, layers in layers_of.items():
            if layers > len(entries):  # checked first, because declaring very many layers takes long
                raise CheckpointError(
                    f"{path}: {CONFIG} and tensors disagree: {name} is {layers}, but there are "
                    f"{len(entries)} tensors"
                )
        published = {"config": config, "dtype": _common_dtype(entries)}
        if (path / GENERATION_CONFIG).is_file():
            published["generation"] = read_json(path / GENERATION_CONFIG)
        return cls(path, family, recipe, entries, published, left_out)

    @property
    def labels(self) -> Sequence[str]:
        """The names of the classes; empty for a language model or if transformers has numbered them."""
        names = label_names(self.published["config"]) if hasattr(self.recipe.model, "classes") else []
        return [] if names == numbered_labels(len(names)) else names

    def restore(self, part: nn.Module) -> None:
        """Do nothing, because models of the hub are not reparameterised."""

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to read.

        Args:
            whole: state dict, on the meta device, of a model that has all tensors of the folder.
            needed: names in that state dict of the tensors to fill; the others are not read.
            allow: patterns (``cls.*``) of tensors, by their names in the folder, that may be missing or
                unexpected.

        Raises:
            CheckpointError: Tensors are missing or unexpected, or have other shapes than the model's.
            ZooError: A pattern matches nothing.
        """
        sizes = getattr(self.recipe.model, "trunk", self.recipe.model)
        rules = expand(self.family.rules, whole, sizes)
        known = [r.hub_name for r in rules]
        entries, skipped = _tensors(self, set(known))
        wanted = {r.hub_name for r in rules if not set(r.zoo_names).isdisjoint(needed)}
        architecture = self.family.architecture
        missing, unexpected = compare_names(str(self.path), architecture, known, wanted, list(entries), allow)
        present = [r for r in rules if r.hub_name in entries]
        _check_shapes(self.path, present, entries, whole)
        used = [r for r in present if r.hub_name in wanted]
        unused = [*(r.hub_name for r in present if r.hub_name not in wanted), *self.left_out]
        loaded = tuple(r.hub_name for r in used)
        report = LoadReport(architecture, loaded, missing, unexpected, tuple(skipped), tuple(unused))
        fills = frozenset(name for r in used for name in r.zoo_names if name in needed)

        def fill(state: Mapping[str, Tensor]) -> None:
            targets = {name: state[name] for name in fills}
            seen: set[TensorEntry] = set()
            jobs = []
            for r in used:
                entry = entries[r.hub_name]
                jobs.append((entry, _filler(r, whole, targets, copy=entry in seen)))
                seen.add(entry)
            stream_tensors(jobs)

        return LoadPlan(report, fills, fill)


def load_folder(
    folder: Path, *, allow: Sequence[str] = (), dtype: torch.dtype | None = None
) -> tuple[Model, LoadReport]:
    """Read a model, tensor by tensor.

    Without `allow`, a ``...ForSequenceClassification`` becomes a classifier; with it, the language model on
    its trunk, whose head is missing.

    Args:
        folder: a folder as transformers writes it.
        allow: patterns (``cls.*``) of tensors, by their names in the folder, that may be missing, and are
            then initialised, or unexpected.
        dtype: dtype of the model, to which every tensor is rounded when it is read; None: float32.

    Returns:
        The model, on the CPU, and a report of which tensors were loaded.

    Raises:
        CheckpointError: The folder is incomplete or unsafe, or describes no model of a known family; no
            memory has been allocated then.
        ZooError: A pattern matches nothing.
    """
    opened = HubFolder.open(folder, head=not allow and is_classifier(folder))
    model = declare(opened.recipe)
    model.published = opened.published
    expected = model.state_dict()
    plan = opened.plan(expected, expected, allow)
    materialise(model.to(dtype), torch.device("cpu"))
    if plan.report.missing:
        initialise(model, model.recipe.init, seed=0)
    with torch.no_grad():
        plan.fill(model.state_dict(keep_vars=True))
    return model, plan.report


def is_classifier(folder: Path) -> bool:
    """Whether config.json names a classifier of texts, of a family whose head is known."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not str(named[0]).endswith(SUFFIX):
        return False
    return family_of(config, str(folder / CONFIG)).head is not None


def _common_dtype(entries: Mapping[str, TensorEntry]) -> str:
    """The dtype of all tensors by its name in torch; if there are several, float32, which holds them."""
    names = {DTYPES.get(entry.dtype, "float32") for entry in entries.values()}
    return names.pop() if len(names) == 1 else "float32"


def _tensors(opened: HubFolder, expected: set[str]) -> tuple[dict[str, TensorEntry], list[str]]:
    """The folder's tensors by their current names, and the names of untrained and duplicate tensors."""
    folder, family = opened.path, opened.family
    entries: dict[str, TensorEntry] = {}
    for written, entry in opened.entries.items():
        name = family.current_name(written, expected)
        if name in entries:
            raise CheckpointError(f"{folder}: {name} is there twice, once as {written}")
        entries[name] = entry
    if opened.published["config"].get("tie_word_embeddings"):
        left_out = {name: of for name, of in family.left_out.items() if name in expected - entries.keys()}
        entries |= {name: entries[of] for name, of in left_out.items() if of in entries}
    skipped = [
        name
        for name in entries
        if name not in expected and (family.is_buffer(name) or _repeats(folder, name, family, entries))
    ]
    return {name: entry for name, entry in entries.items() if name not in skipped}, skipped


def _repeats(folder: Path, name: str, family: Family, entries: dict[str, TensorEntry]) -> bool:
    """Whether a tensor is a copy of another one, such as an lm_head stored beside a tied embedding."""
    original = family.duplicates.get(name)
    if original is None or original not in entries:
        return False
    both: list[Tensor] = []
    stream_tensors([(entries[n], both.append) for n in (name, original)])
    if not torch.equal(*both):
        raise CheckpointError(f"{folder}: {name} differs from {original}, though config.json ties them")
    return True


def _check_shapes(
    folder: Path, rules: Sequence[Rule], entries: dict[str, TensorEntry], state: Mapping[str, Tensor]
) -> None:
    """Compare the shapes and dtypes in the headers with those of the model on the meta device."""
    wrong = []
    for r in rules:
        entry = entries[r.hub_name]
        expected = tuple(r.transform.to_hf([state[name] for name in r.zoo_names]).shape)
        if entry.shape != expected or entry.dtype not in DTYPES:
            wrong.append(
                f"{r.hub_name} is {entry.dtype} {list(entry.shape)}, "
                f"expected {' or '.join(DTYPES)} {list(expected)}"
            )
    if wrong:
        raise CheckpointError(f"{folder}: {CONFIG} and tensors disagree: {first_few(wrong)}")


def _filler(
    r: Rule, whole: Mapping[str, Tensor], targets: Mapping[str, Tensor], copy: bool
) -> Callable[[Tensor], None]:
    """A function that copies a checkpoint's tensor to the target tensors of a rule, as far as they exist.

    A parameter of the same dtype, device and strides becomes a view of the memory-mapped file; the operating
    system copies a page when it is written to, and the file never changes.

    Args:
        r: the rule.
        whole: the tensors of the model, on the meta device, by name.
        targets: the tensors to fill, by name.
        copy: whether to make no view, because another parameter is one of the same tensor; both would change
            together.
    """
    shapes = [tuple(whole[name].shape) for name in r.zoo_names]

    def fill(source: Tensor) -> None:
        for name, tensor in zip(r.zoo_names, r.transform.to_zoo(source, shapes), strict=True):
            target = targets.get(name)
            if isinstance(target, nn.Parameter) and _same_layout(target, tensor):
                target.data = tensor.clone() if copy else tensor
            elif target is not None:
                assign(target, tensor)

    return fill


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device, one.stride()) == (other.dtype, other.device, other.stride())
