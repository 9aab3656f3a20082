"""Structures of the edge lists that a model makes of a shard's: with loops, of one type, ..."""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.shard.shard import Shard
from gnn_dist.shard.structure import Structure

__all__ = ["EdgeLists", "Sorted"]

MOST = 16  # lists that are kept


class Sorted(NamedTuple):
    """An edge list as a structure.

    Attributes:
        structure: Its CSR.
        order: int64 (e,), for each entry its position in the list; None if it is the same.
    """

    structure: Structure
    order: Tensor | None


class EdgeLists:
    """Sorts edge lists, and keeps what was sorted: a model makes the same ones in every step.

    Lists are told apart by their values; comparing costs a pass over two lists, sorting ten.

    Args:
        shard: Whose local ids they hold.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._kept: OrderedDict[int, tuple[Tensor, Sorted]] = OrderedDict()
        self._made = 0

    def sorted(self, ends: Tensor) -> Sorted:
        """Return the structure of an edge list, int64 (2, e): sources (halo ones too), targets."""
        own = self._shard.edge_index
        if ends is own or _equal(ends, own):
            return Sorted(self._shard.structure, None)
        for number, (other, found) in reversed(self._kept.items()):
            if _equal(ends, other):
                self._kept.move_to_end(number)
                return found
        made = self._make(ends)
        self._made += 1
        self._kept[self._made] = ends.clone(), made
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return made

    def _make(self, ends: Tensor) -> Sorted:
        whole = self._shard.structure
        src, dst = ends
        # Copies of an edge stand side by side, as a CSR wants them.
        key = dst * whole.num_src + src
        order = None if bool((key[1:] >= key[:-1]).all()) else key.argsort(stable=True)
        if order is not None:
            src = src[order]
        counts = torch.bincount(dst, minlength=whole.num_dst)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        csr = CSR(indptr, src.to(torch.int32), whole.num_src)
        return Sorted(Structure(csr, whole.src_id, whole.degree), order)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
