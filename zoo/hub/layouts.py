"""Declarations of the parameters of transformers' models, with the etas of the Amos paper's tables.

`zoo.init.infer` imports this module when a model comes from transformers. Most declarations follow from the
types of modules; those that depend on the architecture (for instance that a kernel follows an activation) are
selected by patterns of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from zoo.init.module_rules import Specs, after_activation, bias, parameter_specs, scale_and_bias
from zoo.spec import ParamSpec, Role

LibraryConfig: TypeAlias = Any
"""The configuration of a model of transformers. Any: each architecture has a class of its own."""

Change = Callable[[ParamSpec, LibraryConfig], ParamSpec]
"""A function of a declaration by the type of the module and of the model's config to the right one."""


def added_to_tokens(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Declare eta = sqrt(1/d), for embeddings of tokens and those added to them (Amos, Table 2)."""
    return replace(spec, output_std=spec.size("embed") ** -0.5)


def second_mlp_kernel(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Declare eta = sqrt(2/m), m being the intermediate size (Amos, Tables 2 and 3)."""
    return after_activation(spec)


def t5_query(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Declare eta = sqrt(1/(h d)), because T5 does not divide scores by sqrt(h) (Amos, Table 3)."""
    return replace(spec, output_std=config.d_kv**-0.5)


def t5_relative_bias(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Declare eta = 0.5, and one slot for the whole table (Amos, Table 3 and A.8)."""
    return ParamSpec(Role.POSITION, spec.shape, ("bucket", "head"), output_std=0.5)


def t5_lm_head(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Declare eta = sqrt(1/d), or 1 for a tied table, whose inputs are multiplied by 1/sqrt(d)."""
    scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
    return replace(spec, input_std=config.d_model**-0.5) if scaled else spec


def unchanged(spec: ParamSpec, config: LibraryConfig) -> ParamSpec:
    """Return the declaration by the type of the module, or by the name of a vector, unchanged."""
    return spec


BERT: Mapping[str, Change] = {
    r"embeddings\.\w+_embeddings\.weight": added_to_tokens,
    r"layer\.\d+\.output\.dense\.weight": second_mlp_kernel,
    r"predictions\.bias|lm_head\.bias": unchanged,
}
T5: Mapping[str, Change] = {
    r"(Self|EncDec)Attention\.q\.weight": t5_query,
    r"relative_attention_bias\.weight": t5_relative_bias,
    r"DenseReluDense\.wo\.weight": second_mlp_kernel,
    r"layer_norm\.weight": unchanged,
    r"lm_head\.weight": t5_lm_head,
}
LLAMA: Mapping[str, Change] = {
    r"mlp\.down_proj\.weight": second_mlp_kernel,
    r"norm\.weight": unchanged,
}
GPT2: Mapping[str, Change] = {
    r"wpe\.weight": added_to_tokens,
    r"mlp\.c_proj\.weight": second_mlp_kernel,
}

MODERNBERT: Mapping[str, Change] = {
    r"tok_embeddings\.weight": added_to_tokens,
    r"mlp\.Wo\.weight": second_mlp_kernel,
}
NEOX: Mapping[str, Change] = {r"mlp\.dense_4h_to_h\.weight": second_mlp_kernel}

LAYOUTS: Mapping[str, Mapping[str, Change]] = {
    "bert": BERT,
    "roberta": BERT,
    "t5": T5,
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "modernbert": MODERNBERT,
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"), LLAMA
    ),
}
"""Changes of declarations by config.json's ``model_type`` and patterns of the ends of names."""


@parameter_specs.register
def _conv1d(module: Conv1D) -> Specs:
    """A linear map whose kernel is stored as (in, out)."""
    shape = (module.nx, module.nf)
    return {"weight": ParamSpec(Role.LINEAR, shape, ("in", "out"), fan_in=("in",)), "bias": bias(module.nf)}


@parameter_specs.register
def _model(model: PreTrainedModel) -> Specs:
    """The parameters that the model's layout changes, by their names."""
    specs: dict[str, ParamSpec] = {}
    layout = LAYOUTS.get(model.config.model_type, {})
    for path, module in model.named_modules():
        for local, parameter in module._parameters.items():
            name = f"{path}.{local}" if path else local
            change = next((c for end, c in layout.items() if re.search(f"({end})$", name)), None)
            if parameter is None or change is None:
                continue
            of_type = parameter_specs.dispatch(type(module))(module) if module is not model else {}
            vectors = scale_and_bias(*parameter.shape)
            specs[name] = change({**vectors, **of_type}[local], model.config)
    return specs
