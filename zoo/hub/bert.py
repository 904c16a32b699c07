"""BERT, as a masked language model."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.hub.classifier import BERT_HEAD
from zoo.hub.family import Family
from zoo.hub.fields import Codec, ConfigField, FixedField, RefusedError, Value, ValueMap
from zoo.hub.rules import layer_norm, linear, rule
from zoo.models import BERTConfig


@dataclass(frozen=True)
class Positions(Codec):
    """Codec of the number of learned positions; transformers' BERT supports no other type of position.

    Attributes:
        offset: rows in front of the first position, which are counted but not used.
    """

    offset: int = 0

    def to_zoo(self, value: Value) -> Value:
        """Convert 512 to absolute positions of that length."""
        length = value - self.offset if isinstance(value, int) else value
        return {"type": "absolute", "length": length, "offset": self.offset}

    def to_hf(self, value: Value) -> Value:
        """Convert absolute positions to their number."""
        if value["type"] != "absolute" or value["offset"] != self.offset:
            raise RefusedError(f"absolute positions with offset {self.offset}")
        return value["length"] + self.offset


LAYER = "bert.encoder.layer.{i}"

RULES = (
    rule("embedding.token.weight", "bert.embeddings.word_embeddings.weight"),
    rule("embedding.segment.weight", "bert.embeddings.token_type_embeddings.weight"),
    rule("embedding.position.weight", "bert.embeddings.position_embeddings.weight"),
    *layer_norm("embedding.norm", "bert.embeddings.LayerNorm"),
    *linear("blocks.{i}.attention.q", f"{LAYER}.attention.self.query"),
    *linear("blocks.{i}.attention.k", f"{LAYER}.attention.self.key"),
    *linear("blocks.{i}.attention.v", f"{LAYER}.attention.self.value"),
    *linear("blocks.{i}.attention.o", f"{LAYER}.attention.output.dense"),
    *layer_norm("blocks.{i}.attention_residual.norm", f"{LAYER}.attention.output.LayerNorm"),
    *linear("blocks.{i}.mlp.up", f"{LAYER}.intermediate.dense"),
    *linear("blocks.{i}.mlp.down", f"{LAYER}.output.dense"),
    *layer_norm("blocks.{i}.mlp_residual.norm", f"{LAYER}.output.LayerNorm"),
    *linear("head.transform", "cls.predictions.transform.dense"),
    *layer_norm("head.norm", "cls.predictions.transform.LayerNorm"),
    rule("head.bias", "cls.predictions.bias"),
)


GELU_FORMS = ValueMap({"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"})

BERT = Family(
    architecture="BertForMaskedLM",
    model_type="bert",
    model=BERTConfig,
    fields=(
        ConfigField("vocab_size", "vocab_size", default=30522),
        ConfigField("hidden_size", "d_model", default=768),
        ConfigField("num_hidden_layers", "n_layers", default=12, layers=True),
        ConfigField("num_attention_heads", "n_heads", default=12),
        ConfigField("intermediate_size", "d_mlp", default=3072, resolved="mlp_size"),
        ConfigField("max_position_embeddings", "position", default=512, codec=Positions()),
        ConfigField("type_vocab_size", "n_segments", default=2),
        ConfigField("hidden_dropout_prob", "dropout", default=0.1),
        ConfigField("attention_probs_dropout_prob", "attention_dropout", default=0.1),
        ConfigField("hidden_act", "gelu", default="gelu", codec=GELU_FORMS),
        ConfigField("layer_norm_eps", "norm_eps", default=1e-12),
    ),
    fixed=(
        FixedField("position_embedding_type", ("absolute",)),
        FixedField("is_decoder", (False,)),
        FixedField("add_cross_attention", (False,)),
        FixedField("is_encoder_decoder", (False,)),
        FixedField("tie_word_embeddings", (True,)),
        FixedField("pruned_heads", ({},), written=False),
    ),
    constants={"zero_start": False},
    harmless=frozenset(
        {
            "classifier_dropout",
            # written by the code of the authors' first release
            *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
            *("pooler_size_per_head", "pooler_type"),
        }
    ),
    rules=RULES,
    prefix="bert.",
    buffers=("*.embeddings.position_ids",),
    duplicates={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    auto="AutoModelForMaskedLM",
    head=BERT_HEAD,
    renamed_suffixes={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
)
