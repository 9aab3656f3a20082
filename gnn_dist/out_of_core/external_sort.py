"""An external bucket sort: from a stream of edges to a CSR on disk whose rows are destinations.

    stream    chunk by chunk, grouped by bucket             -> spill.bin, 8 bytes an edge
    spill     bucket by bucket, sorted by row and source    -> indptr.npy, indices.bin

A bucket is a range of destinations. The spill is written chunk after chunk, each grouped by bucket;
a table keeps where each chunk's buckets begin, so that a run of buckets is read from one piece per
chunk.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.edge_stream import EdgeStream, GraphOnDisk, id_dtype
from gnn_dist.errors import ConfigError
from gnn_dist.out_of_core.ahead import ahead
from gnn_dist.out_of_core.stages import Stages
from gnn_dist.shard.writer import Progress

__all__ = ["SORT_BYTES", "Sorted", "external_sort", "open_sorted"]

Array = NDArray[Any]

SPILL, TABLE, INDPTR, INDICES = "spill.bin", "table.npy", "indptr.npy", "indices.bin"
LOG_BUCKETS = 9
MOST_CHUNK_EDGES, MOST_BATCH_EDGES = 1 << 23, 1 << 26
# What an edge takes at most while it is packed (read ahead, read, packed), and while it is sorted
# (its source, and once more in a long row).
CHUNK_EDGE_BYTES, SORTED_EDGE_BYTES = 48, 16
SORT_BYTES = 1 << 30
MOST_NODES = 1 << 36


@dataclass(frozen=True)
class Sorted:
    """What the sort found on the way.

    Attributes:
        num_edges: Edges in the CSR.
        num_self_loops: Edges from a node to itself, as read.
        symmetric: Whether each edge has its reverse, as often.
    """

    num_edges: int
    num_self_loops: int
    symmetric: bool


def external_sort(
    stream: EdgeStream,
    folder: Path,
    *,
    symmetrize: bool = False,
    memory_bytes: int = SORT_BYTES,
    resume: bool = True,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[GraphOnDisk, Sorted]:
    """Sort a stream's edges by (destination, source) on disk.

    Takes O(E log d) time for rows of d edges, reads the stream once, and writes and reads 8 bytes
    an edge (16 when symmetrised) beside the result of 4 or 8. Memory: `memory_bytes`.

    Args:
        stream: The edges.
        folder: The work folder, where the result stays.
        symmetrize: Add the reverse of every edge and drop repeats.
        memory_bytes: Memory for buffers.
        resume: Keep the stages that an earlier run of the same task has finished.
        progress: Called with (stage, edges done, edges in all).

    Returns:
        The graph, mapped from files, with the stream's node data; and what was found.

    Raises:
        GraphError: The stream yields what are no edges of its nodes.
        ConfigError: A row alone needs more memory, or there are more than 2^36 nodes.
    """
    if stream.num_nodes > MOST_NODES:
        raise ConfigError(
            f"num_nodes must be at most 2^36, got {stream.num_nodes} in {stream.name}"
        )
    sort = _Sort(stream, Stages.opened(folder, resume=resume), symmetrize, memory_bytes, progress)
    left = sort.stages.done("sort", sort.task)
    if left is None:
        spilled = sort.stages.done("scatter", sort.task) or sort.scatter()
        left = sort.sort(spilled)
    found = Sorted(**left)
    return open_sorted(stream, folder, found), found


def open_sorted(stream: EdgeStream, folder: Path, found: Sorted) -> GraphOnDisk:
    """Map a finished sort's files."""
    indices: Array = np.zeros(0, id_dtype(stream.num_nodes))
    if found.num_edges:
        indices = np.memmap(folder / INDICES, indices.dtype, "r", shape=(found.num_edges,))
    return GraphOnDisk(
        np.load(folder / INDPTR, mmap_mode="r"),
        indices,
        symmetric=found.symmetric,
        name=stream.name,
        **stream.node_data,
    )


class _Sort:
    """The two stages of one sort."""

    def __init__(
        self,
        stream: EdgeStream,
        stages: Stages,
        symmetrize: bool,
        memory_bytes: int,
        progress: Progress,
    ) -> None:
        from gnn_dist.ops.edge_sort import EdgePacking

        bits = max(0, stream.num_nodes - 1).bit_length()
        self.packing = EdgePacking(stream.num_nodes, max(0, bits - LOG_BUCKETS))
        self.stream, self.stages, self.symmetrize = stream, stages, symmetrize
        self.progress = progress
        self.chunk_edges = max(1, min(MOST_CHUNK_EDGES, memory_bytes // CHUNK_EDGE_BYTES))
        self.batch_edges = max(1, min(MOST_BATCH_EDGES, memory_bytes // SORTED_EDGE_BYTES))
        self.task = {
            "name": stream.name,
            "version": stream.version,
            "num_nodes": stream.num_nodes,
            "num_edges": stream.num_edges,
            "symmetrize": symmetrize,
        }

    def scatter(self) -> dict[str, Any]:
        """Write all edges to the spill, grouped by bucket within each chunk."""
        self.stages.begin("scatter")
        table, start, loops, skew, seen = [], 0, 0, 0, 0
        with (self.stages.folder / SPILL).open("wb") as file:
            for src, dst in ahead(self.stream.chunks(self.chunk_edges)):
                for ends in ((src, dst), (dst, src))[: 2 if self.symmetrize else 1]:
                    edges = self.packing.pack(*ends)
                    file.write(edges.packed.view(np.uint8).data)
                    table.append(edges.bucket_ptr + start)
                    start += len(edges.packed)
                    skew += edges.skew
                loops += edges.num_self_loops
                seen += len(src)
                self.progress("scatter", seen, self.stream.num_edges)
        width = self.packing.num_buckets + 1
        np.save(self.stages.folder / TABLE, np.array(table, np.int64).reshape(-1, width))
        left = {
            "num_edges": start,
            "num_self_loops": loops,
            "symmetric": self.symmetrize or skew % 2**128 == 0,
        }
        self.stages.finish("scatter", self.task, left, (SPILL, TABLE))
        return left

    def sort(self, spilled: dict[str, Any]) -> dict[str, Any]:
        """Read run after run of buckets, and append its rows to the result."""
        self.stages.begin("sort")
        folder, total = self.stages.folder, spilled["num_edges"]
        table = np.load(folder / TABLE)
        packed = np.zeros(0, np.int64)
        if total:
            packed = np.memmap(folder / SPILL, np.int64, "r", shape=(total,))
        kept = done = 0
        # Written, not mapped: where a disk is full, writing fails and a mapped page is a crash.
        with (folder / INDPTR).open("wb") as offset_file, (folder / INDICES).open("wb") as file:
            header = {"descr": "<i8", "fortran_order": False, "shape": (self.stream.num_nodes + 1,)}
            np.lib.format.write_array_header_1_0(offset_file, header)
            offset_file.write(np.zeros(1, "<i8").data)
            for rows in self._batches(packed, table):
                offsets, indices = self.packing.sort(packed, table, rows, unique=self.symmetrize)
                offset_file.write((offsets[1:] + kept).astype("<i8", copy=False).data)
                file.write(indices.view(np.uint8).data)
                kept += len(indices)
                done = self._read_to(table, rows.stop, done)
                self.progress("sort", done, total)
        left = {**spilled, "num_edges": kept}
        self.stages.finish("sort", self.task, left, (INDPTR, INDICES))
        (folder / SPILL).unlink(missing_ok=True)
        return left

    def _batches(self, packed: Array, table: Array) -> Any:  # noqa: ANN401 - ranges
        """Yield ranges of rows that hold about as many edges as memory has room for."""
        sizes = np.diff(table, axis=1).sum(0) if len(table) else np.zeros(0, np.int64)
        num_nodes, shift, first, held = self.stream.num_nodes, self.packing.shift, 0, 0
        for bucket, size in enumerate(sizes.tolist()):
            start, stop = bucket << shift, min((bucket + 1) << shift, num_nodes)
            if first < start and held + size > self.batch_edges:
                yield range(first, start)
                first, held = start, 0
            if size > self.batch_edges:
                yield from self._split(packed, table, range(start, stop))
                first = stop
            else:
                held += size
        if first < num_nodes:
            yield range(first, num_nodes)

    def _split(self, packed: Array, table: Array, rows: range) -> Any:  # noqa: ANN401 - ranges
        """Cut a bucket that is too large by its rows' degrees; it is read once for each piece."""
        from gnn_dist.arrays import csr_blocks

        degrees = self.packing.degrees(packed, table, rows)
        heaviest = int(degrees.max())
        if heaviest > max(self.batch_edges, 1 << 16):
            needed = heaviest * SORTED_EDGE_BYTES
            raise ConfigError(
                f"node {rows.start + int(degrees.argmax())} of {self.stream.name} has {heaviest} "
                f"in-edges, whose sort needs {needed >> 20} MiB beside {self.batch_edges} edges: "
                "raise --memory-limit"
            )
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        for piece in csr_blocks(indptr, self.batch_edges):
            yield range(rows.start + piece.start, rows.start + piece.stop)

    def _read_to(self, table: Array, row: int, done: int) -> int:
        """Return how many edges lie in the buckets before a row."""
        bucket = row >> self.packing.shift
        if row >= self.stream.num_nodes:
            bucket = self.packing.num_buckets
        return int((table[:, bucket] - table[:, 0]).sum()) if len(table) else done
