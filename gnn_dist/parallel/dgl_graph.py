"""A shard in place of a `dgl.DGLGraph`, for layers of DGL and of the user's own.

    script on one machine            on a shard
    g = dgl.graph(...)               g = gd.dgl_graph(shard, world)
    model(g, x)                      model(g, x)      x: rows of owned nodes

The graph has this rank's n nodes, and all their in-edges. To a layer it is homogeneous: `srcdata`,
`dstdata` and `ndata` are the same n rows. Rows of sources on other ranks are fetched where messages
are made of them (`dgl_kernels.py`), after the layer has transformed its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.exchange import CLONES_ADD
from gnn_dist.halo.transfers import return_rows
from gnn_dist.interop import DGL_EDGE_NAMES, DGL_NODE_NAMES, import_dgl
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.dgl_frames import Edges, Frame, Nodes
from gnn_dist.parallel.dgl_kernels import ShardIndex
from gnn_dist.parallel.dgl_names import (
    ALL,
    EDGE_TYPE,
    NODE_TYPE,
    OwnCount,
    View,
    check_all,
    check_type,
)
from gnn_dist.parallel.dgl_reduce import reduce_by_degree
from gnn_dist.parallel.dgl_structure import ShardEdges
from gnn_dist.parallel.placement import Kind, Placement, mark
from gnn_dist.shard.shard import Shard

__all__ = ["ShardGraph", "dgl_graph"]

Message = Callable[[Edges], Mapping[str, Tensor]]
Reduce = Callable[[Nodes], Mapping[str, Tensor]]


def dgl_graph(shard: Shard, world: World) -> "ShardGraph":
    """Collective. Return what takes the place of the whole graph in a script written with DGL.

    Args:
        shard: This rank's shard.
        world: The ranks.

    Returns:
        A graph of the rank's nodes, to pass to a model that `parallelize` has made. `ndata` has
        `feat`, `label` and masks, `edata` has `weight`, `feat` and `etype`, as far as the shard has
        them (features only where they are dense).

    Raises:
        ConfigError: DGL is not installed, or the shard is of a vertex-cut.

    Example:
        docs/dgl.md; `tests/test_dgl_layers.py` runs such a model.
    """
    with world.everywhere("making a graph for DGL"):
        import_dgl("layers of DGL need DGL")
        if shard.plan.clones:
            raise ConfigError(f"layers of DGL may do more than sum rows, but {CLONES_ADD}")
    n = shard.num_owned
    edges = ShardEdges.of_shard(shard)
    counts = torch.bincount(edges.ends[0], minlength=shard.structure.num_src).double()
    out = counts[:n].clone()  # whole numbers up to 2^53
    shard.plan.add_boundary(out, return_rows(counts[n:], shard.plan, world.transport))
    graph = ShardGraph(shard, edges, out.long(), Calls())
    features = shard.features if isinstance(shard.features, Tensor) else None
    of_nodes = {"x": features, "y": shard.y, **shard.masks}
    of_edges = {"edge_weight": shard.edge_weight, **shard.edge_data}
    graph.ndata.update(_known(of_nodes, DGL_NODE_NAMES))
    graph.edata.update(_known(of_edges, DGL_EDGE_NAMES))
    return graph


def _known(
    values: Mapping[str, Tensor | None], names: Mapping[str, tuple[str, ...]]
) -> dict[str, Tensor]:
    return {names[k][0]: v for k, v in values.items() if k in names and v is not None}


class Calls:
    """Which forward the graphs of a shard are used in, if any."""

    def __init__(self) -> None:
        self.now: Call | None = None


class ShardGraph:
    """A shard's graph with the methods of a `dgl.DGLGraph` that layers call; see `dgl_graph`.

    Args:
        shard: Whose nodes they are.
        edges: The in-edges of owned nodes.
        out_degree: int64 (n,), of the whole graph.
        calls: Shared by all graphs made of one.
        reversed_: Messages go from targets to sources.
    """

    is_block = False
    is_homogeneous = True
    is_multigraph = True
    batch_size = 1
    ntypes = srctypes = dsttypes = [NODE_TYPE]  # noqa: RUF012 - as DGL has them
    etypes = [EDGE_TYPE]  # noqa: RUF012
    canonical_etypes = [(NODE_TYPE, EDGE_TYPE, NODE_TYPE)]  # noqa: RUF012
    idtype = torch.int64

    def __init__(
        self,
        shard: Shard,
        edges: ShardEdges,
        out_degree: Tensor,
        calls: Calls,
        reversed_: bool = False,
    ) -> None:
        self.shard, self.structure, self.calls, self.reversed = shard, edges, calls, reversed_
        self._out_degree = out_degree
        n, e = shard.num_owned, edges.num_edges
        self.ends = edges.ends
        self._nodes = Frame(Placement(Kind.NODES, 0), n, e)
        self._edges = Frame(Placement(Kind.EDGES, 0, edges.ends), e, n)
        self._graph = ShardIndex(self, edges.reversed_index if reversed_ else edges.index)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.ends.device

    @property
    def ndata(self) -> Frame:
        """Rows of owned nodes (n, ...) by name."""
        return self._nodes

    srcdata = dstdata = ndata

    @property
    def edata(self) -> Frame:
        """Rows of edges (e, ...) by name, in the order of `shard.edge_index`."""
        return self._edges

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return n, the nodes of this rank."""
        check_type(ntype)
        return self.shard.num_owned

    number_of_nodes = num_src_nodes = number_of_src_nodes = num_nodes
    num_dst_nodes = number_of_dst_nodes = num_nodes

    def num_edges(self, etype: Any = None) -> int:
        """Return e, the in-edges of this rank's nodes."""
        check_type(etype)
        return self.structure.num_edges

    number_of_edges = num_edges

    @property
    def nodes(self) -> "View":
        """`nodes()`: local ids of owned nodes; `nodes["_N"].data`: `ndata`."""
        return View(self._node_ids, self.ndata)

    srcnodes = dstnodes = nodes

    def _node_ids(self, ntype: str | None = None) -> Tensor:
        check_type(ntype)
        ids = torch.arange(self.shard.num_owned, device=self.device)
        return mark(ids, Placement(Kind.TARGETS, 0))

    def batch_num_nodes(self, ntype: str | None = None) -> Tensor:
        """Return (1,), the nodes of this rank, with which nothing can be done but repeat rows."""
        check_type(ntype)
        return torch.tensor([self.shard.num_owned], device=self.device).as_subclass(OwnCount)

    @property
    def edges(self) -> "View":
        """`edges()`: sources (halo ones too) and targets; `edges["_E"].data`: `edata`.

        With form `all` edge ids too.
        """
        return View(self._ends, self.edata)

    all_edges = edges

    def _ends(self, form: str = "uv", order: str = "eid", etype: Any = None) -> Any:
        check_type(etype)
        if form not in ("uv", "all"):
            raise ConfigError(f"form must be 'uv' or 'all', got {form!r}")
        src, dst = self.structure.sources_and_targets
        pair = (dst, src) if self.reversed else (src, dst)
        if form == "uv":
            return pair
        ids = torch.arange(self.structure.num_edges, device=self.device)
        return (*pair, mark(ids, Placement(Kind.EDGES, 0, self.ends)))

    def in_degrees(self, v: Any = ALL, etype: Any = None) -> Tensor:
        """Return int64 (n,), in-edges of each owned node."""
        if self.reversed:
            raise ConfigError("a reversed graph's in-degrees are of all ranks: use out_degrees()")
        return self._degree(self.structure.in_degree, v, etype)

    def out_degrees(self, u: Any = ALL, etype: Any = None) -> Tensor:
        """Return int64 (n,), out-edges of each owned node in the whole graph."""
        own = self.structure.in_degree if self.reversed else self._out_degree
        return self._degree(own, u, etype)

    def _degree(self, degree: Tensor, which: Any, etype: Any) -> Tensor:
        check_type(etype)
        check_all(which, "degrees")
        return mark(degree.clone(), Placement(Kind.NODES, 0))

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Forget what is set in `ndata` and `edata` while this lasts."""
        before = self._nodes, self._edges
        self._nodes, self._edges = before[0].copy(), before[1].copy()
        try:
            yield
        finally:
            self._nodes, self._edges = before

    def local_var(self) -> "ShardGraph":
        """Return the same graph, whose `ndata` and `edata` can be set without changing this one."""
        return self._with(self.structure, self._out_degree, self.reversed, edata=True)

    def to(self, device: Any, **kwargs: Any) -> "ShardGraph":
        """Return the graph, which is where its shard is."""
        if torch.device(device).type != self.device.type:
            raise ConfigError(f"the graph is where its shard is, {self.device}: use shard.to")
        return self

    def update_all(
        self,
        message_func: Any,
        reduce_func: Any,
        apply_node_func: Reduce | None = None,
        etype: Any = None,
    ) -> None:
        """Collective. Send messages along all edges, and reduce those of each node."""
        from dgl import core, function, ops

        check_type(etype)
        call = self._call()
        known = [isinstance(f, function.BuiltinFunction) for f in (message_func, reduce_func)]
        if all(known) and hasattr(ops, f"{message_func.name}_{reduce_func.name}"):
            made = _finite(core.invoke_gspmm(self, message_func, reduce_func), reduce_func)
        else:
            messages = self._messages(message_func)
            if known[1]:
                name = reduce_func.msg_field
                copy = function.copy_e(name, name)
                made = _finite(
                    core.invoke_gspmm(self, copy, reduce_func, edata=messages), reduce_func
                )
            else:
                made = reduce_by_degree(call, self, reduce_func, messages)
        if apply_node_func is not None:
            n = self.shard.num_owned
            made = dict(apply_node_func(Nodes({**self.ndata, **made}, {}, n)))
        self.ndata.update(made)

    def apply_edges(self, func: Any, edges: Any = ALL, etype: Any = None) -> None:
        """Collective. Set rows of edges, made of the rows of their ends and of their own."""
        check_type(etype)
        check_all(edges, "apply_edges")
        self.edata.update(self._messages(func))

    def apply_nodes(self, func: Reduce, v: Any = ALL, ntype: Any = None) -> None:
        """Set rows of nodes, made of their own."""
        check_type(ntype)
        check_all(v, "apply_nodes")
        self.ndata.update(func(Nodes(self.ndata, {}, self.shard.num_owned)))

    def _messages(self, func: Any) -> Frame:
        """Collective. Return what a message function makes of all edges."""
        from dgl import core, function

        self._call()
        if isinstance(func, function.BuiltinFunction):
            made = core.invoke_gsddmm(self, func)
        else:
            made = func(Edges(self.ndata, self.edata, *self.edges()))
        n, e = self.shard.num_owned, self.structure.num_edges
        return Frame(Placement(Kind.EDGES, 0, self.ends), e, n, made)

    def reverse(self, copy_ndata: bool = True, copy_edata: bool = False) -> "ShardGraph":
        """Return the graph with messages from targets to sources, where they are only summed."""
        graph = self._with(self.structure, self._out_degree, not self.reversed, edata=copy_edata)
        if not copy_ndata:
            graph.ndata.clear()
        return graph

    def remove_self_loop(self) -> "ShardGraph":
        """Return the graph without edges from a node to itself, as `dgl.remove_self_loop`."""
        with self._unseen():
            edges = self.structure
            out = self._out_degree - edges.loops
            graph = self._with(edges.without_loops(), out, self.reversed, edata=False)
            graph.edata.update({k: rows[edges.no_loop] for k, rows in self.edata.items()})
        return graph

    def add_self_loop(self) -> "ShardGraph":
        """Return the graph with one edge more for each node, as `dgl.add_self_loop`.

        Edge data of the new edges are ones.
        """
        n = self.shard.num_owned
        with self._unseen():
            edges = self.structure.with_loops()
            graph = self._with(edges, self._out_degree + 1, self.reversed, edata=False)
            for name, rows in self.edata.items():
                graph.edata[name] = torch.cat([rows, rows.new_ones((n, *rows.shape[1:]))])
        return graph

    def _unseen(self) -> AbstractContextManager[None]:
        """Let no rule apply to our own functions."""
        return nullcontext() if self.calls.now is None else self.calls.now.pause()

    def _with(
        self,
        edges: ShardEdges,
        out_degree: Tensor,
        reversed_: bool,
        *,
        edata: bool,
    ) -> "ShardGraph":
        """Return another graph over the same nodes."""
        graph = ShardGraph(self.shard, edges, out_degree, self.calls, reversed_)
        graph.ndata.update(self.ndata)
        if edata:
            graph.edata.update(self.edata)
        return graph

    def _call(self) -> Call:
        if self.calls.now is None:
            raise ConfigError(
                "a shard's graph passes messages in the forward of a model that parallelize has "
                "made: put this into a module's forward"
            )
        return self.calls.now

    def __getattr__(self, name: str) -> Any:
        dgl = None if name.startswith("_") else import_dgl("layers of DGL need DGL")
        if dgl is None or not hasattr(dgl.DGLGraph, name):
            raise AttributeError(f"a shard's graph has no attribute {name!r}")
        raise ConfigError(
            f"DGLGraph.{name} is not known on a shard: where it changes or samples the graph, do "
            "so before gd.graph_from_dgl and partitioning"
        )


def _finite(made: dict[str, Tensor], reduce_func: Any) -> dict[str, Tensor]:
    """Put zeros where DGL's kernels leave the extremes of no messages."""
    if reduce_func.name not in ("max", "min"):
        return made
    return {k: torch.masked_fill(rows, torch.isinf(rows), 0) for k, rows in made.items()}
