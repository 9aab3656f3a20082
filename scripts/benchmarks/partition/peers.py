"""Other partitioners at their own settings, called directly; each returns the part of each node."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import gnn_dist as gd

Array = NDArray[Any]


def undirected(graph: gd.Graph) -> scipy.sparse.csr_array:
    """Return the simple undirected graph that METIS needs."""
    ones = np.ones(graph.num_edges, np.int32)
    shape = (graph.num_nodes, graph.num_nodes)
    adjacency = scipy.sparse.csr_array((ones, graph.indices, graph.indptr), shape)
    both = (adjacency + adjacency.T).tocsr()
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def metis(graph: gd.Graph, parts: int, **options: int) -> Array:
    """The wrapper pymetis with its defaults: nodes balanced."""
    import pymetis

    both = undirected(graph)
    adjacency = pymetis.CSRAdjacency(both.indptr.astype(np.int64), both.indices.astype(np.int64))
    recursive = None if not options else False
    made = pymetis.part_graph(
        parts, adjacency, recursive=recursive, options=pymetis.Options(**options)
    )
    return np.array(made.vertex_part)


def metis_volume(graph: gd.Graph, parts: int) -> Array:
    """The same with communication volume in place of the cut."""
    return metis(graph, parts, objtype=1)


def dgl_metis(graph: gd.Graph, parts: int) -> Array:
    """DGL's METIS as its distributed training calls it, edges balanced."""
    import dgl

    src, dst = graph.edges()
    made = dgl.metis_partition_assignment(
        dgl.graph((src.astype(np.int64), dst.astype(np.int64)), num_nodes=graph.num_nodes),
        parts,
        balance_ntypes=None,
        balance_edges=True,
    )
    return np.asarray(made.numpy())


def mtkahypar(graph: gd.Graph, parts: int) -> Array:
    """Mt-KaHyPar on edges, default preset, nodes balanced within 3 per cent."""
    maker, context = _mtkahypar_context(parts, "CUT")
    both = scipy.sparse.triu(undirected(graph), 1).tocoo()
    edges = list(zip(both.row.tolist(), both.col.tolist(), strict=True))
    made = maker.create_graph(context, graph.num_nodes, len(edges), edges).partition(context)
    return np.array(made.get_partition())


def mtkahypar_km1(graph: gd.Graph, parts: int) -> Array:
    """Mt-KaHyPar on halo nets, default preset, nodes balanced within 3 per cent."""
    maker, context = _mtkahypar_context(parts, "KM1")
    src, dst = graph.edges()
    nodes = np.arange(graph.num_nodes, dtype=np.int64)
    net, pin = np.concatenate([nodes, src]), np.concatenate([nodes, dst])
    net, pin = np.divmod(np.unique(net * graph.num_nodes + pin), graph.num_nodes)
    nets = [pins.tolist() for pins in np.split(pin, np.flatnonzero(np.diff(net)) + 1)]
    nets = [pins for pins in nets if len(pins) > 1]
    made = maker.create_hypergraph(context, graph.num_nodes, len(nets), nets).partition(context)
    return np.array(made.get_partition())


def _mtkahypar_context(parts: int, objective: str) -> tuple[Any, Any]:
    import mtkahypar as tool

    tool.set_seed(0)
    maker = tool.initialize(len(os.sched_getaffinity(0)), False)
    context = maker.context_from_preset(tool.PresetType.DEFAULT)
    context.set_partitioning_parameters(parts, 0.03, getattr(tool.Objective, objective))
    context.logging = False
    return maker, context


PEERS: dict[str, Callable[[gd.Graph, int], Array]] = {
    "metis": metis,
    "metis-volume": metis_volume,
    "dgl": dgl_metis,
    "mtkahypar": mtkahypar,
    "mtkahypar-km1": mtkahypar_km1,
}
