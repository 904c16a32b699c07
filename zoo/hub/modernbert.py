"""ModernBERT, as a masked language model: BERT's successor with fused matrices and few biases."""

from __future__ import annotations

from zoo.hub.classifier import MODERNBERT_HEAD
from zoo.hub.family import Family
from zoo.hub.fields import Codec, ConfigField, FixedField, RefusedError, Value
from zoo.hub.rules import Stacked, rule
from zoo.hub.window import FULL, SLIDING, cycled, shortest_cycle
from zoo.models import ModernBERTConfig
from zoo.utils.untyped import JsonObject


class GlobalLayers(Codec):
    """Codec of ``layer_types``, which `_read` has reduced to its shortest cycle."""

    def to_zoo(self, value: Value) -> Value:
        """Convert the names of the two types."""
        types = value if isinstance(value, list) and value else [value]
        if not all(kind in (FULL, SLIDING) for kind in types):
            raise RefusedError(f"a list of '{FULL}' and '{SLIDING}'")
        return [kind == FULL for kind in types]

    def to_hf(self, value: Value) -> Value:
        """The inverse of `to_zoo`."""
        return [FULL if everything else SLIDING for everything in value]


class BothSides(Codec):
    """Codec of ``local_attention``, which counts the tokens on both sides together; zoo counts one side."""

    def to_zoo(self, value: Value) -> Value:
        """Return half of the number, rounded down as in transformers."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise RefusedError("a number of tokens")
        return value // 2

    def to_hf(self, value: Value) -> Value:
        """Return twice the number."""
        return 2 * value


THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
"""The bases of RoPE by the types of layers, in the form before transformers 5."""
EVERY = "global_attn_every_n_layers"


def _read(config: JsonObject) -> JsonObject:
    """Read both forms of layer types and RoPE's bases; anything but plain RoPE is refused later."""
    config = dict(config)
    every, layers = config.get(EVERY, 3), config.get("num_hidden_layers", 22)
    if config.get("layer_types") is None and isinstance(every, int) and isinstance(layers, int) and every > 0:
        config["layer_types"] = [SLIDING if i % every else FULL for i in range(layers)]
    if isinstance(types := config.get("layer_types"), list) and types:
        config["layer_types"] = shortest_cycle(types)
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or not rope.keys() <= THETAS.keys() or not all(map(_plain, rope.values())):
        return config
    for kind, fields in rope.items():
        config[THETAS[kind]] = fields.get("rope_theta", config.get(THETAS[kind], DEFAULTS[kind]))
    return config | {"rope_parameters": None}


def _plain(rope: Value) -> bool:
    """Whether RoPE has no parameters other than its base."""
    known = isinstance(rope, dict) and rope.keys() <= {"rope_type", "rope_theta"}
    return known and rope.get("rope_type", "default") == "default"


def _write(config: JsonObject) -> JsonObject:
    """Write both forms, of the layer types only if the older form can express them."""
    types = cycled(config["layer_types"], config["num_hidden_layers"])
    rope = {kind: {"rope_type": "default", "rope_theta": config[name]} for kind, name in THETAS.items()}
    every = next((i for i, kind in enumerate(types) if i and kind == FULL), len(types))
    regular = types == [SLIDING if i % every else FULL for i in range(len(types))]
    return config | {"layer_types": types, "rope_parameters": rope} | ({EVERY: every} if regular else {})


DEFAULTS = {FULL: 160000.0, SLIDING: 10000.0}
LAYER = "model.layers.{i}"

RULES = (
    rule("embedding.token.weight", "model.embeddings.tok_embeddings.weight"),
    rule("embedding.norm.scale", "model.embeddings.norm.weight"),
    rule("blocks.{i}.attention_residual.norm.scale", f"{LAYER}.attn_norm.weight"),
    rule(tuple(f"blocks.{{i}}.attention.{x}.weight" for x in "qkv"), f"{LAYER}.attn.Wqkv.weight", Stacked()),
    rule("blocks.{i}.attention.o.weight", f"{LAYER}.attn.Wo.weight"),
    rule("blocks.{i}.mlp_residual.norm.scale", f"{LAYER}.mlp_norm.weight"),
    rule(tuple(f"blocks.{{i}}.mlp.{x}.weight" for x in ("nu", "u")), f"{LAYER}.mlp.Wi.weight", Stacked()),
    rule("blocks.{i}.mlp.down.weight", f"{LAYER}.mlp.Wo.weight"),
    rule("norm.scale", "model.final_norm.weight"),
    rule("head.transform.weight", "head.dense.weight"),
    rule("head.norm.scale", "head.norm.weight"),
    rule("head.bias", "decoder.bias"),
)

MODERNBERT = Family(
    architecture="ModernBertForMaskedLM",
    model_type="modernbert",
    model=ModernBERTConfig,
    fields=(
        ConfigField("vocab_size", "vocab_size", default=50368),
        ConfigField("hidden_size", "d_model", default=768),
        ConfigField("num_hidden_layers", "n_layers", default=22, layers=True),
        ConfigField("num_attention_heads", "n_heads", default=12),
        ConfigField("intermediate_size", "d_mlp", default=1152, resolved="mlp_size"),
        ConfigField("layer_types", "global_blocks", codec=GlobalLayers()),
        ConfigField("local_attention", "reach", default=128, codec=BothSides()),
        ConfigField(THETAS[FULL], "rope_base", default=DEFAULTS[FULL]),
        ConfigField(THETAS[SLIDING], "rope_local_base", default=DEFAULTS[SLIDING]),
        ConfigField("embedding_dropout", "embedding_dropout", default=0.0),
        ConfigField("attention_dropout", "attention_dropout", default=0.0),
        ConfigField("mlp_dropout", "mlp_dropout", default=0.0),
        ConfigField("norm_eps", "norm_eps", default=1e-5),
    ),
    fixed=(
        FixedField("hidden_activation", ("gelu",)),
        FixedField("classifier_activation", ("gelu",)),
        FixedField("attention_bias", (False,)),
        FixedField("mlp_bias", (False,)),
        FixedField("norm_bias", (False,)),
        FixedField("classifier_bias", (False,)),
        FixedField("decoder_bias", (True,)),
        FixedField("tie_word_embeddings", (True,)),
        FixedField("rope_parameters", (None,)),  # `_read` has taken the bases out
        FixedField("rope_scaling", (None,)),
    ),
    harmless=frozenset(
        {
            EVERY,  # see `_read`
            *("max_position_embeddings", "initializer_cutoff_factor", "deterministic_flash_attn"),
            *("sparse_prediction", "sparse_pred_ignore_index", "repad_logits_with_grad", "reference_compile"),
            *("classifier_dropout", "classifier_pooling"),
            *("layer_norm_eps", "position_embedding_type"),  # in published files, without effect
        }
    ),
    rules=RULES,
    prefix="model.",
    duplicates={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    null_tokens=("pad_token_id", "cls_token_id", "sep_token_id"),
    auto="AutoModelForMaskedLM",
    read=_read,
    write=_write,
    head=MODERNBERT_HEAD,
)
