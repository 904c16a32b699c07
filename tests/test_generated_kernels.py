"""What inductor makes of nGPT's step on the sphere and of its queries and keys: one pass over each.

The code is for a processor, without vectors and threads, whose kernel is one loop over rows where a GPU has
one kernel, or Triton's for a GPU. Neither is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo import build_model
from zoo.kernels.rotation import plain_rotation
from zoo.nn.norm import unit
from zoo.nn.qk import RotaryThenScaledNorm
from zoo.nn.rope import rotation
from zoo.nn.scaling import ScalingConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns of itself

OUTERMOST = re.compile(r"^ {8}for ?\(", re.MULTILINE)
WRITTEN: dict[str, Any] = {"force_disable_caches": True, "cpp.threads": 1, "cpp.simdlen": 1}
TRITON_KERNEL = re.compile(r"async_compile\.triton\(")
ROWS, WIDTH = 32, 64


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What inductor leaves behind where it fails goes with the test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


class Written(Exception):  # noqa: N818 - nothing has failed
    """Raised in the place of compiling what was written."""


def passes(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: Tensor, triton: bool = False
) -> list[int]:
    """Loops over rows, or kernels of Triton: of the forward pass, and with gradients of the backward pass."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.exc import InductorError
    from torch._inductor.graph import GraphLowering

    found: list[int] = []
    settings = WRITTEN | ({"cpu_backend": "triton"} if triton else {})
    kernel = TRITON_KERNEL if triton else OUTERMOST

    def written(code: str) -> None:
        found.append(len(kernel.findall(code)))
        raise Written

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        try:
            compile_fx_inner(graph, examples)
        except InductorError as error:
            if not isinstance(error.inner_exception, Written):
                raise
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(written))
    # The version of a Triton that is not needed to write for it.
    monkeypatch.setattr("torch.utils._triton.triton_hash_with_backend", lambda *_: "")
    torch._dynamo.reset()
    compiler = aot_autograd(
        fw_compiler=backend,
        bw_compiler=backend,
        inference_compiler=backend,
        decompositions=select_decomp_table,
        partition_fn=min_cut_rematerialization_partition,
    )
    with config.patch(settings):
        outputs = torch.compile(function, fullgraph=True, dynamic=False, backend=compiler)(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if any(t.requires_grad for t in inputs):
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    return found


def residual_of(model: str) -> Any:
    """A connection around a branch, inside the model, whose parameters have no gradient."""
    sizes: dict[str, Any] = {"vocab_size": 16, "d_model": WIDTH, "n_layers": 2, "n_heads": 2, "d_mlp": 64}
    blocks: Any = build_model(model, **sizes).requires_grad_(False).get_submodule("blocks")
    return blocks[1].attention_residual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalise_interpolate_normalise(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The branch's output, the step towards it, and the result: in one pass, and in one back."""
    residual = residual_of("ngpt")

    def step(h: Tensor, branch: Tensor) -> Tensor:
        out: Tensor = residual(h, lambda _: branch)
        return out

    h, branch = torch.randn(1, ROWS, WIDTH), torch.randn(1, ROWS, WIDTH, dtype=dtype)
    assert passes(monkeypatch, step, h, branch) == [1]
    assert passes(monkeypatch, step, h.requires_grad_(), branch.requires_grad_()) == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotate_normalise_scale(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Queries and keys together: one kernel forward, and two backward; torch 2.11 makes three in bfloat16.

    The tensors are those of a processor, but the rotation is written as on a GPU, without the C++ kernel.
    """
    monkeypatch.setattr("zoo.nn.rope.rotate_pairs", plain_rotation)
    size, heads = 16, 2
    qk = RotaryThenScaledNorm(heads, size, WIDTH, ScalingConfig()).requires_grad_(False)
    cos, sin = rotation(torch.arange(ROWS), size, 10000.0)

    def transform(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        first, second = qk(q, k, (cos, sin))
        return first, second

    q, k = torch.randn(2, 1, ROWS, heads, size).to(dtype)
    assert passes(monkeypatch, transform, q, k, triton=True) == [1]
    assert passes(monkeypatch, transform, q, k) == [1]
    gradients = q.requires_grad_(), k.requires_grad_()
    backward = 3 if torch.__version__ < "2.12" and dtype == torch.bfloat16 else 2
    assert passes(monkeypatch, transform, *gradients, triton=True) == [1, backward]


def test_a_concatenation_is_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rotation as it is often written."""
    cos, sin = torch.randn(2, ROWS, 1, 8)

    def transform(q: Tensor) -> Tensor:
        first, second = q.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
        return unit(turned)

    assert passes(monkeypatch, transform, torch.randn(1, ROWS, 2, 16), triton=True)[0] > 1


def test_two_passes_are_counted_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.exp(), b.softmax(0)

    assert passes(monkeypatch, twice, torch.randn(7), torch.randn(5, 3))[0] > 1
