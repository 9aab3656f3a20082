"""A sparse structure in CSR on the device, and what is derived from it, computed once."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["CSR", "SubCSR"]

INT32_LIMIT = 2**31


class SubCSR(NamedTuple):
    """A structure derived from another one.

    Attributes:
        csr: The derived structure.
        position: int64 (nnz,), for each entry its position in the original, or -1 if it is new;
            None if all entries are those of the original.
    """

    csr: "CSR"
    position: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """Return values of the original's entries (nnz, ...) in the order of this structure's."""
        return values if self.position is None else values[self.position]


@dataclass(frozen=True, eq=False)
class CSR:
    """Rows are destinations, columns are sources; entries may repeat.

    Attributes:
        indptr: int64 (R + 1,), offsets of the rows.
        indices: int32 (nnz,), columns.
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

    @cached_property
    def counts(self) -> Tensor:
        """int64 (R,), entries in each row."""
        return self.indptr.diff()

    @cached_property
    def rows(self) -> Tensor:
        """int64 (nnz,), the row of each entry."""
        return self._row_index()

    def _row_index(self) -> Tensor:
        """Return `rows` without keeping it: for what is made once from a structure."""
        kept: Tensor | None = self.__dict__.get("rows")
        if kept is not None:
            return kept
        index = torch.arange(self.num_rows, device=self.device)
        return torch.repeat_interleave(index, self.counts, output_size=self.nnz)

    @cached_property
    def transpose(self) -> SubCSR:
        """The transposed structure; within a row, entries keep their order."""
        order = torch.argsort(self.indices, stable=True)
        indptr = _offsets(torch.bincount(self.indices, minlength=self.num_cols))
        transposed = CSR(indptr, self._row_index().int()[order], self.num_rows)
        return SubCSR(transposed, order)

    @cached_property
    def copy_number(self) -> Tensor:
        """int64 (nnz,): k for the k-th copy (from 0) of an entry; copies stand side by side."""
        index = torch.arange(self.nnz, device=self.device)
        if self.nnz == 0:
            return index
        same = (self.rows[1:] == self.rows[:-1]) & (self.indices[1:] == self.indices[:-1])
        first = torch.cat([same.new_zeros(1), same]).logical_not() * index
        return index - torch.cummax(first, 0).values

    def select(self, keep: Tensor) -> SubCSR:
        """Keep some entries.

        Args:
            keep: bool (nnz,).
        """
        position = keep.nonzero().squeeze(1)
        indptr = _offsets(torch.bincount(self._row_index()[position], minlength=self.num_rows))
        return SubCSR(CSR(indptr, self.indices[position], self.num_cols), position)

    @cached_property
    def _splits(self) -> dict[int, tuple[SubCSR, SubCSR]]:
        return {}

    def split_columns(self, at: int) -> tuple[SubCSR, SubCSR]:
        """Split by column: entries below `at`, and the others with columns counted from `at`."""
        if at == self.num_cols:
            nothing = CSR(torch.zeros_like(self.indptr), self.indices[:0], 0)
            return SubCSR(self, None), SubCSR(nothing, self.indices[:0].long())
        if at not in self._splits:
            left = self.indices < at
            low, high = self.select(left), self.select(~left)
            self._splits[at] = (
                SubCSR(CSR(low.csr.indptr, low.csr.indices, at), low.position),
                SubCSR(
                    CSR(high.csr.indptr, high.csr.indices - at, self.num_cols - at), high.position
                ),
            )
        return self._splits[at]

    @property
    def with_self_loops(self) -> "CSR":
        """Row i holds the entry (i, i) exactly once, last in its row; all other entries stay."""
        return self.self_loop_origin.csr

    @cached_property
    def self_loop_origin(self) -> SubCSR:
        """`with_self_loops`, and where each of its entries comes from (-1: its own loop)."""
        all_rows = self._row_index()
        keep = (self.indices != all_rows).nonzero().squeeze(1)
        loop = torch.arange(self.num_rows, device=self.device)
        rows = torch.cat([all_rows[keep], loop])
        columns = torch.cat([self.indices[keep], loop.int()])
        position = torch.cat([keep, torch.full_like(loop, -1)])
        order = torch.argsort(rows, stable=True)
        indptr = _offsets(torch.bincount(rows, minlength=self.num_rows))
        return SubCSR(CSR(indptr, columns[order], self.num_cols), position[order])

    def matrix(self, values: Tensor) -> Tensor:
        """Return a torch sparse CSR tensor (R, num_cols) of these values (nnz,)."""
        # One index dtype for both arrays, and 32 bits where they suffice: MKL takes no other.
        narrow = torch.int32 if self.nnz < INT32_LIMIT else torch.int64
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                self.indptr.to(narrow),
                self.indices.to(narrow),
                values,
                size=(self.num_rows, self.num_cols),
                check_invariants=False,
            )


def _offsets(counts: Tensor) -> Tensor:
    indptr = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr
