"""Writing the arrays of all parts, in passes over the graph from its first node to its last.

    nodes   a block of nodes, dealt out by part     node_id x y masks       one pass an array
    mark    a block of rows                         halo                    one pass
    edges   a block of rows, dealt out by part      indptr indices edge_*   one pass

A graph whose arrays are mapped files is read from front to back, and nothing of the size of a part
is held: the same code writes graphs in memory and graphs far larger than it. A part's rows come by
ascending original id, which is the order in which they pass.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import INT32_LIMIT, csr_blocks, csr_take
from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, Graph
from gnn_dist.partition import Partition, PartitionQuality

__all__ = ["ArrayRow", "NpyFile", "Progress", "Written", "part_name", "write_parts"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

BLOCK_ENTRIES = 1 << 22  # edges, or numbers of node data, looked at together
MARK_BYTES = 1 << 30  # what the marks of one group of parts may take
MOST_OPEN = 64  # parts of one group: each has a few files open
ORDER = (
    *("indptr", "indices", "halo", "node_id", "x_indptr", "x_indices", "x_data", "x", "y"),
    *MASK_NAMES,
    *EDGE_NAMES,
)


@dataclass(frozen=True)
class ArrayRow:
    """One array of one part, as `meta.json` lists it.

    Attributes:
        name: What it is: `indptr`, `x`, `train_mask`, ...
        file: Path inside the folder, `part-0003/x.npy`.
        dtype: NumPy's name of the dtype.
        shape: Its shape.
        sha256: Hash of the whole file, hexadecimal.
        rows: What its rows are: `owned`, `halo`, `edges`, or `other` (offsets, sparse values).
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    rows: str


class Written(NamedTuple):
    """What was written: the arrays, by part and name, and how good the partition is."""

    rows: tuple[ArrayRow, ...]
    quality: PartitionQuality


def part_name(part: int) -> str:
    """Return the folder name of a part."""
    return f"part-{part:04d}"


def write_parts(
    graph: Graph,
    partition: Partition,
    folder: Path,
    *,
    mark_bytes: int = MARK_BYTES,
    progress: Progress = lambda stage, done, total: None,
) -> Written:
    """Write every part's arrays into an existing folder.

    Time O(E + N) a group. Memory: N / 4 bytes for each part of a group, 16 N for ids, a block.

    Args:
        graph: The graph; its arrays keep their dtypes.
        partition: Its partition.
        folder: Where the parts' folders are made.
        mark_bytes: Memory for marks: parts that need more are written in several groups.
        progress: Called with (stage, edges done, edges in all).

    Raises:
        ShardFormatError: A part has more local nodes than int32 counts.
        OSError: A file cannot be written.
    """
    per_part = max(1, graph.num_nodes // 4)
    size = max(1, min(MOST_OPEN, partition.num_parts, mark_bytes // per_part))
    writer = _Writer(graph, partition, folder, progress)
    for part in range(partition.num_parts):
        (folder / part_name(part)).mkdir()
    for first in range(0, partition.num_parts, size):
        writer.write_group(range(first, min(first + size, partition.num_parts)))
    rows = sorted(writer.rows, key=lambda r: (r.file.partition("/")[0], ORDER.index(r.name)))
    return Written(tuple(rows), writer.quality())


class NpyFile:
    """An `.npy` file of known shape, written in pieces and hashed on the way."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.left = shape[0]
        self.hash = hashlib.sha256()
        self.file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        try:
            np.lib.format.write_array_header_1_0(self, header)
        except BaseException:
            self.file.close()
            raise

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes, or what has a buffer
        """Write bytes that were counted already: the header."""
        self.hash.update(data)
        self.file.write(data)

    def append(self, values: Array) -> None:
        """Write the next rows."""
        self.left -= len(values)
        values = np.ascontiguousarray(values, self.dtype)
        self.write(values.reshape(-1).view(np.uint8).data)

    def row(self, rows: str) -> ArrayRow:
        """Close the file and return its row for `meta.json`."""
        self.file.close()
        if self.left:
            raise ShardFormatError(f"{self.path} lacks {self.left} of {self.shape[0]} rows")
        file = f"{self.path.parent.name}/{self.path.name}"
        digest = self.hash.hexdigest()
        return ArrayRow(self.path.stem, file, self.dtype.name, self.shape, digest, rows)


class _Dealt(NamedTuple):
    """Which rows of a block belong to the parts of a group, in order of the parts."""

    rows: Array  # int64 (k,), inside the block
    counts: Array  # int64 (G,), rows of each part

    def split(self, values: Array, counts: Array | None = None) -> list[Array]:
        """Cut what was taken by `rows` into pieces, one for each part."""
        return np.split(values, np.cumsum(self.counts if counts is None else counts)[:-1])

    def sums(self, values: Array) -> Array:
        """Add up int64 values of the rows by part."""
        before = np.concatenate([[0], np.cumsum(values)])
        return np.diff(before[np.concatenate([[0], np.cumsum(self.counts)])])


def _deal(part: Array, group: range) -> _Dealt:
    narrow = part.astype(np.uint16) if group.stop < 1 << 16 and len(part) else part
    inside = np.flatnonzero((part >= group.start) & (part < group.stop))
    # Two bytes are sorted by their digits, in time linear in the rows.
    rows = inside[np.argsort(narrow[inside], kind="stable")]
    counts = np.bincount(part[inside] - group.start, minlength=len(group))
    return _Dealt(rows, counts)


class _Writer:
    """Writes one group of parts after the other, and counts what is in them."""

    def __init__(
        self, graph: Graph, partition: Partition, folder: Path, progress: Progress
    ) -> None:
        self.graph, self.partition, self.folder = graph, partition, folder
        self.progress = progress
        self.rows: list[ArrayRow] = []
        self.sizes = partition.sizes
        self.num_edges = self._entries(graph.indptr)
        self.num_halo = np.zeros(partition.num_parts, np.int64)
        self.num_cut = np.zeros(partition.num_parts, np.int64)
        self.global_id = partition.global_id

    def write_group(self, group: range) -> None:
        for name, values in self._node_arrays():
            self._write_nodes(group, name, values)
        if isinstance(self.graph.x, CSRFeatures):
            self._write_sparse(group, self.graph.x)
        self._write_offsets(group, "indptr", self.graph.indptr)
        self._write_edges(group)

    def quality(self) -> PartitionQuality:
        graph, partition, train = self.graph, self.partition, None
        if graph.train_mask is not None:
            mask = graph.train_mask if graph.train_mask.ndim == 1 else graph.train_mask[:, 0]
            train = np.bincount(partition.assignment[mask], minlength=partition.num_parts).tolist()
        cut, halo = int(self.num_cut.sum()), int(self.num_halo.sum())
        return PartitionQuality(
            num_nodes=self.sizes.tolist(),
            num_edges=self.num_edges.tolist(),
            num_halo=self.num_halo.tolist(),
            num_train=train,
            edge_cut=cut,
            edge_cut_fraction=cut / max(1, graph.num_edges),
            replication_factor=(graph.num_nodes + halo) / graph.num_nodes
            if graph.num_nodes
            else 1.0,
        )

    def _entries(self, indptr: Array) -> Array:
        """Return int64 (P,), entries of a CSR structure over the nodes, by part."""
        total = np.zeros(self.partition.num_parts, np.int64)
        for rows in self._node_blocks(1):
            part = self.partition.assignment[rows]
            counts = np.diff(indptr[rows.start : rows.stop + 1])
            # Sums of integers below 2^53 are exact in float64.
            total += np.bincount(part, counts, minlength=len(total)).astype(np.int64)
        return total

    def _node_arrays(self) -> Iterator[tuple[str, Array | None]]:
        yield "node_id", None
        if isinstance(self.graph.x, np.ndarray):
            yield "x", self.graph.x
        for name in ("y", *MASK_NAMES):
            if getattr(self.graph, name) is not None:
                yield name, getattr(self.graph, name)

    def _node_blocks(self, width: int) -> Iterator[slice]:
        step = max(1, BLOCK_ENTRIES // max(1, width))
        for start in range(0, self.graph.num_nodes, step):
            yield slice(start, min(start + step, self.graph.num_nodes))

    def _open(
        self,
        stack: ExitStack,
        group: range,
        name: str,
        dtype: np.dtype[Any],
        shapes: Sequence[tuple[int, ...]],
    ) -> list[NpyFile]:
        files = [
            NpyFile(self.folder / part_name(part) / f"{name}.npy", dtype, tuple(map(int, shape)))
            for part, shape in zip(group, shapes, strict=True)
        ]
        for file in files:
            stack.callback(file.file.close)
        return files

    def _write_nodes(self, group: range, name: str, values: Array | None) -> None:
        dtype = np.dtype(np.int64) if values is None else values.dtype
        tail = () if values is None else values.shape[1:]
        with ExitStack() as stack:
            shapes = [(self.sizes[part], *tail) for part in group]
            files = self._open(stack, group, name, dtype, shapes)
            for block in self._node_blocks(int(np.prod(tail))):
                dealt = _deal(self.partition.assignment[block], group)
                taken = dealt.rows + block.start if values is None else values[block][dealt.rows]
                for file, piece in zip(files, dealt.split(taken), strict=True):
                    file.append(piece)
            self.rows += [file.row("owned") for file in files]

    def _write_offsets(self, group: range, name: str, indptr: Array) -> None:
        ends = np.zeros(len(group), np.int64)
        with ExitStack() as stack:
            shapes = [(self.sizes[part] + 1,) for part in group]
            files = self._open(stack, group, name, np.dtype(np.int64), shapes)
            for file in files:
                file.append(np.zeros(1, np.int64))
            for block in self._node_blocks(1):
                dealt = _deal(self.partition.assignment[block], group)
                counts = np.diff(indptr[block.start : block.stop + 1])[dealt.rows]
                for k, (file, piece) in enumerate(zip(files, dealt.split(counts), strict=True)):
                    offsets = ends[k] + np.cumsum(piece)
                    file.append(offsets)
                    ends[k] = offsets[-1] if len(offsets) else ends[k]
            self.rows += [file.row("other") for file in files]

    def _write_sparse(self, group: range, x: CSRFeatures) -> None:
        self._write_offsets(group, "x_indptr", x.indptr)
        shapes = [(size,) for size in self._entries(x.indptr)[group.start : group.stop]]
        values = {"x_indices": x.indices} | ({} if x.data is None else {"x_data": x.data})
        with ExitStack() as stack:
            files = {n: self._open(stack, group, n, v.dtype, shapes) for n, v in values.items()}
            for block in csr_blocks(x.indptr, BLOCK_ENTRIES):
                dealt = _deal(self.partition.assignment[block], group)
                self._append_entries(files, values, x.indptr, block, dealt)
            self.rows += [file.row("other") for opened in files.values() for file in opened]

    def _append_entries(
        self,
        files: dict[str, list[NpyFile]],
        values: dict[str, Array],
        indptr: Array,
        block: slice,
        dealt: _Dealt,
    ) -> None:
        """Append entries of a CSR structure, row by row."""
        offsets = indptr[block.start : block.stop + 1]
        taken_ptr, position = csr_take(offsets, dealt.rows)
        counts = dealt.sums(np.diff(taken_ptr))
        for name, opened in files.items():
            taken = values[name][offsets[0] : offsets[-1]][position - offsets[0]]
            for file, piece in zip(opened, dealt.split(taken, counts), strict=True):
                file.append(piece)

    def _write_edges(self, group: range) -> None:
        from gnn_dist.ops.localize import HaloMarks

        graph, node_ptr = self.graph, self.partition.book.node_ptr
        marks = HaloMarks(self.global_id, node_ptr, group)
        for _, block in self._row_blocks("mark"):
            marks.mark(block)
        self._write_halo(group, marks)
        edge_data = {n: getattr(graph, n) for n in EDGE_NAMES if getattr(graph, n) is not None}
        with ExitStack() as stack:
            counts = self.num_edges[group.start : group.stop]
            files = {
                name: self._open(
                    stack, group, name, v.dtype, [(count, *v.shape[1:]) for count in counts]
                )
                for name, v in edge_data.items()
            }
            indices = self._open(
                stack, group, "indices", np.dtype(np.int32), [(c,) for c in counts]
            )
            for rows, block in self._row_blocks("write"):
                dealt = _deal(block.part, group)
                local, num_cut = marks.localize(block, dealt.rows)
                self.num_cut[group.start : group.stop] += num_cut
                pieces = dealt.split(local, dealt.sums(np.diff(block.indptr)[dealt.rows]))
                for file, piece in zip(indices, pieces, strict=True):
                    file.append(piece)
                if edge_data:
                    self._append_entries(files, edge_data, graph.indptr, rows, dealt)
            opened = [file for each in files.values() for file in each]
            self.rows += [file.row("edges") for file in (*indices, *opened)]

    def _row_blocks(self, stage: str) -> Iterator[tuple[slice, Any]]:
        from gnn_dist.ops.localize import RowBlock

        graph = self.graph
        for rows in csr_blocks(graph.indptr, BLOCK_ENTRIES):
            indptr = np.ascontiguousarray(graph.indptr[rows.start : rows.stop + 1])
            part = self.partition.assignment[rows]
            yield rows, RowBlock(indptr, graph.indices[indptr[0] : indptr[-1]], part)
            self.progress(stage, int(indptr[-1]), graph.num_edges)

    def _write_halo(self, group: range, marks: Any) -> None:  # noqa: ANN401 - a HaloMarks
        for part in group:
            halo = marks.halo(part)
            if self.sizes[part] + len(halo) >= INT32_LIMIT:
                raise ShardFormatError(
                    f"part {part} has {self.sizes[part]} owned and {len(halo)} halo nodes, and "
                    f"local ids end at {INT32_LIMIT - 1}: make more parts"
                )
            self.num_halo[part] = len(halo)
            path = self.folder / part_name(part) / "halo.npy"
            file = NpyFile(path, np.dtype(np.int64), halo.shape)
            file.append(halo)
            self.rows.append(file.row("halo"))
