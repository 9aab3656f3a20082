"""Edges to learn from: all of a shard, some that are given by original ids, or a seeded split."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.transfers import exchange_rows
from gnn_dist.ops.draws import DrawKey, edge_ids, uniform_by_id
from gnn_dist.sampling.directory import NodeDirectory
from gnn_dist.sampling.edges import EdgeRows
from gnn_dist.sampling.find import EdgeFinder
from gnn_dist.sampling.requests import Requests
from gnn_dist.sampling.topology import Topology
from gnn_dist.shard.shard import Shard
from gnn_dist.shard.structure import degree_with_loop

__all__ = ["EdgeSplit", "all_edges", "given_edges", "message_shard", "split_edges", "without"]

EDGE_SPLIT_SITE = 1 << 24  # apart from the sites of models, splits of nodes, hops and orders
ROUTE_CHANNEL = 5


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Edges to train on, and edges that are held out. Its parts have no edge in common.

    Attributes:
        shard: The shard with the training edges alone: where messages go along, and what a
            `LinkLoader` without further words learns from.
        train: int64 (2, k), original ids of sources and destinations: training edges into nodes
            that this rank owns.
        val: The same of validation edges.
        test: The same of test edges.
    """

    shard: Shard
    train: Tensor
    val: Tensor
    test: Tensor


def split_edges(
    shard: Shard, world: World, *, val: float = 0.1, test: float = 0.1, seed: int = 0
) -> EdgeSplit:
    """Collective. Split the edges of the graph by a hash of their ends.

    An edge, its copies and its reverse are in the same part, whatever the partition. Parts have
    their sizes on average.

    Args:
        shard: This rank's shard.
        world: The ranks.
        val: Share of the edges to validate on.
        test: Share of the edges to test on.
        seed: Of the split.

    Raises:
        ConfigError: Shares that cannot be, or a partition that cuts nodes.
    """
    if not (val >= 0.0 and test >= 0.0 and val + test < 1.0):
        raise ConfigError(
            f"val and test must be shares that leave some for training, got {val} and {test}"
        )
    csr, src_id = shard.structure.csr, shard.structure.src_id
    ends = torch.stack([src_id[csr.indices.long()], src_id[csr.rows]])
    low, high = ends.amin(0), ends.amax(0)
    pair = edge_ids(low, high, torch.zeros_like(low))
    drawn = uniform_by_id(DrawKey(seed, 0, EDGE_SPLIT_SITE), pair)
    is_val, is_test = drawn < val, (drawn >= val) & (drawn < val + test)
    is_train = ~(is_val | is_test)
    message = message_shard(shard, is_train, world.transport)
    return EdgeSplit(message, ends[:, is_train], ends[:, is_val], ends[:, is_test])


def message_shard(shard: Shard, keep: Tensor, transport: Transport) -> Shard:
    """Collective. Return the shard with some of its edges, and degrees that these make.

    Nodes and the plan of the halo stay as they are.

    Args:
        shard: The shard.
        keep: bool (e,), edges to keep. Of a symmetric graph an edge is kept if its reverse is.
        transport: The ranks.

    Raises:
        ConfigError: The partition cuts nodes.
    """
    _refuse_clones(shard)
    structure = shard.structure
    kept = structure.csr.select(keep)
    weight = None if structure.edge_weight is None else kept.take(structure.edge_weight)
    degree = degree_with_loop(kept.csr, weight)
    counts = kept.csr.counts
    return shard.replace(
        structure=replace(
            structure,
            csr=kept.csr,
            degree=torch.cat([degree, exchange_rows(degree, shard.plan, transport)]),
            edge_weight=weight,
            num_in_edges=torch.cat([counts, exchange_rows(counts, shard.plan, transport)]),
        ),
        edge_data={name: kept.take(values) for name, values in shard.edge_data.items()},
    )


def without(shard: Shard, topology: Topology, edges: EdgeRows, finder: EdgeFinder) -> Shard:
    """Collective. Return the shard without some edges, all their copies and their reverses.

    Args:
        shard: The shard.
        topology: Its rows in canonical order.
        edges: Those of this rank, which owns their destinations.
        finder: Of that topology.
    """
    rank = finder.transport.rank
    dst_id = topology.node_id[edges.dst - int(topology.rank_ptr[rank])]
    marked = finder.mark(edges.dst, edges.src_id) | finder.mark(edges.src, dst_id)
    keep = torch.ones_like(marked)
    if topology.position is None:
        keep &= ~marked
    else:
        keep[topology.position.long()] = ~marked
    return message_shard(shard, keep, finder.transport)


def all_edges(shard: Shard, topology: Topology, rank: int, label: Tensor | None) -> EdgeRows:
    """Return the edges of a shard; their positions are their numbers over all ranks.

    Args:
        shard: The shard.
        topology: Its rows in canonical order.
        rank: This one.
        label: (e, ...), in the order of the shard's edges; or None.

    Raises:
        ConfigError: There is not a label for each edge.
    """
    csr, src_id = topology.csr, shard.structure.src_id
    check_labels(label, csr.nnz)
    columns, rows = csr.indices.long(), csr.rows
    draw_id = edge_ids(src_id[columns], src_id[rows], csr.copy_number)
    ends = [topology.number[columns], topology.number[rows], src_id[columns]]
    ids = torch.stack([*ends, draw_id, topology.edge_number(rank)], 1)
    return EdgeRows(ids, None if label is None else topology.take(label))


def given_edges(
    pairs: Tensor,
    label: Tensor | None,
    *,
    topology: Topology,
    directory: NodeDirectory,
    world: World,
    transport: Transport,
) -> EdgeRows:
    """Collective. Bring edges that are given by original ids to the owners of their destinations.

    Args:
        pairs: int64 (2, k), sources and destinations, any on any rank, once. Positions count from
            rank 0's first on.
        label: (k, ...), on all ranks or on none.
        topology: This rank's rows.
        directory: Knows who owns an original id.
        world: The ranks.
        transport: Of the messages.

    Raises:
        ConfigError: On every rank: ids of no node, or labels that do not fit.
    """
    with world.everywhere("reading the edges to learn from"):
        if pairs.dim() != 2 or len(pairs) != 2 or pairs.dtype != torch.int64:
            raise ConfigError(
                "edge_label_index must be int64 (2, k), original ids of sources and destinations, "
                f"got {pairs.dtype} {tuple(pairs.shape)}"
            )
        check_labels(label, pairs.size(1))
    number = directory.numbers(pairs.flatten()).view(2, -1)
    with world.everywhere("looking up the edges to learn from"):
        lost = pairs[number < 0]
        if len(lost):
            raise ConfigError(f"edge_label_index must hold ids of nodes, got {int(lost[0])}")
    counts = torch.zeros(transport.world_size, dtype=torch.int64)
    counts[transport.rank] = pairs.size(1)
    transport.all_reduce(counts).wait()
    position = int(counts[: transport.rank].sum()) + torch.arange(pairs.size(1))
    requests = Requests.send([number[1]], topology.rank_ptr, transport, ROUTE_CHANNEL)
    ids = requests.along(torch.stack([number[0], number[1], pairs[0], pairs[1], position], 1))
    came = EdgeRows(ids, None if label is None else requests.along(label))
    return _with_draw_ids(came)


def _with_draw_ids(edges: EdgeRows) -> EdgeRows:
    """Put what draws depend on where the original ids of destinations are.

    Copies of an edge are told apart by the order in which they were given.
    """
    order = edges.position.argsort()
    for column in (2, 3):
        order = order[edges.ids[order, column].argsort(stable=True)]
    edges = edges.take(order)
    src_id, dst_id = edges.ids[:, 2], edges.ids[:, 3]
    index = torch.arange(len(edges))
    same = torch.zeros(len(edges), dtype=torch.bool)
    same[1:] = (src_id[1:] == src_id[:-1]) & (dst_id[1:] == dst_id[:-1])
    first = torch.where(same, 0, index).cummax(0).values if len(edges) else index
    ids = edges.ids.clone()
    ids[:, 3] = edge_ids(src_id, dst_id, index - first)
    return EdgeRows(ids, edges.label)


def check_labels(label: Tensor | None, num_edges: int) -> None:
    """Refuse labels that are not one for each edge.

    Raises:
        ConfigError: They are not.
    """
    if label is not None and (label.dim() == 0 or len(label) != num_edges):
        raise ConfigError(
            f"edge_label must have a row for each of {num_edges} edges, got {tuple(label.shape)}"
        )


def _refuse_clones(shard: Shard) -> None:
    if shard.plan.clones:
        raise ConfigError(
            "learning from edges needs all in-edges of a node on one rank, and this partition is "
            "a vertex-cut: use an edge-cut method, such as --method metis"
        )
