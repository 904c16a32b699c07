"""The schema of `scale:` in a sweep file: sizes, budgets and seeds of a ladder."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from zoo.ablate.scale.line import FEWEST_SIZES
from zoo.ablate.scale.looks import FIRST_LOOK, MOST_LOOKS
from zoo.ablate.scale.runs import parse_count
from zoo.config.registry import Config
from zoo.utils.untyped import JsonObject

MOST = 1e15
"""The largest count, a hundred times the tokens of the longest training that is known."""

COPY_SEED = 1000
"""The first seed of a copy of the baseline, so that it shares no run with the baseline."""


def _count(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_count(value)
    except ValueError as error:
        raise ValueError("expected a number such as 2e6 or 2M") from error


Count = Annotated[
    float,
    BeforeValidator(_count),
    Field(gt=0, le=MOST, allow_inf_nan=False),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": MOST}, {"type": "string"}]}
    ),
]
"""A number above 0 and at most `MOST`, which may be written as 2M for 2,000,000."""


class SizeRule(Config):
    """Sizes by their number of parameters."""

    params: tuple[Count, ...] = Field(min_length=1, description="parameters of the baseline's models")
    shape: Literal["aspect", "width"] = Field(
        description="what grows: width and depth in the proportion of `base` (aspect), or the width alone "
        "(width); heads keep their size"
    )


class Budgets(Config):
    """The lengths of the runs of a size, in one unit: a list for all sizes, or a list for each of them."""

    tokens: tuple[Count | tuple[Count, ...], ...] | None = Field(None, description="training tokens")
    steps: tuple[Count | tuple[Count, ...], ...] | None = Field(None, description="optimizer steps")
    per_parameter: tuple[Count | tuple[Count, ...], ...] | None = Field(
        None, description="training tokens per parameter of the baseline's model"
    )
    trunk: bool = Field(
        False,
        description="train the longest run of a seed alone from the start, and let the shorter ones branch "
        "off where they cool down; needs a schedule of the kind of wsd",
    )

    @property
    def unit(self) -> Literal["tokens", "steps", "per_parameter"]:
        """The unit of the budgets."""
        return "tokens" if self.tokens else "steps" if self.steps else "per_parameter"

    def of_size(self, index: int) -> tuple[float, ...]:
        """The budgets of a size, ascending, in their unit."""
        values = getattr(self, self.unit)
        chosen = values[index] if isinstance(values[0], tuple) else values
        return tuple(sorted(chosen))

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        given = [unit for unit in ("tokens", "steps", "per_parameter") if getattr(self, unit)]
        if len(given) != 1:
            raise ValueError("expected one of tokens, steps and per_parameter, with at least one budget")
        values = getattr(self, given[0])
        if len({isinstance(value, tuple) for value in values}) > 1:
            raise ValueError("expected numbers, or a list for each size, not both")
        for budgets in values if isinstance(values[0], tuple) else (values,):
            if len(set(budgets)) < len(budgets) or not budgets:
                raise ValueError("expected different budgets, at least one")
        return self


class OtherSizes(Config):
    """The sizes of some variants, instead of those in `Scale.sizes`."""

    where: JsonObject = Field(min_length=1, description="the variants, as axis: value")
    sizes: tuple[JsonObject, ...] = Field(description="the keys of each size (key: value)")


class Scale(Config):
    """A ladder: every variant at several sizes and budgets, each run to the end of its own schedule."""

    sizes: tuple[JsonObject, ...] | SizeRule = Field(
        description="the keys that make each size (key: value), or {params: [...], shape: aspect}"
    )
    other_sizes: tuple[OtherSizes, ...] = Field(
        (),
        description="other keys for some variants at each size, instead of those in `sizes`: for models of "
        "another kind, for instance, that are to have as many parameters",
    )
    parameters: Literal["all", "non_embedding"] = Field(
        "all",
        description="what the size of a model is: all parameters, or those without an axis of the "
        "vocabulary (tables of tokens, the read-out and its scalings are left out)",
    )
    budgets: Budgets = Field(description="lengths of the runs; three with the ratios 1 : 2 : 4 are advised")
    seeds: int | tuple[int, ...] = Field(2, description="how many seeds, for all sizes or for each of them")
    max_seeds: int | None = Field(
        None,
        ge=FIRST_LOOK,
        le=MOST_LOOKS,
        description="the number of seeds up to which one after the other is added to `seeds`, until every "
        "word is decided; for one size only",
    )
    margin: float | None = Field(
        None, gt=1, allow_inf_nan=False, description="the factor within which two sides count as equal"
    )
    until_decided: bool = Field(
        False, description="add the sizes one after the other from the fourth on, until every word is decided"
    )
    again: bool = Field(
        False,
        description="the baseline once more with other seeds: anything but equal or undecided is an alarm",
    )
    planted: float | None = Field(
        None,
        gt=1,
        allow_inf_nan=False,
        description="to check the set-up: the baseline once more, trained on so many times the tokens that "
        "its runs report",
    )

    @field_validator("sizes", mode="before")
    @classmethod
    def _one_form(cls, value: object) -> object:
        """Choose the form by the value, so that an error is about the form that was meant."""
        if isinstance(value, dict):
            return SizeRule.model_validate(value)
        if isinstance(value, SizeRule):
            return value
        if isinstance(value, list | tuple) and value and all(isinstance(keys, dict) for keys in value):
            return tuple(value)
        raise ValueError("expected a list with the keys of each size, or {params: [...], shape: aspect}")

    @field_validator("seeds")
    @classmethod
    def _enough(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        each = value if isinstance(value, tuple) else (value,)
        if min(each, default=0) < 1 or max(each) > COPY_SEED:
            raise ValueError(f"expected how many seeds each size has, from 1 to {COPY_SEED:,}")
        return value

    @model_validator(mode="after")
    def _equally_many(self) -> Self:
        values = getattr(self.budgets, self.budgets.unit)
        lists = [("seeds", self.seeds), ("budgets", values if isinstance(values[0], tuple) else None)]
        lists += [("other_sizes", other.sizes) for other in self.other_sizes]
        for name, listed in lists:
            if isinstance(listed, tuple) and len(listed) != self.count:
                raise ValueError(
                    f"{name}: {len(listed)} entries for {self.count} sizes; expected one for each"
                )
        if self.until_decided and self.count <= FEWEST_SIZES:
            raise ValueError(
                f"until_decided: has no effect with {self.count} sizes, of which all are trained; expected "
                f"more than {FEWEST_SIZES}"
            )
        if self.max_seeds is not None:
            self._check_max_seeds(self.max_seeds)
        if self.budgets.trunk and min(len(self.budgets.of_size(i)) for i in range(self.count)) < 2:
            raise ValueError("budgets.trunk: has no effect on a size with a single budget")
        return self

    def _check_max_seeds(self, most: int) -> None:
        if self.count > 1:
            raise ValueError(
                f"max_seeds: {self.count} sizes; across sizes add a size, not a seed: expected one size, or "
                "until_decided"
            )
        if most <= len(self.seeds_of(0)):
            raise ValueError(f"max_seeds: has no effect with {len(self.seeds_of(0))} seeds; expected more")
        if len(self.budgets.of_size(0)) < 2:
            raise ValueError(
                "max_seeds: a single budget shows no token speed-up, whatever the seeds; expected two "
                "budgets or more"
            )

    @property
    def count(self) -> int:
        """The number of sizes."""
        return len(self.sizes.params if isinstance(self.sizes, SizeRule) else self.sizes)

    def seeds_of(self, index: int) -> tuple[int, ...]:
        """The seeds of a size."""
        return tuple(range(self.seeds[index] if isinstance(self.seeds, tuple) else self.seeds))
