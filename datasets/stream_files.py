"""One edge file at a time, read in pieces: raw pairs, arrays, text and Parquet."""

import gzip
import io
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import read_npy
from gnn_dist.datasets.edge_files import DELIMITERS, INTEGER, choose_columns, header
from gnn_dist.errors import DatasetError

__all__ = ["SUFFIXES", "EdgeFile", "open_file", "suffix_of"]

Array = NDArray[Any]
EdgeChunks = Iterator[tuple[Array, Array]]

SUFFIXES = (".bin", ".npy", ".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
ID_DTYPES: dict[str, np.dtype[Any]] = {
    "auto": np.dtype("<i4"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
}
INT64 = np.iinfo(np.int64)
BLOCK_BYTES = 1 << 24  # of text, parsed together
PIECE_BYTES = 1 << 12  # of it read at once, which is how closely damage is located


@dataclass(frozen=True, eq=False)
class EdgeFile:
    """A file of edges.

    Attributes:
        path: The file.
        chunks: Starts a pass, in pieces of at most so many edges; ids are not checked.
        num_edges: Its edges, or None if only a pass can tell.
        locate: Says where in the file an edge stands, by its position.
    """

    path: Path
    chunks: Callable[[int], EdgeChunks]
    num_edges: int | None
    locate: Callable[[int], str]


def suffix_of(path: Path) -> str:
    """Return a file's suffix, `.csv.gz` as one."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() + suffix if suffix == ".gz" else suffix


def open_file(path: Path, id_dtype: str) -> EdgeFile:
    """Open an edge file; its size, header or schema is checked.

    Raises:
        DatasetError: The file is of an unknown kind, or damaged.
    """
    suffix = suffix_of(path)
    if suffix == ".bin":
        return _open_pairs(path, id_dtype)
    if suffix == ".npy":
        return _open_array(path)
    if suffix == ".parquet":
        return _open_parquet(path)
    if suffix in SUFFIXES:
        return _open_text(path, DELIMITERS[suffix.removesuffix(".gz")])
    raise DatasetError(f"{path} must end in one of {', '.join(SUFFIXES)}")


def _open_pairs(path: Path, id_dtype: str) -> EdgeFile:
    if id_dtype not in ID_DTYPES:
        raise DatasetError(f"id_dtype must be one of {', '.join(ID_DTYPES)}, got {id_dtype!r}")
    dtype = ID_DTYPES[id_dtype]
    pair, size = 2 * dtype.itemsize, path.stat().st_size
    if id_dtype == "auto":
        _refuse_int64(path, size)
    if size % pair:
        raise DatasetError(
            f"{path} must hold pairs of {dtype.name} ({pair} bytes each), got {size} bytes: it is "
            f"cut off at byte {size - size % pair}, or of another dtype"
        )

    def chunks(chunk_edges: int) -> EdgeChunks:
        with path.open("rb") as file:
            for start in range(0, size // pair, chunk_edges):
                count = min(chunk_edges, size // pair - start)
                values = np.fromfile(file, dtype, 2 * count)
                if len(values) < 2 * count:
                    raise DatasetError(
                        f"{path} must hold {size} bytes, got only "
                        f"{start * pair + values.nbytes}: it was cut off while it was read"
                    )
                pairs = values.reshape(-1, 2).astype(dtype.newbyteorder("="), copy=False)
                yield np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])

    return EdgeFile(path, chunks, size // pair, lambda edge: f"byte {edge * pair}")


def _refuse_int64(path: Path, size: int) -> None:
    """Refuse a file whose ids are of 64 bits, by all appearances, where the caller did not say.

    Read as int32, the upper halves of small ids would make every edge end at node 0.
    """
    if not size or size % 16:
        return
    with path.open("rb") as file:
        while len(values := np.fromfile(file, "<i4", BLOCK_BYTES // 4)):
            if values[1::2].any():
                return
    raise DatasetError(
        f"{path} looks like int64 (read as int32, each of its edges ends at node 0): state the "
        "dtype of its ids, --id-dtype int64 or int32"
    )


def _open_array(path: Path) -> EdgeFile:
    array = read_npy(path, mapped=True)
    if array.ndim != 2 or 2 not in array.shape:
        raise DatasetError(f"{path} must have shape (2, E) or (E, 2), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise DatasetError(f"{path} must hold whole numbers as node ids, got {array.dtype}")
    ends = array if array.shape[0] == 2 else array.T
    dtype = np.int32 if array.dtype.itemsize <= 4 and array.dtype != np.uint32 else np.int64

    def chunks(chunk_edges: int) -> EdgeChunks:
        for start in range(0, ends.shape[1], chunk_edges):
            piece = np.asarray(ends[:, start : start + chunk_edges])
            src, dst = piece.astype(dtype, order="C", copy=False)
            yield np.ascontiguousarray(src), np.ascontiguousarray(dst)

    return EdgeFile(path, chunks, ends.shape[1], lambda edge: f"edge {edge}")


def _open_parquet(path: Path) -> EdgeFile:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"reading {path} needs the package pyarrow, got no module {error.name!r}: "
            "pip install gnn-dist[parquet]"
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path} must be a Parquet file, got a damaged one: {error}") from error
    names = file.schema_arrow.names
    columns = choose_columns(names, len(names), str(path))
    wanted = [names[columns["src"]], names[columns["dst"]]]

    def chunks(chunk_edges: int) -> EdgeChunks:
        done = 0
        try:
            for batch in file.iter_batches(min(chunk_edges, 1 << 20), columns=wanted):
                ends = [_whole_numbers(batch.column(i), path, wanted[i], done) for i in (0, 1)]
                yield ends[0], ends[1]
                done += len(ends[0])
        except (pyarrow.ArrowException, OSError) as error:
            raise DatasetError(
                f"{path}, behind row {done}: the file is damaged: {error}"
            ) from error

    return EdgeFile(path, chunks, file.metadata.num_rows, lambda edge: f"row {edge}")


def _whole_numbers(column: Any, path: Path, name: str, done: int) -> Array:  # noqa: ANN401
    if column.null_count:
        row = done + column.is_null().to_pylist().index(True)
        raise DatasetError(f"{path}, column {name!r} must be filled, got a null in row {row}")
    values: Array = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "iu":
        raise DatasetError(
            f"{path}, column {name!r} must hold whole numbers as node ids, got {column.type}"
        )
    return values.astype(np.int64, copy=False)


def _open_text(path: Path, delimiter: str) -> EdgeFile:
    text = _Text(path, delimiter)
    return EdgeFile(path, text.chunks, None, text.locate)


@dataclass(frozen=True)
class _Text:
    """A text table, maybe compressed; lines that are blank or start with `#` do not count."""

    path: Path
    delimiter: str

    def chunks(self, chunk_edges: int) -> EdgeChunks:
        """Yield (src, dst), block of lines by block."""
        line, columns = 0, None
        for block in self._blocks():
            first = line
            line += block.count(b"\n")
            if columns is None:
                columns, block, skipped = self._head(block)
                first += skipped
            if columns is None:
                continue
            src, dst = self._parse(block, first, columns)
            for start in range(0, len(src), chunk_edges):
                yield src[start : start + chunk_edges], dst[start : start + chunk_edges]

    def locate(self, edge: int) -> str:
        """Return the line of an edge, found by another pass."""
        number, seen, started = 0, 0, False
        for block in self._blocks():
            for raw in block.splitlines():
                number += 1
                fields = self._fields(raw)
                if not fields or (not started and header(fields) is not None):
                    started = started or bool(fields)
                    continue
                started = True
                if seen == edge:
                    return f"line {number}"
                seen += 1
        return f"edge {edge}"

    def _open(self) -> BinaryIO:
        packed = self.path.suffix.lower() == ".gz"
        try:
            return cast("BinaryIO", gzip.open(self.path) if packed else self.path.open("rb"))
        except OSError as error:
            raise DatasetError(f"{self.path} cannot be read: {error}") from error

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines, about `BLOCK_BYTES` at a time."""
        with self._open() as file:
            done, rest = 0, b""
            while block := self._read(file, done):
                done += len(block)
                lines, newline, after = block.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline
                    rest = after
                else:
                    rest += block
            if rest:
                yield rest + b"\n"

    def _read(self, file: BinaryIO, done: int) -> bytes:
        """Return the next `BLOCK_BYTES`, or what is left, in small pieces to find damage."""
        pieces, size = [], 0
        try:
            while size < BLOCK_BYTES and (piece := file.read(min(PIECE_BYTES, BLOCK_BYTES - size))):
                pieces.append(piece)
                size += len(piece)
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetError(
                f"{self.path} is damaged or cut off behind byte {done + size} of its text: {error}"
            ) from error
        return b"".join(pieces)

    def _fields(self, raw: bytes) -> list[str]:
        try:
            text = raw.decode("utf-8-sig").partition("#")[0].strip()
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.path} must be a UTF-8 text file: {error}") from error
        return [part.strip() for part in text.split(self.delimiter)] if text else []

    def _head(self, block: bytes) -> tuple[dict[str, int] | None, bytes, int]:
        """Return (columns or None, the rest of the block, lines skipped)."""
        skipped, at = 0, 0
        while at < len(block):
            end = block.index(b"\n", at) + 1
            fields = self._fields(block[at:end])
            if fields:
                names = header(fields)
                usual = ["src", "dst", "weight"][: len(fields)]
                columns = choose_columns(names or usual, len(fields), str(self.path))
                rest = end if names else at
                return columns, block[rest:], skipped + bool(names)
            skipped, at = skipped + 1, end
        return None, b"", skipped

    def _parse(self, block: bytes, line: int, columns: dict[str, int]) -> tuple[Array, Array]:
        """Parse lines of whole numbers; on a fault find the line."""
        plain = self._plain(block) if len(columns) == 2 else None
        if plain is None:
            return self._parse_lines(block, line, columns)
        pairs = plain.reshape(-1, 2)
        return pairs[:, columns["src"]].copy(), pairs[:, columns["dst"]].copy()

    def _plain(self, block: bytes) -> Array | None:
        """Return the numbers of a block of lines `1,2` and nothing else, or None."""
        mark, text = self.delimiter.encode(), np.frombuffer(block, np.uint8)
        marks = text[(text == mark[0]) | (text == ord("\n"))]
        in_turn = (marks[::2] == mark[0]).all() and (marks[1::2] == ord("\n")).all()
        # Other blanks than those at a line's end would part numbers just as the mark does.
        blanks = np.count_nonzero(text <= ord(" ")) - np.count_nonzero(marks <= ord(" "))
        if len(marks) % 2 or not in_turn or blanks != block.count(b"\r\n"):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what is no number ends the reading with a warning
                values: Array = np.fromstring(block.replace(mark, b" "), np.int64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
        # Numbers beyond int64 are cut to its ends.
        cut = len(values) and (values.max() == INT64.max or values.min() == INT64.min)
        return values if len(values) == len(marks) and not cut else None

    def _parse_lines(self, block: bytes, line: int, columns: dict[str, int]) -> tuple[Array, Array]:
        pairs = []
        for number, raw in enumerate(io.BytesIO(block), start=line + 1):
            fields = self._fields(raw)
            if not fields:
                continue
            where = f"{self.path}, line {number}"
            if len(fields) != len(columns):
                raise DatasetError(f"{where} must have {len(columns)} values, got {len(fields)}")
            pair = [fields[columns[name]] for name in ("src", "dst")]
            for text in pair:
                if not (INTEGER.fullmatch(text) and INT64.min <= int(text) <= INT64.max):
                    raise DatasetError(f"{where} must hold whole numbers as node ids, got {text!r}")
            pairs.append([int(text) for text in pair])
        src, dst = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        return src, dst
