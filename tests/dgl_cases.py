"""Every convolution of DGL, in a model that uses it as its documentation says.

`CASES` are those that take one homogeneous graph, by name of the class, with variants. A case
makes a layer and calls it with a graph, rows of nodes (n, F) and the extras it asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

F, K = 5, 4  # widths of input and output
TYPES = 3


@dataclass(frozen=True)
class Extras:
    """What layers take beside rows: of edges `weight` (e,) and `kind` (e,), of nodes the others."""

    weight: Tensor
    kind: Tensor
    position: Tensor
    node_kind: Tensor

    @property
    def attributes(self) -> Tensor:
        """(e, 3) in [0, 1]."""
        w = self.weight.view(-1, 1)
        return torch.cat([w, w.square(), 1 - w], dim=1)


Call = Callable[[Any, Any, Tensor, Extras], Any]


def plain(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call with rows of nodes alone."""
    return layer(g, x)


def weighted(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call with edge weights."""
    return layer(g, x, edge_weight=extras.weight)


def attributed(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call with edge attributes."""
    return layer(g, x, extras.attributes)


def typed(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call with edge types."""
    return layer(g, x, extras.kind)


def looped(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call on the graph with a loop at each node, with edge attributes, as EGATConv demands."""
    with g.local_scope():
        g.edata["a"] = extras.attributes
        h = g.remove_self_loop().add_self_loop()
        nodes, edges = layer(h, x, h.edata["a"])
        h.edata["e"] = edges
        h.update_all(lambda e: {"m": e.data["e"]}, fn().sum("m", "e"))
        return nodes.flatten(1), h.ndata["e"].flatten(1)


def fn() -> Any:
    """Return DGL's message functions."""
    from dgl import function

    return function


def mlp(width_in: int, width_out: int) -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(width_in, width_out), nn.Tanh(), nn.Linear(width_out, width_out))


class Own(nn.Module):
    """A layer of the user's own: messages, reductions and updates by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.of_edge, self.of_node = nn.Linear(2 * F + 1, K), nn.Linear(2 * K + 1, K)
        self.norm = nn.BatchNorm1d(K)

    def message(self, edges: Any) -> dict[str, Tensor]:
        """From both ends and the edge."""
        both = torch.cat([edges.src["h"], edges.dst["h"], edges.data["w"]], dim=1)
        return {"m": self.of_edge(both).sin()}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        """Over the mailbox; all nodes with as many messages are normalised together."""
        found = nodes.mailbox["m"]
        if found.size(1) > 1:
            found = self.norm(found.amax(1)).unsqueeze(1) + found
        return {"r": torch.cat([found.sum(1), found.prod(1)], dim=1)}

    def update(self, nodes: Any) -> dict[str, Tensor]:
        """From what was reduced and the node's share of all edges."""
        return {"h": self.of_node(torch.cat([nodes.data["r"], nodes.data["d"]], dim=1))}

    def forward(self, g: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return (n, K)."""
        with g.local_scope():
            g.ndata["h"], g.edata["w"] = x, weight.view(-1, 1)
            degree = g.out_degrees().to(x).view(-1, 1)
            g.ndata["d"] = degree / degree.sum().clamp(min=1)
            g.ndata["r"] = x.new_zeros((g.num_nodes(), 2 * K))
            g.update_all(self.message, self.reduce, self.update)
            return g.ndata["h"]


def by_functions(layer: Any, g: Any, x: Tensor, extras: Extras) -> Any:
    """Call `dgl.ops`, every builtin message, and the edges' ends themselves."""
    from dgl import ops

    src, dst = g.edges()
    w = extras.weight.view(-1, 1)
    of_edges = ops.u_sub_v(g, x, x) + x[src] * x[dst] * ops.copy_u(g, x.cos())
    out = ops.u_mul_e_mean(g, x, w) + ops.copy_e_max(g, of_edges).clamp(-9, 9)
    out = out + ops.u_div_e_sum(g, layer(x), w) + ops.u_add_e_min(g, x, w).clamp(-9, 9)
    return out + ops.copy_e_sum(g, ops.u_mul_v(g, x, out))


def dense_case(name: str) -> Any:
    """Return a class of dgl.nn."""
    from dgl import nn as dgl_nn

    return getattr(dgl_nn, name)


def case(name: str, *args: Any, call: Call = plain, **kwargs: Any) -> tuple[Any, Call]:
    """Return a maker of a layer and how it is called."""
    return lambda: dense_case(name)(*args, **kwargs), call


ANY = {"allow_zero_in_degree": True}

CASES: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "AGNNConv": case("AGNNConv", **ANY),
    "APPNPConv": case("APPNPConv", 3, 0.1),
    "APPNPConv, weighted": case("APPNPConv", 2, 0.1, call=weighted),
    "AtomicConv": (
        lambda: dense_case("AtomicConv")(*torch.tensor([[0.5], [1.0], [2.0]]), torch.tensor([1.0])),
        lambda layer, g, x, extras: layer(g, x[:, :1], extras.weight.view(-1, 1)),
    ),
    "CFConv": case("CFConv", F, 3, 6, K, call=attributed),
    "ChebConv": case("ChebConv", F, K, 3, call=lambda c, g, x, _: c(g, x, [1.7])),
    "DotGatConv": case("DotGatConv", F, 3, 2, **ANY),
    "EGATConv": case("EGATConv", F, 3, 3, 2, 2, call=looped),
    "EGNNConv": case(
        "EGNNConv",
        F,
        6,
        K,
        3,
        call=lambda c, g, x, e: torch.cat(c(g, x, e.position, e.attributes), 1),
    ),
    "EdgeConv": case("EdgeConv", F, K, **ANY),
    "EdgeConv, batch norm": case("EdgeConv", F, K, batch_norm=True, **ANY),
    "EdgeGATConv": case("EdgeGATConv", F, 3, K, 2, call=attributed, **ANY),
    "GATConv": case("GATConv", F, 3, 2, residual=True, **ANY),
    "GATConv, weighted": case("GATConv", F, K, 1, call=weighted, **ANY),
    "GATv2Conv": case("GATv2Conv", F, 3, 2, residual=True, **ANY),
    "GATv2Conv, shared": case("GATv2Conv", F, 3, 2, share_weights=True, **ANY),
    "GCN2Conv": case("GCN2Conv", F, 1, call=lambda c, g, x, _: c(g, x, x.sin()), **ANY),
    "GINConv": case("GINConv", None, "sum", learn_eps=True),
    "GINConv, maximum": case("GINConv", None, "max", 0.3),
    "GINConv, mean": case("GINConv", None, "mean", call=weighted),
    "GINEConv": case("GINEConv", None, call=lambda c, g, x, e: c(g, x[:, :3], e.attributes)),
    "GMMConv": case("GMMConv", F, K, 3, 2, "mean", True, call=attributed, **ANY),
    "GMMConv, maximum": case("GMMConv", F, K, 3, 2, "max", call=attributed, **ANY),
    "GatedGraphConv": case("GatedGraphConv", F, 6, 2, 1),
    "GraphConv": case("GraphConv", F, K, **ANY),
    "GraphConv, wider": case("GraphConv", F, 7, norm="left", **ANY),
    "GraphConv, right": case("GraphConv", F, K, norm="right", **ANY),
    "GraphConv, none": case("GraphConv", F, K, norm="none", call=weighted, **ANY),
    "GraphConv, weighted": case(
        "GraphConv",
        F,
        K,
        norm="none",
        call=lambda c, g, x, e: c(
            g, x, edge_weight=dense_case("EdgeWeightNorm")("both")(g, e.weight)
        ),
        **ANY,
    ),
    "HGTConv": case(
        "HGTConv", F, 3, 2, 2, TYPES, call=lambda c, g, x, e: c(g, x, e.node_kind, e.kind)
    ),
    "NNConv": (
        lambda: dense_case("NNConv")(F, K, mlp(3, F * K), "mean", residual=True),
        attributed,
    ),
    "NNConv, maximum": (lambda: dense_case("NNConv")(F, K, mlp(3, F * K), "max"), attributed),
    "RelGraphConv": case("RelGraphConv", F, K, TYPES, "basis", 2, layer_norm=True, call=typed),
    "RelGraphConv, wide": case("RelGraphConv", F, 12, TYPES, call=typed),
    "SAGEConv, gcn": case("SAGEConv", F, K, "gcn"),
    "SAGEConv, lstm": case("SAGEConv", F, K, "lstm"),
    "SAGEConv, mean": case("SAGEConv", F, K, "mean", call=weighted),
    "SAGEConv, pool": case("SAGEConv", F, K, "pool"),
    "SAGEConv, wider": case("SAGEConv", F, 7, "mean", norm=nn.functional.normalize),
    "SGConv": case("SGConv", F, K, 2, **ANY),
    "SGConv, weighted": case("SGConv", F, K, 2, call=weighted, **ANY),
    "TAGConv": case("TAGConv", F, K, 2),
    "TAGConv, weighted": case("TAGConv", F, K, 2, call=weighted),
    "TWIRLSConv": case("TWIRLSConv", F, K, 6, 2),
    "own functions": (Own, lambda layer, g, x, extras: layer(g, x, extras.weight)),
    "dgl.ops": (lambda: nn.Linear(F, F), by_functions),
}


class Model(nn.Module):
    """A layer after a linear map, so that gradients flow through it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first = nn.Linear(F, F)
        make, self.call = CASES[name]
        self.layer = make()

    def forward(
        self,
        g: Any,
        x: Tensor,
        edge_weight: Tensor,
        edge_kind: Tensor,
        position: Tensor,
        node_kind: Tensor,
    ) -> Tensor:
        """Return rows of nodes (n, ...)."""
        extras = Extras(edge_weight, edge_kind, position, node_kind)
        out = self.call(self.layer, g, self.first(x).tanh(), extras)
        return torch.cat(out, 1) if isinstance(out, tuple) else out.flatten(1)
