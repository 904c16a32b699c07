"""The list of families, and the choice of a family for a config.json or a zoo model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from zoo.config.registry import type_of
from zoo.hub import CONFIG
from zoo.hub.bert import BERT
from zoo.hub.family import Family
from zoo.hub.gemma import GEMMA2, GEMMA3
from zoo.hub.gpt2 import GPT2
from zoo.hub.llama import LLAMA
from zoo.hub.mistral import MISTRAL
from zoo.hub.modernbert import MODERNBERT
from zoo.hub.neox import NEOX
from zoo.hub.ngpt import NGPT
from zoo.hub.olmo2 import OLMO2
from zoo.hub.phi3 import PHI3
from zoo.hub.qwen import QWEN2, QWEN3
from zoo.hub.roberta import ROBERTA
from zoo.hub.smollm3 import SMOLLM3
from zoo.hub.t5 import T5
from zoo.models import ModelConfig
from zoo.utils.errors import CheckpointError
from zoo.utils.untyped import Json, JsonObject

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    PHI3,
    SMOLLM3,
    OLMO2,
    GEMMA2,
    GEMMA3,
    NEOX,
    GPT2,
    BERT,
    ROBERTA,
    MODERNBERT,
    T5,
    NGPT,
)
"""All families. If several can express a model, the first one is taken."""


def family_of(config: JsonObject, place: str) -> Family:
    """The family of a config.json.

    Args:
        config: content of the file.
        place: path of the file, for messages.

    Raises:
        CheckpointError: The file names no architecture, or one that belongs to no family.
    """
    architectures, model_type = config.get("architectures"), config.get("model_type")
    known = [f.architecture for f in FAMILIES]
    if architectures:
        named = architectures[0] if isinstance(architectures, list) else architectures
        accepting = [f for f in FAMILIES if f.accepts(str(named))]
        if not accepting and isinstance(config.get("text_config"), dict):
            raise CheckpointError(
                f"{place}: architectures: '{named}' reads more than text (its text model is in "
                f"'text_config'); expected one of {', '.join(known)}"
            )
        if not accepting:
            raise CheckpointError(f"{place}: architectures: no family '{named}'{_similar(str(named), known)}")
        return accepting[0]
    same_type = [f for f in FAMILIES if f.model_type == model_type]
    if not same_type:
        raise CheckpointError(f"{place}: model_type: {model_type!r}; expected one of {', '.join(known)}")
    return same_type[0]


def _similar(named: str, known: Sequence[str]) -> str:
    """`did_you_mean` for the part of a name in front of ``ForCausalLM``, which is common to most names."""
    stems = {name.partition("For")[0]: name for name in known}
    close = get_close_matches(named.partition("For")[0], stems, n=1)
    return f"; did you mean '{stems[close[0]]}'?" if close else f"; known: {', '.join(known)}"


def family_of_origin(config: ModelConfig, published: Mapping[str, Json]) -> tuple[Family, JsonObject] | None:
    """The family of the Hugging Face folder that a model came from, and the content of its config.json.

    If the config.json still describes the model, its content is written again; if the model was changed, only
    the fields that do not change the logits are.

    Args:
        config: zoo's configuration of the model.
        published: the contents of the settings files of the folder of another library that the model came
            from, see `zoo.models.base.Model`.

    Returns:
        The family and the content; None: the model came from no folder, or was changed so that the family
        cannot express it.
    """
    given: JsonObject = published.get("config", {})
    family = family_of(given, CONFIG) if given else None
    if family is None or type(config) is not family.model:
        return None
    architecture = {"architectures": [family.architecture]}
    if family.to_zoo(given, CONFIG) == config:
        return family, given | architecture
    try:
        written = family.to_hf(config)
    except CheckpointError:
        return None
    return family, written | {k: v for k, v in given.items() if family.ignores(k)} | architecture


def family_for(config: ModelConfig) -> tuple[Family, JsonObject]:
    """The first family that can express a model, and the content of its config.json.

    Raises:
        CheckpointError: No family can express the model; the message says why for each family of this model
            type.
    """
    problems = []
    for family in FAMILIES:
        if type(config) is family.model:
            try:
                return family, family.to_hf(config)
            except CheckpointError as error:
                problems.append(str(error))
    name = type_of(config)
    known = sorted({f.model.model_fields["type"].default for f in FAMILIES})
    reasons = "\n".join(problems) or f"expected one of type {', '.join(known)}"
    raise CheckpointError(f"no family on the hub can express this model of type '{name}':\n{reasons}")
