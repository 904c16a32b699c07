"""nGPT as models of transformers, for AutoConfig and the Auto classes of decoders and of classifiers."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
    cache_utils,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput

from zoo.hub.ngpt import NGPT
from zoo.init import NGPTInit
from zoo.init.initialise import draw
from zoo.models import NGPTConfig
from zoo.models.classifier import pooled
from zoo.models.inputs import check_mask
from zoo.nn.sphere import project
from zoo.spec import Module
from zoo.utils.errors import DataError
from zoo.utils.untyped import JsonObject, Passed

CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"
"""The name of the cache in outputs: `past_key_values` before transformers 5.24, `cache` since then."""


class ZooNGPTConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # transformers
    """The fields of `zoo.models.NGPTConfig` under `model`, and the properties that generation needs."""

    model_type = NGPT.model_type

    def __init__(self, model: JsonObject | None = None, **fields: Passed) -> None:
        """Store zoo's fields; `fields` are those of transformers' base class."""
        self.model = model or {}
        super().__init__(**fields)

    @property
    def zoo_config(self) -> NGPTConfig:
        """The fields as a validated configuration."""
        return NGPTConfig(**self.model)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.zoo_config.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return self.zoo_config.d_model

    @property
    def num_hidden_layers(self) -> int:
        """Number of blocks."""
        return self.zoo_config.n_layers


class ZooNGPTPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # transformers
    """`zoo.models.NGPT` in `model`.

    Training it outside zoo needs the projection after every step: `zoo.attach(optimizer, model)`.
    """

    config_class = ZooNGPTConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        for name, spec in module.specs.items() if isinstance(module, Module) else ():
            parameter = module.get_parameter(name)
            parameter.copy_(draw(NGPTInit(), spec, torch.default_generator))
            if spec.sphere_dim is not None:
                project([(parameter, spec.sphere_dim)])


class ZooNGPTForCausalLM(ZooNGPTPreTrainedModel, GenerationMixin):
    """The language model, with the outputs and the cache of transformers."""

    def __init__(self, config: ZooNGPTConfig) -> None:
        """Build the model; parameters that are not loaded are initialised as in the paper."""
        super().__init__(config)
        # transformers sets the default to the dtype of `from_pretrained`, and zoo builds in float32.
        self.model = config.zoo_config.build().to(torch.get_default_dtype())
        self.post_init()  # type: ignore[no-untyped-call]  # transformers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: cache_utils.Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        cache: cache_utils.Cache | None = None,
        **ignored: object,
    ) -> CausalLMOutputWithPast:
        """Compute logits, and the loss if there are labels.

        Args:
            input_ids: (batch, time) int64, without the tokens in the cache.
            attention_mask: (batch, cached + time), all ones.
            past_key_values: the name of `cache` before transformers 5.24.
            labels: (batch, time) int64, the input tokens, which are shifted in this method; -100 is ignored.
            use_cache: whether to create a cache if there is none.
            logits_to_keep: number of last tokens for which to compute logits; 0: all.
            cache: the keys and values of earlier tokens, which are extended in place.
            ignored: what transformers passes to every model and this one does not need.

        Raises:
            DataError: The mask contains padding, or a cache has a name that is not known.
        """
        if unknown := [name for name, value in ignored.items() if isinstance(value, cache_utils.Cache)]:
            raise DataError(f"{unknown[0]}: a cache by an unknown name; expected cache or past_key_values")
        if attention_mask is not None and not attention_mask.all():
            raise DataError("attention_mask: has zeros; expected texts of one length, without padding")
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = cache_utils.DynamicCache()
        shared = None if cache is None else SharedCache(cache, len(self.model.blocks))
        hidden = self.model.hidden_states(input_ids, cache=shared)
        logits = self.model.lm_head(hidden[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        output = CausalLMOutputWithPast(loss=loss, logits=logits)
        if cache is not None:
            output[CACHE] = cache
        return output


class ZooNGPTForSequenceClassification(ZooNGPTPreTrainedModel):
    """The classifier: scaled cosines of the last token's hidden state with a unit vector for each class."""

    def __init__(self, config: ZooNGPTConfig) -> None:
        """Build the model; parameters that are not loaded are initialised as in the paper."""
        super().__init__(config)
        self.model = config.zoo_config.build().to(torch.get_default_dtype())
        self.model.remove_head()
        classes: Any = config.num_labels  # Any: an int, which its base class does not promise
        self.score = config.zoo_config.classification_head(classes).to(torch.get_default_dtype())
        self.post_init()  # type: ignore[no-untyped-call]  # transformers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: object,
    ) -> SequenceClassifierOutput:
        """Compute logits of the classes (batch, classes), and the loss if there are labels.

        Args:
            input_ids: (batch, time) int64.
            attention_mask: (batch, time), 0 for padding, which comes after the text; None: there is none.
            labels: (batch,) int64.

        Raises:
            DataError: The mask has another shape, or padding before a text.
        """
        mask = None if attention_mask is None else attention_mask.bool()
        check_mask(mask, input_ids)
        logits = self.score(pooled(self.model.hidden_states(input_ids), mask, "last"))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class SharedLayer:
    """One layer of a transformers cache with the interface of `zoo.nn.kv_cache.LayerCache`."""

    padding = None

    def __init__(self, past: cache_utils.Cache, index: int) -> None:
        self.past, self.index = past, index

    def extend(self, k: Tensor, v: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Append keys and values, (batch, time, kv heads, h) each, and return all stored ones."""
        keys, values = self.past.update(k.transpose(1, 2), v.transpose(1, 2), self.index)
        return keys.transpose(1, 2), values.transpose(1, 2)


class SharedCache:
    """A transformers cache with the interface of `zoo.nn.kv_cache.KVCache` and unlimited capacity."""

    padding = None

    def __init__(self, past: cache_utils.Cache, n_layers: int) -> None:
        self.layers = [SharedLayer(past, i) for i in range(n_layers)]
        self.position = past.get_seq_length()
        self.length = self.capacity = sys.maxsize

    def check_room(self, time: int) -> None:
        """Do nothing, because any number of further tokens fits."""


def register() -> None:
    """Register the classes with transformers' Auto classes; calling it again has no effect."""
    AutoConfig.register(NGPT.model_type, ZooNGPTConfig, exist_ok=True)
    AutoModelForCausalLM.register(ZooNGPTConfig, ZooNGPTForCausalLM, exist_ok=True)
    AutoModelForSequenceClassification.register(
        ZooNGPTConfig, ZooNGPTForSequenceClassification, exist_ok=True
    )
