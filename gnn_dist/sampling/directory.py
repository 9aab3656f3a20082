"""Who owns an original id, and drawing nodes of the whole graph, without a table of it anywhere.

original ids   0 .. N/P-1 | N/P .. 2N/P-1 | ...      a rank knows those of its range
numbers        of rank 0  | of rank 1     | ...      see `Topology`
"""

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.transfers import send_counted
from gnn_dist.sampling.requests import Requests
from gnn_dist.sampling.topology import Topology

__all__ = ["DIRECTORY_CHANNEL", "NodeDirectory"]

DIRECTORY_CHANNEL = 3


class NodeDirectory:
    """Collective. Numbers of nodes by original id, a range of ids on each rank.

    Keeps 24 bytes for each of a rank's N / P ids.

    Args:
        topology: This rank's rows.
        transport: The ranks.

    Attributes:
        num_nodes: Nodes of all ranks.
        num_edges: Edges of all ranks.
    """

    def __init__(self, topology: Topology, transport: Transport) -> None:
        self._transport = transport
        highest = topology.node_id.new_full((1,), -1)
        if topology.node_id.numel():
            highest[0] = topology.node_id.max()
        transport.all_reduce(highest, "max").wait()
        # Ids of a subgraph's nodes have gaps; a range may hold few of them, or none.
        self._per_rank = max(1, -(-(int(highest) + 1) // transport.world_size))
        first = int(topology.rank_ptr[transport.rank])
        number = torch.arange(first, first + topology.node_id.numel())
        mine = torch.stack([topology.node_id, number, topology.csr.counts], 1)
        owner = topology.node_id // self._per_rank
        ptr = torch.bincount(owner, minlength=transport.world_size).cumsum(0).tolist()
        known, _ = send_counted(mine[owner.argsort(stable=True)], [0, *ptr], transport)
        known = known[known[:, 0].argsort()]
        self._id, self._number = known[:, 0].contiguous(), known[:, 1].contiguous()
        self._ends = known[:, 2].cumsum(0)
        sizes = torch.zeros(2, transport.world_size, dtype=torch.int64)
        sizes[0, transport.rank], sizes[1, transport.rank] = len(known), known[:, 2].sum()
        transport.all_reduce(sizes).wait()
        self._node_ptr, self._degree_ptr = (
            torch.cat([size.new_zeros(1), size.cumsum(0)]) for size in sizes
        )

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return int(self._node_ptr[-1])

    @property
    def num_edges(self) -> int:
        """Edges of all ranks."""
        return int(self._degree_ptr[-1])

    def numbers(self, ids: Tensor) -> Tensor:
        """Collective. Return int64 (k,), numbers of nodes; -1 where there is no such node.

        Args:
            ids: int64 (k,), original ids, any integers.
        """
        ranges = torch.arange(self._transport.world_size + 1) * self._per_rank
        inside = (ids >= 0) & (ids < int(ranges[-1]))
        out = torch.full_like(ids, -1)
        requests = Requests.send([ids[inside]], ranges, self._transport, DIRECTORY_CHANNEL)
        wanted = requests.incoming + ranges[self._transport.rank]
        found = torch.full_like(wanted, -1)
        if self._id.numel():
            at = torch.searchsorted(self._id, wanted).clamp_(max=self._id.numel() - 1)
            found = torch.where(self._id[at] == wanted, self._number[at], found)
        out[inside] = requests.answer_rows(found)
        return out

    def draw(self, uniform: Tensor, *, by_degree: bool) -> Tensor:
        """Collective. Return int64 (k,), numbers of nodes, drawn alike or by in-degree.

        Args:
            uniform: float64 (k,), in [0, 1): which node, in the order of original ids.
            by_degree: Whether a node's chance is in proportion to its in-edges.

        Raises:
            ConfigError: On every rank: by in-degree from a graph without edges.
        """
        ptr = self._degree_ptr if by_degree else self._node_ptr
        total = int(ptr[-1])
        if total == 0:
            raise ConfigError("nodes cannot be drawn by in-degree from a graph without edges")
        place = (uniform * total).long().clamp_(max=total - 1)
        requests = Requests.send([place], ptr, self._transport, DIRECTORY_CHANNEL)
        at = requests.incoming
        if by_degree:
            at = torch.searchsorted(self._ends, at, right=True)
        return requests.answer_rows(self._number[at])
