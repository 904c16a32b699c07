"""RoBERTa, as a masked language model: BERT with other names, and two unused rows of positions in front."""

from __future__ import annotations

from dataclasses import replace

from zoo.hub.bert import BERT, Positions
from zoo.hub.classifier import ROBERTA_HEAD
from zoo.hub.fields import FixedField
from zoo.hub.rules import Rule

HEAD = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    "cls.predictions.bias": "lm_head.bias",
}


def _renamed(r: Rule) -> Rule:
    """A rule of BERT with RoBERTa's names."""
    name = r.hub_name.replace("bert.", "roberta.", 1) if r.hub_name.startswith("bert.") else r.hub_name
    for bert, roberta in HEAD.items():
        name = name.replace(bert, roberta)
    return replace(r, hub_name=name)


PADDING = 1
"""The id of padding, which is also the number of the last unused row of positions."""

ROBERTA = replace(
    BERT,
    architecture="RobertaForMaskedLM",
    model_type="roberta",
    fields=(
        *(replace(f, default=50265) for f in BERT.fields if f.hub_name == "vocab_size"),
        *(
            replace(f, codec=Positions(PADDING + 1))
            for f in BERT.fields
            if f.hub_name == "max_position_embeddings"
        ),
        *(
            f
            for f in BERT.fields
            if f.hub_name not in ("vocab_size", "max_position_embeddings", "hidden_act")
        ),
    ),
    fixed=(*BERT.fixed, FixedField("hidden_act", ("gelu",)), FixedField("pad_token_id", (PADDING,))),
    constants={**BERT.constants, "gelu": "exact"},
    rules=tuple(map(_renamed, BERT.rules)),
    prefix="roberta.",
    padding=PADDING,
    duplicates={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    renamed_suffixes={},
    head=ROBERTA_HEAD,
)
