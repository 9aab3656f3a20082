"""The structure that is sampled from: rows in an order that no partition changes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.transfers import exchange_rows
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.sampling import row_order
from gnn_dist.shard.shard import Shard

__all__ = ["Topology", "topology_of"]


@dataclass(frozen=True, eq=False)
class Topology:
    """In-edges of a rank's nodes. Entries of a row ascend by the original id of their source.

    Attributes:
        csr: (n, n + h) structure over local ids.
        position: int64 (e,), where in the shard each entry is; None: at the same place.
        node_id: int64 (n,), original ids of the owned nodes.
        number: int64 (n + h,), numbers of the columns. Nodes are numbered over all ranks in the
            order of their shards; of a whole graph's shard these are its global ids.
        rank_ptr: int64 (world_size + 1,); rank r owns the nodes from number `rank_ptr[r]` on.
        edge_ptr: int64 (world_size + 1,); edges are numbered over all ranks, those of rank r from
            `edge_ptr[r]` on, in the order of its shard.
        is_whole: The rows are of all nodes, on every rank alike: of one rank, or shared.
    """

    csr: CSR
    position: Tensor | None
    node_id: Tensor
    number: Tensor
    rank_ptr: Tensor
    edge_ptr: Tensor
    is_whole: bool

    @property
    def num_nodes(self) -> int:
        """N, nodes of all ranks."""
        return int(self.rank_ptr[-1])

    def take(self, values: Tensor) -> Tensor:
        """Return values of the shard's edges (e, ...) in the order of `csr`."""
        return values if self.position is None else values.index_select(0, self.position)

    def edge_number(self, rank: int) -> Tensor:
        """Return int64 (e,), the number over all ranks of each of this rank's entries."""
        return self.take(torch.arange(self.csr.nnz)) + self.edge_ptr[rank]


def topology_of(shard: Shard, transport: Transport) -> Topology:
    """Collective. Put the rows of a shard's structure into canonical order.

    Keeps 12 bytes an edge where they are not in that order yet; nothing otherwise.

    Raises:
        ConfigError: The partition cuts nodes, so that no rank has all in-edges of one.
    """
    if shard.plan.clones:
        raise ConfigError(
            "minibatches need all in-edges of a node on one rank, and this partition is a "
            "vertex-cut: use an edge-cut method, such as --method metis"
        )
    csr, src_id = shard.structure.csr, shard.structure.src_id
    order = row_order(csr, src_id)
    in_order = bool((order[1:] > order[:-1]).all())
    if not in_order:
        csr = CSR(csr.indptr, csr.indices.index_select(0, order), csr.num_cols)
    counts = torch.zeros(2, transport.world_size, dtype=torch.int64)
    counts[0, transport.rank], counts[1, transport.rank] = shard.num_owned, csr.nnz
    transport.all_reduce(counts).wait()
    rank_ptr, edge_ptr = (torch.cat([c.new_zeros(1), c.cumsum(0)]) for c in counts)
    number = rank_ptr[transport.rank] + torch.arange(shard.num_owned)
    return Topology(
        csr=csr,
        position=None if in_order else order,
        node_id=shard.node_id,
        number=torch.cat([number, exchange_rows(number, shard.plan, transport)]),
        rank_ptr=rank_ptr,
        edge_ptr=edge_ptr,
        is_whole=transport.world_size == 1,
    )
