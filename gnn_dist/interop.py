"""Graphs of PyG and DGL, to and from `Graph`.

Neither package is imported to read a graph: what is read are the attributes that a PyG `Data` and
a DGL graph have, so that DGL stays optional.
"""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, Graph, graph_from_edges

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

__all__ = ["graph_from_dgl", "graph_from_pyg", "graph_to_pyg", "import_dgl"]

Array = NDArray[Any]

# Field of Graph -> names that DGL users give it, in ndata and in edata.
DGL_NODE_NAMES: dict[str, tuple[str, ...]] = {
    "x": ("feat", "x"),
    "y": ("label", "y"),
    **{name: (name,) for name in MASK_NAMES},
}
DGL_EDGE_NAMES: dict[str, tuple[str, ...]] = {
    "edge_weight": ("weight", "edge_weight"),
    "edge_attr": ("feat", "edge_attr"),
    "edge_type": ("etype", "edge_type"),
}


def graph_from_pyg(data: "Data", *, regression: bool = False, name: str = "graph") -> Graph:
    """Build a graph from a `torch_geometric.data.Data`.

    Args:
        data: Its `edge_index` (row 0 the source), and where there are: `x` (dense, or a sparse
            tensor, which stays sparse), `y`, masks, `edge_weight`, `edge_attr` of shape (E,) or
            (E, K), `edge_type`, `edge_id`. Not changed; other attributes are left out.
        regression: Whether `y` are numbers to predict.
        name: The graph's name.

    Returns:
        The graph; dtypes are kept, arrays are shared where possible. Edge data follow their
        edges, and `edge_id` tells each edge's position in `edge_index`.

    Raises:
        GraphError: The data are heterogeneous, hold `adj_t` in place of `edge_index`, or a tensor
            has a wrong shape, dtype or value.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
        >>> graph_from_pyg(data).indptr.tolist()
        [0, 0, 1, 2, 2]
    """
    if hasattr(data, "node_types"):
        raise GraphError(
            "data must be homogeneous, got several node or edge types (HeteroData): "
            "pass data.to_homogeneous()"
        )
    fields = {
        key: _to_numpy(data[key], key)
        for key in ("x", "y", *MASK_NAMES, *EDGE_NAMES)
        if data.get(key) is not None
    }
    src, dst = _pyg_edge_index(data)
    num_nodes = _pyg_num_nodes(data, fields)
    return graph_from_edges(
        src, dst, num_nodes=num_nodes, regression=regression, name=name, **fields
    )


def graph_to_pyg(graph: Graph, *, sparse_x: bool = False) -> "Data":
    """Return the graph as a `torch_geometric.data.Data`, edges in CSR order.

    Args:
        graph: The graph; the tensors share its arrays where those are writable, so change
            tensors by replacing them.
        sparse_x: Give CSR features as a sparse CSR tensor, in place of a dense copy.

    Returns:
        `edge_index` int64 (2, E) and every field that the graph has, under its own name.
    """
    import torch
    from torch_geometric.data import Data

    edge_index = torch.from_numpy(np.stack(graph.edges()).astype(np.int64, copy=False))
    fields = {
        name: _to_tensor(getattr(graph, name))
        for name in ("y", *MASK_NAMES, *EDGE_NAMES)
        if getattr(graph, name) is not None
    }
    if isinstance(graph.x, CSRFeatures):
        fields["x"] = _csr_tensor(graph.x) if sparse_x else _to_tensor(graph.x.to_dense())
    elif graph.x is not None:
        fields["x"] = _to_tensor(graph.x)
    return Data(edge_index=edge_index, num_nodes=graph.num_nodes, **fields)


def import_dgl(what: str) -> Any:  # noqa: ANN401 - a module that need not be there
    """Return the module `dgl`.

    Args:
        what: The beginning of the sentence that says what it is needed for.

    Raises:
        ConfigError: DGL is not installed.
    """
    try:
        import dgl
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"{what}, which cannot be imported ({error}): pip install 'gnn-dist[dgl]'"
        ) from error
    return dgl


def graph_from_dgl(graph: Any, *, name: str = "graph") -> Graph:  # noqa: ANN401 - DGL is optional
    """Build a graph from a homogeneous `dgl.DGLGraph`.

    Args:
        graph: Read are `ndata["feat" or "x"]`, `ndata["label" or "y"]`, the three masks, and
            `edata["weight" or "edge_weight"]`, `edata["feat" or "edge_attr"]`, `edata["etype" or
            "edge_type"]`. Not changed; other data are left out.
        name: The graph's name.

    Returns:
        The graph; `edge_id` is DGL's edge id where there are edge data.

    Raises:
        GraphError: The graph is heterogeneous or a block, a field is there under two names, or a
            tensor has a wrong shape, dtype or value.
    """
    if getattr(graph, "is_block", False):
        raise GraphError("graph must be a whole graph, got a DGL block: pass the graph itself")
    if len(graph.ntypes) != 1 or len(graph.etypes) != 1:
        raise GraphError(
            f"graph must be homogeneous, got node types {list(graph.ntypes)} and edge types "
            f"{list(graph.etypes)}: pass dgl.to_homogeneous(graph)"
        )
    src, dst = (_to_numpy(ends, "edges") for ends in graph.edges(order="eid"))
    fields = {
        **_pick(graph.ndata, DGL_NODE_NAMES, "ndata"),
        **_pick(graph.edata, DGL_EDGE_NAMES, "edata"),
    }
    return graph_from_edges(src, dst, num_nodes=int(graph.num_nodes()), name=name, **fields)


def _pyg_edge_index(data: "Data") -> tuple[Array, Array]:
    edge_index = data.get("edge_index")
    if edge_index is None and data.get("adj_t") is not None:
        raise GraphError(
            "data must hold edge_index, got adj_t (the ToSparseTensor transform makes it): leave "
            "the transform out, or set data.edge_index = torch.stack(data.adj_t.t().coo()[:2])"
        )
    if edge_index is None:
        raise GraphError("data must hold edge_index, got no edges: an empty (2, 0) tensor will do")
    ends = _to_numpy(edge_index, "edge_index")
    if ends.ndim != 2 or len(ends) != 2:
        raise GraphError(f"edge_index must have shape (2, E), got {ends.shape}")
    return ends[0], ends[1]


def _pyg_num_nodes(data: "Data", fields: dict[str, Any]) -> int | None:
    """Return N where it was set; else None when labels or masks tell it, which PyG overlooks."""
    if "num_nodes" not in data and not fields.keys().isdisjoint({"x", "y", *MASK_NAMES}):
        return None
    with warnings.catch_warnings():
        # PyG warns where it takes N from edge_index, which is what a bare edge list means.
        warnings.simplefilter("ignore", UserWarning)
        return int(data.num_nodes)


def _to_numpy(value: Any, name: str) -> Any:  # noqa: ANN401 - a tensor of any library
    """Return an array that shares a tensor's memory where it can, or `CSRFeatures` of `x`."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "detach"):
        raise GraphError(f"{name} must be a tensor or an array, got {type(value).__name__}")
    tensor = value.detach().cpu()
    if str(getattr(tensor, "layout", "")) in ("torch.sparse_csr", "torch.sparse_coo"):
        if name != "x":
            raise GraphError(f"{name} must be dense, got a {tensor.layout} tensor: densify it")
        return _csr_features(tensor)
    if str(tensor.dtype) == "torch.bfloat16":
        raise GraphError(f"{name} must have a dtype that NumPy knows, got bfloat16: use .float()")
    return tensor.numpy()


def _csr_features(tensor: "Tensor") -> CSRFeatures:
    if str(tensor.layout) == "torch.sparse_coo":
        tensor = tensor.coalesce()
        counts = np.bincount(tensor.indices()[0].numpy(), minlength=tensor.shape[0])
        indptr = np.concatenate([[0], np.cumsum(counts)])
        columns = tensor.indices()[1].numpy()
    else:
        indptr, columns = tensor.crow_indices().numpy(), tensor.col_indices().numpy()
    return CSRFeatures(indptr, columns, tensor.values().numpy(), int(tensor.shape[1]))


def _csr_tensor(x: CSRFeatures) -> "Tensor":
    import torch

    values = np.ones(len(x.indices), x.dtype) if x.data is None else x.data
    with warnings.catch_warnings():  # torch calls the layout a beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            _to_tensor(x.indptr),
            _to_tensor(x.indices.astype(np.int64)),
            _to_tensor(values),
            x.shape,
        )


def _to_tensor(array: Array) -> "Tensor":
    import torch

    # torch has no read-only tensors, and would let a write reach a mapped file.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _pick(frame: Any, wanted: dict[str, tuple[str, ...]], where: str) -> dict[str, Any]:  # noqa: ANN401
    """Return those fields that a frame of DGL holds."""
    fields = {}
    for name, keys in wanted.items():
        found = [key for key in keys if key in frame]
        if len(found) > 1:
            raise GraphError(
                f"{where} must hold {name} once, got {' and '.join(map(repr, found))}: drop one"
            )
        if found:
            fields[name] = _to_numpy(frame[found[0]], f"{where}[{found[0]!r}]")
    return fields
