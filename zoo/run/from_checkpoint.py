"""A model that starts from a checkpoint: the meaning of `model: {from: path}` in a configuration.

Only the header of the checkpoint is read, not its weights. The resolved configuration contains all inherited
values, so the checkpoint must exist when a run starts, but not when the run is resumed by its folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from zoo.checkpoint.formats import OpenedCheckpoint, folder_format
from zoo.checkpoint.model import find_checkpoint, open_checkpoint
from zoo.checkpoint.recipe import Recipe
from zoo.checkpoint.trunk import opened_for
from zoo.config.compose import FROM, items_of
from zoo.config.inputs import READS_FILES, from_current_folder, looked_in
from zoo.config.registry import DATASETS, INITS, REPARAMS, Config, Kind
from zoo.config.yaml import Located, dotted
from zoo.data.tokenizers.saved import find_tokenizer
from zoo.init import Init
from zoo.utils.errors import DataError, ZooError, joined_message
from zoo.utils.files import expand_home
from zoo.utils.run_folder import CheckpointFolder

TOKENIZER = "tokenizer"
"""The entry of `allow` that permits another tokenizer."""


class CheckpointConfig(Config):
    """The checkpoint from which a run takes its initial weights."""

    path: Annotated[Path, READS_FILES] = Field(
        description="a run folder, a checkpoint, or a folder of the Hugging Face hub"
    )
    part: str = Field(
        "", description="the part of the model that is filled, e.g. trunk; empty: the whole model"
    )
    allow: tuple[str, ...] = Field(
        (),
        description="patterns of tensors that may be missing or without a place; `tokenizer`: another one",
    )


def inherit(given: Located, problems: list[str]) -> Located:
    """Replace ``model: {from: path}`` by the checkpoint's fields, init, reparam and tokenizer.

    Args:
        given: a composed configuration.
        problems: a list to which one line is added for each problem.

    Returns:
        The configuration without `from` and with `checkpoint`; `given` if it has no `from`.
    """
    references = list(_references(given.value.get("model"), ()))
    if not references:
        return given
    if len(references) > 1:
        where = ", ".join(dotted(("model", *path, FROM)) for path, _ in references)
        problems.append(joined_message(references[1][1].place, where, "expected one checkpoint"))
        return _without_model(given)
    (part, source), problems_before = references[0], len(problems)
    place = source.value[FROM].place
    where = dotted(("model", *part, FROM))
    kind = source.value.get("type")
    try:
        path, opened = _open(
            from_current_folder(source.value[FROM]).value, dotted(part), None if kind is None else kind.value
        )
    except ZooError as error:
        tried = "" if error.missing is None else looked_in(source.value[FROM], error.missing)
        problems += [joined_message(place, where, line) for line in f"{error}{tried}".splitlines()]
        return _without_model(given)
    recipe = opened.recipe
    model = _replace_part(given.value["model"], part, _override_fields(recipe, source, where, problems))
    fields = {**given.value, "model": model}
    fields["checkpoint"] = _source(given.value.get("checkpoint"), path, part, place, problems)
    fields |= _components(given, recipe, place, problems)
    if len(problems) == problems_before and (data := given.value.get("data")) is not None:
        if (items := items_of(data)) is not None:
            data = Located(items, data.place)
        fields["data"] = _with_labels(_with_tokenizer(data, path, place, problems), opened.labels, place)
    return Located(fields, given.place)


def _without_model(given: Located) -> Located:
    """A configuration without its model, so that the problems of its other parts are reported as well.

    `eta` is left out as well, because there is no checkpoint to measure it on.
    """
    kept = {key: value for key, value in given.value.items() if key not in ("model", "eta")}
    return Located(kept, given.place)


def _references(node: Located | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Located]]:
    """Yield every mapping of a model that has a key `from`, after the keys that lead to it."""
    if node is None or not isinstance(node.value, dict):
        return
    if FROM in node.value:
        yield path, node
        return
    for key, value in node.value.items():
        yield from _references(value, (*path, key))


def _open(path: object, part: str, kind: str | None) -> tuple[Path, OpenedCheckpoint]:
    """The opened checkpoint at a path; for `part` and `kind` see `opened_for`."""
    if not isinstance(path, str | Path) or not str(path):
        raise ZooError(f"value {path!r}: expected the path of a run, a checkpoint or a model's folder")
    checkpoint = find_checkpoint(expand_home(path))
    return checkpoint, opened_for(open_checkpoint(checkpoint), part, kind)


def _override_fields(recipe: Recipe, source: Located, where: str, problems: list[str]) -> Located:
    """The fields of the checkpoint's model, overridden by those that are written beside `from`."""
    fields = Located.of(recipe.model.model_dump(mode="json"), source.value[FROM].place)
    rest = {key: value for key, value in source.value.items() if key != FROM}
    kind = rest.pop("type", None)
    if kind is not None and kind.value != fields.value["type"].value:
        what = f"value {kind.value!r}: the checkpoint is a '{fields.value['type'].value}'"
        problems.append(joined_message(kind.place, where.removesuffix(FROM) + "type", what))
    return Located({**fields.value, **rest}, source.place)


def _replace_part(model: Located, part: tuple[str, ...], by: Located) -> Located:
    """A model in which the component at the path `part` is another one."""
    if not part:
        return by
    inner = _replace_part(model.value[part[0]], part[1:], by)
    return Located({**model.value, part[0]: inner}, model.place)


def _source(
    given: Located | None, path: Path, part: tuple[str, ...], place: str, problems: list[str]
) -> Located:
    """The section `checkpoint`: the path, the part, and the other keys that the configuration has in it."""
    fields = given.value if given is not None and isinstance(given.value, dict) else {}
    twice = [key for key in ("path", "part") if key in fields]
    problems += [
        joined_message(fields[k].place, f"checkpoint.{k}", "the model's `from` says so already")
        for k in twice
    ]
    taken = {"path": Located(str(path), place), "part": Located(dotted(part), place)}
    return Located({**fields, **taken}, place)


def _components(given: Located, recipe: Recipe, place: str, problems: list[str]) -> dict[str, Located]:
    """The reparameterisation, which is the checkpoint's unless the configuration names one, and the init."""
    reparam, init = given.value.get("reparam"), given.value.get("init")
    components: dict[str, Located] = {}
    if reparam is None or reparam.value is None:
        components["reparam"] = Located.of(recipe.reparam.model_dump(mode="json"), place)
        kept = True
    else:
        kept = _parse(REPARAMS, reparam) == recipe.reparam
    expected = start_init(recipe, kept)
    if init is not None and init.value is not None and _parse(INITS, init) != expected:
        made_with = expected.model_dump(mode="json")
        what = f"value {init.plain()!r}: the checkpoint was made with {made_with}; leave it out, or null"
        problems.append(joined_message(init.place, "init", what))
    return {**components, "init": Located.of(expected.model_dump(mode="json"), place)}


def start_init(recipe: Recipe, kept: bool) -> Init:
    """The init of a model that starts from a checkpoint.

    Args:
        recipe: the recipe of the checkpoint.
        kept: whether the model keeps its reparameterisation; otherwise it is merged first.
    """
    return recipe.init if kept else recipe.init.folded(tied=recipe.model.ties_embedding)


def _parse(kind: Kind, given: Located) -> Config | None:
    """The component that a configuration describes; None if it is invalid, which `validate` reports."""
    fields = {"type": given.value} if isinstance(given.value, str) else given.plain()
    try:
        component: Config = kind[fields["type"]](**fields)
        return component
    except (ValidationError, ZooError, KeyError, TypeError):
        return None


def _lacks(data: Located, key: str) -> bool:
    """Whether the type of data has a field that the configuration leaves out."""
    if not isinstance(data.value, dict) or key in data.value:
        return False
    assumed = next(name for name, cls in DATASETS.choices.items() if cls.assumed)
    chosen = DATASETS.find(data.value["type"].value if "type" in data.value else assumed)
    return chosen is not None and key in chosen.model_fields


def _with_labels(data: Located, labels: Sequence[str], place: str) -> Located:
    """The data with the checkpoint's classes in their order, if the data needs them and names none."""
    if not labels or not _lacks(data, "labels"):
        return data
    return Located({**data.value, "labels": Located.of(list(labels), place)}, data.place)


def _with_tokenizer(data: Located, path: Path, place: str, problems: list[str]) -> Located:
    """The data with the checkpoint's own tokenizer, if the data needs one and names none."""
    if not _lacks(data, "tokenizer"):
        return data
    run = CheckpointFolder(path).run
    other = folder_format(path)
    folder = other.tokenizer_folder(path) if other else path if run is None else run.path
    try:
        find_tokenizer(folder)
    except DataError as error:
        what = f"missing, and the checkpoint's own cannot be used: {error}"
        problems.append(joined_message(place, "data.tokenizer", what))
        return data
    tokenizer = Located.of({"type": "saved", "path": str(folder)}, place)
    return Located({**data.value, "tokenizer": tokenizer}, data.place)
