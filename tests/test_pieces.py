"""Tensors in pieces, one for each rank: read by zoo and by torch, refused where they do not fit together."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

import zoo.checkpoint.safetensors
from zoo.checkpoint.safetensors import Part, TensorFile, read_tensors, write_piece, write_tensors
from zoo.utils.errors import CheckpointError

RANKS = 3
WHOLE = {
    "matrix": torch.arange(35.0).view(7, 5),
    "short": torch.arange(2.0),  # the last rank has none of it
    "count": torch.tensor(4),
    "half": torch.arange(12.0).view(6, 2).bfloat16(),
}


def parts(rank: int) -> dict[str, Part]:
    """What a rank has of `WHOLE`; numbers belong to the first one."""
    found = {}
    for name, tensor in WHOLE.items():
        if not tensor.dim():
            if rank == 0:
                found[name] = Part(tensor, ())
            continue
        piece = -(-len(tensor) // RANKS)
        rows = tensor[rank * piece : (rank + 1) * piece]
        if len(rows) or rank == 0:
            found[name] = Part(rows, (min(rank * piece, len(tensor)), *[0] * (tensor.dim() - 1)))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for rank in range(RANKS):
        write_piece(tmp_path / "model.safetensors", parts(rank), {"format": "zoo"}, rank, RANKS, "this")
    return tmp_path / "model.safetensors"


def test_pieces_are_read_as_one_file(path: Path) -> None:
    found, metadata = read_tensors(path)
    assert found.keys() == WHOLE.keys()
    for name, tensor in WHOLE.items():
        assert torch.equal(found[name], tensor)
    assert metadata == {"format": "zoo"}
    target = torch.empty(7, 5, dtype=torch.float64)
    TensorFile.open(path).read("matrix", target)
    assert torch.equal(target, WHOLE["matrix"].double())


class Rows:
    """The rows of a rank, as a sharded tensor gives them."""

    def __init__(self, rows: Tensor) -> None:
        self.to_local, self.detach = lambda: rows, lambda: self


def test_rows_of_a_large_tensor_are_checked_without_reading_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, half = torch.arange(2.0**18).view(512, 512), slice(256, 512)
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"matrix": tensor}, {})
    monkeypatch.setattr(zoo.checkpoint.safetensors, "is_sharded", lambda _: True)
    monkeypatch.setattr(zoo.checkpoint.safetensors, "own_slices", lambda _: (half, slice(None)))
    monkeypatch.setattr(zoo.checkpoint.safetensors, "CHUNK", 1 << 12)
    rows, file = torch.empty(256, 512), TensorFile.open(path)
    tracemalloc.start()
    file.read("matrix", cast(Tensor, Rows(rows)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(rows, tensor[half])
    assert peak < tensor.numel()  # a quarter of its bytes


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_them(path: Path) -> None:
    """An independent reader of the layout: that of torch.distributed.checkpoint."""
    found: dict[str, Tensor] = {
        name: torch.zeros_like(tensor) for name, tensor in WHOLE.items() if tensor.dim()
    }
    load(found, storage_reader=HuggingFaceStorageReader(str(path.parent)), no_dist=True)
    for name, tensor in found.items():
        assert torch.equal(tensor, WHOLE[name])


def piece(path: Path, number: int) -> Path:
    return path.with_name(f"shard-{number:05}-model-00001-of-00001.safetensors")


def torn(path: Path) -> None:
    piece(path, 2).write_bytes(piece(path, 2).read_bytes()[:-4])


def foreign(path: Path) -> None:
    write_piece(path, parts(1), {}, 1, RANKS, "another")


def left_over(path: Path) -> None:
    shutil.copy(piece(path, 3), piece(path, 4))


def without_rows(path: Path) -> None:
    write_piece(path, {}, {}, 1, RANKS, "this")


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: piece(path, 2).unlink(), "expected 3 pieces, shard-00001 and so on; piece 2 is missing"),
    (lambda path: piece(path, 3).unlink(), "piece 3 is missing"),
    (torn, "shard-00002-model-00001-of-00001.safetensors: not a complete safetensors file"),
    (foreign, "belongs to another checkpoint than shard-00001"),
    (left_over, "expected 3 pieces, shard-00001 and so on; there are 4"),
    (without_rows, "rows 3 to 6 of matrix are in no piece"),
]


@pytest.mark.parametrize(("damage", "message"), WRONG)
def test_pieces_that_do_not_fit_together(path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path)
    assert message in str(caught.value)
