"""The list of families, and the choice of one for a config.json or for a model of zoo."""

from __future__ import annotations

from zoo.data.files import JsonObject
from zoo.hub.bert import BERT
from zoo.hub.family import Family
from zoo.hub.gpt2 import GPT2
from zoo.hub.llama import LLAMA
from zoo.hub.mistral import MISTRAL
from zoo.hub.ngpt import NGPT
from zoo.hub.phi3 import PHI3
from zoo.hub.qwen import QWEN2, QWEN3
from zoo.hub.t5 import T5
from zoo.models import ModelConfig
from zoo.utils.errors import CheckpointError, did_you_mean

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GPT2, BERT, T5, NGPT)
"""If several families can express a model, the first one is taken."""


def family_of(config: JsonObject, place: str) -> Family:
    """The family of a config.json.

    Args:
        config: content of the file.
        place: path of the file, for messages.

    Raises:
        CheckpointError: the file names no architecture, or one of no family.
    """
    architectures, model_type = config.get("architectures"), config.get("model_type")
    known = [f.architecture for f in FAMILIES]
    if architectures:
        named = architectures[0] if isinstance(architectures, list) else architectures
        accepting = [f for f in FAMILIES if f.accepts(str(named))]
        if not accepting:
            raise CheckpointError(
                f"{place}: architectures: no family '{named}'{did_you_mean(str(named), known)}"
            )
        return accepting[0]
    same_type = [f for f in FAMILIES if f.model_type == model_type]
    if not same_type:
        raise CheckpointError(f"{place}: model_type: {model_type!r}; expected one of {', '.join(known)}")
    return same_type[0]


def family_for(config: ModelConfig) -> tuple[Family, JsonObject]:
    """The first family that can express a model, and the content of its config.json.

    Raises:
        CheckpointError: no family can express it; the message says why for each family of this model type.
    """
    problems = []
    for family in FAMILIES:
        if type(config) is family.model:
            try:
                return family, family.to_hf(config)
            except CheckpointError as error:
                problems.append(str(error))
    name = type(config).model_fields["type"].default
    known = sorted({f.model.model_fields["type"].default for f in FAMILIES})
    reasons = "\n".join(problems) or f"expected one of type {', '.join(known)}"
    raise CheckpointError(f"no family on the hub can express this model of type '{name}':\n{reasons}")
