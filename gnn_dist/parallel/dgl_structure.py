"""The in-edges of a shard's nodes, as DGL's kernels want them."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnn_dist.interop import import_dgl
from gnn_dist.parallel.placement import Kind, Placement, mark
from gnn_dist.shard.shard import Shard

__all__ = ["ShardEdges"]


class ShardEdges:
    """Edges over local ids, and their order at each node.

    Where the order of messages counts (an LSTM over them, equal maxima), it is that of one process:
    by the user's edge ids if there are any, else by original ids of sources.

    Args:
        ends: int64 (2, e), sources and targets.
        key: int64 (e,), edges of a node are in ascending order of it.
        num_nodes: n and n + h.

    Attributes:
        ends: As given, and marked as such.
        in_degree: int64 (n,).
    """

    def __init__(self, ends: Tensor, key: Tensor, num_nodes: tuple[int, int]) -> None:
        self.ends = mark(ends, Placement(Kind.ENDS, 1, ends))
        self._key, self._num_nodes = key, num_nodes
        self.in_degree = torch.bincount(ends[1], minlength=num_nodes[0])

    @classmethod
    def of_shard(cls, shard: Shard) -> "ShardEdges":
        """Return a shard's edges, in the order of its `edge_index`."""
        ends, ids = shard.edge_index, shard.edge_data.get("edge_id")
        key = shard.structure.src_id[ends[0]] if ids is None else ids
        return cls(ends, key, (shard.num_owned, shard.structure.num_src))

    @property
    def num_edges(self) -> int:
        """Number of edges, e."""
        return self.ends.size(1)

    @cached_property
    def order(self) -> Tensor:
        """int64 (e,), edges by target, in the order of messages."""
        by_key = self._key.argsort(stable=True)
        return by_key[self.ends[1][by_key].argsort(stable=True)]

    @cached_property
    def indptr(self) -> Tensor:
        """int64 (n + 1,), where each node's edges begin in `order`."""
        return torch.cat([self.in_degree.new_zeros(1), self.in_degree.cumsum(0)])

    @cached_property
    def index(self) -> Any:
        """DGL's index of n + h sources and n targets."""
        n, num_src = self._num_nodes
        parts = self.indptr, self.ends[0][self.order], self.order
        block = import_dgl("layers of DGL need DGL").create_block(
            ("csc", parts), num_src_nodes=num_src, num_dst_nodes=n
        )
        return block._graph

    @cached_property
    def reversed_index(self) -> Any:
        """DGL's index of n sources and n + h targets."""
        return self.index.reverse()

    @property
    def sources_and_targets(self) -> tuple[Tensor, Tensor]:
        """int64 (e,) each, marked."""
        src, dst = self.ends.unbind(0)
        return (
            mark(src, Placement(Kind.SOURCES, 0, self.ends)),
            mark(dst, Placement(Kind.TARGETS, 0, self.ends)),
        )

    @cached_property
    def no_loop(self) -> Tensor:
        """Edges between different nodes, bool (e,)."""
        return self.ends[0] != self.ends[1]

    @property
    def loops(self) -> Tensor:
        """int64 (n,), edges from each node to itself."""
        at = self.ends[1][~self.no_loop]
        return torch.bincount(at, minlength=self._num_nodes[0])

    def without_loops(self) -> "ShardEdges":
        """Return the edges between different nodes."""
        kept = self.no_loop
        return ShardEdges(self.ends[:, kept].contiguous(), self._key[kept], self._num_nodes)

    def with_loops(self) -> "ShardEdges":
        """Return the edges and one from each node to itself, after all others."""
        own = torch.arange(self._num_nodes[0], device=self.ends.device)
        last = torch.full_like(own, torch.iinfo(torch.int64).max)
        return ShardEdges(
            torch.cat([self.ends, own.expand(2, -1)], 1),
            torch.cat([self._key, last]),
            self._num_nodes,
        )

    def messages_of(self, nodes: Tensor, degree: int) -> Tensor:
        """Return int64 (k, degree), the edges of k nodes that have as many, in their order."""
        steps = torch.arange(degree, device=nodes.device)
        return self.order[self.indptr[nodes].unsqueeze(1) + steps]
