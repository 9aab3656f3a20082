"""From rows of a graph to rows of parts: halo and local ids, on NumPy arrays.

mark     every source of a part's rows that it does not own, one bit each
halo     the marked nodes, by ascending global id
localize sources by local id: owned first, then halo
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.ops.edge_sort import tensor_of
from gnn_dist.ops.native import kernels

__all__ = ["HaloMarks", "RowBlock"]

Array = NDArray[Any]


class RowBlock(NamedTuple):
    """Consecutive rows of a CSR structure.

    Attributes:
        indptr: int64 (R + 1,), offsets in the whole structure.
        indices: int32 or int64, the sources of these rows alone.
        part: int32 (R,), the part of each row.
    """

    indptr: Array
    indices: Array
    part: Array


@dataclass(frozen=True, eq=False)
class HaloMarks:
    """The halo of some consecutive parts, found by marking. Memory: N / 4 bytes a part.

    Attributes:
        global_id: int64 (N,), the global id of each original id.
        node_ptr: int64 (P + 1,).
        parts: The parts.

    Example:
        >>> import numpy as np
        >>> marks = HaloMarks(np.array([1, 0, 2]), np.array([0, 2, 3]), range(2))
        >>> block = RowBlock(np.array([0, 2, 2, 3]), np.array([0, 2, 1]), np.array([0, 0, 1], "i4"))
        >>> marks.mark(block)
        >>> marks.halo(0).tolist(), marks.halo(1).tolist()
        ([2], [0])
        >>> local, num_cut = marks.localize(block, np.array([0, 2]))
        >>> local.tolist(), num_cut.tolist()
        ([1, 2, 1], [1, 1])
    """

    global_id: Array
    node_ptr: Array
    parts: range

    @cached_property
    def _bits(self) -> Tensor:
        words = (len(self.global_id) + 63) // 64
        return torch.zeros(len(self.parts), words, dtype=torch.int64)

    @cached_property
    def _ranks(self) -> Tensor:
        ranks: Tensor = kernels.rank_marks(self._bits)
        return ranks

    def mark(self, block: RowBlock) -> None:
        """Mark the remote sources of those rows of a block that are of these parts.

        Raises:
            IndexError: A source is no node.
        """
        kernels.mark_halo(
            self._bits,
            tensor_of(block.indptr),
            tensor_of(block.indices),
            tensor_of(block.part),
            tensor_of(self.global_id),
            tensor_of(self.node_ptr),
            self.parts.start,
        )

    def halo(self, part: int) -> Array:
        """Return a part's halo, int64 (h,) global ids, ascending; once all rows are marked."""
        ids: Tensor = kernels.marked_ids(self._bits[part - self.parts.start])
        return ids.numpy()

    def localize(self, block: RowBlock, rows: Array) -> tuple[Array, Array]:
        """Return local ids of the sources of some rows; once all rows are marked.

        Args:
            block: As marked.
            rows: int64 (k,), rows of the block, of these parts.

        Returns:
            int32, the sources of one row after the other, and int64 (parts,), how many of them are
            of another part.

        Raises:
            IndexError: A row is not of these parts, or a source is no node.
        """
        local, num_cut = kernels.localize(
            tensor_of(block.indptr),
            tensor_of(block.indices),
            tensor_of(rows),
            tensor_of(block.part),
            tensor_of(self.global_id),
            tensor_of(self.node_ptr),
            self.parts.start,
            self._bits,
            self._ranks,
        )
        return local.numpy(), num_cut.numpy()
