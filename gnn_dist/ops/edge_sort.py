"""The inner loops of an external bucket sort of edges, on NumPy arrays.

pack      a chunk of edges, grouped by the bucket of their destination, 8 bytes each
sort      the packed edges of some rows, from wherever they lie in a file: those rows' CSR
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.ops.native import kernels

__all__ = ["EdgePacking", "PackedEdges", "tensor_of"]

Array = NDArray[Any]

MASK128 = 2**128 - 1


class PackedEdges(NamedTuple):
    """A chunk of edges, packed.

    Attributes:
        packed: int64 (k,), grouped by bucket, else in the order given.
        bucket_ptr: int64 (B + 1,), offsets of the buckets.
        num_self_loops: Edges from a node to itself.
        skew: 128 bits. Skews of all chunks add up to 0 modulo 2^128 if the edges are symmetric, and
            with a probability below 2^-62 if they are not.
    """

    packed: Array
    bucket_ptr: Array
    num_self_loops: int
    skew: int


@dataclass(frozen=True)
class EdgePacking:
    """How edges of a graph are put in buckets: ranges of 2^shift destinations.

    A packed edge is its destination's number inside the bucket, then its source, in 64 bits.

    Attributes:
        num_nodes: N, at most 2^36.
        shift: Logarithm of a bucket's destinations to base 2.

    Example:
        >>> packing = EdgePacking(num_nodes=4, shift=1)
        >>> edges = packing.pack(np.array([3, 0, 2]), np.array([0, 3, 1]))
        >>> edges.bucket_ptr.tolist()
        [0, 2, 3]
        >>> indptr, indices = packing.sort(edges.packed, edges.bucket_ptr[None], range(4))
        >>> indptr.tolist(), indices.tolist()
        ([0, 1, 2, 2, 3], [3, 2, 0])
    """

    num_nodes: int
    shift: int

    @property
    def num_buckets(self) -> int:
        """B."""
        return ((self.num_nodes - 1) >> self.shift) + 1 if self.num_nodes else 0

    def pack(self, src: Array, dst: Array) -> PackedEdges:
        """Pack edges; both vectors int32 or int64 (k,).

        Raises:
            IndexError: An end is no node.
        """
        if src.dtype != dst.dtype:
            src, dst = src.astype(np.int64), dst.astype(np.int64)
        packed, ptr, found = kernels.pack_edges(
            tensor_of(src), tensor_of(dst), self.num_nodes, self.shift
        )
        loops, low, high = found.tolist()
        skew = ((high % 2**64) << 64 | low % 2**64) & MASK128
        return PackedEdges(packed.numpy(), ptr.numpy(), loops, skew)

    def degrees(self, packed: Array, table: Array, rows: range) -> Array:
        """Count the in-edges of consecutive rows; arguments as for `sort`; int64 (rows,)."""
        counted: Tensor = kernels.count_packed(
            tensor_of(packed), tensor_of(table), self.num_nodes, self.shift, rows.start, rows.stop
        )
        return counted.numpy()

    def sort(
        self, packed: Array, table: Array, rows: range, *, unique: bool = False
    ) -> tuple[Array, Array]:
        """Sort the edges of consecutive rows.

        Takes O(k log d) time for k edges and rows of d, 4 or 8 bytes an edge and 16 a row. One
        thread works on a bucket.

        Args:
            packed: int64 (E,), packed edges, such as a mapped file.
            table: int64 (chunks, B + 1), row c the offsets in `packed` of the c-th chunk's buckets.
            rows: The destinations wanted.
            unique: Keep one copy of repeated edges.

        Returns:
            int64 (rows + 1,) offsets from 0, and the sources, ascending in each row, int32 while
            N < 2^31, else int64.

        Raises:
            IndexError: The table or an edge does not fit.
        """
        indptr, indices = kernels.sort_packed(
            tensor_of(packed),
            tensor_of(table),
            self.num_nodes,
            self.shift,
            rows.start,
            rows.stop,
            unique,
        )
        return indptr.numpy(), indices.numpy()


def tensor_of(array: Array) -> Tensor:
    """Return a tensor on an array's memory, which may be a mapped file that cannot be written.

    The caller writes to it only where the array may be written.
    """
    if array.flags.writeable:
        return torch.from_numpy(np.ascontiguousarray(array))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(np.ascontiguousarray(array))
