"""Which modules written for one machine are not exact on a shard, and why."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.dgl_refusal import dgl_refusal

__all__ = ["REFUSED_CONVS", "located", "refused_modules"]

NEIGHBOURS = "it looks for neighbours among all nodes, of which a rank holds its own"
TYPES = "it works on nodes of several types, in dictionaries: a shard has one"
LIBRARY = "it runs on a CUDA library that reads the whole graph"

# Layers of torch_geometric.nn.conv; what each needs that a shard does not have.
REFUSED_CONVS = {
    "CuGraphGATConv": LIBRARY,
    "CuGraphRGCNConv": LIBRARY,
    "CuGraphSAGEConv": LIBRARY,
    "DynamicEdgeConv": NEIGHBOURS,
    "FusedGATConv": LIBRARY,
    "GPSConv": "its attention is between all nodes",
    "GravNetConv": NEIGHBOURS,
    "HANConv": TYPES,
    "HGTConv": TYPES,
    "HeteroConv": TYPES,
    "HypergraphConv": "a hyperedge joins nodes of several ranks, which none of them owns",
    "MeshCNNConv": "it reads the four neighbours of a mesh's edge by their position in the list",
    "PANConv": "it multiplies adjacency matrices, which takes edges of other ranks",
    "SplineConv": "torch-spline-conv, which it needs, hides from which rows it reads",
    "SuperGATConv": "in training it draws pairs of nodes that are not linked from the whole graph",
    "WLConv": "it numbers the colours of all nodes in a dictionary",
    "XConv": NEIGHBOURS,
}
# Aggregations in torch_geometric.nn.aggr whose result depends on more than the set of messages.
IN_ORDER = ("GRUAggregation", "LSTMAggregation", "MLPAggregation")
BY_SIZE = {
    "GraphSizeNorm": "it divides by the number of rows, which is this rank's",
    "CorrectAndSmooth": "it compares the sum of a mask with the number of rows, a rank's: correct "
    "what the model has predicted afterwards, on one machine",
    "LINKX": "its first layer has a row for each node, and reads it by ids of edges, a rank's",
}


def refusal(module: nn.Module) -> str | None:
    """Say why a module would not be exact; None if nothing is known."""
    for base in type(module).__mro__:
        home = base.__module__
        if home.startswith("dgl.nn.pytorch"):
            return dgl_refusal(module, base.__name__, home)
        if home.startswith("torch_geometric.nn.conv") and base.__name__ in REFUSED_CONVS:
            return REFUSED_CONVS[base.__name__]
        if home.startswith("torch_geometric.nn.pool"):
            return "it chooses among all nodes of the graph"
        if home.startswith("torch_geometric.nn.attention") or base in (
            *(nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder),
            nn.TransformerDecoder,
        ):
            return "attention over rows would see this rank's nodes only"
        if home.startswith("torch_geometric.nn.aggr") and base.__name__ in IN_ORDER:
            return "it depends on the order of the messages, which differs with the partition"
        if home.startswith("torch_geometric.nn") and base.__name__ in BY_SIZE:
            return BY_SIZE[base.__name__]
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        return "sparse gradients cannot be summed yet: use sparse=False"
    return None


def refused_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (name, module, reason) of what in a model would not be exact."""
    for name, module in model.named_modules():
        reason = refusal(module)
        if reason is not None:
            yield name or "model", module, reason


def located(error: ConfigError, model: nn.Module) -> ConfigError:
    """Return an error that says in which module of a model it was raised."""
    names = {id(module): name for name, module in model.named_modules()}
    found: Any = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and names.get(id(owner)):
            found = owner
        trace = trace.tb_next
    if found is None:
        return error
    name = names[id(found)]
    return type(error)(f"layer {name} ({type(found).__name__}): {error}")
