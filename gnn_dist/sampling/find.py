"""Finding edges: each is with the owner of its destination, in a row sorted by its source."""

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.sampling.requests import Requests
from gnn_dist.sampling.topology import Topology

__all__ = ["FIND_CHANNEL", "EdgeFinder", "Entries"]

FIND_CHANNEL = 4


class Entries(NamedTuple):
    """Where copies of edges stand, side by side.

    Attributes:
        begin: int64 (k,), the first entry in the order of `Topology.csr`.
        end: int64 (k,), behind the last; equal to `begin` where there is none.
    """

    begin: Tensor
    end: Tensor


class EdgeFinder:
    """Finds edges of all ranks by their ends, by bisection: nothing is kept beside the structure.

    Args:
        topology: This rank's rows.
        src_id: int64 (n + h,), original ids of its columns.
        transport: The ranks.
    """

    def __init__(self, topology: Topology, src_id: Tensor, transport: Transport) -> None:
        self._topology, self._src_id, self.transport = topology, src_id, transport

    def own(self, rows: Tensor, src_id: Tensor) -> Entries:
        """Return where edges of this rank's nodes are. O(k log of the largest in-degree).

        Args:
            rows: int64 (k,), local ids of destinations.
            src_id: int64 (k,), original ids of sources.
        """
        begin = self._lower(rows, src_id)
        return Entries(begin, self._lower(rows, src_id + 1))

    def exist(self, dst: Tensor, src_id: Tensor) -> Tensor:
        """Collective. Return bool (k,), which pairs are edges.

        Args:
            dst: int64 (k,), numbers of destinations, of any rank.
            src_id: int64 (k,), original ids of sources.
        """
        requests, came = self._ask(dst, src_id)
        begin, end = self.own(requests.incoming, came)
        return requests.answer_rows(end > begin)

    def mark(self, dst: Tensor, src_id: Tensor) -> Tensor:
        """Collective. Return bool (e,): which of this rank's entries some rank names.

        Args:
            dst: int64 (k,), numbers of destinations, of any rank.
            src_id: int64 (k,), original ids of sources.
        """
        requests, came = self._ask(dst, src_id)
        begin, end = self.own(requests.incoming, came)
        edge = torch.zeros(self._topology.csr.nnz + 1, dtype=torch.int64)
        edge.index_add_(0, begin, torch.ones_like(begin))
        edge.index_add_(0, end, -torch.ones_like(end))
        return edge.cumsum(0)[:-1] > 0

    def _ask(self, dst: Tensor, src_id: Tensor) -> tuple[Requests, Tensor]:
        """Collective. Return what is asked for here: rows, and the sources wanted in them."""
        rank_ptr = self._topology.rank_ptr
        requests = Requests.send([dst], rank_ptr, self.transport, FIND_CHANNEL)
        return requests, requests.along(src_id)

    def _lower(self, rows: Tensor, src_id: Tensor) -> Tensor:
        """Return int64 (k,): in each row the first entry whose source is not below one."""
        csr = self._topology.csr
        low, high = csr.indptr[rows], csr.indptr[rows + 1]
        while bool((open_ := low < high).any()):
            # A closed range may end behind the last entry.
            middle = ((low + high) // 2).clamp_(max=csr.nnz - 1)
            below = self._src_id[csr.indices[middle].long()] < src_id
            low = torch.where(open_ & below, middle + 1, low)
            high = torch.where(open_ & ~below, middle, high)
        return low
