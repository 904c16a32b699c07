"""The LSTM against torch's own, its eta literally, its state from batch to batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import assert_same, kill, tiny_fields
from torch import Tensor, nn
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from zoo import build_model, generate, load_model, save_model
from zoo.checkpoint.model import find_checkpoint
from zoo.data.dataset import BatchSpec
from zoo.data.text.dataset import TextData, TextDataset
from zoo.init import Registry
from zoo.kernels.recurrence import recurrence
from zoo.models import LSTMConfig, LSTMModel
from zoo.nn.lstm import LSTM, LSTMState
from zoo.run.config import load_config
from zoo.run.explanation import explain
from zoo.run.first_weights import initial_model
from zoo.run.job import Job
from zoo.train.build import build
from zoo.train.distributed import World
from zoo.train.forecast import forecast
from zoo.train.run import train
from zoo.train.start import Start
from zoo.utils.errors import ConfigError, DataError

SIZES: dict[str, Any] = {"vocab_size": 40, "d_model": 12, "d_memory": 20}


def lstm_model(**fields: Any) -> LSTMModel:
    model = build_model("lstm", **{**SIZES, **fields}, seed=3)
    assert isinstance(model, LSTMModel)
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(5))


def double_layer(**options: Any) -> LSTM:
    """A layer in float64 with random everything."""
    layer = LSTM(5, 7, std=0.5, forget_bias=1.0, **options).double()
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.5, generator=source)
    return layer


def test_the_papers_eta() -> None:
    """1/sqrt(32) for the kernel: input scale 1/4, dimension 512, output scale 1; biases sigma_y / 2."""
    registry = Registry(build_model("lstm-ptb-amos", device="meta"))
    kernel = registry["lstm.weight"]
    assert (kernel.spec.input_std, kernel.spec.fan_in_size, kernel.spec.output_std) == (1 / 4, 512, 1.0)
    assert kernel.eta == pytest.approx(1 / math.sqrt(32), rel=1e-15)
    assert registry["lstm.bias"].eta == registry["read_out.bias"].eta == 1 / 2
    assert registry["embedding.weight"].eta == 1 / 4
    assert registry["lstm.projection"].eta == pytest.approx((1 / 4) / (0.29 * math.sqrt(1024)), rel=1e-15)
    untied = Registry(build_model("lstm-ptb-amos", tied=False, device="meta"))
    assert untied["embedding.weight"].eta == untied["read_out.matrix.weight"].eta == 1 / 4
    assert [e.spec.shape for e in registry] == [(10000, 256), (4096, 512), (4096,), (256, 1024), (10000,)]


def test_scales_at_the_start_are_those_declared() -> None:
    model = lstm_model(vocab_size=2000, d_model=256, d_memory=1024)
    text = torch.randint(2000, (16, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x = model.embedding(text)
        h, _ = model.read(text, None)
        late = torch.cat((x, h.roll(1, dims=1)), dim=-1)[:, 24:]
        gates = late @ model.lstm.virtual("weight").T
        logits = model.read_out(h[:, 24:])
    for values, declared in ((x, 0.25), (late, 0.25), (gates, 1.0), (h[:, 24:], 0.25), (logits, 1.0)):
        assert values.std().item() == pytest.approx(declared, rel=0.25)


def torchs(layer: LSTM) -> nn.LSTM:
    """torch's layer with the same weights; the constant of the forget gate is in a bias."""
    m, d = layer.d_memory, layer.d_model
    twin = nn.LSTM(d, m, proj_size=d, batch_first=True).double()
    constant = torch.zeros(4 * m).double()
    constant[m : 2 * m] = layer.forget_bias
    kernel = layer.virtual("weight")
    weights = (kernel[:, :d], kernel[:, d:], layer.virtual("bias"), constant, layer.virtual("projection"))
    with torch.no_grad():
        for parameter, value in zip(twin.parameters(), weights, strict=True):
            parameter.copy_(value)
    return twin


def test_it_computes_what_torch_does_gradients_too() -> None:
    layer = double_layer()
    twin = torchs(layer)
    source = torch.Generator().manual_seed(2)
    x, grad = (torch.randn(3, 6, 5, dtype=torch.float64, generator=source) for _ in range(2))
    h, c = (torch.randn(3, n, dtype=torch.float64, generator=source) for n in (5, 7))
    inputs = [[t.clone().requires_grad_() for t in (x, h, c)] for _ in range(2)]
    (x1, h1, c1), (x2, h2, c2) = inputs
    ours, state = layer(x1, LSTMState(h1, c1))
    theirs, (last_h, last_c) = twin(x2, (h2[None], c2[None]))
    for a, b in ((ours, theirs), (state.h, last_h[0]), (state.c, last_c[0])):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    torch.autograd.backward((ours * grad).sum() + state.c.sum())
    torch.autograd.backward((theirs * grad).sum() + last_c.sum())
    of_x, of_h, bias, _, projection = (p.grad for p in twin.parameters())
    assert of_x is not None
    assert of_h is not None
    kernel = torch.cat((of_x, of_h), dim=1)
    expected = [kernel, bias, projection, *(t.grad for t in (x2, h2, c2))]
    found = [t.grad for t in (*layer.parameters(), x1, h1, c1)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_gradient_under_dropout() -> None:
    """Against numerical differences, with masks of h and of the memory."""
    source = torch.Generator().manual_seed(4)
    time, batch, d, m = 3, 2, 3, 4
    shapes = [(time, batch, 4 * m), (4 * m, d), (d, m), (batch, d), (batch, m)]
    inputs = [torch.randn(s, dtype=torch.float64, generator=source).requires_grad_() for s in shapes]
    masks = [torch.rand(s, dtype=torch.float64, generator=source) for s in ((time, batch, d), (batch, m))]
    assert torch.autograd.gradcheck(recurrence, (*inputs, *masks))


def test_the_operators_keep_torchs_rules_and_count_their_products() -> None:
    """As many operations as two products in each step, differentiated by autograd."""
    time, batch, d, m = 3, 2, 3, 4
    shapes = [(time, batch, 4 * m), (4 * m, d), (d, m), (batch, d), (batch, m)]
    gates, weight, projection, h, c = (torch.randn(shape) for shape in shapes)
    masks = torch.rand(time, batch, d), torch.rand(batch, m)
    for of_h, of_memory in (masks, (None, None)):
        given = (gates, weight, projection, h, c, of_h, of_memory)
        opcheck(torch.ops.zoo.recurrence.default, given)
        outputs, last, *kept = torch.ops.zoo.recurrence(*given)
        opcheck(
            torch.ops.zoo.recurrence_backward.default,
            (outputs, last, weight, projection, *kept, of_h, of_memory),
        )

    inputs = [t.requires_grad_() for t in (gates, weight, projection, h, c)]
    with FlopCounterMode(display=False) as ours:
        outputs, _ = recurrence(*inputs)
        torch.autograd.backward(outputs.sum())
    with FlopCounterMode(display=False) as loop:
        for _ in range(time):
            h = (h @ weight.mT)[:, :m] @ projection.mT
        torch.autograd.backward(h.sum())
    assert ours.get_total_flops() == loop.get_total_flops() > 0


def test_where_dropout_acts() -> None:
    layer = double_layer(hidden_dropout=0.5, memory_dropout=0.25)
    shape = (9, 50, layer.d_model)
    hidden, memory = layer._masks(torch.empty(shape).double())
    assert hidden is not None
    assert memory is not None
    assert hidden.shape == shape
    assert set(hidden.flatten().tolist()) == {0.0, 2.0}
    assert not torch.equal(hidden[0], hidden[1])  # at every step anew
    assert memory.shape == (50, layer.d_memory)  # once per sequence
    assert memory.max().item() == pytest.approx(4 / 3)
    layer.eval()
    assert layer._masks(torch.empty(shape)) == (None, None)
    model = lstm_model(hidden_dropout=0.5, memory_dropout=0.25)
    text = tokens(2, 5)
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


def test_the_state_is_carried_in_training() -> None:
    model, whole = lstm_model(streams=3), lstm_model()
    text = tokens(3, 17)
    losses = [model.loss(text[:, i : i + 8], text[:, i + 1 : i + 9]).cross_entropy for i in (0, 8)]
    expected = whole.loss(text[:, :16], text[:, 1:]).cross_entropy
    torch.testing.assert_close(torch.stack(losses).mean(), expected)
    _, state = whole.read(text[:, :16], None)
    assert model.carried is not None
    kept = model.carried.state(3)
    torch.testing.assert_close(kept, state)
    model.eval()
    evaluated = model.loss(text[:, :16], text[:, 1:]).cross_entropy
    torch.testing.assert_close(evaluated, expected)  # from zeros
    assert all(torch.equal(a, b) for a, b in zip(kept, model.carried.state(3), strict=True))


def test_no_gradient_goes_back_into_the_batch_before() -> None:
    model, text = lstm_model(streams=3), tokens(3, 9)
    model.loss(text[:, :-1], text[:, 1:])
    assert not any(b.requires_grad for b in model.buffers())
    torch.autograd.backward(model.loss(text[:, :-1], text[:, 1:]).total)


def test_a_batch_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match=r"model.streams is 3, but 2 sequences .*accumulation 1"):
        lstm_model(streams=3).loss(tokens(2, 8), tokens(2, 8))


def test_a_long_text_is_read_in_stretches() -> None:
    model = lstm_model().eval().double()  # the order of a sum depends on the number of rows
    text = tokens(2, 701)
    with torch.no_grad():
        in_stretches = model(text)
    torch.testing.assert_close(in_stretches, model(text), rtol=0, atol=1e-6)


def test_under_autocast_the_state_stays_float32() -> None:
    model, text = lstm_model().eval(), tokens(2, 20)
    with torch.autocast("cpu", torch.bfloat16):
        h, state = model.read(text, None)
    assert {h.dtype, state.h.dtype, state.c.dtype} == {torch.float32}
    torch.testing.assert_close(h, model.read(text, None)[0], rtol=0, atol=0.02)
    torch.autograd.backward(h.sum())


def test_generation_carries_the_state() -> None:
    model = lstm_model(hidden_dropout=0.5)
    found = generate(model, tokens(2, 3), 12, temperature=0)
    model.eval()
    expected = tokens(2, 3)
    for _ in range(12):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(found, expected)


def fields(folder: Path, **model: Any) -> dict[str, Any]:
    """Twenty steps on a stream of bytes, every kind of dropout on."""
    settings = tiny_fields(folder, steps=20, checkpoint_every=10)
    settings["data"]["objective"] = {"type": "stream"}
    settings["model"] = {
        "type": "lstm",
        "vocab_size": 256,
        "d_model": 8,
        "d_memory": 12,
        "hidden_dropout": 0.3,
        "memory_dropout": 0.1,
        "streams": 4,
        **model,
    }
    return settings


@pytest.mark.parametrize("optimizer", ["amos", "adamw"])
def test_twenty_steps_are_ten_kill_ten(tmp_path: Path, optimizer: str) -> None:
    given = fields(tmp_path) | {"optimizer": {"type": optimizer, "lr": 0.01}}
    whole = train(load_config({**given, "name": "whole"}))
    kill({**given, "name": "killed"}, "step", "global_norm", call=15)
    resumed = train(load_config({**given, "name": "killed"}), resume=True)
    assert resumed.finished
    assert_same(whole.folder, resumed.folder)
    model = load_model(find_checkpoint(whole.folder))
    assert all(b.abs().sum() > 0 for b in model.buffers())


@pytest.mark.parametrize("streams", [3, 2, None])
def test_another_run_begins_with_a_state_of_zeros(tmp_path: Path, streams: int | None) -> None:
    """It reads another text. The state was that of the end of the first one, whose streams had to be kept."""
    model = lstm_model(streams=3)
    model.loss(tokens(3, 8), tokens(3, 8))
    assert all(b.abs().sum() > 0 for b in model.buffers())
    save_model(model, tmp_path / "source")
    config = load_config({"model": {"from": str(tmp_path / "source"), "streams": streams}})
    initial = initial_model(config)
    assert isinstance(initial.model, LSTMModel)
    assert (initial.model.carried is None) == (streams is None)
    for name, buffer in initial.model.named_buffers():
        assert len(buffer) == streams and not buffer.any(), name
    for name, parameter in model.named_parameters():
        assert torch.equal(initial.model.get_parameter(name), parameter), name
    assert initial.report is not None
    assert set(initial.report.unused) == {"carried.h", "carried.c"}
    back = tmp_path / "without"
    save_model(lstm_model(), back)
    assert initial_model(load_config({"model": {"from": str(back), "streams": 2}})).report is not None


def test_validation_is_one_long_pass_over_every_token(tmp_path: Path) -> None:
    """The units of the literature: batch 1, state carried, every token once."""
    config = load_config(
        fields(tmp_path) | {"optimizer": {"type": "adamw", "lr": 0.01}}, ["train.eval_batches=999"]
    )
    result = train(config)
    assert config.data is not None
    assert isinstance(config.model, LSTMConfig)
    data = config.data.prepare(config.model)
    assert isinstance(data, TextDataset)
    assert data.corpus.validation is not None
    count = len(data.corpus.validation)
    text = torch.from_numpy(data.corpus.validation.windows(np.array([0]), count))[0]
    model = load_model(result.folder).eval()
    logits = model(text.roll(1)[None])[0]
    expected = nn.functional.cross_entropy(logits.double(), text).item()
    assert result.validation == pytest.approx(expected, rel=1e-6)
    steps = data.validation_batches(BatchSpec(0, 0, 4), 999)
    assert steps is not None
    assert sum(targets.numel() for _, targets in steps) == count


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        ({"streams": None}, "stream", "the objective is 'stream', but model 'lstm' is trained by causal"),
        ({}, "causal", "the objective is 'causal', but model 'lstm' is trained by stream"),
    ],
)
def test_what_does_not_fit_together(
    tmp_path: Path, model: dict[str, Any], objective: str, message: str
) -> None:
    given = fields(tmp_path, **model) | {"optimizer": {"type": "adamw", "lr": 0.01}}
    given["data"]["objective"] = {"type": objective}
    with pytest.raises(DataError, match=message):
        train(load_config(given))


@pytest.mark.parametrize(("streams", "accumulation"), [(8, 1), (4, 2), (2, 2)])
def test_streams_that_are_no_whole_batch_are_refused_by_the_configuration(
    tmp_path: Path, streams: int, accumulation: int
) -> None:
    """With 2 streams in 2 parts of 2, the second part would go on from the state of the first."""
    given = fields(tmp_path, streams=streams) | {"optimizer": {"type": "adamw", "lr": 0.01}}
    given["train"] |= {"accumulation": accumulation}
    message = (
        rf"model\.streams: value {streams}: train\.batch_size is 4, train\.accumulation {accumulation}, and "
        rf"the number of processes 1; expected batch_size {streams}, accumulation 1 and one process"
    )
    with pytest.raises(ConfigError, match=message):
        explain(given)


def test_streams_in_two_processes_are_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        pytest.fail("data was prepared")

    monkeypatch.setattr(TextData, "prepare", forbidden)
    config = load_config(fields(tmp_path) | {"optimizer": {"type": "adamw", "lr": 0.01}})
    message = r"model\.streams: value 4: .* number of processes 2; expected .* one process"
    with pytest.raises(ConfigError, match=message):
        build(Job.of(config), Start(), World(0, 2, torch.device("cpu")))
    with pytest.raises(ConfigError, match=message):
        forecast(Job.of(config), 2)
