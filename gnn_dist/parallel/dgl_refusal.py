"""Which modules of DGL are not exact on a shard, and why."""

from torch import nn

__all__ = ["REFUSED_DGL", "dgl_refusal"]

DENSE = "it takes the adjacency matrix of the whole graph, of which a rank has its own rows"
LIBRARY = "it runs on a CUDA library that reads the whole graph"
NEIGHBOURS = "it looks for neighbours among all nodes, of which a rank holds its own"
SIZE = "it divides by the number of nodes of the graph, of which a rank knows its own"
TYPES = "it works on nodes of several types, in dictionaries: a shard has one"
WALKS = "it draws walks over the whole graph"
PADDED = "it is between all nodes of small graphs that fill a batch"

# Modules of dgl.nn.pytorch; what each needs that a shard does not have.
REFUSED_DGL = {
    "CuGraphGATConv": LIBRARY,
    "CuGraphRelGraphConv": LIBRARY,
    "CuGraphSAGEConv": LIBRARY,
    "DGNConv": SIZE,
    "DGNConvTower": SIZE,
    "DeepWalk": WALKS,
    "DenseChebConv": DENSE,
    "DenseGraphConv": DENSE,
    "DenseSAGEConv": DENSE,
    "GroupRevRes": "it runs layers again in the backward, outside the model's forward",
    "HeteroEmbedding": TYPES,
    "HeteroGraphConv": TYPES,
    "HeteroLinear": TYPES,
    "KNNGraph": NEIGHBOURS,
    "MetaPath2Vec": WALKS,
    "PNAConv": SIZE,
    "PNAConvTower": SIZE,
    "RadiusGraph": NEIGHBOURS,
    "SegmentedKNNGraph": NEIGHBOURS,
}
READOUT = (
    "it reads out each graph of a batch: for sums, means and maxima over all nodes use torch.sum, "
    "torch.mean and torch.amax, which are over all ranks"
)
BY_HOME = {
    "dgl.nn.pytorch.explain": "it trains masks by calls of its own, on a graph of one machine",
    "dgl.nn.pytorch.glob": READOUT,
    "dgl.nn.pytorch.gt": PADDED,
    "dgl.nn.pytorch.sparse_emb": "its rows are kept by DGL's own servers",
}


def dgl_refusal(module: nn.Module, name: str, home: str) -> str | None:
    """Say why a module would not be exact; None if nothing is known.

    Args:
        module: The module.
        name: The class of DGL that it is of.
        home: The Python module of that class.
    """
    if name == "GatedGraphConv" and getattr(module, "_n_etypes", 1) != 1:
        return (
            "with several types of edges it takes those of one type at a time, which a rank may "
            "not have: use RelGraphConv, or one type"
        )
    for start, reason in BY_HOME.items():
        if home.startswith(start):
            return reason
    return REFUSED_DGL.get(name)
