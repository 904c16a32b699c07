"""The trunk of a classifier's checkpoint as a checkpoint of its own, and a language model's as a trunk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from torch import Tensor, nn

from zoo.checkpoint.formats import OpenedCheckpoint
from zoo.checkpoint.recipe import Recipe, declare
from zoo.checkpoint.report import LoadPlan
from zoo.config.registry import type_of
from zoo.models import ModelConfig
from zoo.utils.errors import CheckpointError
from zoo.utils.printable import first_few
from zoo.utils.untyped import Json

TRUNK = "trunk"
"""The name of a classifier's language model, as a field and as a submodule."""


def opened_for(opened: OpenedCheckpoint, part: str, kind: str | None) -> OpenedCheckpoint:
    """The part of a checkpoint that fills a model or a part of one: the trunk, if it is a classifier's.

    Args:
        opened: the checkpoint.
        part: the part of the model to fill; empty: the whole model.
        kind: the `type` of the model or part to fill; None: that of the checkpoint.
    """
    trunk = getattr(opened.recipe.model, TRUNK, None)
    return TrunkCheckpoint(opened) if trunk is not None and (part or kind == trunk.type) else opened


@dataclass(frozen=True)
class TrunkCheckpoint:
    """The trunk of a classifier; the tensors of its head are reported as unused.

    Attributes:
        whole: the checkpoint of the classifier.
    """

    whole: OpenedCheckpoint

    @property
    def recipe(self) -> Recipe:
        """The recipe of the classifier, with the trunk as the model."""
        recipe = self.whole.recipe
        return recipe.model_copy(update={"model": getattr(recipe.model, TRUNK)})

    @property
    def published(self) -> Mapping[str, Json]:
        """The published settings of the classifier, see `zoo.models.base.Model`."""
        return self.whole.published

    @property
    def labels(self) -> Sequence[str]:
        """An empty list, because classes belong to the head, which the trunk does not have."""
        return ()

    def restore(self, part: nn.Module) -> None:
        """Complete a trunk on the meta device, see `OpenedCheckpoint`."""
        self.whole.restore(nn.ModuleDict({TRUNK: part}))

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors to read, see `OpenedCheckpoint`.

        A language model that is made of the trunk may need a language model head, which no classifier has.
        The head is missing then, and a pattern has to allow it by its name in the model.

        Raises:
            CheckpointError: Tensors are missing or unexpected, see `OpenedCheckpoint.plan`.
        """
        classifier = declare(self.whole.recipe)
        self.whole.restore(classifier)
        state, prefix = classifier.state_dict(), f"{TRUNK}."
        missing = tuple(name for name in needed if prefix + name not in state)
        allowed = [pattern for pattern in allow if any(fnmatchcase(name, pattern) for name in missing)]
        if refused := [n for n in missing if not any(fnmatchcase(n, pattern) for pattern in allowed)]:
            kind = type_of(self.recipe.model)
            raise CheckpointError(
                f"a classifier on a '{kind}' has no {first_few(refused)}; expected the checkpoint of a "
                "language model, or a pattern that allows it to be drawn at random (checkpoint.allow)"
            )
        there = {prefix + name for name in needed if name not in missing}
        plan = self.whole.plan(state, there, [pattern for pattern in allow if pattern not in allowed])
        fills = frozenset(name.removeprefix(prefix) for name in plan.fills)
        report = replace(plan.report, missing=(*plan.report.missing, *missing))
        return LoadPlan(report, fills, lambda to: plan.fill({prefix + name: t for name, t in to.items()}))


@dataclass(frozen=True)
class LanguageModelAsTrunk:
    """A language model as the trunk of a classifier, whose head is elsewhere: in an adapter.

    Attributes:
        language_model: the checkpoint of the language model; its own head is reported as unused.
        classifier: the configuration of the classifier.
        published: the published settings of the classifier, see `zoo.models.base.Model`.
    """

    language_model: OpenedCheckpoint
    classifier: ModelConfig
    published: Mapping[str, Json]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the language model, with the classifier as the model."""
        return self.language_model.recipe.model_copy(update={"model": self.classifier})

    @property
    def labels(self) -> Sequence[str]:
        """An empty list, because a language model has no classes, and an adapter does not name them."""
        return ()

    def restore(self, part: nn.Module) -> None:
        """Complete the trunk of a classifier on the meta device, see `OpenedCheckpoint`."""
        self.language_model.restore(part.get_submodule(TRUNK))

    def plan(self, whole: Mapping[str, Tensor], needed: Collection[str], allow: Sequence[str]) -> LoadPlan:
        """Decide which tensors of the trunk to read, see `OpenedCheckpoint`."""
        model, prefix = declare(self.language_model.recipe), f"{TRUNK}."
        self.language_model.restore(model)
        of_trunk = [name.removeprefix(prefix) for name in needed if name.startswith(prefix)]
        plan = self.language_model.plan(model.state_dict(), of_trunk, allow)
        fills = frozenset(prefix + name for name in plan.fills)
        return replace(
            plan,
            fills=fills,
            fill=lambda to: plan.fill({name.removeprefix(prefix): to[name] for name in fills}),
        )
