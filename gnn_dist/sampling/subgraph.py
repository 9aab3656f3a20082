"""A batch as one graph, for models that take `(x, edge_index)`.

    depth 0    seeds
    depth 1    what was drawn for them          edges lead from a depth to the one before
    depth 2    what was drawn for depth 1

A node that is found at two depths is there twice, so that what a seed sees does not depend on which
other seeds share its batch, or its rank. A loop stays one, as layers may treat loops apart.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnn_dist.ops.sampling import relabel
from gnn_dist.sampling.neighbor import Sample

__all__ = ["Subgraph", "subgraph_of"]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Nodes by depth, and the edges drawn for those of each depth but the last.

    Attributes:
        rows: int64 (k,), for each node its row of the batch; seeds first.
        edge_index: int64 (2, e), sources and destinations.
        edges: By name, (e, ...), values of the edges.
        num_nodes: Of each depth.
        num_edges: Into each depth but the last.
    """

    rows: Tensor
    edge_index: Tensor
    edges: dict[str, Tensor]
    num_nodes: list[int]
    num_edges: list[int]


def subgraph_of(sample: Sample) -> Subgraph:
    """Return the graph of what was drawn for a batch."""
    layers, values = sample.layers[::-1], sample.edges[::-1]
    nodes = [torch.arange(layers[0].num_rows, device=sample.n_id.device)]
    sources, destinations, edges = [], [], []
    ends = [0, layers[0].num_rows]  # of the nodes of each depth
    for csr, edge in zip(layers, values, strict=True):
        drawn, position = csr.take_rows(nodes[-1])
        into = drawn.rows + ends[-2]
        is_loop = nodes[-1][drawn.rows] == drawn.indices
        found, local = relabel(nodes[-1][:0], drawn.indices[~is_loop])
        source = into.clone()
        source[~is_loop] = local.long() + ends[-1]
        sources.append(source)
        destinations.append(into)
        edges.append(
            {
                name: rows if position is None else rows.index_select(0, position)
                for name, rows in edge.items()
            }
        )
        nodes.append(found)
        ends.append(ends[-1] + found.numel())
    return Subgraph(
        rows=torch.cat(nodes),
        edge_index=torch.stack([torch.cat(sources), torch.cat(destinations)]),
        edges={name: torch.cat([edge[name] for edge in edges]) for name in edges[0]},
        num_nodes=[b - a for a, b in pairwise(ends)],
        num_edges=[s.numel() for s in sources],
    )
