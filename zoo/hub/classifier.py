"""Text classifiers: a family's trunk with the head of its ``...ForSequenceClassification``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from zoo.hub.family import Family, SequenceHead, in_terms_of
from zoo.hub.fields import ConfigField, RefusedError, ValueMap, one_of
from zoo.hub.rules import Rule, linear, rule
from zoo.models import ModelConfig
from zoo.models.classifier import ClassifierConfig
from zoo.utils.errors import CheckpointError
from zoo.utils.untyped import JsonObject, Kwargs

SUFFIX = "ForSequenceClassification"
DROPOUT = "classifier_dropout"
DECODER_START = "decoder_start_token_id"
END = "eos_token_id"
MOST_CLASSES = 100_000
"""The largest plausible number of classes without names; a larger one is an error."""

LAST_TOKEN = SequenceHead("last", (rule("head.linear.weight", "score.weight"),))
"""The head of transformers' decoders: W h of the last token that is not padding."""

UNIT_HEAD = SequenceHead(
    "last",
    (rule("head.linear.weight", "score.linear.weight"), rule("head.s_z.scale", "score.s_z.scale")),
    biased=False,
)
"""nGPT's head, with the names of `zoo.hub.auto`: (W h) s_z of the last token."""

BERT_HEAD = SequenceHead(
    "first",
    (
        *linear("pooler", "bert.pooler.dense"),
        *linear("head.linear", "classifier"),
    ),
    segments="token_type_ids",
    drops=True,
)
"""BERT's head: W tanh(pooler(h)) + b of the first token."""

ROBERTA_HEAD = replace(
    BERT_HEAD,
    rules=(
        *linear("pooler", "classifier.dense"),
        *linear("head.linear", "classifier.out_proj"),
    ),
)
"""RoBERTa's head: BERT's with other names. In training, transformers drops entries of h as well."""

MODERNBERT_HEAD = SequenceHead(
    "",
    (
        rule("pooler.transform.weight", "head.dense.weight"),
        rule("pooler.norm.scale", "head.norm.weight"),
        *linear("head.linear", "classifier"),
    ),
    pooling=ConfigField(
        "classifier_pooling", "pool", default="cls", codec=ValueMap({"cls": "first", "mean": "mean"})
    ),
    drops=True,
)
"""ModernBERT's head: W LayerNorm(GELU(V h)) + b of the first token or the mean."""

T5_HEAD = SequenceHead(
    "last",
    (
        *linear("pooler", "classification_head.dense"),
        *linear("head.linear", "classification_head.out_proj"),
    ),
    drops=True,
    no_dropout=0.0,
    decodes=True,
    prefix="transformer.",
)
"""T5's head: W tanh(V h + c) + b of the decoder's h at the last end token of the text, which is source and
target. In training, transformers drops entries of h as well."""


def classifier_family(family: Family) -> Family:
    """The family of the classifiers on a family's trunk; its fields are those of the trunk.

    Raises:
        CheckpointError: Transformers has no classifier of this family, or zoo does not support it.
    """
    head = family.head
    if head is None:
        raise CheckpointError(f"{family.architecture}: zoo knows no {SUFFIX} of this family")
    rules = tuple(
        Rule(tuple(f"trunk.{n}" for n in r.zoo_names), head.prefix + r.hub_name, r.transform)
        for r in family.rules
    )
    return replace(
        family,
        architecture=f"{family.trunk_name}{SUFFIX}",
        rules=(*rules, *head.rules),
        buffers=tuple(head.prefix + pattern for pattern in family.buffers),
        duplicates={head.prefix + copy: head.prefix + of for copy, of in family.duplicates.items()},
        inputs=("input_ids", head.segments, "attention_mask"),
        auto=f"AutoModel{SUFFIX}",
    )


def read_classifier(family: Family, trunk: ModelConfig, config: JsonObject, place: str) -> ClassifierConfig:
    """zoo's configuration of a classifier.

    Args:
        family: the family of the trunk, which has a head.
        trunk: zoo's configuration of the trunk.
        config: content of config.json.
        place: path of the file, for messages.

    Raises:
        CheckpointError: The names of the classes, or a field of the head, cannot be expressed.
    """
    try:
        return _classifier(family, trunk, config)
    except CheckpointError as error:
        raise CheckpointError("\n".join(f"{place}: {line}" for line in str(error).splitlines())) from error


def _classifier(family: Family, trunk: ModelConfig, config: JsonObject) -> ClassifierConfig:
    """zoo's configuration of a classifier; errors do not name the file."""
    head = family.head
    assert head is not None  # `classifier_family` has checked it
    pool: str = head.pool
    if (field := head.pooling) is not None:
        value = config.get(field.hub_name, field.default)
        try:
            pool = field.codec.to_zoo(value)
        except RefusedError as error:
            raise CheckpointError(f"{field.hub_name}: {one_of([value])}; expected {error}") from error
    dropout = config.get(DROPOUT, head.no_dropout) if head.drops else 0.0
    if dropout is None:
        dropout = getattr(trunk, "dropout", 0.0)
    fields: Kwargs = {"classes": len(label_names(config)), "pool": pool, "dropout": dropout}
    if head.decodes:
        fields["decoder_start_id"] = _token(config, DECODER_START, "the token that the decoder begins with")
        if END in config:
            text_end(config)
    try:
        classifier = ClassifierConfig(trunk=trunk, **fields, **_parts(head))
    except ValidationError as error:
        names = {"dropout": DROPOUT, "decoder_start_id": DECODER_START}
        lines = []
        for e in error.errors():
            if not e["loc"]:  # about several fields; those of the trunk are beside the head's in config.json
                lines.append(in_terms_of(names, e["msg"].replace("trunk.", "")))
                continue
            name = names.get(str(e["loc"][0]), str(e["loc"][0]))
            lines.append(f"{name}: {one_of([e['input']])}; expected otherwise: {e['msg']}")
        raise CheckpointError("\n".join(lines)) from error
    return classifier


def write_classifier(
    family: Family, config: ClassifierConfig, written: JsonObject, labels: Sequence[str]
) -> JsonObject:
    """The config.json of a classifier.

    Args:
        family: the family of the trunk.
        config: zoo's configuration of the classifier.
        written: the config.json of the trunk.
        labels: names of the classes; empty: those in `written`, or LABEL_0, ...

    Raises:
        CheckpointError: The family's head differs; the message has a line for each difference.
    """
    architecture, head = classifier_family(family).architecture, family.head
    assert head is not None  # `classifier_family` has checked it
    expected: JsonObject = {} if head.pooling else {"pool": head.pool}
    expected |= _parts(head)
    problems, chosen = [], {}
    if head.decodes and config.decoder_start_id is None:
        problems.append(f"{architecture}: model.decoder_start_id: null; expected the id of a token")
    elif head.decodes:
        chosen[DECODER_START] = config.decoder_start_id
    if (field := head.pooling) is not None:
        try:
            chosen[field.hub_name] = field.codec.to_hf(config.pool)
        except RefusedError as error:
            problems.append(f"{architecture}: model.pool: {one_of([config.pool])}; expected {error}")
    problems += [
        f"{architecture}: model.{key}: {one_of([getattr(config, key)])}; expected {one_of([value])}"
        for key, value in expected.items()
        if getattr(config, key) != value
    ]
    if problems:
        raise CheckpointError("\n".join(problems))
    names = list(labels) or (label_names(written) if "id2label" in written else [])
    if len(names) != config.classes:
        names = numbered_labels(config.classes)
    label_fields = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    dropout = {DROPOUT: config.dropout} if head.drops and DROPOUT not in written else {}
    return written | {"architectures": [architecture]} | label_fields | dropout | chosen


def label_names(config: JsonObject) -> list[str]:
    """The names of the classes in a config.json, in the order of their indices; without them LABEL_0, ...

    Raises:
        CheckpointError: ``id2label`` is no object with the keys 0, 1, ..., or two classes have one name, or
            ``num_labels`` in its place is no plausible number of classes.
    """
    given = config.get("id2label")
    if given is None:
        count = config.get("num_labels")
        count = 2 if count is None else count
        if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_CLASSES:
            raise CheckpointError(
                f"num_labels: {one_of([count])}; expected a number of classes from 2 to {MOST_CLASSES}"
            )
        return numbered_labels(count)
    indices = [str(i) for i in range(len(given))] if isinstance(given, dict) else []
    if not isinstance(given, dict) or sorted(given) != sorted(indices) or len(indices) < 2:
        raise CheckpointError(
            f"id2label: {str(given)[:60]}; expected names for the indices 0, 1, ... of at least two classes"
        )
    names = [str(given[i]) for i in indices]
    if same := [name for name in names if names.count(name) > 1]:
        raise CheckpointError(f"id2label: two classes are called '{same[0]}'; expected different names")
    return names


def numbered_labels(classes: int) -> list[str]:
    """transformers' names of unnamed classes: LABEL_0, ..."""
    return [f"LABEL_{i}" for i in range(classes)]


def text_end(config: JsonObject) -> int:
    """The id in a config.json of the token that ends a text, whose hidden state T5's head reads.

    Raises:
        CheckpointError: There is no such id, or there are several.
    """
    return _token(config, END, "the token that ends a text, whose hidden state the head reads")


def _token(config: JsonObject, name: str, what: str) -> int:
    """The id of a token in a config.json that the head requires."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"{name}: {one_of([value])}; expected the id of {what}")
    return value


def _parts(head: SequenceHead) -> dict[str, bool]:
    """The fields of zoo's classifier that say which parts its head has."""
    names = {name for r in head.rules for name in r.zoo_names}
    bias = {"bias": "head.linear.bias" in names} if head.biased else {}
    return {**bias, "pooler": any(name.startswith("pooler.") for name in names)}
