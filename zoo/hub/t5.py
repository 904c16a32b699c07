"""T5: the first version, v1.1 and Flan."""

from __future__ import annotations

from zoo.hub.classifier import T5_HEAD
from zoo.hub.family import Family
from zoo.hub.fields import ConfigField, FixedField, ValueMap
from zoo.hub.rules import Rule, rule
from zoo.models import T5Config
from zoo.utils.untyped import JsonObject


def _attention(zoo_name: str, hub_name: str) -> tuple[Rule, ...]:
    """The rules of the four matrices of an attention layer."""
    return tuple(rule(f"{zoo_name}.{name}.weight", f"{hub_name}.{name}.weight") for name in "qkvo")


def _mlp(zoo_name: str, hub_name: str) -> tuple[Rule, ...]:
    """The rules of an MLP with three matrices, whose gate transformers calls wi_0, or with two."""
    pairs = (("nu", "wi_0"), ("u", "wi_1"), ("up", "wi"), ("down", "wo"))
    return tuple(rule(f"{zoo_name}.{a}.weight", f"{hub_name}.DenseReluDense.{b}.weight") for a, b in pairs)


def _read(config: JsonObject) -> JsonObject:
    """Read ``feed_forward_proj``; other fields may repeat it, and are refused if they contradict it.

    Without ``scale_decoder_outputs``, the last hidden states are scaled if and only if the embeddings are
    tied. With it ``tie_word_embeddings`` is ignored, because transformers 5 writes true for every T5.
    """
    config = {"scale_decoder_outputs": config.get("tie_word_embeddings") is not False, **config}
    kind = config.get("feed_forward_proj", "relu")
    if not isinstance(kind, str) or kind not in ACTIVATIONS:
        return config  # it is refused later
    repeated = {"dense_act_fn": ACTIVATIONS[kind], "is_gated_act": kind != "relu"}
    for name, expected in repeated.items():
        if config.get(name, expected) != expected:
            config["feed_forward_proj"] = f"{kind} and {name}: {config[name]}"
    return config


def _write(config: JsonObject) -> JsonObject:
    """Add the fields that repeat others, and the first token of T5's targets."""
    kind, tied = config["feed_forward_proj"], config["scale_decoder_outputs"]
    repeated = {"dense_act_fn": ACTIVATIONS[kind], "is_gated_act": kind != "relu"}
    return {**config, **repeated, "tie_word_embeddings": tied, "decoder_start_token_id": 0}


ACTIVATIONS = {"relu": "relu", "gated-gelu": "gelu_new"}
"""The activation of each ``feed_forward_proj``."""


ENCODER, DECODER = "encoder.block.{i}.layer", "decoder.block.{i}.layer"
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"

RULES = (
    rule("embedding.weight", "shared.weight"),
    rule("encoder_bias.weight", f"encoder.{BIAS}"),
    rule("encoder_blocks.{i}.attention_residual.norm.scale", f"{ENCODER}.0.layer_norm.weight"),
    *_attention("encoder_blocks.{i}.attention", f"{ENCODER}.0.SelfAttention"),
    rule("encoder_blocks.{i}.mlp_residual.norm.scale", f"{ENCODER}.1.layer_norm.weight"),
    *_mlp("encoder_blocks.{i}.mlp", f"{ENCODER}.1"),
    rule("encoder_norm.scale", "encoder.final_layer_norm.weight"),
    rule("decoder_bias.weight", f"decoder.{BIAS}"),
    rule("decoder_blocks.{i}.attention_residual.norm.scale", f"{DECODER}.0.layer_norm.weight"),
    *_attention("decoder_blocks.{i}.attention", f"{DECODER}.0.SelfAttention"),
    rule("decoder_blocks.{i}.cross_residual.norm.scale", f"{DECODER}.1.layer_norm.weight"),
    *_attention("decoder_blocks.{i}.cross", f"{DECODER}.1.EncDecAttention"),
    rule("decoder_blocks.{i}.mlp_residual.norm.scale", f"{DECODER}.2.layer_norm.weight"),
    *_mlp("decoder_blocks.{i}.mlp", f"{DECODER}.2"),
    rule("decoder_norm.scale", "decoder.final_layer_norm.weight"),
    rule("read_out.matrix.weight", "lm_head.weight"),
)

T5 = Family(
    architecture="T5ForConditionalGeneration",
    model_type="t5",
    model=T5Config,
    fields=(
        ConfigField("vocab_size", "vocab_size", default=32128),
        ConfigField("d_model", "d_model", default=512),
        ConfigField("num_layers", "n_layers", default=6, layers=True),
        ConfigField(
            "num_decoder_layers", "n_decoder_layers", default=None, resolved="decoder_layers", layers=True
        ),
        ConfigField("num_heads", "n_heads", default=8),
        ConfigField("d_kv", "d_head", default=64, resolved="head_size"),
        ConfigField("d_ff", "d_mlp", default=2048, resolved="mlp_size"),
        ConfigField("relative_attention_num_buckets", "buckets", default=32),
        ConfigField("relative_attention_max_distance", "max_distance", default=128),
        ConfigField("dropout_rate", "dropout", default=0.1),
        ConfigField("layer_norm_epsilon", "norm_eps", default=1e-6),
        ConfigField(
            "feed_forward_proj",
            "mlp",
            default="relu",
            codec=ValueMap({"relu": "relu", "gated-gelu": "geglu"}),
        ),
        ConfigField("scale_decoder_outputs", "tied", default=True),
    ),
    fixed=(
        FixedField("is_encoder_decoder", (True,)),
        FixedField("is_decoder", (False,)),
    ),
    harmless=frozenset(
        {
            *("classifier_dropout", "initializer_factor"),
            "n_positions",  # written by old versions; positions are relative
            *("tie_word_embeddings", "dense_act_fn", "is_gated_act"),  # see `_read`
        }
    ),
    rules=RULES,
    buffers=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    left_out={"lm_head.weight": "shared.weight"},  # for a T5 v1.1 that transformers 5 has initialised
    duplicates={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
    inputs=("input_ids", "decoder_input_ids"),
    auto="AutoModelForSeq2SeqLM",
    head=T5_HEAD,
    read=_read,
    write=_write,
)
