"""What inductor makes of nGPT's step on the sphere: one pass over the stream, counted in its code.

The code is for a processor, without vectors and threads, whose kernel is one loop over rows where a GPU has
one kernel. It is not compiled.
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

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns of itself

OUTERMOST = re.compile(r"^ {8}for ?\(", re.MULTILINE)
WRITTEN: dict[str, Any] = {"force_disable_caches": True, "cpp.threads": 1, "cpp.simdlen": 1}
ROWS, WIDTH = 32, 64


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What inductor leaves behind where it fails goes with the test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


class Written(Exception):  # noqa: N818 - nothing has failed
    """Raised in the place of compiling what was written."""


def passes(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: Tensor) -> list[int]:
    """Loops over rows in the code of the forward pass, and of the backward pass if there is one."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.exc import InductorError
    from torch._inductor.graph import GraphLowering

    found: list[int] = []

    def written(code: str) -> None:
        found.append(len(OUTERMOST.findall(code)))
        raise Written

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        try:
            compile_fx_inner(graph, examples)
        except InductorError as error:
            if not isinstance(error.inner_exception, Written):
                raise
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(written))
    torch._dynamo.reset()
    compiler = aot_autograd(
        fw_compiler=backend,
        bw_compiler=backend,
        inference_compiler=backend,
        decompositions=select_decomp_table,
        partition_fn=min_cut_rematerialization_partition,
    )
    with config.patch(WRITTEN):
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


def test_two_passes_are_counted_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.exp(), b.softmax(0)

    assert passes(monkeypatch, twice, torch.randn(7), torch.randn(5, 3))[0] > 1
