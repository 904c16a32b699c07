"""Conversion of a pre-norm GPT (Llama's architecture) to nGPT for further training.

With the source's stream x, its branches read RMSNorm(x) = sqrt(d) g h, where h = x / |x| is a direction and
g the norm's scale: the branches depend on h alone, and h is nGPT's stream. Symbols as in nGPT's paper.

exact
    E_in        its rows, at unit norm
    W_u, W_nu   their columns times g, rows at unit norm; s_nu takes the lengths of W_nu's rows (inside SiLU
                nothing else may), s_u those of W_u's times those of the columns of W_oMLP: SwiGLU is linear
                in u
    E_out       its columns times the last g, rows at unit norm; s_z takes sqrt(d) times their lengths. A
                tied table becomes two, which differ by that g
    W_v, W_o    both at unit norm, after a change of basis inside each head that makes all lengths the same
                (`heads.Product`); heads that differ much in size, and key heads that are shared, are
                met approximately
approximate
    q, k        nGPT normalises them: s_qk takes the lengths of the rows, pair by pair (`balanced_pairs`), and
                the mean length of q and k on text; that it varies with the token is lost
    alpha       the source adds a branch b to x: h <- Norm(h + |b| / |x| h_B). How long b is varies with the
                token and alpha does not: it is chosen on text, entry by entry (`step_size`)

The result is an ordinary nGPT. The start of each scaling (s_init) is the mean of its values, so that the
tensors start near their s_scale and Adam's steps are as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from zoo.checkpoint.recipe import Recipe, declare, materialise
from zoo.init import NGPTInit
from zoo.models import GPT, GPTConfig, Model, NGPTConfig
from zoo.models.ngpt import NGPT
from zoo.nn.attention_options import AttentionOptions
from zoo.nn.evaluation_mode import evaluation_mode
from zoo.nn.norm import RMSNorm, unit
from zoo.nn.positions import positions
from zoo.nn.qk import NormThenRotary
from zoo.nn.rope import Rope
from zoo.nn.scaling import Scaling
from zoo.reparam import NoReparam
from zoo.run.warm.heads import Product, balanced_pairs, pair_lengths
from zoo.run.warm.steps import directions, scalar_step, step_size
from zoo.utils.errors import ZooError
from zoo.utils.progress import progress

Block: TypeAlias = Any
"""A block of either model, or a part of one. Any: nn.Module does not declare the types of submodules."""

SHARED = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "rope_base", "rope_scaling")
"""Fields that have the same meaning in both configurations."""

ROTATED = ("rope_fraction", "rope_blocks", "rope_window_base")
"""Fields of the rotation; only their defaults can be converted: pairs (i, i + h/2) of every head."""


@dataclass(frozen=True)
class Choices:
    """The steps to take. Where one is left out, the weights are only normalised.

    Attributes:
        rebase: whether to change the basis of values inside each head.
        turn: whether to balance the pairs of q and k.
        entrywise: whether alpha is chosen entry by entry and not as one number per branch.
    """

    rebase: bool = True
    turn: bool = True
    entrywise: bool = True


def check_source(model: Model) -> GPT:
    """Refuse a model that nGPT cannot express; the message names the field.

    Raises:
        ZooError: The model is no gpt, or has parts that nGPT does not have.
    """
    if not isinstance(model, GPT):
        kind = getattr(model.recipe.model, "type", None)
        raise ZooError(
            f"convert: model.type: '{kind}'; expected 'gpt', the layout of Llama: nGPT has no counterpart to "
            "LayerNorm, biases, learned positions or encoders"
        )
    config, problems = model.config, []
    if config.mlp != "swiglu":
        problems.append(f"model.mlp: '{config.mlp}'; expected 'swiglu', nGPT's")
    if config.norms != "before" or config.centred_norms or config.scaled_embedding:
        problems.append("model.norms, centred_norms or scaled_embedding: not the default; expected none")
    if config.attention != AttentionOptions() or config.soft_cap is not None:
        problems.append("model.attention or model.soft_cap: not the default; expected neither")
    if any(getattr(config, name) != GPTConfig.model_fields[name].default for name in ROTATED) or (
        config.rope_scaling is not None and config.rope_scaling.magnitude != 1
    ):
        problems.append(
            f"model.{', '.join(ROTATED)} or the factor of queries and keys in model.rope_scaling: not the "
            "default; expected all entries rotated in every block, at unit length"
        )
    if config.qkv_bias:
        problems.append("model.qkv_bias: true; expected false, nGPT has no biases")
    if problems:
        raise ZooError("\n".join(f"convert: {problem}" for problem in problems))
    return model


@torch.no_grad()
def to_ngpt(source: Model, batches: Sequence[Tensor], choices: Choices | None = None) -> NGPT:
    """Make an nGPT of a GPT.

    Args:
        source: a GPT that is not reparameterised, float32 on the CPU.
        batches: tokens on which q, k and the residual stream are measured, (batch, time) int64 each.
        choices: the steps to take, for comparisons; None: all.

    Returns:
        The nGPT, untied, with its recipe.

    Raises:
        ZooError: The source cannot be converted, see `check_source`.
    """
    gpt = check_source(source)
    c = gpt.config
    fields = {name: getattr(c, name) for name in SHARED}
    config = NGPTConfig(**fields, d_mlp=c.mlp_size)
    draft = _empty(config)
    weights = _Weights(gpt, draft, choices or Choices())
    weights.embeddings()
    with evaluation_mode(gpt):
        streams = [gpt.embedding(batch) for batch in batches]
        position_ids = [positions(0, batch.shape[1], batch.device) for batch in batches]
        ropes = [gpt.ropes(each)[0] for each in position_ids]  # the same in each block
        forward = _Forward(weights, streams, ropes)  # type: ignore[arg-type]  # a GPT rotates
        with progress("converting blocks", len(gpt.blocks)) as advance:
            for old, new in zip(gpt.blocks, draft.blocks, strict=True):
                forward.convert(old, new)
                advance(1)
    return _centred(draft)


class _Weights:
    """Converts the parameters that depend on the weights alone."""

    def __init__(self, gpt: GPT, ngpt: NGPT, choices: Choices) -> None:
        self.gpt: Block = gpt
        self.ngpt: Block = ngpt
        self.choices, self.d = choices, gpt.config.d_model

    def embeddings(self) -> None:
        """Set E_in, E_out and s_z."""
        gpt, ngpt = self.gpt, self.ngpt
        ngpt.embedding.weight.copy_(_unit_rows(gpt.embedding.virtual("weight").double()))
        matrix = gpt.read_out.weight().double() * gpt.norm.scale.double()
        ngpt.read_out.matrix.weight.copy_(_unit_rows(matrix))
        _set(ngpt.read_out.s_z, math.sqrt(self.d) * matrix.norm(dim=1))

    def mlp(self, old: Block, new: Block) -> None:
        """Set the three matrices, s_u and s_nu."""
        scale = _scale_of(old.mlp_residual.norm)
        u, nu = (m.weight.double() * scale for m in (old.mlp.u, old.mlp.nu))
        down = old.mlp.down.weight.double()
        new.mlp.u.weight.copy_(_unit_rows(u))
        new.mlp.nu.weight.copy_(_unit_rows(nu))
        new.mlp.down.weight.copy_(_unit_rows(down.mT).mT)
        _set(new.mlp.s_nu, nu.norm(dim=1))
        gain = u.norm(dim=1) * down.norm(dim=0)
        _set(new.mlp.s_u, gain / gain.mean())

    def values(self, old: Block, new: Block) -> None:
        """Set W_v and W_o."""
        attention = old.attention
        kv, h = attention.n_kv_heads, attention.head_size
        v = attention.v.weight.double() * _scale_of(old.attention_residual.norm)
        values = v.reshape(kv, h, self.d)
        outputs = attention.o.weight.double().reshape(self.d, kv, -1, h).permute(1, 2, 0, 3)
        if self.choices.rebase:
            heads = [Product(o, w) for o, w in zip(outputs, values, strict=True)]
            product = max(head.least for head in heads)
            pairs = [head.factors(product) for head in heads]
            outputs, values = (torch.stack(part) for part in zip(*pairs, strict=True))
        joined = outputs.permute(2, 0, 1, 3).reshape(self.d, -1)
        new.attention.v.weight.copy_(_unit_rows(values.reshape(-1, self.d)))
        new.attention.o.weight.copy_(_unit_rows(joined.mT).mT)

    def queries_and_keys(self, old: Block, new: Block) -> Tensor:
        """Set W_q and W_k; return the lengths that s_qk^2 has to absorb, (kv heads, group, h)."""
        attention = old.attention
        kv, h = attention.n_kv_heads, attention.head_size
        scale = _scale_of(old.attention_residual.norm)
        q, k = (m.weight.double() * scale for m in (attention.q, attention.k))
        queries, keys = q.reshape(kv, -1, h, self.d), k.reshape(kv, h, self.d)
        if isinstance(attention.qk, NormThenRotary):
            queries = queries * _scale_of(attention.qk.q_norm)[:, None]
            keys = keys * _scale_of(attention.qk.k_norm)[:, None]
        if self.choices.turn:
            pairs = [balanced_pairs(a, b) for a, b in zip(queries, keys, strict=True)]
            queries, keys = (torch.stack(part) for part in zip(*pairs, strict=True))
        new.attention.q.weight.copy_(_unit_rows(queries.reshape(-1, self.d)))
        new.attention.k.weight.copy_(_unit_rows(keys.reshape(-1, self.d)))
        return pair_lengths(queries) * pair_lengths(keys)[:, None]


class _Forward:
    """Runs both models on the same text layer by layer, and converts what depends on activations."""

    def __init__(self, weights: _Weights, streams: list[Tensor], ropes: list[Rope]) -> None:
        self.weights, self.streams, self.ropes = weights, streams, ropes
        self.new = [unit(x) for x in streams]

    def convert(self, old: Block, new: Block) -> None:
        """Convert a block, and advance both residual streams by it."""
        weights = self.weights
        lengths = weights.queries_and_keys(old, new)
        weights.values(old, new)
        self._scale_scores(old, new, lengths)
        added = [
            old.attention(old.attention_residual.norm(x), rope)
            for x, rope in zip(self.streams, self.ropes, strict=True)
        ]
        branches = [new.attention(h, rope) for h, rope in zip(self.new, self.ropes, strict=True)]
        self._step(new.attention_residual, added, branches)
        weights.mlp(old, new)
        added = [old.mlp(old.mlp_residual.norm(x)) for x in self.streams]
        self._step(new.mlp_residual, added, [new.mlp(h) for h in self.new])

    def _scale_scores(self, old: Block, new: Block, lengths: Tensor) -> None:
        """Set s_qk^2 = (d / h) lengths |q| |k|, so that nGPT's scores are the source's on average."""
        attention, d, h = old.attention, self.weights.d, old.attention.head_size
        norms = []
        for maps in ((attention.queries, new.attention.queries), (self._keys(old), self._keys(new))):
            theirs, ours = maps
            of_streams = []
            for x, stream in zip(self.streams, self.new, strict=True):
                norm = ours(stream).norm(dim=-1)
                if isinstance(attention.qk, NormThenRotary):  # QK-norm makes their length sqrt(h)
                    norm = norm * math.sqrt(h) / theirs(old.attention_residual.norm(x)).norm(dim=-1)
                of_streams.append(norm.flatten(0, 1))
            norms.append(torch.cat(of_streams).double().mean(0))
        q_norm, k_norm = norms[0].reshape(attention.n_kv_heads, -1), norms[1]
        squared = d / h * lengths * (q_norm * k_norm[:, None])[..., None]
        _set(new.attention.qk.s_qk, squared.mean(1).sqrt())

    @staticmethod
    def _keys(block: Block) -> Callable[[Tensor], Tensor]:
        return lambda x: block.attention.keys_values(x)[0]

    def _step(self, residual: Block, added: list[Tensor], branches: list[Tensor]) -> None:
        """Choose alpha, and advance both residual streams by a branch."""
        before = self.streams
        self.streams = [x + b for x, b in zip(before, added, strict=True)]
        h, branch, target = (
            torch.cat([directions(x) for x in part]).double() for part in (self.new, branches, self.streams)
        )
        if self.weights.choices.entrywise:
            alpha = step_size(h, branch, target)
        else:
            flat = [torch.cat([x.flatten(0, -2) for x in part]) for part in (before, added)]
            alpha = scalar_step(h, *flat)
        _set(residual.alpha, alpha)
        self.new = [residual(x, lambda _, b=b: b) for x, b in zip(self.new, branches, strict=True)]


def _centred(draft: Block) -> NGPT:
    """The same model with the mean of each kind of scaling as s_init; its tensors are near s_scale."""
    config = draft.config
    kinds: dict[str, list[Scaling]] = {
        "alpha": [r.alpha for b in draft.blocks for r in (b.attention_residual, b.mlp_residual)],
        "s_qk": [b.attention.qk.s_qk for b in draft.blocks],
        "s_u": [b.mlp.s_u for b in draft.blocks],
        "s_nu": [b.mlp.s_nu for b in draft.blocks],
        "s_z": [draft.read_out.s_z],
    }
    update = {}
    for name, scalings in kinds.items():
        mean = torch.cat([_value(s).flatten() for s in scalings]).mean().item()
        update[name] = getattr(config, name).model_copy(update={"init": float(f"{mean:.4g}")})
    model = _empty(config.model_copy(update=update))
    model.load_state_dict(draft.state_dict())
    for old, new in zip(draft.modules(), model.modules(), strict=True):
        if isinstance(old, Scaling) and isinstance(new, Scaling):
            _set(new, _value(old))
    return model


def _empty(config: NGPTConfig) -> NGPT:
    model = cast(NGPT, declare(Recipe(model=config, init=NGPTInit(), reparam=NoReparam())))
    materialise(model, torch.device("cpu"))
    return model


def _scale_of(norm: RMSNorm) -> Tensor:
    return norm.get_parameter("scale").double()


def _unit_rows(matrix: Tensor) -> Tensor:
    norms: Tensor = matrix.norm(dim=1, keepdim=True)
    return matrix / norms.clamp_min(1e-12)


def _value(scaling: Scaling) -> Tensor:
    value: Tensor = scaling()
    return value.double()


def _set(scaling: Scaling, value: Tensor) -> None:
    """Set the effective value of a scaling."""
    scaling.get_parameter("scale").copy_(value / scaling.factor)
