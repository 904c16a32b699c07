"""nGPT and its GPT baseline against numbers recorded from the authors' code (true RoPE, float32)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from zoo.hub.ngpt_reference import load_ngpt_reference
from zoo.models import GPT, NGPT, Decoder
from zoo.nn.sphere import project
from zoo.spec import declared
from zoo.utils.errors import CheckpointError

GOLDEN = Path(__file__).parent / "golden" / "ngpt"
CASES = [
    ("ngpt_init", "ngpt_forward_ropehalf", NGPT),
    ("ngpt_perturbed", "ngpt_perturbed_forward_ropehalf", NGPT),
    ("gpt_init_raw", "gpt_forward_ropehalf", GPT),
]


@pytest.fixture
def batches() -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / "batches.npz") as arrays:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def read(file: Path) -> Decoder:
    model = load_ngpt_reference(file, n_heads=4)
    assert isinstance(model, Decoder)
    return model


def load(name: str) -> Decoder:
    return read(GOLDEN / f"{name}.safetensors")


@pytest.mark.parametrize(("weights", "forward", "kind"), CASES)
def test_forward(weights: str, forward: str, kind: type[Decoder], batches: dict[str, torch.Tensor]) -> None:
    model, expected = load(weights), load_file(GOLDEN / f"{forward}.safetensors")
    assert isinstance(model, kind)
    streams: list[torch.Tensor] = []
    for module in (model.embedding, *model.blocks):
        module.register_forward_hook(lambda _m, _i, out: streams.append(out))
    logits = model(batches["fwd_idx"])
    for i, stream in enumerate(streams):
        torch.testing.assert_close(stream, expected[f"h{i}"], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits, expected["logits"], atol=1e-5, rtol=0)
    loss = model.loss(batches["fwd_idx"], batches["fwd_targets"])
    torch.testing.assert_close(loss.cross_entropy, expected["loss"], atol=1e-5, rtol=0)


def test_gradients(batches: dict[str, torch.Tensor]) -> None:
    """Every gradient, through the names of the authors' state dict, within 1e-4 relative."""
    model = load("ngpt_init")
    torch.autograd.backward(model.loss(batches["fwd_idx"], batches["fwd_targets"]).total)
    expected = load("ngpt_grads_ropehalf")
    ours, theirs = dict(model.named_parameters()), dict(expected.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert parameter.grad is not None, name
        difference = (parameter.grad - theirs[name]).norm() / theirs[name].norm()
        assert difference < 1e-4, f"{name}: {difference:.2e}"


def test_twenty_steps(batches: dict[str, torch.Tensor]) -> None:
    """The training run: Adam, the matrices back on the sphere after each step."""
    model = load("ngpt_init_raw")
    spheres = [(p.parameter, p.spec.sphere_dim) for p in declared(model) if p.spec.sphere_dim is not None]
    project(spheres)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for x, y in zip(batches["train_x"], batches["train_y"], strict=True):
        loss = model.loss(x, y).total
        adam.zero_grad()
        torch.autograd.backward(loss)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        adam.step()
        project(spheres)
        losses.append(loss.item())
    with np.load(GOLDEN / "ngpt_train_ropehalf.npz") as expected:
        np.testing.assert_allclose(losses, expected["losses"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(norms, expected["grad_norms"], rtol=1e-4)


def test_wrong_number_of_heads() -> None:
    with pytest.raises(CheckpointError, match=r"width 64 is not divisible by n_heads=5"):
        load_ngpt_reference(GOLDEN / "ngpt_init.safetensors", n_heads=5)
    for none in (0, -4):
        with pytest.raises(CheckpointError, match=f"n_heads is {none}; expected at least 1"):
            load_ngpt_reference(GOLDEN / "ngpt_init.safetensors", n_heads=none)


def test_not_such_a_file() -> None:
    with pytest.raises(CheckpointError, match="not a state dict of the nGPT authors' code"):
        load_ngpt_reference(GOLDEN / "ngpt_forward_ropehalf.safetensors", n_heads=4)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: t.pop("transformer.h.1.key.weight"),
            r"missing \['transformer.h.1.key.weight'\], unexpected nothing",
        ),
        (lambda t: t.update(extra=torch.ones(2)), r"missing nothing, unexpected \['extra'\]"),
        (
            lambda t: t.update({"transformer.h.x.key.weight": torch.ones(2)}),
            r"missing nothing, unexpected \['transformer.h.x.key.weight'\]",
        ),
        (
            lambda t: t.update({"transformer.h.999999999.key.weight": torch.ones(2)}),
            r"missing \['transformer.h.3.att.*\], unexpected \['transformer.h.999999999.key.weight'\]",
        ),
        (
            lambda t: t.update({"transformer.wte.weight": torch.ones(64)}),
            r"transformer.wte.weight has shape \(64,\); expected a matrix",
        ),
        (
            lambda t: t.update({"transformer.h.1.attn_alpha": torch.ones(63)}),
            r"blocks.1.attention_residual.alpha.scale is float32 \[63\], expected float32 \[64\]",
        ),
    ],
)
def test_files_that_do_not_fit(
    edit: Callable[[dict[str, torch.Tensor]], None], message: str, tmp_path: Path
) -> None:
    tensors = load_file(GOLDEN / "ngpt_init.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_ngpt_reference(tmp_path / "model.safetensors", n_heads=4)


def test_truncated_file(tmp_path: Path) -> None:
    whole = (GOLDEN / "ngpt_init.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        load_ngpt_reference(tmp_path / "model.safetensors", n_heads=4)


def test_bfloat16_and_compiled_names(tmp_path: Path) -> None:
    """Their training stores matrices in bfloat16 and compiles the model; zoo computes in float32."""
    tensors = {f"_orig_mod.{n}": t.bfloat16() for n, t in load_file(GOLDEN / "ngpt_init.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = read(tmp_path / "model.safetensors")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    expected = load("ngpt_init").get_parameter("embedding.weight").bfloat16().float()
    assert torch.equal(model.get_parameter("embedding.weight"), expected)
