"""The hypergraph whose connectivity is a partition's replication factor, and coarser ones.

The net of node u holds u and all nodes that read u. A part that holds a pin of it has to have the
row of u, as its own or as halo: so the parts that nets touch, summed up and divided by N, are the
replication factor, on directed graphs as on others.

    edges a->b, a->c      net of a: {a, b, c}     parts {a}, {b, c}: touches 2, and b and c share
                          nets of b, c: themselves    one halo row; an edge cut would count 2
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import INT32_LIMIT
from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph

__all__ = ["Hypergraph", "connectivity", "contract", "hypergraph_of"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Nodes and the nets that join them, both ways round.

    Attributes:
        net_ptr: int64 (N + 1,), offsets of the nodes' rows in `nets`.
        nets: int32, the nets of each node, ascending, none twice.
        pin_ptr: int64 (M + 1,), offsets of the nets' rows in `pins`.
        pins: int32, the nodes of each net, ascending.
        net_weight: int64 (M,), positive.
        node_weight: int64 (N, K), one column for each constraint.
    """

    net_ptr: Array
    nets: Array
    pin_ptr: Array
    pins: Array
    net_weight: Array
    node_weight: Array

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.net_ptr) - 1

    @property
    def num_nets(self) -> int:
        """M."""
        return len(self.pin_ptr) - 1

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Everything, in the order in which the kernels take it."""
        return (
            self.net_ptr, self.nets, self.pin_ptr, self.pins, self.net_weight, self.node_weight,
        )  # fmt: skip


def hypergraph_of(graph: Graph, node_weight: Array) -> Hypergraph:
    """Return a graph's hypergraph, of N nets; O(E) time, some 20 bytes an edge and 30 a node.

    Raises:
        PartitionError: The graph has 2^31 nodes or more.
    """
    num_nodes = graph.num_nodes
    if num_nodes >= INT32_LIMIT:
        raise PartitionError(f"the graph must have fewer than 2^31 nodes, got {num_nodes}")
    own = np.arange(num_nodes)
    dst = np.repeat(own, graph.in_degree)
    return _from_pins(
        (np.concatenate([graph.indices, own]), np.concatenate([dst, own])),
        np.ones(num_nodes, np.int64),
        node_weight,
    )


def contract(hypergraph: Hypergraph, clusters: Array) -> Hypergraph:
    """Return the hypergraph whose nodes are clusters of another's.

    Nets inside one cluster are left out, and nets of the same clusters become one with the weight
    of all. They are found by 64-bit hashes: that two of a million nets are taken for equal and are
    not has a chance of 3e-8, and would only make the coarse hypergraph a worse model.

    Args:
        hypergraph: The finer hypergraph.
        clusters: int32 (N,), the cluster of each node; each number from 0 occurs.
    """
    num_clusters = int(clusters.max(initial=-1)) + 1
    size, pin = _distinct(hypergraph, clusters, num_clusters)
    net = np.repeat(np.arange(hypergraph.num_nets), size)
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, num_clusters)
    name = np.zeros(hypergraph.num_nets, np.int64)
    np.add.at(name, net, words[pin])
    kept = np.flatnonzero(size > 1)
    _, first, group = np.unique(name[kept], return_index=True, return_inverse=True)
    weight = np.zeros(len(first), np.int64)
    np.add.at(weight, group, hypergraph.net_weight[kept])
    new_id = np.full(hypergraph.num_nets, -1)
    new_id[kept[first]] = np.arange(len(first))
    stays = new_id[net] >= 0
    node_weight = np.zeros((num_clusters, hypergraph.node_weight.shape[1]), np.int64)
    np.add.at(node_weight, clusters, hypergraph.node_weight)
    return _from_pins((new_id[net[stays]], pin[stays]), weight, node_weight)


def connectivity(hypergraph: Hypergraph, assignment: Array) -> int:
    """Return the sum over nets of weight times parts touched; O(pins) time beside sorting nets."""
    touched, _ = _distinct(hypergraph, assignment, int(assignment.max(initial=0)) + 1)
    return int(hypergraph.net_weight @ touched)


def _distinct(hypergraph: Hypergraph, labels: Array, num_labels: int) -> tuple[Array, Array]:
    """Return how many labels the pins of each net have, and these, ascending, net after net."""
    import scipy.sparse

    shape = (hypergraph.num_nets, num_labels)
    of_pins = labels[hypergraph.pins]
    # Duplicates are summed up in place, so that offsets must be a copy too.
    structure = np.ones(len(of_pins), bool), of_pins, hypergraph.pin_ptr.copy()
    rows = scipy.sparse.csr_array(structure, shape)
    rows.sum_duplicates()
    return np.diff(rows.indptr).astype(np.int64), rows.indices.astype(np.int64)


def _from_pins(ends: tuple[Array, Array], net_weight: Array, node_weight: Array) -> Hypergraph:
    """Build both structures from (net, pin) pairs, of which some may repeat."""
    import scipy.sparse

    shape = (len(net_weight), len(node_weight))
    by_net = scipy.sparse.coo_array((np.ones(len(ends[0]), bool), ends), shape).tocsr()
    by_net.sum_duplicates()
    by_node = by_net.tocsc()
    by_node.sort_indices()
    return Hypergraph(
        net_ptr=by_node.indptr.astype(np.int64),
        nets=by_node.indices.astype(np.int32),
        pin_ptr=by_net.indptr.astype(np.int64),
        pins=by_net.indices.astype(np.int32),
        net_weight=net_weight,
        node_weight=node_weight,
    )
