"""The configuration of a run: its keys, and how it is read and written.

A file is strict YAML. Its `type:` keys select registered classes, whose fields are the schema, so
that a misspelt key or an impossible value is reported with its line, all at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from zoo.config.compose import FROM, PLUGINS, extend, find_config, merge, parse_overrides, read_named
from zoo.config.inputs import READS_FILES, from_current_folder, key_of, looked_in
from zoo.config.messages import NAME, describe_all, is_written
from zoo.config.plugins import CLASS_PATH, PluginRecord, adapted, load_installed, records_of
from zoo.config.registry import (
    CONSTRAINTS,
    DATASETS,
    INITS,
    MODELS,
    OPTIMIZERS,
    REPARAMS,
    SCHEDULES,
    TRANSFERS,
    Config,
    Kind,
    classes_in,
    is_choice,
    kind_of,
    type_of,
)
from zoo.config.schema import for_editors
from zoo.config.yaml import Located, dump_yaml
from zoo.config.yaml import Path as Keys
from zoo.data.dataset import DataConfig
from zoo.init import EtaOverride, FreezeRule, Init
from zoo.init.transfer import NoTransfer, Transfer
from zoo.models import ModelConfig
from zoo.models.starts import NoRuleError, Reach
from zoo.optim.base import OptimizerConfig, ScheduleConfig
from zoo.optim.constraint import Constraint, NoConstraint
from zoo.optim.schedules import Constant
from zoo.reparam import NoReparam, Reparam
from zoo.run.from_checkpoint import CheckpointConfig, inherit
from zoo.run.limits import beyond_reason
from zoo.run.train_config import TrainConfig
from zoo.utils.errors import ConfigError, did_you_mean, joined_message
from zoo.utils.measures import MEASURES, require_recorded
from zoo.utils.run_folder import RunFolder
from zoo.utils.untyped import Json, JsonObject

ConfigT = TypeVar("ConfigT", bound=Config)

SEEDS = 2**63
"""The number of seeds of torch's generators, which begin at 0."""


@dataclass(frozen=True, eq=False)
class Origin:
    """The places where a configuration's values were written; all origins compare as equal."""

    given: Located

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0


class RunConfig(Config):
    """Everything that determines a run."""

    _origin: Origin = PrivateAttr(Origin(Located({}, "")))

    name: str = Field(
        "run",
        pattern=NAME,
        description="name of the run folder; default: the name of the file",
    )
    description: str | None = Field(None, description="what the run is for, in your words; reports print it")
    seed: int = Field(
        0, ge=0, lt=SEEDS, description="seed of the initialisation and of the order of the data"
    )
    model: Annotated[ModelConfig, MODELS] | None = Field(None, description="architecture")
    checkpoint: CheckpointConfig | None = Field(
        None, description="where the first weights come from; `model: {from: path}` fills it in"
    )
    init: Annotated[Init, INITS] | None = Field(
        None, description="initialisation; null: the architecture's own"
    )
    reparam: Annotated[Reparam, REPARAMS] = Field(NoReparam(), description="reparameterisation")
    optimizer: Annotated[OptimizerConfig, OPTIMIZERS] | None = Field(None, description="optimizer")
    constraint: Annotated[Constraint, CONSTRAINTS] = Field(
        NoConstraint(), description="property of the trained parameters that is kept constant"
    )
    schedule: Annotated[ScheduleConfig, SCHEDULES] = Field(Constant(), description="learning rate over time")
    data: Annotated[DataConfig, DATASETS] | None = Field(None, description="training data")
    train: TrainConfig | None = Field(None, description="training")
    metric: str | None = Field(
        None,
        description="measure on the validation examples that selects the best checkpoint, and that a sweep "
        "of such runs tunes and compares by: " + ", ".join(MEASURES) + "; null: cross_entropy, and accuracy "
        "for the checkpoint of a classifier",
    )
    eta_overrides: tuple[EtaOverride, ...] = Field(
        (), description="other eta for variables of a role (Amos-*Scale)"
    )
    eta: Literal["declared", "measured"] = Field(
        "declared", description="measured: the root mean square of each tensor that comes from a checkpoint"
    )
    freeze: tuple[FreezeRule, ...] = Field(
        (), description="parameters that are not trained, by role, axes and depth"
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="learning rate of depth k of L layers times layer_decay^(L + 1 - k)"
    )
    transfer: Annotated[Transfer, TRANSFERS] = Field(
        NoTransfer(), description="rule by which settings that were chosen at a base size fit this one"
    )
    plugins: tuple[PluginRecord, ...] = Field(
        (), description="modules of your own that register classes: Python files, or names of modules"
    )

    @property
    def origin(self) -> Origin:
        """The places where the values were written."""
        return self._origin

    def written(self, origin: Origin) -> Self:
        """The same configuration with `origin` as the places of its values."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def place(self, keys: Keys) -> str:
        """The place of a value or of its parent: ``file:line``, an override, or "" for values from Python."""
        return self._origin.given.find(keys)[0].place

    def looked_in(self, missing: Path) -> str:
        """A clause on the folders in which a missing path was looked for, see `zoo.config.inputs`."""
        return looked_in(self._origin.given, missing)

    def key_of(self, missing: Path) -> Keys:
        """The key whose value is a path; empty if there is no such key."""
        return key_of(self._origin.given, missing) or ()

    @property
    def reach(self) -> Reach | None:
        """The largest distance that the run can move an entry of a parameter; None: no run is configured."""
        if self.optimizer is None or self.train is None:
            return None
        optimizer, steps = self.optimizer, self.train.steps
        return lambda spec: optimizer.reach(spec, self.schedule, steps)

    @property
    def reach_by_rule(self) -> Reach | None:
        """The largest distance that the run can move an entry of a vector under the rule of `transfer`.

        The rule multiplies all learning rates, and with them the distance, by its factor for the number of
        steps. None: no run is configured.
        """
        reach, train = self.reach, self.train
        if reach is None or train is None:
            return None
        factor = self.transfer.of_length(train.steps)
        return lambda spec: None if (bound := reach(spec)) is None else factor * bound

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is not None and value not in MEASURES:
            raise ValueError(f"'{value}' is no measure{did_you_mean(value, MEASURES)}")
        return value

    @model_validator(mode="after")
    def _recorded_metric(self) -> Self:
        if self.metric is None or self.data is None:
            return self
        try:
            require_recorded(MEASURES[self.metric], self.data.measures)
        except ValueError as error:
            raise ValueError(f"metric: {error}") from error
        named = getattr(self.data, "best", None)
        if named not in (None, self.metric):
            raise ValueError(f"metric: {self.metric}, but data.best: {named}; expected one of the two")
        return self

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.optimizer is not None and self.optimizer.has_own_schedule and self.schedule != Constant():
            raise ValueError(
                "schedule: this optimizer takes the place of a schedule; expected `schedule: constant` "
                "without warm-up (it has warmup_steps of its own)"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_suits_constraint(self) -> Self:
        if self.optimizer is not None:
            self.constraint.check(self.optimizer)
        return self

    @model_validator(mode="after")
    def _clip_has_an_effect(self) -> Self:
        if self.train is not None and self.train.clip.needs_reparam and isinstance(self.reparam, NoReparam):
            kind = type_of(self.train.clip)
            raise ValueError(f"train.clip: {kind} has no effect: reparam is none; expected `clip: norm`")
        return self

    @model_validator(mode="after")
    def _batch_suits_model(self) -> Self:
        if self.model is not None and self.train is not None:
            self.model.check_batch(self.train.batch_size, self.train.accumulation, ranks=1)
        return self

    @model_validator(mode="after")
    def _eta_is_used(self) -> Self:
        uses_eta = self.optimizer is None or self.optimizer.uses_eta
        if self.eta_overrides and not uses_eta:
            raise ValueError("eta_overrides have no effect: this optimizer does not use eta")
        if self.eta == "measured" and not uses_eta:
            raise ValueError("eta: measured has no effect: this optimizer does not use eta")
        if self.eta == "measured" and self.checkpoint is None:
            raise ValueError(
                "eta: measured is of a checkpoint's weights; expected `model: {from: path}`: the init's "
                "weights say nothing"
            )
        return self


def load_config(source: str | Path | JsonObject, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration.

    Args:
        source: a YAML file, a run folder, the name of a shipped configuration, or a dict.
        overrides: ``a.b=c`` with c in YAML; they replace values of `source`.

    Returns:
        The complete and validated configuration, including all that a model inherits from a checkpoint.

    Raises:
        ConfigError: The configuration has problems; the message has one line for each.
    """
    problems: list[str] = []
    if isinstance(source, dict):
        given = extend(Located.of(plain(source)), Path(), problems)
    else:
        file = find_config(source)
        given = read_named(file, problems)
        if "base" in given.value and "model" not in given.value:
            raise ConfigError(
                f"{source}: a sweep file, as it has the key `base`; expected `zoo sweep {source}`"
            )
        if (run := RunFolder(file.parent)).config == file and run.metrics.is_file():
            given = _completed(given)
    changes = parse_overrides(overrides, problems)
    given = merge(_retyped(given, changes), changes)
    given = inherit(given, problems)
    config = validate(given, problems)
    if config is None or problems:
        raise ConfigError("\n".join(problems))
    return config


def _retyped(given: Located, changes: Located) -> Located:
    """The configuration with a model of another type, if overrides name one.

    The fields that both types have stay: ``model.type=ngpt`` turns a GPT into an nGPT of the same size. In
    files a component of another type replaces the one below it, see `zoo.config.compose`.
    """
    model, other = given.value.get("model"), changes.value.get("model")
    if (
        model is None
        or other is None
        or not isinstance(other.value, dict)
        or not isinstance(model.value, dict)
    ):
        return given
    kind, former = other.value.get("type"), model.value.get("type")
    if kind is None or FROM in other.value or FROM in model.value:
        return given
    if former is not None and former.value == kind.value:
        return given
    chosen = MODELS.find(kind.value)
    if chosen is None:
        return given
    kept = {key: value for key, value in model.value.items() if key in chosen.model_fields}
    return Located({**given.value, "model": Located({**kept, "type": kind}, model.place)}, given.place)


def validate(given: Located, problems: list[str]) -> RunConfig | None:
    """Check a composed configuration.

    Args:
        given: the composed values, with their places.
        problems: a list to which one line is added for each problem.

    Returns:
        The configuration, or None if there were problems.
    """
    try:
        given = long_form(given, RunConfig)
    except ConfigError as error:
        problems.append(str(error))
        return None
    values = given.plain()
    errors = []
    # Strictly as JSON: no number for a string or the other way round. Defaults are Python objects,
    # which this validation refuses as well, so errors about them are left to the second one.
    try:
        RunConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        errors += [e for e in error.errors() if is_written(e, RunConfig, given)]
    config = None
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        errors += error.errors()
    if config is not None:
        config = _with_starts(config, given, problems)
    # Both find the same errors, except for coercions and for rules that need all fields of a class.
    first = {e["loc"]: e for e in reversed(errors)}
    messages = {*describe_all(first.values(), RunConfig, given)} | set(beyond_reason(given))
    problems += sorted(messages, key=_by_line)
    if errors or config is None:
        return None
    config = config.model_copy(update={PLUGINS: records_of(config)})
    config._origin = Origin(given)
    return config


def _completed(given: Located) -> Located:
    """The configuration in a run folder, with the fields that did not exist when it was written."""
    optimizer = given.value.get("optimizer")
    if optimizer is None or not isinstance(optimizer.value, dict) or "type" not in optimizer.value:
        return given
    kind = OPTIMIZERS.find(optimizer.value["type"].value)
    missing = {} if kind is None else {k: v for k, v in kind.older.items() if k not in optimizer.value}
    return merge(given, Located.of({"optimizer": missing})) if missing else given


def _with_starts(config: RunConfig, given: Located, problems: list[str]) -> RunConfig:
    """The configuration with a number instead of every `auto`, see `ModelConfig.with_starts`."""
    if config.model is None:
        return config
    try:
        model = config.model.with_starts(config.reach_by_rule)
        if config.transfer.on_sphere and model != config.model:
            problems.append(
                "transfer: nugpt multiplies the starts of the base size, and `auto` is a rule of its own; "
                "expected numbers in the place of `auto`"
            )
        return config.model_copy(update={"model": model})
    except NoRuleError as error:
        place = given.find(("model", *error.path))[0].place
        problems.append(joined_message(place, f"model.{error}"))
        return config


def long_form(given: Located, owner: type[Config]) -> Located:
    """Write out the components that are given by name alone (``he`` is ``{type: he}``), and find files.

    Args:
        given: the fields of `owner`, short or long.
        owner: a configuration class.

    Raises:
        ConfigError: A `type` is the path of a class that cannot be used.
    """
    if not isinstance(given.value, dict):
        return given
    fields = owner.written_out(dict(given.value))
    for key in fields.keys() & owner.model_fields.keys():
        field = owner.model_fields[key]
        fields[key] = (
            from_current_folder(fields[key])
            if READS_FILES in field.metadata
            else _component(fields[key], field, key)
        )
    return Located(fields, given.place)


def _component(value: Located, field: FieldInfo, key: str) -> Located:
    """The long form of a component, or of each component of a list."""
    if isinstance(value.value, list):
        return Located([_component(item, field, key) for item in value.value], value.place)
    kind, typed = kind_of(field), is_choice(classes_in(field))
    if typed and isinstance(value.value, str):
        value = Located({"type": value}, value.place)
    if kind is not None and kind.adapt is not None:
        _adapt(value, kind, key)
    classes = classes_in(field)
    if typed and isinstance(value.value, dict):
        value, classes = _typed(value, classes)
    return long_form(value, classes[0]) if len(classes) == 1 else value


def _adapt(value: Located, kind: Kind, key: str) -> None:
    """Register the class of a component whose `type` is the path of a class."""
    name = value.value.get("type") if isinstance(value.value, dict) else None
    if name is None or not isinstance(name.value, str) or not CLASS_PATH.fullmatch(name.value):
        return
    try:
        adapted(kind, name.value)
    except ConfigError as error:
        problem = f"value '{name.value}': {error}"
        raise ConfigError(joined_message(name.place, f"{key}.type", problem)) from error


def _typed(given: Located, classes: list[type[Config]]) -> tuple[Located, list[type[Config]]]:
    """A component with its `type`, which may be assumed, and the classes that it can be an instance of."""
    names = {c.model_fields["type"].default: c for c in classes}
    assumed = [Located(n, given.place) for n, c in names.items() if c.assumed]
    fields = ({"type": assumed[0]} if assumed else {}) | given.value
    name = fields["type"].value if "type" in fields else None
    chosen = names.get(name) if isinstance(name, str) else None
    return Located(fields, given.place), [chosen] if chosen else classes


def with_value(config: ConfigT, keys: Sequence[str], value: object) -> ConfigT:
    """A configuration with one value replaced, which lies under nested keys."""
    if len(keys) > 1:
        value = with_value(getattr(config, keys[0]), keys[1:], value)
    return config.model_copy(update={keys[0]: value})


def plain(value: object, key: str = "") -> Json:
    """Configuration objects and paths anywhere in nested dicts and lists, as plain data.

    Args:
        value: what a configuration may contain.
        key: the key of the value in the configuration, with dots, for the error.

    Raises:
        ConfigError: A value is none that YAML has, for instance a dtype.
    """
    if isinstance(value, Config):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: plain(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{key}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Integral | Real):  # numpy's numbers
        return int(value) if isinstance(value, Integral) else float(value)
    raise ConfigError(f"{key}: value {value!r}: expected a string, a number, a list or a mapping, as in YAML")


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML, from which `load_config` reads an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


def json_schema() -> JsonObject:
    """JSON schema of a config file with every registered choice, for editors.

    Nothing is required, since any key may come from the file that is extended.
    """
    load_installed()
    schema: JsonObject = for_editors(RunConfig)
    plugins = schema["properties"][PLUGINS]["items"]
    schema["properties"][PLUGINS]["items"] = {"anyOf": [{"type": "string"}, plugins]}
    names = {"type": "string", "description": "a shipped configuration, or a path relative to this file"}
    schema["properties"] = {
        "extends": {"anyOf": [names, {"type": "array", "items": names}]},
        **schema["properties"],
    }
    return schema


def _by_line(problem: str) -> tuple[str, int, str]:
    place = re.match(r"(.*?):(\d+): ", problem)
    return (place[1], int(place[2]), problem) if place else ("", 0, problem)
