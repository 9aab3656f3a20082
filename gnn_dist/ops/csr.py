"""A sparse structure in CSR on the device, and what is derived from it, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference.spmm import row_index
from gnn_dist.ops.reference.structure import cut_columns, transpose_csr

__all__ = ["CSR", "SubCSR"]

INT32_LIMIT = 2**31


class SubCSR(NamedTuple):
    """A structure derived from another one.

    Attributes:
        csr: The derived structure.
        position: (nnz,), for each entry its position in the original, or -1 if it is new; int32
            where that suffices, else int64. None if all entries are those of the original.
    """

    csr: "CSR"
    position: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """Return values of the original's entries (nnz, ...) in the order of this structure's."""
        return values if self.position is None else values.index_select(0, self.position)


@dataclass
class _Blocks:
    """The column blocks made so far.

    Attributes:
        bounds: Where they are cut.
        positions: Whether they say where their entries are in the whole.
        blocks: First column, end and entries of each.
    """

    bounds: set[int] = field(default_factory=set)
    positions: bool = False
    blocks: list[tuple[int, int, SubCSR]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class CSR:
    """Rows are destinations, columns are sources; entries may repeat.

    Attributes:
        indptr: int64 (R + 1,), offsets of the rows.
        indices: int32 (nnz,), columns. Copies of an entry stand side by side.
        num_cols: Number of columns.

    Example:
        >>> csr = CSR(torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1], dtype=torch.int32), 3)
        >>> csr.transpose.csr.indptr.tolist(), csr.transpose.csr.indices.tolist()
        ([0, 1, 2, 3], [1, 1, 0])
    """

    indptr: Tensor
    indices: Tensor
    num_cols: int

    @property
    def num_rows(self) -> int:
        """R."""
        return self.indptr.numel() - 1

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self.indices.numel()

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self.indptr.device

    def to(self, device: torch.device) -> "CSR":
        """Return the structure on another device; derived structures are made anew there."""
        return CSR(self.indptr.to(device), self.indices.to(device), self.num_cols)

    @property
    def counts(self) -> Tensor:
        """int64 (R,), entries in each row."""
        return self.indptr.diff()

    @cached_property
    def mean_scale(self) -> Tensor:
        """float64 (R,), 1 / entries in each row; 1 for a row without any."""
        return self.counts.clamp(min=1).double().reciprocal()

    @property
    def rows(self) -> Tensor:
        """int64 (nnz,), the row of each entry. Made anew at each call: 8 bytes an entry."""
        return row_index(self.indptr, self.nnz)

    @cached_property
    def transpose(self) -> SubCSR:
        """The transposed structure; within a row, entries keep their order."""
        make = kernels.transpose_csr if self.nnz < INT32_LIMIT else transpose_csr
        indptr, indices, position = make(self.indptr, self.indices, self.num_cols)
        return SubCSR(CSR(indptr, indices, self.num_rows), position)

    @property
    def copy_number(self) -> Tensor:
        """int64 (nnz,): k for the k-th copy (from 0) of an entry; copies stand side by side."""
        index = torch.arange(self.nnz, device=self.device)
        if self.nnz == 0:
            return index
        rows = self.rows
        same = (rows[1:] == rows[:-1]) & (self.indices[1:] == self.indices[:-1])
        first = torch.cat([same.new_zeros(1), same]).logical_not() * index
        return index - torch.cummax(first, 0).values

    def select(self, keep: Tensor) -> SubCSR:
        """Keep some entries.

        Args:
            keep: bool (nnz,).
        """
        position = self._narrow(keep.nonzero().squeeze(1))
        kept_before = torch.cat([position.new_zeros(1).long(), keep.cumsum(0)])
        indices = self.indices.index_select(0, position)
        return SubCSR(CSR(kept_before[self.indptr], indices, self.num_cols), position)

    def take_rows(self, rows: Tensor) -> SubCSR:
        """Return some rows in any order, int64 (k,), with all columns."""
        counts = self.counts[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        start = (self.indptr[:-1][rows] - indptr[:-1]).repeat_interleave(counts)
        position = self._narrow(start + torch.arange(len(start), device=self.device))
        indices = self.indices.index_select(0, position)
        return SubCSR(CSR(indptr, indices, self.num_cols), position)

    def _narrow(self, position: Tensor) -> Tensor:
        return position.int() if self.nnz < INT32_LIMIT else position

    def split_columns(self, at: int) -> tuple[SubCSR, SubCSR]:
        """Split by column: entries below `at`, and the others with columns counted from `at`."""
        if at == self.num_cols:
            nothing = CSR(torch.zeros_like(self.indptr), self.indices[:0], 0)
            return SubCSR(self, None), SubCSR(nothing, self.indices[:0])
        if at not in self._splits:
            low, high = self._cut((0, at, self.num_cols), positions=True)
            self._splits[at] = low, high
        return self._splits[at]

    @cached_property
    def _splits(self) -> dict[int, tuple[SubCSR, SubCSR]]:
        return {}

    def column_blocks(
        self, bounds: Sequence[int], *, positions: bool
    ) -> list[tuple[int, int, SubCSR]]:
        """Return ranges of columns, each a structure of its own.

        They are made once, and again when other bounds are asked for or positions for the first
        time: then they are cut at all bounds so far, so that the entries are held once.

        Args:
            bounds: Columns to cut at, ascending, besides both ends.
            positions: Whether the blocks say where their entries are.

        Returns:
            First column, end and entries (columns counted from the first) of each range.
        """
        made = self._blocks
        wanted = {0, *bounds, self.num_cols}
        if not wanted <= made.bounds or (positions and not made.positions):
            made.bounds |= wanted
            made.positions |= positions
            made.blocks = []  # free them before others are made
            ends = sorted(made.bounds)
            cut = self._cut(tuple(ends), positions=made.positions)
            made.blocks = list(zip(ends, ends[1:], cut, strict=False))
        return made.blocks

    @cached_property
    def _blocks(self) -> "_Blocks":
        return _Blocks()

    def _cut(self, bounds: tuple[int, ...], *, positions: bool) -> list[SubCSR]:
        """Return the entries of each range of columns, counted from where it begins."""
        cut = kernels.cut_columns if self.nnz < INT32_LIMIT or not positions else cut_columns
        ends = torch.tensor(bounds, device=self.device)
        indptrs, indices, position = cut(self.indptr, self.indices, ends, positions)
        sizes = indptrs[:, -1].tolist()
        places = torch.split(position, sizes) if positions else [None] * len(sizes)
        # There are as many offsets as rows in every range.
        narrow = len(sizes) > 2 and self.nnz < INT32_LIMIT
        make = _NarrowCSR if narrow else CSR
        if narrow:
            indptrs = indptrs.int()
        return [
            SubCSR(make(indptr, columns, end - begin), place)
            for indptr, columns, place, begin, end in zip(
                indptrs, torch.split(indices, sizes), places, bounds, bounds[1:], strict=False
            )
        ]

    @property
    def with_self_loops(self) -> "CSR":
        """Row i holds the entry (i, i) exactly once, last in its row; all other entries stay."""
        return self.self_loop_origin.csr

    @cached_property
    def self_loop_origin(self) -> SubCSR:
        """`with_self_loops`, and where each of its entries comes from (-1: its own loop)."""
        return self.loops_below(self.num_rows)

    def loops_below(self, num_looped: int) -> SubCSR:
        """Return the structure with a self-loop in some rows, and no other loops.

        Args:
            num_looped: Row i below holds the entry (i, i) once, last in its row; the others never.

        Returns:
            The structure, and where each of its entries comes from (-1: a loop).
        """
        all_rows = self.rows
        keep = (self.indices != all_rows).nonzero().squeeze(1)
        rows = all_rows[keep]
        counts = torch.bincount(rows, minlength=self.num_rows)
        counts[:num_looped] += 1
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        # Each looped row before this one has put one loop in front of the entries that stay.
        place = torch.arange(len(keep), device=self.device) + rows.clamp(max=num_looped)
        indices = self.indices.new_empty(len(keep) + num_looped)
        position = self._narrow(torch.full_like(indices, -1, dtype=torch.int64))
        indices[place] = self.indices[keep]
        position[place] = keep.to(position.dtype)
        loops = torch.arange(num_looped, device=self.device, dtype=indices.dtype)
        indices[indptr[1 : num_looped + 1] - 1] = loops
        return SubCSR(CSR(indptr, indices, self.num_cols), position)


class _NarrowCSR(CSR):
    """A structure that keeps its offsets in 32 bits, and widens them at each use."""

    def __init__(self, narrow: Tensor, indices: Tensor, num_cols: int) -> None:
        for name, value in (("narrow", narrow), ("indices", indices), ("num_cols", num_cols)):
            object.__setattr__(self, name, value)

    @property
    def indptr(self) -> Tensor:
        """int64 (R + 1,), made anew."""
        narrow: Tensor = self.__dict__["narrow"]
        return narrow.long()

    @property
    def num_rows(self) -> int:
        """R."""
        return int(self.__dict__["narrow"].numel()) - 1
