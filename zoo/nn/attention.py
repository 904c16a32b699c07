"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.kernels.documents import Documents, dense_mask, document_attention
from zoo.kernels.short_attention import LONGEST, short_attention
from zoo.nn.capped_attention import capped_attention
from zoo.nn.kv_cache import LayerCache
from zoo.nn.linear import Linear, matrix
from zoo.nn.positions import CachePosition, seen_keys
from zoo.nn.qk_clip import QKClip
from zoo.nn.rope import Rope
from zoo.spec import Module, ScalePair
from zoo.utils.exact import exact
from zoo.utils.untyped import Kwargs, Passed


class MultiHeadAttention(Module):
    """The four matrices of attention, with grouped queries if there are fewer heads of keys and values.

    A subclass computes ``join(attend(q, k, v, ...))`` in its forward pass. `attend` has to be affine in the
    values, which lets `zoo.diagnose` measure its probabilities.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        *,
        qk: Module,
        scale: float,
        residual_branches: int,
        head_size: int | None = None,
        query_std: float | None = None,
        input_std: float = 1.0,
        sphere: str | None = None,
        qk_normalised: bool = False,
        output_normalised: bool = False,
        qk_rescaled: bool = False,
        bias: bool = False,
        qkv_bias: bool = False,
        gate: Literal["head", "element"] | None = None,
        qk_clip: float | None = None,
        qv_start: float | None = None,
    ) -> None:
        """Create the four matrices.

        Args:
            d_model: width of the stream.
            n_heads: number of query heads; without `head_size` a divisor of `d_model`.
            n_kv_heads: number of key and value heads, a divisor of `n_heads`.
            qk: what is done to queries and keys, see `zoo.nn.qk`.
            scale: factor of the scores before the softmax.
            residual_branches: number of residual branches of the stack, 2N for N layers, one of which W_o
                ends.
            head_size: entries per head, h; None: d_model / n_heads.
            query_std: standard deviation that the queries should have, as in T5, where `scale` is 1; None:
                the same as for the outputs of the other matrices.
            input_std: standard deviation of the entries of the stream.
            sphere: "embed" if the matrices are on nGPT's sphere.
            qk_normalised: whether queries and keys are normalised next.
            output_normalised: whether the output is normalised next. Without biases the scale of v then has
                no effect either, because W_o is linear.
            qk_rescaled: whether a trained scaling multiplies q and k next.
            bias: whether each of the four maps has a bias.
            qkv_bias: whether the maps to queries, keys and values have a bias.
            gate: sigmoid(x W_g) multiplies the outputs of the heads, with one gate for each head or for each
                entry of a head (arXiv 2505.06708); None: there is no gate.
            qk_clip: threshold of the logits, see `zoo.nn.qk_clip`; None: no clipping.
            qv_start: the constant that the maps to queries and values start from; None: random numbers.
        """
        super().__init__()
        self.head_size = head_size or d_model // n_heads
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.scale = scale
        embed, heads = ("embed", d_model), ("heads", n_heads * self.head_size)
        kv = ("kv_heads", n_kv_heads * self.head_size)
        stream: Kwargs = {"input_std": input_std, "sphere": sphere}
        v_normalised = output_normalised and not (bias or qkv_bias)
        qk_options: Kwargs = {"normalised": qk_normalised, "rescaled": qk_rescaled, **stream}
        each, grouped = (("heads", n_heads),), (("kv_heads", n_kv_heads),)
        query = matrix(heads, embed, output_std=query_std, start=qv_start, parts=each, **qk_options)
        self.q = Linear(query, bias or qkv_bias)
        self.k = Linear(matrix(kv, embed, parts=grouped, **qk_options), bias or qkv_bias)
        value = matrix(kv, embed, normalised=v_normalised, start=qv_start, parts=grouped, **stream)
        self.v = Linear(value, bias or qkv_bias)
        self.qk = qk
        self.o = Linear(
            matrix(
                embed,
                heads,
                residual_branches=residual_branches,
                normalised=output_normalised,
                parts=each,
                **stream,
            ),
            bias,
        )

        self.output_gate = None
        if gate is not None:
            per_head = matrix(("head_gates", n_heads), embed, **stream)
            self.output_gate = Linear(
                per_head if gate == "head" else matrix(heads, embed, parts=each, **stream)
            )
        # On the sphere the entries of x W_g are of the size 1 / sqrt(d); the gate sees sqrt(d) times as much,
        # which is our choice and what nGPT does with nu.
        self.output_gate_scale = None if sphere is None else 1 / input_std
        self.clip = None if qk_clip is None else QKClip(n_heads, qk_clip)

    @property
    def reads(self) -> tuple[str, ...]:
        """The matrices that the input is multiplied by."""
        return ("q.weight", "k.weight", "v.weight", *(["output_gate.weight"] if self.output_gate else []))

    def follows_step(self) -> bool:
        """Whether the module has a QK-clip, which acts after every optimizer step.

        Raises:
            ConfigError: The QK-clip cannot act on the projections.
        """
        if self.clip is not None:
            self.clip.check(self.q, self.k)
        return self.clip is not None

    def after_step(self) -> None:
        """Apply the QK-clip to the projections to queries and keys."""
        if self.clip is not None:
            self.clip.apply_to(self.q, self.k, self.n_kv_heads)

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """The outputs of the heads, multiplied by the gate of each query's token.

        Args:
            y: (batch, time, heads, h).
            x: (batch, time, d), the tokens of the queries.
        """
        if self.output_gate is None:
            return y
        gates = self.output_gate(x, self.output_gate_scale).sigmoid()
        gates = torch.unflatten(gates, -1, (self.n_heads, -1))
        out: Tensor = y * gates.to(y.dtype)
        return out

    @property
    def scale_pairs(self) -> Sequence[ScalePair]:
        """Rows of v with columns of o and, unless q and k are normalised, rows of q with rows of k."""
        bare = not self.q.specs["weight"].normalised
        pairs: list[ScalePair] = [((("v.weight", "rows"),), (("o.weight", "columns"),))]
        return [*pairs, ((("q.weight", "rows"),), (("k.weight", "rows"),))] if bare else pairs

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, d) -> queries, keys and values, (batch, time, their heads, h)."""
        return self.queries(x), *self.keys_values(x)

    def queries(self, x: Tensor) -> Tensor:
        """(batch, time, d) -> (batch, time, heads, h)."""
        return torch.unflatten(self.q(x), -1, (self.n_heads, -1))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, time, d) -> (batch, time, kv heads, h) each."""
        k, v = (torch.unflatten(m(x), -1, (self.n_kv_heads, -1)) for m in (self.k, self.v))
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *args: Passed, **kwargs: Passed) -> Tensor:
        """The means of the values, weighted by each head's probabilities.

        Args:
            q: (batch, time, heads, h).
            k: (batch, keys, kv heads, h).
            v: the same shape as `k`.
            *args: further arguments of a subclass.
            **kwargs: further arguments of a subclass.

        Returns:
            (batch, time, heads, h).
        """
        raise NotImplementedError

    def join(self, y: Tensor) -> Tensor:
        """W_o of all heads together, (batch, time, heads, h) -> (batch, time, d)."""
        out: Tensor = self.o(y.flatten(-2))
        return out


class Attention(MultiHeadAttention):
    """W_o softmax(q k^T * scale) v, causal."""

    def __init__(
        self, *args: Passed, window: int | None = None, score_cap: float | None = None, **kwargs: Passed
    ) -> None:
        """Create the four matrices.

        Args:
            *args: the arguments of `MultiHeadAttention`.
            window: how many keys a query sees, its own included (Beltagy et al. 2020, arXiv 2004.05150,
                section 3.1, as causal attention); None: all up to its own. A cache keeps all keys.
            score_cap: c of scores <- c tanh(scores / c) before the softmax (Gemma 2, arXiv 2408.00118,
                section 2); None: no cap.
            **kwargs: the keyword arguments of `MultiHeadAttention`.
        """
        super().__init__(*args, **kwargs)
        self.window = window
        self.score_cap = score_cap

    def forward(
        self,
        x: Tensor,
        rope: Rope | None,
        cache: LayerCache | None = None,
        position: CachePosition = 0,
        documents: Documents | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to the tokens of `x` and to those in the cache.

        Args:
            x: (batch, time, d).
            rope: cosines and sines of the positions of these tokens, as `qk` takes them.
            cache: keys and values of the tokens before; extended in place.
            position: number of tokens in the cache.
            documents: the documents of the tokens; tokens of different documents do not see each other, and
                there is no cache. None: all tokens belong to one document.
            mask: (batch, time) bool, False for padding after the text, whose logits the QK-clip leaves out;
                it has no other effect. None: there is no padding.

        Returns:
            (batch, time, d).
        """
        q, k, v = self.project(x)
        q, k = self.qk(q, k, rope)
        if self.clip is not None and self.training and cache is None:
            numbers = None if documents is None else documents.numbers
            self.clip.measure(q, k, self.scale, self.window, numbers, mask)
        padding = None
        if cache is not None:
            k, v = cache.extend(k, v, position)
            k, v = k.to(q.dtype), v.to(q.dtype)
            padding = cache.padding
        return self.join(self.gated(self.attend(q, k, v, position, padding, documents), x))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position: CachePosition = 0,
        padding: Tensor | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        """`causal_attention` or `document_attention`, with the scale and the window of this module."""
        if self.score_cap is not None:
            seen = None if documents is None else dense_mask(documents.numbers, self.window)
            if seen is None:
                seen = seen_keys(q.shape[1], k.shape[1], q.device, position, padding, self.window)
            return capped_attention(q, k, v, self.scale, self.score_cap, seen)
        if documents is not None:
            return document_attention(q, k, v, self.scale, documents, self.window)
        return causal_attention(q, k, v, self.scale, position, padding, self.window)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    position: CachePosition = 0,
    padding: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Causal softmax attention.

    Short sequences without a cache use `short_attention` on a CPU, in evaluation as in training so that both
    give the same numbers. Everything else uses torch's kernels.

    Args:
        q: (batch, time, heads, h).
        k: (batch, keys, kv heads, h), keys >= time.
        v: the same shape as `k`.
        scale: factor of the scores.
        position: number of keys before the key of the first query. If it is an integer, the last query
            belongs to the last key; if it is a tensor, keys after those of the queries are not seen.
        padding: (batch,) int64, number of keys in front that are padding; None: there is no padding.
        window: how many keys a query sees, its own included; None: all up to its own.

    Returns:
        (batch, time, heads, h).
    """
    time, keys = q.shape[1], k.shape[1]
    if window is not None and time == 1 and isinstance(position, int) and padding is None:
        k, v = k[:, -window:], v[:, -window:]
        keys = k.shape[1]
    if window is not None and window >= keys:
        window = None
    if q.device.type == "cpu" and 1 < time == keys <= LONGEST and padding is None:
        group = q.shape[2] // k.shape[2]
        if group > 1:
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        return short_attention(q, k, v, scale, window)
    mask = None
    if 1 < time < keys or isinstance(position, Tensor) or padding is not None or window is not None:
        mask = seen_keys(time, keys, q.device, position, padding, window)[:, None]
    if mask is not None and isinstance(position, Tensor) and time == 1 and q.device.type == "cpu":
        return _one_query(q, k, v, scale, mask)
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None and time > 1,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return y.transpose(1, 2)


def _one_query(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Tensor:
    """`causal_attention` of a single query, written out so that inductor compiles it to loops.

    torch's kernel distributes blocks of queries over threads, and here there is one block. As in the kernel,
    scores and softmax are computed in float32.
    """
    batch, _, heads, size = q.shape
    grouped = exact(q.view(batch, k.shape[2], -1, size)) * scale
    scores = grouped @ exact(k.permute(0, 2, 3, 1))
    probabilities = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (probabilities.to(v.dtype) @ v.transpose(1, 2)).view(batch, 1, heads, size)
