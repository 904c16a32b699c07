"""Named tensors in safetensors files, the only format of tensors that zoo writes.

The tensors of a file ``model.safetensors`` are in this file, or, where the ranks of a run wrote their
shards, in pieces beside it: ``shard-00001-model-00001-of-00001.safetensors`` and so on. Names and headers of
the pieces are those of the ``HuggingFaceStorageWriter`` of torch.distributed.checkpoint, whose reader can
read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zoo.checkpoint.integrity import (
    CHECKSUMS,
    HEADER,
    METADATA,
    bytes_of,
    checksum_of_header,
    read_checked,
    read_checksums,
    require_finite,
    require_same,
    write_checked,
)
from zoo.checkpoint.pieces import piece_of, pieces_of
from zoo.utils.checksum import Checksum, checksum
from zoo.utils.errors import CheckpointError
from zoo.utils.files import open_regular, parse_json
from zoo.utils.printable import dtype_name, first_few
from zoo.utils.progress import Advance, ignore
from zoo.utils.sharded import Stored, is_sharded, own_slices
from zoo.utils.untyped import JsonObject

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtypes by their names in a header."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = 8
"""Number of bytes at the start of a file that hold the length of its header."""
CHUNK = 1 << 24
"""Number of bytes that are read at once to compute only their checksum."""

OFFSETS, VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
"""Key of a piece's metadata: the offsets of its tensors in the whole ones, in torch's format."""
PIECES, SAVE = "zoo_pieces", "zoo_save"
"""Keys of a piece's metadata: the number of pieces, and an identifier of the checkpoint."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], advance: Advance = ignore
) -> None:
    """Write a file with a checksum of every tensor. The write is not atomic; see `zoo.utils.atomic`.

    The tensors are written one after the other, without a copy of them all. The checksums replace zeros in
    the header once all are known.

    Args:
        path: the file to make.
        tensors: plain tensors on any device.
        metadata: strings that are kept in the header.
        advance: a function that is called with the number of entries written since the last call.

    Raises:
        OSError: The file cannot be written.
        CheckpointError: A tensor has a dtype that the format does not support.
    """
    header: JsonObject = {METADATA: dict(metadata)}
    end = 0
    names = sorted(
        tensors, key=lambda name: (-tensors[name].element_size(), name)
    )  # aligned, as in the library
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in NAMES:
            raise CheckpointError(f"{path}: {name} is {tensor.dtype}, which safetensors files do not hold")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind, shape = NAMES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    sums = dict.fromkeys((HEADER, *names), "0" * len(checksum()))
    with path.open("wb") as file:
        file.write(_header_bytes(header, sums))
        for name in names:
            sums[name] = write_checked(file, bytes_of(tensors[name].detach().to("cpu").contiguous()))
            advance(tensors[name].numel())
        file.seek(0)
        file.write(_header_bytes(header, {**sums, HEADER: checksum_of_header(header)}))


def count_entries(tensors: Mapping[str, Tensor]) -> int:
    """The number of entries of all tensors together."""
    return sum(tensor.numel() for tensor in tensors.values())


def _header_bytes(header: JsonObject, sums: Mapping[str, str]) -> bytes:
    """The first bytes of a file: the length of its header, and the header with checksums."""
    content = {**header, METADATA: {**header[METADATA], CHECKSUMS: json.dumps(sums)}}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text


@dataclass(frozen=True)
class Part:
    """The part of a tensor that a rank writes.

    Attributes:
        tensor: the part as a plain tensor.
        begins: offset of the part in the whole tensor, for each dimension.
    """

    tensor: Tensor
    begins: tuple[int, ...]


def parts_of(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Part]:
    """The parts of tensors that a rank writes: its rows of sharded tensors; the first rank also plain ones.

    Of several copies of a shard, as in hybrid sharding, one is written. The parts share the memory of the
    tensors.

    Args:
        tensors: plain or sharded, the same on all ranks.
        rank: the number of the rank, from 0.
    """
    parts = {}
    for name, tensor in tensors.items():
        begins, own, mine = (0,) * tensor.dim(), tensor.detach(), rank == 0
        if is_sharded(own):
            begins = tuple(part.start for part in own_slices(own))
            coordinate = own.device_mesh.get_coordinate() or ()
            mine = not any(i for p, i in zip(own.placements, coordinate, strict=True) if p.is_replicate())
            own = own.to_local()
        if mine and (own.numel() or rank == 0):
            parts[name] = Part(own, begins)
    return parts


def write_piece(
    path: Path, parts: Mapping[str, Part], metadata: Mapping[str, str], rank: int, ranks: int, save: str
) -> Path:
    """Write the piece of a rank; like `write_tensors` it is not atomic.

    Args:
        path: the file that the pieces replace, ``model.safetensors``.
        parts: the rank's parts of all tensors, as `parts_of` returns them.
        metadata: strings that are kept in the header.
        rank: the number of the rank, from 0.
        ranks: the number of ranks, each of which writes a piece.
        save: an identifier that the pieces of this checkpoint share and no others have.

    Returns:
        The path of this piece.
    """
    offsets = {name: {"saved_offsets": part.begins} for name, part in parts.items()}
    header = {OFFSETS: json.dumps(offsets), VERSION: "1.0", PIECES: str(ranks), SAVE: save}
    piece = piece_of(path, rank)
    write_tensors(piece, {name: part.tensor for name, part in parts.items()}, {**metadata, **header})
    return piece


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:  # Any: the library has no types for its methods
    """Open a file; only the tensors that are requested are read.

    Args:
        path: a .safetensors file.

    Yields:
        The handle of `safetensors.safe_open`.

    Raises:
        CheckpointError: The file is missing or truncated, or is not a safetensors file.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; expected a safetensors file")
    with open_regular(path, CheckpointError):
        pass
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a complete safetensors file ({error}); expected one written by zoo or, with a "
            f"format, by another library{_pickle_hint(path)}"
        ) from error


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a tensor in a file.

    Attributes:
        file: the file.
        offset: offset of the rows in the file, in bytes.
        begin, end: the range of the rows in the whole tensor; a number without dimensions is one row.
        checksum: checksum of the rows; None: the file has none.
    """

    file: Path
    offset: int
    begin: int
    end: int
    checksum: str | None = None


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file or of its pieces, whose headers have been read.

    Attributes:
        path: the file.
        tensors: tensors on the meta device by name.
        metadata: the strings in the header, empty if there are none.
        blocks: the blocks of rows of each tensor.
    """

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    blocks: Mapping[str, tuple[RowBlock, ...]]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the headers.

        Args:
            path: a .safetensors file, or one whose pieces are beside it.

        Raises:
            CheckpointError: The file or a piece of it is missing or truncated, is not a safetensors file, has
                other dtypes, or the pieces do not belong together.
        """
        pieces = [] if path.is_file() else pieces_of(path)
        metadata: dict[str, str] = {}
        by_name: dict[str, list[tuple[RowBlock, Tensor]]] = {}
        for file in pieces or [path]:
            with open_tensors(file) as handle:
                header = handle.metadata() or {}
            metadata = {**header, **metadata}
            offsets = parse_json(header.get(OFFSETS, "{}"), f"{file}: {OFFSETS}", CheckpointError)
            for name, tensor, offset, recorded in _layout(file):
                begin = (offsets.get(name, {}).get("saved_offsets") or [0])[0]
                rows = tensor.shape[0] if tensor.dim() else 1
                block = RowBlock(file, offset, begin, begin + rows, recorded)
                by_name.setdefault(name, []).append((block, tensor))
        tensors, blocks = {}, {}
        for name, parts in by_name.items():
            parts.sort(key=lambda part: (part[0].begin, part[0].end))
            blocks[name] = tuple(block for block, _ in parts)
            like = parts[0][1]
            shape = like.shape if len(parts) == 1 else (blocks[name][-1].end, *like.shape[1:])
            tensors[name] = torch.empty(shape, dtype=like.dtype, device="meta")
        metadata.pop(CHECKSUMS, None)
        if pieces:
            _check_pieces(path, pieces, blocks)
            metadata = {k: v for k, v in metadata.items() if k not in (OFFSETS, VERSION, PIECES, SAVE)}
        return cls(path, tensors, metadata, blocks)

    def read(self, name: str, target: Tensor) -> None:
        """Read a tensor into an existing one; of a sharded tensor each rank reads the rows that it holds.

        Args:
            name: a name in `tensors`.
            target: a tensor of the same shape, of any dtype and device, plain or sharded by rows.

        Raises:
            CheckpointError: A file is truncated, does not match its checksum, or has NaN or infinite entries.
        """
        local_part = target.detach()
        start = 0
        if is_sharded(local_part):
            slices = own_slices(local_part)
            local_part, start = local_part.to_local(), slices[0].start if slices else 0
        rows = local_part if local_part.dim() else local_part.reshape(1)
        dtype = self.tensors[name].dtype
        row_bytes = dtype.itemsize * (rows[:1].numel() if len(rows) else 0)
        for block in self.blocks[name]:
            first, last = max(block.begin, start), min(block.end, start + len(rows))
            if first >= last or not row_bytes:
                continue
            part = rows[first - start : last - start]
            direct = part.dtype == dtype and part.device.type == "cpu" and part.is_contiguous()
            buffer = part if direct else torch.empty(part.shape, dtype=dtype)
            with block.file.open("rb") as file:
                file.seek(block.offset + (first - block.begin) * row_bytes)
                reading = read_checked(file, buffer)
                if not reading.complete:
                    raise CheckpointError(f"{block.file}: ends within {name}; expected a complete file")
                actual = reading.checksum
                if (first, last) != (block.begin, block.end):  # other ranks read the other rows
                    file.seek(block.offset)
                    actual = _checksum_of(file, (block.end - block.begin) * row_bytes)
            require_same(block.file, name, actual, block.checksum)
            if not reading.finite:
                require_finite(block.file, name, buffer)
            if not direct:
                part.copy_(buffer)

    def stored(self) -> dict[str, Stored]:
        """The tensors by name; each is read when it is assigned."""
        return {name: Stored(t.shape, t.dtype, partial(self.read, name)) for name, t in self.tensors.items()}

    def whole(self, name: str) -> Tensor:
        """Read a tensor onto the CPU."""
        tensor = torch.empty_like(self.tensors[name], device="cpu")
        self.read(name, tensor)
        return tensor


def _checksum_of(file: BinaryIO, size: int) -> str:
    """The checksum of the next bytes of a file, of which only a few are in memory at a time."""
    total = Checksum()
    while size > 0 and (data := file.read(min(size, CHUNK))):
        size -= len(data)
        total.update(data)
    return total.text


def _layout(path: Path) -> Iterator[tuple[str, Tensor, int, str | None]]:
    """The name, meta tensor, first byte and checksum of every tensor of a file, which must be complete."""
    header, start = _header(path)
    sums = read_checksums(path, header)
    header.pop(METADATA, None)
    for name, entry in header.items():
        if (kind := entry["dtype"]) not in DTYPES:
            raise CheckpointError(f"{path}: {name} is {kind}; expected one of {', '.join(DTYPES)}")
        tensor = torch.empty(entry["shape"], dtype=DTYPES[kind], device="meta")
        yield name, tensor, start + entry["data_offsets"][0], sums.get(name)


def _header(path: Path) -> tuple[JsonObject, int]:
    """The header of a file, which must be complete, and the offset of its tensors in bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH), "little")
        return parse_json(file.read(length), path, CheckpointError), LENGTH + length


def checksums_of(path: Path) -> Mapping[str, str]:
    """The checksums of the tensors of a file that `open_tensors` opens; empty if it has none.

    Raises:
        CheckpointError: The header is damaged.
    """
    return read_checksums(path, _header(path)[0])


def _check_pieces(path: Path, pieces: list[Path], blocks: Mapping[str, Iterable[RowBlock]]) -> None:
    """Refuse pieces that do not make up one checkpoint.

    Raises:
        CheckpointError: Pieces are missing or left over, belong to different checkpoints, or leave out rows.
    """
    counts, saves = {}, {}
    for piece in pieces:
        with open_tensors(piece) as handle:
            header = handle.metadata() or {}
        counts[piece], saves[piece] = header.get(PIECES), header.get(SAVE)
    if other := [piece for piece in pieces if saves[piece] != saves[pieces[0]]]:
        raise CheckpointError(
            f"{other[0]}: belongs to another checkpoint than {pieces[0].name}; expected pieces of one"
        )
    expected = int(counts[pieces[0]] or 0)
    numbers = {int(match[1]) for piece in pieces if (match := re.match(r"shard-(\d+)-", piece.name))}
    missing = sorted({*range(1, expected + 1)} - numbers)
    if missing or len(pieces) != expected:
        gone = f"piece {', '.join(map(str, missing))} is missing" if missing else f"there are {len(pieces)}"
        raise CheckpointError(f"{path}: expected {expected} pieces, shard-00001 and so on; {gone}")
    for name, parts in blocks.items():
        end = 0
        for block in parts:
            if block.begin != end:
                raise CheckpointError(f"{path}: rows {end} to {block.begin} of {name} are in no piece")
            end = block.end


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a whole file, or all of its pieces, onto the CPU.

    Args:
        path: a .safetensors file.

    Returns:
        The tensors by name, and the metadata (empty if there is none).

    Raises:
        CheckpointError: The file cannot be read, see `TensorFile.open`.
    """
    file = TensorFile.open(path)
    return {name: file.whole(name) for name in file.tensors}, dict(file.metadata)


def _pickle_hint(path: Path) -> str:
    """A clause for messages about files of torch.save: zip archives and bare pickles."""
    with path.open("rb") as file:
        start = file.read(2)
    if start in (b"PK", b"\x80\x02"):
        return "; it looks like torch.save's pickle, which may run code: convert it with safetensors.torch"
    return ""


def check_match(path: Path, stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare the tensors of a file with those of a model; float32 may be read from bfloat16 and float16.

    Args:
        path: the file, for the message.
        stored: the tensors of the file.
        expected: the tensors of the model.

    Raises:
        CheckpointError: Names, shapes or dtypes differ.
    """
    problems = []
    if missing := [name for name in expected if name not in stored]:
        problems.append(f"lacks {first_few(missing)}")
    if surplus := [name for name in stored if name not in expected]:
        problems.append(f"has {first_few(surplus)}, which the model has not")
    both = [name for name in expected if name in stored]
    differing = [n for n in both if not _fits(stored[n], expected[n])]
    if differing:
        shown = [f"{n} is {_kind(stored[n])}, expected {_kind(expected[n])}" for n in differing]
        problems.append(first_few(shown))
    if problems:
        raise CheckpointError(f"{path}: does not belong to this model: {'; '.join(problems)}")


def _fits(stored: Tensor, expected: Tensor) -> bool:
    """Whether a tensor of a file can be read into one of the model without rounding."""
    widened = stored.dtype in (torch.bfloat16, torch.float16) and expected.dtype == torch.float32
    return stored.shape == expected.shape and (widened or stored.dtype == expected.dtype)


def _kind(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
