"""Reading the files of an adapter of the library peft, and checking that zoo can express it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from zoo.checkpoint.safetensors import open_tensors
from zoo.hub import ADAPTER_CONFIG, CONFIG
from zoo.hub.adapter import ADAPTER_TENSORS, PREFIX
from zoo.hub.shards import read_json
from zoo.utils.errors import CheckpointError
from zoo.utils.untyped import JsonObject

KEY = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(\.weight)?")
WHOLE = re.compile(r"(?P<module>.+?)(\.base_layer)?\.(?P<local>weight|bias)")
"""Pattern of a tensor that was trained as a whole, or of an embedding that peft saves beside its change."""
SETTINGS = {
    "use_dora": (False,),
    "lora_bias": (False,),
    "bias": ("none",),
    "layer_replication": (None,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # others change the base as well
}
"""Settings for which zoo supports only these values."""
UNDERSTOOD = {
    *("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"),
    *("base_model_name_or_path", "modules_to_save", "fan_in_fan_out"),
}
HARMLESS = {
    # repeated by the names of the tensors
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying"),
    # the program and the model that wrote the file, and how the adapter was trained
    *("task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout"),
    *("eva_config", "loftq_config", "megatron_config", "megatron_core", "runtime_config"),
    "qalora_group_size",
}


@dataclass(frozen=True)
class LowRankPair:
    """A and B of one matrix of the Hugging Face model.

    Attributes:
        down: A, (rank, in).
        up: B, (out, rank).
        alpha: the change is alpha / rank B A; for rsLoRA alpha is converted accordingly.
        of_embedding: whether the pair changes the looked-up rows of an embedding.
    """

    down: Tensor
    up: Tensor
    alpha: float
    of_embedding: bool

    @property
    def rank(self) -> int:
        """The rank of the change."""
        return len(self.down)


@dataclass(frozen=True)
class AdapterFiles:
    """The content of an adapter's folder.

    Attributes:
        path: the folder.
        config: content of adapter_config.json.
        pairs: the changes by the names of the modules of the Hugging Face model.
        whole: tensors that were trained as a whole, by their names in that model.
    """

    path: Path
    config: JsonObject
    pairs: Mapping[str, LowRankPair]
    whole: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> AdapterFiles:
        """Read an adapter as peft writes it.

        Raises:
            CheckpointError: Files are missing or damaged, the adapter is not one of LoRA, or has settings
                that zoo does not understand.
        """
        config = read_json(path / ADAPTER_CONFIG)
        _check(config, path / ADAPTER_CONFIG)
        return cls(path, config, *_tensors(path, config))

    @property
    def base_name(self) -> str | None:
        """The adapter's name of its base model; None: it does not name one."""
        named = self.config.get("base_model_name_or_path")
        return named if isinstance(named, str) and named else None

    def find_base(self) -> Path:
        """The folder of the base model: the one that the adapter names, or its own folder.

        Raises:
            CheckpointError: There is no such folder.
        """
        if (named := self.base_name) is not None:
            for place in (Path(named), self.path / named, self.path.parent / named):
                if place.is_dir():
                    return place
        if (self.path / CONFIG).is_file():
            return self.path
        raise CheckpointError(
            f"{self.path / ADAPTER_CONFIG}: base_model_name_or_path: {named!r} is no folder here; expected "
            f"the model that was trained on: zoo import {self.path} OUT --base FOLDER (Python: base=FOLDER)"
        )


def _check(config: JsonObject, place: Path) -> None:
    """Refuse an adapter that is not plain LoRA; the message has a line for each unsupported setting."""
    problems = []
    if config.get("peft_type") != "LORA":
        problems.append(f"peft_type: {config.get('peft_type')!r}; expected 'LORA'")
    for name, accepted in SETTINGS.items():
        value = config.get(name, accepted[0])
        if value not in accepted:
            problems.append(f"{name}: {value!r}; expected {accepted[0]!r}")
    if config.get("peft_type") == "LORA":
        unknown = sorted(config.keys() - SETTINGS.keys() - UNDERSTOOD - HARMLESS)
        problems += [
            f"{name}: {str(config[name])[:60]!r}; expected none, as zoo does not know it"
            for name in unknown
            if config[name]
        ]
    if problems:
        raise CheckpointError("\n".join(f"{place}: {problem}" for problem in problems))


def _tensors(folder: Path, config: JsonObject) -> tuple[dict[str, LowRankPair], dict[str, Tensor]]:
    """A and B of every matrix by the names of the modules, and the tensors that are stored as a whole."""
    place = folder / ADAPTER_TENSORS
    sides: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    embeddings = set()
    with open_tensors(place) as file:
        for name in file.keys():  # noqa: SIM118
            local = name.removeprefix(PREFIX)
            if match := KEY.fullmatch(local):
                sides.setdefault(match["module"], {})[match["side"]] = file.get_tensor(name)
                if match["kind"]:
                    embeddings.add(match["module"])
            elif match := WHOLE.fullmatch(local):
                whole[f"{match['module']}.{match['local']}"] = file.get_tensor(name)
            else:
                raise CheckpointError(f"{place}: {name}: expected matrices, or A and B of LoRA")
    pairs = {}
    for name, both in sides.items():
        if both.keys() != {"A", "B"}:
            raise CheckpointError(f"{place}: {name}: has one of A and B; expected both")
        down, up = both["A"], both["B"]
        if (
            name in embeddings
        ):  # (rank, vocabulary) and (d, rank): the product is the transpose of the table's change
            down, up = up.mT, down.mT
        alpha, rank = (_of(config, key, name, folder / ADAPTER_CONFIG) for key in ("lora_alpha", "r"))
        if down.dim() != 2 or up.dim() != 2 or not down.shape[0] == up.shape[1] == rank:
            raise CheckpointError(
                f"{place}: {name}: A is {list(down.shape)} and B {list(up.shape)}; "
                f"expected matrices of rank {rank:g}, as {ADAPTER_CONFIG} says"
            )
        if config.get("use_rslora"):  # its factor is alpha / sqrt(rank)
            alpha *= rank**0.5
        pairs[name] = LowRankPair(down, up, alpha, name in embeddings)
    return pairs, whole


def _of(config: JsonObject, key: str, module: str, place: Path) -> float:
    """The rank or alpha of a module: that of the first pattern that its name ends with, or the common one."""
    name = {"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]
    patterns = config.get(name) or {}
    try:
        value = next((v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", module)), config.get(key))
    except (AttributeError, re.error) as error:
        raise CheckpointError(
            f"{place}: {name}: {str(patterns)[:60]!r}; expected an object of patterns and numbers ({error})"
        ) from error
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{place}: {key}: {value!r}; expected a positive number")
    return value
