"""The predicted cost of a training step on every rank: memory, operations, collectives.

Nothing is allocated. Weights, gradients and the optimizer's state are sums over declarations. Activations are
counted in a forward and a backward pass of one rank's examples on fake tensors, which have sizes and no
memory. The passes use torch's operators for a CPU; a GPU fuses some operators and keeps less.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from rich.console import Group
from rich.text import Text
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from zoo.checkpoint.recipe import materialise
from zoo.init import Registry, freeze
from zoo.models import Model
from zoo.optim.base import FLOAT32
from zoo.optim.storage import matrices_in_bfloat16
from zoo.run.first_weights import declared_model
from zoo.run.flops import counted_targets, training_example
from zoo.run.job import Job
from zoo.run.train_config import Recompute, TrainConfig
from zoo.train.live_memory import LiveMemory
from zoo.train.precision import autocast
from zoo.train.recompute import recompute
from zoo.utils.accelerators import Accelerator
from zoo.utils.dispatch import dispatched_alone
from zoo.utils.fitting import FittingTable
from zoo.utils.printable import readable_bytes

BFLOAT16 = 2
"""Bytes of a number in bfloat16."""
USABLE = 0.92
"""The share of a GPU's memory that tensors can use (our choice). The rest is for the context, the buffers of
NCCL, and gaps between tensors."""
FLASH = "_scaled_dot_product_flash_attention"
COUNTED_AS = {
    getattr(torch.ops.aten, f"{FLASH}_for_cpu{end}"): getattr(torch.ops.aten, FLASH + end)
    for end in ("", "_backward")
}
"""Attention operators of a CPU, whose operations torch does not count, and their equivalents on a GPU."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Counts the operations of matrix products and attention as torch's `FlopCounterMode` does.

    `FlopCounterMode` keeps the tensors that checkpointed blocks compute again alive, which would count as
    memory.

    Attributes:
        count: floating point operations so far.
    """

    def __init__(self) -> None:
        """Start with 0 operations."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,  # Any: torch has no public name for the class of its operators
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # called again with the rank's local tensor
        result = func(*args, **(kwargs or {}))
        operator = COUNTED_AS.get(func._overloadpacket, func._overloadpacket)
        if (counts := flop_registry.get(operator)) is not None:
            self.count += counts(*args, **(kwargs or {}), out_val=result)
        return result


class _CountedTargets(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Lets a model choose the positions whose target is not ignored, though fake targets have no values.

    An index by a boolean tensor of the shape of the targets becomes one by as many positions as there are
    such targets. Their values do not matter.
    """

    def __init__(self, shape: Sequence[int], count: int) -> None:
        """Take the shape of the targets, and the number of those that are not ignored."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._shape = torch.Size(shape)
        self._count = count

    def __torch_dispatch__(
        self,
        func: Any,  # Any: torch has no public name for the class of its operators
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        match func, args:
            case torch.ops.aten.index.Tensor, (tensor, [*indices]):
                args = (tensor, [position for index in indices for position in self._positions(index)])
        return func(*args, **(kwargs or {}))

    def _positions(self, index: object) -> Sequence[object]:
        """What an index is replaced by: itself, or a tensor of positions for each of its dimensions."""
        if not isinstance(index, Tensor) or index.dtype != torch.bool or index.shape != self._shape:
            return [index]
        return [index.new_empty(self._count, dtype=torch.int64) for _ in index.shape]


@dataclass(frozen=True)
class Activations:
    """The memory in bytes and the operations of a step on every rank, with one mode of recomputation.

    Attributes:
        recompute: the value of `train.recompute`.
        kept: memory at the end of the forward pass for the backward pass: activations, weights that autocast
            has rounded, and the gradients that the head computes in advance.
        temporary: additional memory at the peak of the forward pass, which in language models is a chunk of
            the logits.
        peak: peak memory of the whole step.
        flops: operations of matrix products and attention in the step, including recomputation.
        fits: whether the peak is within `USABLE` of the device's memory; None: no device is given.
    """

    recompute: Recompute
    kept: int
    temporary: int
    peak: int
    flops: int
    fits: bool | None


@dataclass(frozen=True)
class Exchange:
    """A kind of collective: its number in a step on every rank, and the bytes of the whole tensors."""

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Forecast:
    """The forecast of a training step on every rank; sizes are in bytes.

    Attributes:
        ranks: number of ranks.
        copies: number of copies of the model among them.
        examples: examples that a rank computes at once; its share of the batch is `parts` times as large.
        parts: `train.accumulation`.
        weights: the rank's rows of the weights, and the buffers.
        slots: the rank's part of the optimizer's state; None: not known before training.
        gradients: the rank's rows of the gradients, or whole gradients if their sum over ranks is deferred.
        gathered: the weights of the root, which stay gathered during a part, and of two blocks.
        activations: one entry for each mode of recomputation that the model supports.
        exchanges: collectives of forward pass, backward pass and norm. The update may add some, which depend
            on the optimizer.
        configured: the mode of recomputation in the configuration.
        whole_gradients: whether `gradients` are whole.
        waits: the quantities that each step copies from the GPU to the host, which waits for them; each after
            the setting that needs it.
    """

    ranks: int
    copies: int
    examples: int
    parts: int
    weights: int
    slots: int | None
    gradients: int
    gathered: int
    activations: Sequence[Activations]
    exchanges: Sequence[Exchange]
    configured: Recompute
    whole_gradients: bool
    waits: Sequence[str]

    def table(self) -> Group:
        """The forecast as a table for the terminal."""
        kinds = "whole, until their one sum over ranks" if self.whole_gradients else "the rank's own rows"
        lines = [
            f"{self.ranks} ranks, {self.ranks // self.copies} to a copy of the model; each computes "
            f"micro-batches of {self.examples} examples, {self.parts} in a step",
            f"weights    {readable_bytes(self.weights)}",
            f"slots      {readable_bytes(self.slots)}",
            f"gradients  {readable_bytes(self.gradients)}: {kinds}",
            f"gathered   {readable_bytes(self.gathered)}",
            f"waits      {'; '.join(self.waits) or 'for nothing between two log lines'}",
            *(
                f"{exchange.kind}: {exchange.count} in a step, {readable_bytes(exchange.bytes)} together"
                for exchange in self.exchanges
            ),
        ]
        rows = [
            [
                way.recompute + (" (configured)" if way.recompute == self.configured else ""),
                readable_bytes(way.kept),
                readable_bytes(way.temporary),
                readable_bytes(way.peak),
                f"{way.flops / 1e12:,.4g}",
                "" if way.fits is None else "yes" if way.fits else "no",
            ]
            for way in self.activations
        ]
        numbers = ("activations", "temporary", "peak", "TFLOP in a step", "fits")
        table = FittingTable("", ("recompute", *numbers), rows, right=numbers)
        return Group(Text("\n".join(lines)), table)


@dataclass(frozen=True)
class _Traced:
    """The bytes of a forward and a backward pass besides weights and the gradients of blocks.

    Attributes:
        kept: the bytes at the end of the forward pass.
        in_blocks: the peak until the last block has ended in the forward pass.
        forward: the peak in the rest of the forward pass.
        head_backward: the peak in the backward pass until the first gradient of a block is computed.
        blocks_backward: the peak in the rest of the backward pass.
        flops: operations of both passes.
    """

    kept: int
    in_blocks: int
    forward: int
    head_backward: int
    blocks_backward: int
    flops: int


@dataclass(frozen=True)
class _Division:
    """How a model is divided into the units that FSDP gathers, and over the ranks.

    Attributes:
        shards: number of ranks that share a copy of the model.
        is_split: whether there are several ranks.
        blocks: number of entries of each block.
        root: the parameters outside the blocks.
        trained: the parameters that are trained.
        gather: bytes of a number whose block is gathered.
        reduce: bytes of a number whose gradient is summed over ranks.
        defers: whether gradients stay whole until they are summed once for all parts of a batch.
    """

    shards: int
    is_split: bool
    blocks: Sequence[int]
    root: Sequence[nn.Parameter]
    trained: Sequence[nn.Parameter]
    gather: int
    reduce: int
    defers: bool

    @classmethod
    def of(cls, model: Model, train: TrainConfig, ranks: int, memory: int | None) -> _Division:
        """The division of a model over `ranks` ranks with `memory` bytes each; None: it is not known."""
        parallel = train.parallel
        blocks = [list(block.parameters()) for block in model.fsdp_units]
        inside = {id(p) for block in blocks for p in block}
        trained = [p for p in model.parameters() if p.requires_grad]
        defers = ranks > 1 and train.accumulation > 1 and parallel.defers(_numbers(trained), memory)
        return cls(
            shards=ranks // parallel.copies(ranks),
            is_split=ranks > 1,
            blocks=[_numbers(block) for block in blocks],
            root=[p for p in model.parameters() if id(p) not in inside],
            trained=trained,
            gather=BFLOAT16 if parallel.gather == "bfloat16" else FLOAT32,
            reduce=BFLOAT16 if parallel.reduce == "bfloat16" else FLOAT32,
            defers=defers,
        )

    def exchanges(self, times: int, again: int, copies: int) -> list[Exchange]:
        """The collectives of a step; none with a single rank.

        Args:
            times: number of parts of a batch.
            again: how often the weights of a block are gathered in a part.
            copies: number of copies of the model.
        """
        if not self.is_split:
            return []
        sums, units = 1 if self.defers else times, len(self.blocks) + 1
        gathered = again * self.gather * sum(self.blocks) + FLOAT32 * _numbers(self.root)
        exchanges = [
            Exchange("all-gather", times * (again * len(self.blocks) + 1), times * gathered),
            Exchange("reduce-scatter", sums * units, sums * self.reduce * _numbers(self.trained)),
        ]
        if copies > 1:  # which exchange the rows that they share
            rows = _rows(self.trained, self.shards)
            exchanges.append(Exchange("all-reduce", sums * units, sums * self.reduce * rows))
        # All ranks exchange the number of targets, the losses and the norm.
        return [*exchanges, Exchange("all-reduce of scalars", 3, 8 + 4 * 8 + FLOAT32)]


@dataclass(frozen=True)
class _Held:
    """The bytes that a rank holds besides the activations.

    Attributes:
        weights: its rows of the weights, and the buffers.
        slots: its part of the optimizer's state; None: not known before training.
        gradients: its rows of the gradients, or whole gradients if their sum over ranks is deferred.
        root: the gathered weights of the root.
        block: the gathered weights of the largest block.
        block_in_flight: the whole gradients of the largest block, and the buffer of their sum over ranks.
        root_in_flight: the same for the root.
        copies_in_update: float32 copies of bfloat16 weights and of their gradients.
    """

    weights: int
    slots: int | None
    gradients: int
    root: int
    block: int
    block_in_flight: int
    root_in_flight: int
    copies_in_update: int

    @classmethod
    def of(cls, job: Job, model: Model, division: _Division) -> _Held:
        """The bytes of a model; its matrices are rounded to bfloat16 if the run stores them so."""
        shards, largest = division.shards, max(division.blocks, default=0)
        low = matrices_in_bfloat16(model) if job.train.storage == "bf16" else []
        # An update replaces the bfloat16 weights by float32 ones and adds float32 copies of their gradients.
        copies_in_update = (FLOAT32 - BFLOAT16) * _numbers(low)
        copies_in_update += FLOAT32 * _numbers(p for p in low if p.requires_grad)
        trained_root = [p for p in division.root if p.requires_grad]
        return cls(
            weights=_bytes(model.parameters(), shards) + sum(b.nbytes for b in model.buffers()),
            slots=_slots(job, model, shards),
            gradients=_bytes(division.trained, 1 if division.defers else shards),
            root=FLOAT32 * _numbers(division.root) if division.is_split else 0,
            block=division.gather * largest if division.is_split else 0,
            block_in_flight=(FLOAT32 + division.reduce) * largest if division.is_split else 0,
            root_in_flight=sum((p.element_size() + division.reduce) * p.numel() for p in trained_root),
            copies_in_update=copies_in_update,
        )

    def peak(self, traced: _Traced, accumulates: bool) -> int:
        """The peak memory of a step: the largest of its phases.

        Args:
            traced: the activations.
            accumulates: whether a batch has several parts, so that the gradients of earlier ones are held.
        """
        state = self.weights + (self.slots or 0)
        always = state + self.root + (self.gradients if accumulates else 0)
        return max(
            always + 2 * self.block + traced.in_blocks,
            always + traced.forward,
            always + 2 * self.block + traced.head_backward,
            always + 2 * self.block + self.block_in_flight + traced.blocks_backward,
            state + self.gradients + self.root + self.root_in_flight,
            state + self.gradients + self.copies_in_update,
        )


def forecast(
    job: Job,
    ranks: int,
    device: Accelerator | None = None,
    ways: Sequence[Recompute] = get_args(Recompute),
) -> Forecast:
    """Predict the memory, operations and collectives of a training step.

    Args:
        job: the run. If it started from a checkpoint and has one of its own, only the latter is read.
        ranks: number of processes, each with a device.
        device: the kind of the devices. None: whether the step fits is not tested, and gradients are summed
            after every part unless `train.parallel.sync` says otherwise.
        ways: the modes of recomputation to compare; a model without blocks has only "none".

    Raises:
        ConfigError: The batch or the model cannot be divided over so many ranks, or the optimizer or the
            storage of matrices needs a single one.
        DataError: The data cannot make examples of their length, or the model cannot be trained on them.
    """
    t, parallel = job.train, job.train.parallel
    examples = job.examples_at_once(ranks)
    job.check_processes(ranks)
    copies = parallel.copies(ranks)
    model = declared_model(job.config, job.folder).model.to("meta")
    freeze(model, job.config.freeze)
    job.config.constraint.apply(model)
    division = _Division.of(model, t, ranks, None if device is None else device.memory)
    held = _Held.of(job, model, division)
    activations: list[Activations] = []
    for way in ways if division.blocks else ("none",):
        traced = _trace(job, model, examples, way)
        peak = held.peak(traced, t.accumulation > 1)
        fits = None if device is None else peak <= USABLE * device.memory
        temporary = max(traced.in_blocks, traced.forward) - traced.kept
        activations.append(
            Activations(way, traced.kept, temporary, peak, traced.flops * t.accumulation, fits)
        )
    again = 2 if parallel.reshard_after_forward else 1
    return Forecast(
        ranks=ranks,
        copies=copies,
        examples=examples,
        parts=t.accumulation,
        weights=held.weights,
        slots=held.slots,
        gradients=held.gradients,
        gathered=held.root + 2 * held.block,
        activations=activations,
        exchanges=division.exchanges(t.accumulation, again, copies),
        configured=t.recompute,
        whole_gradients=division.defers,
        waits=_waits(job),
    )


def _waits(job: Job) -> list[str]:
    """The quantities that a step on a GPU waits for, each after the setting that needs it."""
    spikes = job.train.spikes
    waits = {
        "train.spikes": "whether it is one" if spikes is not None and spikes.action != "log" else None,
        "train.clip": job.train.clip.waits_for,
        "optimizer": job.optimizer.waits_for,
    }
    return [f"{setting} for {what}" for setting, what in waits.items() if what]


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _rows(tensors: Iterable[Tensor], shards: int) -> int:
    """The number of entries on the first rank; FSDP divides the first dimension as `torch.chunk` does."""
    return sum(_share(tensor.shape, shards) for tensor in tensors)


def _bytes(tensors: Iterable[Tensor], shards: int) -> int:
    """The bytes of the entries on the first rank."""
    return sum(tensor.element_size() * _share(tensor.shape, shards) for tensor in tensors)


def _share(shape: Sequence[int], shards: int) -> int:
    return math.prod((-(-shape[0] // shards), *shape[1:]))


def _slots(job: Job, model: Model, shards: int) -> int | None:
    """The bytes of the first rank's slots; a slot is divided like its parameter, unless it has fewer rows."""
    total = 0
    for entry in Registry(model, None, job.config.eta_overrides, job.config.layer_decay):
        slots = job.optimizer.slots(entry)
        if slots is None:
            return None
        rows = entry.spec.shape[0]
        total += sum(
            _share(shape, shards if shape and shape[0] == rows else 1) if shape else 1
            for shape in slots.values()
        )
    return FLOAT32 * total


@dispatched_alone
def _trace(job: Job, model: Model, examples: int, way: Recompute) -> _Traced:
    """Run a forward and a backward pass on fake tensors, freeing a block's gradients as they come."""
    device = torch.device("cpu")
    example = training_example(model, job.data)
    selected = _CountedTargets((examples, *example[-1].shape[1:]), examples * counted_targets(example))
    model = copy.deepcopy(model)
    if job.train.parallel.gather == "bfloat16":
        for unit in model.fsdp_units:
            unit.to(torch.bfloat16)
    with FakeTensorMode() as fake:
        materialise(model, device)
        recompute(model, way)
        model.train()
        peaks: list[int] = []

        def end_of_phase(phase: int) -> None:
            if len(peaks) == phase:
                peaks.append(memory.peak)
                memory.forget_peak()

        def in_backward(parameter: Tensor) -> None:
            parameter.grad = None
            end_of_phase(2)

        for unit in model.fsdp_units:
            for parameter in unit.parameters():
                if parameter.requires_grad:
                    register = parameter.register_post_accumulate_grad_hook
                    register(in_backward)  # type: ignore[no-untyped-call]  # torch's
        if model.fsdp_units:
            model.fsdp_units[-1].register_forward_hook(lambda *_: end_of_phase(0))
        state = [*model.parameters(), *model.buffers()]
        with LiveMemory(state) as memory, Operations() as operations, selected:
            base = memory.now
            # Fake tensors can be copied where real ones of a large batch would take memory.
            batch = [fake.from_tensor(t).repeat(examples, *[1] * (t.dim() - 1)) for t in example]
            with autocast(job.train.precision, device):
                loss = model.loss(*batch, z_loss=job.train.z_loss)
            kept = memory.now
            end_of_phase(0)  # of a model without blocks
            end_of_phase(1)
            torch.autograd.backward(loss.total)
            end_of_phase(2)
            peaks.append(memory.peak)
    in_blocks, forward, head, blocks = (peak - base for peak in peaks)
    return _Traced(kept - base, in_blocks, forward, head, blocks, operations.count)
