"""Neighbour sampling, and the blocks that layers run on, for many batches of seeds at once.

What is drawn for a node depends on the key, on the node's original id and on the order of its
entries, and on nothing else: not on threads, on what else is in the batch, or on which rank holds
the node. So rows must be in an order that no partition changes, such as ascending original ids.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels

__all__ = [
    "BlockSampler",
    "Numbered",
    "SampledBlock",
    "SampledBlocks",
    "SampledRows",
    "hop_keys",
    "relabel",
    "row_order",
    "sample_neighbors",
]

LAST_STAMP = 2**31 - 1


class SampledRows(NamedTuple):
    """Entries drawn from rows of a structure.

    Attributes:
        indptr: int64 (n + 1,), offsets of the rows.
        columns: int32 (nnz,), columns of the structure.
        position: int64 (nnz,), numbers of the entries in the structure, ascending in each row.
    """

    indptr: Tensor
    columns: Tensor
    position: Tensor


class Numbered(NamedTuple):
    """Ids and their local numbers.

    Attributes:
        ids: int64 (num_src,), the id of each number; the destinations come first.
        local: int32 (nnz,), the number of each column.
    """

    ids: Tensor
    local: Tensor


class SampledBlock(NamedTuple):
    """One hop of one batch.

    Attributes:
        csr: (num_dst, num_src) structure in local numbers.
        n_id: int64 (num_src,), the nodes; the first num_dst are the destinations.
        e_id: int64 (nnz,), for each entry its number in the structure sampled from.
    """

    csr: CSR
    n_id: Tensor
    e_id: Tensor


@dataclass(frozen=True, eq=False)
class SampledBlocks:
    """Blocks of several batches.

    Attributes:
        tensors: For each batch, three tensors a hop and the nodes, as `sample_blocks` returns them.
        num_hops: H.
    """

    tensors: Sequence[Tensor]
    num_hops: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.tensors) // (3 * self.num_hops + 1)

    def n_id(self, batch: int) -> Tensor:
        """Return int64 (num_src,), the nodes whose rows the first layer needs; seeds first."""
        return self._of(batch)[-1]

    def blocks(self, batch: int) -> list[SampledBlock]:
        """Return a batch's blocks in the order in which layers use them: the last hop first."""
        *hops, nodes = self._of(batch)
        blocks = []
        num_src = nodes.numel()
        for hop in reversed(range(self.num_hops)):
            indptr, indices, position = hops[3 * hop : 3 * hop + 3]
            csr = CSR(indptr, indices, num_src)
            blocks.append(SampledBlock(csr, nodes[:num_src], position))
            num_src = csr.num_rows  # all sources of a hop are destinations of the next
        return blocks

    def _of(self, batch: int) -> Sequence[Tensor]:
        if not 0 <= batch < len(self):
            raise IndexError(f"batch must lie in [0, {len(self)}), got {batch}")
        size = 3 * self.num_hops + 1
        return self.tensors[batch * size : (batch + 1) * size]


class _Numbers:
    """Memory for local numbers: a row a thread, reused from batch to batch without clearing."""

    def __init__(self) -> None:
        self.maps = torch.empty(0, 0, dtype=torch.int64)
        self.next_stamp = 1

    def take(self, csr: CSR, num_batches: int) -> int:
        """Make `maps` fit for a call and return its first stamp."""
        threads = max(1, min(torch.get_num_threads(), num_batches))
        if self.maps.size(0) < threads or self.next_stamp + num_batches > LAST_STAMP:
            self.maps = csr.indptr.new_zeros(threads, csr.num_rows)
            self.next_stamp = 1
        first = self.next_stamp
        self.next_stamp += num_batches
        return first


@dataclass(frozen=True, eq=False)
class BlockSampler:
    """Samples blocks of several hops, each hop for all nodes found so far.

    Batches of one call are built side by side, a thread each. Keeps 8 bytes a node and thread
    between calls; calls at the same time have memory of their own.

    Attributes:
        csr: (N, N) structure of the whole graph.
        num_neighbors: Entries to draw for each node, the hop next to the seeds first; -1 for all.
        replace: Draw with repetitions.
        ids: int64 (N,), original ids of the nodes; None: their numbers.
        weight: Floating (nnz,), what the chance of each entry is in proportion to; None: equal.

    Example:
        >>> ring = CSR(torch.arange(5), torch.tensor([1, 2, 3, 0], dtype=torch.int32), 4)
        >>> sampler = BlockSampler(ring, [1, 1])
        >>> seeds = [torch.tensor([2]), torch.tensor([0, 1])]
        >>> sampled = sampler.sample(seeds, hop_keys(0, steps=[5, 6], sites=[0, 1]))
        >>> sampled.n_id(0).tolist(), sampled.n_id(1).tolist()
        ([2, 3, 0], [0, 1, 2, 3])
    """

    csr: CSR
    num_neighbors: Sequence[int]
    replace: bool = False
    ids: Tensor | None = None
    weight: Tensor | None = None
    _free: deque[_Numbers] = field(default_factory=deque, init=False, repr=False)

    def sample(self, seeds: Sequence[Tensor], keys: Tensor) -> SampledBlocks:
        """Sample for batches of seeds.

        Args:
            seeds: For each batch int64 nodes, none twice.
            keys: int64 (batches, hops), as `hop_keys` makes them.

        Raises:
            IndexError: A seed or an index of the structure is out of range.
            ValueError: A batch holds a seed twice, a weight is negative or not finite, or
                `num_neighbors`, `ids`, `weight` or `keys` do not fit.
        """
        csr = self.csr
        ends = torch.tensor([0, *(batch.numel() for batch in seeds)]).cumsum(0)
        numbers = self._free.pop() if self._free else _Numbers()
        try:
            first_stamp = numbers.take(csr, len(seeds))
            tensors = kernels.sample_blocks(
                numbers.maps,
                first_stamp,
                csr.indptr,
                csr.indices,
                torch.cat([csr.indptr[:0], *seeds]),
                ends,
                self.num_neighbors,
                keys.contiguous(),
                self.replace,
                _contiguous(self.ids),
                _contiguous(self.weight),
            )
        finally:
            self._free.append(numbers)
        return SampledBlocks(tensors, len(self.num_neighbors))


def hop_keys(seed: int, steps: Sequence[int], sites: Sequence[int]) -> Tensor:
    """Return int64 (batches, hops): the key of each hop of each batch.

    Args:
        seed: The run's seed.
        steps: The step (optimiser steps so far) of each batch.
        sites: The site of each hop.
    """
    values = [[DrawKey(seed, step, site).value for site in sites] for step in steps]
    return torch.tensor(values, dtype=torch.int64).view(len(steps), len(sites))


def sample_neighbors(
    csr: CSR,
    rows: Tensor,
    *,
    row_ids: Tensor,
    fanout: int,
    key: DrawKey,
    replace: bool = False,
    weight: Tensor | None = None,
) -> SampledRows:
    """Draw entries of rows; all of them where a row has no more than `fanout`.

    Args:
        csr: (R, K) structure.
        rows: int64 (n,), rows of it, which may repeat.
        row_ids: int64 (n,), their original ids: what the draws depend on, beside the key.
        fanout: Entries for each row; -1 for all.
        key: Seed, step and site.
        replace: Draw exactly `fanout` from each row that has any, with repetitions.
        weight: float32 or float64 (nnz,), what the chance of each entry is in proportion to; an
            entry of weight zero is never drawn.

    Raises:
        IndexError: A row is out of range.
        ValueError: `fanout` is below -1; a weight that was looked at is negative or not finite.
    """
    drawn = kernels.sample_neighbors(
        csr.indptr,
        csr.indices,
        rows.contiguous(),
        row_ids.contiguous(),
        fanout,
        replace,
        key.value,
        _contiguous(weight),
    )
    return SampledRows(*drawn)


def relabel(dst: Tensor, columns: Tensor) -> Numbered:
    """Give local numbers to ids in order of first appearance, destinations first.

    Args:
        dst: int64 (n,), ids without repetition.
        columns: int64 or int32 (nnz,), ids.

    Raises:
        ValueError: `dst` repeats an id.
    """
    return Numbered(*kernels.relabel(dst.contiguous(), columns.contiguous()))


def row_order(csr: CSR, keys: Tensor) -> Tensor:
    """Return int64 (nnz,): entries of each row by ascending keys of their columns.

    Args:
        csr: (R, K) structure.
        keys: int64 (K,), one for each column. Entries of equal keys stay in their order.

    Raises:
        IndexError: An index of the structure is out of range.
    """
    order: Tensor = kernels.row_order(csr.indptr, csr.indices, keys.contiguous())
    return order


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
