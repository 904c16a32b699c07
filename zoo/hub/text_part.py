"""The text model in the folder of a multimodal model: a part of config.json and of the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from zoo.hub.shards import TensorEntry
from zoo.utils.untyped import JsonObject

PART = "text_config"
"""The field of config.json that describes the text model."""
SHARED = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "tie_word_embeddings")
"""Fields of the whole config.json that apply to the text model as well."""
PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
"""Prefixes of the text model's tensor names, in files and in memory, and those in a folder of its own."""
OTHERS = (
    "vision_tower.*",
    "multi_modal_projector.*",
    "model.vision_tower.*",
    "model.multi_modal_projector.*",
)
"""Patterns of the tensors of the image encoder."""


@dataclass(frozen=True)
class TextPart:
    """The rules by which the folder of a multimodal model is read as one of its text model.

    Attributes:
        architecture: the class of the text model alone.
    """

    architecture: str

    def config(self, whole: JsonObject) -> JsonObject:
        """The config.json of the text model."""
        shared = {name: whole[name] for name in SHARED if name in whole}
        return {**whole[PART], **shared, "architectures": [self.architecture]}

    def split(self, entries: Mapping[str, TensorEntry]) -> tuple[dict[str, TensorEntry], tuple[str, ...]]:
        """The text model's tensors by the names they have in its own folder, and the names of all others."""
        others = {name: None for name in entries if any(fnmatchcase(name, pattern) for pattern in OTHERS)}
        of_text = {_own_name(name): entry for name, entry in entries.items() if name not in others}
        return of_text, tuple(others)


def _own_name(name: str) -> str:
    for old, new in PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


TEXT_PARTS: Mapping[str, TextPart] = {
    "Gemma3ForConditionalGeneration": TextPart("Gemma3ForCausalLM"),
    "Mistral3ForConditionalGeneration": TextPart("MistralForCausalLM"),
}
"""Text parts by the class in config.json: Gemma 3 from 4B on, Mistral Small from 3.1 on."""


def text_part(config: JsonObject) -> TextPart | None:
    """The text part of a config.json; None: it describes a text model itself."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(config.get(PART), dict):
        return None
    return TEXT_PARTS.get(str(architectures[0]))
