"""Reductions of the user's own: DGL groups nodes by their number of messages."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.dgl_frames import Frame, Nodes
from gnn_dist.parallel.placement import Kind, Placement, mark

if TYPE_CHECKING:
    from gnn_dist.parallel.dgl_graph import ShardGraph

__all__ = ["reduce_by_degree"]


def reduce_by_degree(
    call: Call,
    graph: "ShardGraph",
    func: Callable[[Nodes], Mapping[str, Tensor]],
    messages: Frame,
) -> dict[str, Tensor]:
    """Collective. Reduce the messages of each node by a function of the user's.

    Every rank calls it for every number of messages that some rank's nodes have, also for no nodes:
    what the function takes of all of them, such as batch norm's statistics, is of all ranks.

    Args:
        call: The forward at hand.
        graph: Whose messages they are.
        func: Is given nodes with `mailbox` (k, d, ...).
        messages: Rows of edges.

    Returns:
        Rows of owned nodes by name; zeros for nodes without messages.

    Raises:
        ConfigError: The graph is reversed: a node's messages are on several ranks.
    """
    if graph.reversed:
        raise ConfigError("messages along reversed edges can be summed alone")
    with call.pause():
        degree = graph.structure.in_degree
        degrees = _degrees_of_all(call, degree)
    found: dict[str, list[Tensor]] = {}
    where: list[Tensor] = []
    for number in degrees:
        with call.pause():
            nodes = (degree == number).nonzero().squeeze(1)
            batch = _batch(graph, messages, nodes, number)
        for name, rows in func(batch).items():
            found.setdefault(name, []).append(rows)
        where.append(nodes)
    with call.pause():
        return {name: _merged(call, rows, where) for name, rows in found.items()}


def _degrees_of_all(call: Call, degree: Tensor) -> list[int]:
    """Collective. Return the numbers of messages, but 0, that nodes of any rank have."""
    most = torch.cat([degree.new_zeros(1), degree]).max()
    top = int(call.extreme_over_ranks(most, "max"))
    have = torch.zeros(top + 1, dtype=torch.int64, device=degree.device)
    have[degree] = 1
    have = call.extreme_over_ranks(have, "max")
    return [number for number in have.nonzero().squeeze(1).tolist() if number > 0]


def _batch(graph: "ShardGraph", messages: Frame, nodes: Tensor, number: int) -> Nodes:
    """Return nodes that have as many messages each."""
    placed = Placement(Kind.SOME, 0)
    edges = graph.structure.messages_of(nodes, number).flatten()
    mailbox = {
        name: mark(rows[edges].view(len(nodes), number, *rows.shape[1:]), placed)
        for name, rows in messages.items()
    }
    data = {name: mark(rows[nodes], placed) for name, rows in graph.ndata.items()}
    return Nodes(data, mailbox, len(nodes))


def _merged(call: Call, parts: list[Tensor], where: list[Tensor]) -> Tensor:
    """Return rows of all owned nodes, of rows of some nodes each."""
    rows, at = torch.cat(parts), torch.cat(where)
    out = rows.new_zeros((call.num_owned, *rows.shape[1:])).index_copy(0, at, rows)
    return call.as_nodes(out, 0)
