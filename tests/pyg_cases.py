"""Every convolution of PyTorch Geometric, in a model that uses it as its documentation says.

`CASES` are those that take one homogeneous graph, by name of the class, with variants. A case
makes a layer and calls it with rows of nodes (n, F), an edge list and the extras it asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

__all__ = ["CASES", "Case", "Model"]

F, K = 5, 4  # widths of input and output
RELATIONS = 3
DEGREES = torch.tensor([0, 4, 6, 3, 1])  # a histogram that PNA asks for


@dataclass(frozen=True)
class Case:
    """How a layer is made and called.

    Attributes:
        make: Makes the layer.
        call: Calls it with (layer, x, edge_index, extras).
    """

    make: Callable[[], nn.Module]
    call: Callable[..., Any] = lambda layer, x, edge_index, extras: layer(x, edge_index)


class Extras:
    """What layers take beside rows and edges; made from the edges' and nodes' own values."""

    def __init__(self, weight: Tensor, kind: Tensor, position: Tensor) -> None:
        self.weight, self.kind, self.position = weight, kind, position

    @property
    def attributes(self) -> Tensor:
        """(e, 3) in [0, 1]."""
        w = self.weight.view(-1, 1)
        return torch.cat([w, w.square(), 1 - w], dim=1)

    @property
    def normal(self) -> Tensor:
        """(n, 3), of length one."""
        return torch.nn.functional.normalize(self.position + 0.1, dim=1)


class Model(nn.Module):
    """A layer between two linear maps and a normalisation, so that gradients flow through it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.first = case, nn.Linear(F, F)
        self.layer = case.make()

    def forward(
        self, x: Tensor, edge_index: Tensor, weight: Tensor, edge_type: Tensor, position: Tensor
    ) -> Tensor:
        """Return rows of nodes."""
        x = self.first(x).tanh()
        out = self.case.call(self.layer, x, edge_index, Extras(weight, edge_type, position))
        return out[0] if isinstance(out, tuple) else out


def mlp(width_in: int, width_out: int) -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(width_in, width_out), nn.Tanh(), nn.Linear(width_out, width_out))


def weighted(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with edge weights."""
    return layer(x, edge_index, extras.weight)


def attributed(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with edge attributes."""
    return layer(x, edge_index, extras.attributes)


def typed(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with edge types."""
    return layer(x, edge_index, extras.kind)


def with_first(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with the rows of the first layer."""
    return layer(x, x.sin(), edge_index)


def placed(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with positions."""
    return layer(x, extras.position, edge_index)


def signed(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with two edge lists, by the edges' types."""
    return layer(x, edge_index[:, extras.kind == 0], edge_index[:, extras.kind != 0])


def heat(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with types of nodes and edges."""
    node_type = (x[:, 0] > 0).long()
    return layer(x, edge_index, node_type, extras.kind, extras.attributes)


def several_layers(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with the rows of three earlier layers."""
    return layer(torch.stack([x[:, :4], x[:, 1:], x[:, :4].cos()], dim=1), edge_index)


def ppf(layer: Any, x: Tensor, edge_index: Tensor, extras: Extras) -> Any:
    """Call with positions and normals."""
    return layer(x, extras.position, extras.normal, edge_index)


CASES: dict[str, Case] = {
    "AGNNConv": Case(lambda: pyg.AGNNConv()),
    "APPNP": Case(lambda: pyg.APPNP(K=3, alpha=0.1)),
    "APPNP, weighted": Case(lambda: pyg.APPNP(K=2, alpha=0.1, dropout=0.2), weighted),
    "ARMAConv": Case(lambda: pyg.ARMAConv(F, K, num_stacks=2, num_layers=2)),
    "ARMAConv, weighted": Case(lambda: pyg.ARMAConv(F, K, num_stacks=3, dropout=0.1), weighted),
    "AntiSymmetricConv": Case(lambda: pyg.AntiSymmetricConv(F, num_iters=2)),
    "CGConv": Case(lambda: pyg.CGConv(F, dim=3, batch_norm=True), attributed),
    "ChebConv": Case(lambda: pyg.ChebConv(F, K, K=3)),
    "ChebConv, random walk": Case(
        lambda: pyg.ChebConv(F, K, K=2, normalization="rw"),
        lambda layer, x, e, extras: layer(x, e, extras.weight, lambda_max=torch.tensor(2.5)),
    ),
    "ClusterGCNConv": Case(lambda: pyg.ClusterGCNConv(F, K, diag_lambda=0.3)),
    "DNAConv": Case(lambda: pyg.DNAConv(4, heads=2, groups=2), several_layers),
    "DirGNNConv": Case(lambda: pyg.DirGNNConv(pyg.SAGEConv(F, K))),
    "DirGNNConv, GCN": Case(lambda: pyg.DirGNNConv(pyg.GCNConv(F, K, add_self_loops=False))),
    "EGConv": Case(lambda: pyg.EGConv(F, K, aggregators=["symnorm", "mean", "max"], num_heads=2)),
    "EGConv, several": Case(
        lambda: pyg.EGConv(F, K, aggregators=["sum", "min", "var", "std"], num_heads=2)
    ),
    "EdgeConv": Case(lambda: pyg.EdgeConv(mlp(2 * F, K))),
    "FAConv": Case(lambda: pyg.FAConv(F, dropout=0.2), with_first),
    "FastRGCNConv": Case(lambda: pyg.FastRGCNConv(F, K, RELATIONS), typed),
    "FeaStConv": Case(lambda: pyg.FeaStConv(F, K, heads=2)),
    "FiLMConv": Case(lambda: pyg.FiLMConv(F, K, RELATIONS), typed),
    "GATConv": Case(lambda: pyg.GATConv(F, 3, heads=2, dropout=0.3)),
    "GATConv, attributes": Case(lambda: pyg.GATConv(F, 3, heads=2, edge_dim=3), attributed),
    "GATv2Conv": Case(lambda: pyg.GATv2Conv(F, 3, heads=2, dropout=0.3)),
    "GATv2Conv, attributes": Case(lambda: pyg.GATv2Conv(F, K, edge_dim=3), attributed),
    "GCN2Conv": Case(lambda: pyg.GCN2Conv(F, alpha=0.2, theta=0.5, layer=2), with_first),
    "GCNConv": Case(lambda: pyg.GCNConv(F, K)),
    "GCNConv, improved": Case(lambda: pyg.GCNConv(F, K, improved=True), weighted),
    "GCNConv, kept": Case(lambda: pyg.GCNConv(F, K, cached=True)),
    "GENConv": Case(
        lambda: pyg.GENConv(F, K, aggr="softmax", learn_t=True, edge_dim=3), attributed
    ),
    "GENConv, power": Case(lambda: pyg.GENConv(F, K, aggr="powermean", learn_p=True, norm="layer")),
    "GINConv": Case(lambda: pyg.GINConv(mlp(F, K), train_eps=True)),
    "GINEConv": Case(lambda: pyg.GINEConv(mlp(F, K), edge_dim=3), attributed),
    "GMMConv": Case(lambda: pyg.GMMConv(F, K, dim=3, kernel_size=2), attributed),
    "GatedGraphConv": Case(lambda: pyg.GatedGraphConv(6, num_layers=2)),
    "GeneralConv": Case(lambda: pyg.GeneralConv(F, K, in_edge_channels=3), attributed),
    "GeneralConv, attention": Case(
        lambda: pyg.GeneralConv(F, K, attention=True, heads=2, skip_linear=True)
    ),
    "GraphConv": Case(lambda: pyg.GraphConv(F, K, aggr="mean"), weighted),
    "GraphConv, maximum": Case(lambda: pyg.GraphConv(F, K, aggr="max")),
    "HEATConv": Case(lambda: pyg.HEATConv(F, K, 2, RELATIONS, 3, 3, 3, heads=2), heat),
    "LEConv": Case(lambda: pyg.LEConv(F, K), weighted),
    "LGConv": Case(lambda: pyg.LGConv()),
    "MFConv": Case(lambda: pyg.MFConv(F, K, max_degree=4)),
    "MixHopConv": Case(lambda: pyg.MixHopConv(F, K, powers=[0, 1, 2])),
    "NNConv": Case(lambda: pyg.NNConv(F, K, mlp(3, F * K), aggr="mean"), attributed),
    "PDNConv": Case(lambda: pyg.PDNConv(F, K, 3, 4), attributed),
    "PNAConv": Case(
        lambda: pyg.PNAConv(
            F,
            K,
            ["mean", "min", "max", "std", "var"],
            ["identity", "amplification", "attenuation", "linear"],
            DEGREES,
            edge_dim=3,
            towers=1,
        ),
        attributed,
    ),
    "PPFConv": Case(lambda: pyg.PPFConv(mlp(F + 4, K), mlp(K, K)), ppf),
    "PointGNNConv": Case(lambda: pyg.PointGNNConv(mlp(F, 3), mlp(F + 3, 6), mlp(6, F)), placed),
    "PointNetConv": Case(lambda: pyg.PointNetConv(mlp(F + 3, K), mlp(K, K)), placed),
    "PointTransformerConv": Case(lambda: pyg.PointTransformerConv(F, K), placed),
    "RGATConv": Case(
        lambda: pyg.RGATConv(F, K, RELATIONS, heads=2, edge_dim=3),
        lambda layer, x, e, extras: layer(x, e, extras.kind, extras.attributes),
    ),
    "RGATConv, across": Case(
        lambda: pyg.RGATConv(F, K, RELATIONS, attention_mechanism="across-relation", dropout=0.2),
        typed,
    ),
    "RGCNConv": Case(lambda: pyg.RGCNConv(F, K, RELATIONS, num_bases=2), typed),
    "RGCNConv, plain": Case(lambda: pyg.RGCNConv(F, K, RELATIONS, aggr="add"), typed),
    "ResGatedGraphConv": Case(lambda: pyg.ResGatedGraphConv(F, K, edge_dim=3), attributed),
    "SAGEConv": Case(lambda: pyg.SAGEConv(F, K, normalize=True)),
    "SAGEConv, several": Case(lambda: pyg.SAGEConv(F, K, aggr=["mean", "max", "std"])),
    "SAGEConv, sorted": Case(
        lambda: pyg.SAGEConv(F, K, aggr="sort", aggr_kwargs={"k": 1}, root_weight=False)
    ),
    "SAGEConv, softmax": Case(lambda: pyg.SAGEConv(F, K, aggr="softmax", project=True)),
    "SGConv": Case(lambda: pyg.SGConv(F, K, K=2)),
    "SSGConv": Case(lambda: pyg.SSGConv(F, K, alpha=0.1, K=2)),
    "SignedConv": Case(lambda: pyg.SignedConv(F, K, first_aggr=True), signed),
    "SimpleConv": Case(lambda: pyg.SimpleConv(aggr="mean", combine_root="cat"), weighted),
    "SimpleConv, loops": Case(lambda: pyg.SimpleConv(aggr="add", combine_root="self_loop")),
    "TAGConv": Case(lambda: pyg.TAGConv(F, K, K=2), weighted),
    "TransformerConv": Case(lambda: pyg.TransformerConv(F, 3, heads=2, edge_dim=3), attributed),
    "TransformerConv, gated": Case(
        lambda: pyg.TransformerConv(F, 3, heads=2, beta=True, dropout=0.2)
    ),
    "WLConvContinuous": Case(lambda: pyg.WLConvContinuous()),
    "WLConvContinuous, weighted": Case(lambda: pyg.WLConvContinuous(), weighted),
}

# The ready models of torch_geometric.nn.models.
MODELS: dict[str, Case] = {
    "models.GCN": Case(lambda: pyg.GCN(F, 6, 3, K, dropout=0.3, norm="BatchNorm", jk="cat")),
    "models.GraphSAGE": Case(lambda: pyg.GraphSAGE(F, 6, 2, K, dropout=0.3, norm="GraphNorm")),
    "models.GIN": Case(lambda: pyg.GIN(F, 6, 2, K, jk="lstm")),
    "models.GAT": Case(lambda: pyg.GAT(F, 6, 2, K, heads=2, dropout=0.3, norm="LayerNorm")),
    "models.GAT, second version": Case(lambda: pyg.GAT(F, 6, 2, K, v2=True, jk="max")),
    "models.PNA": Case(
        lambda: pyg.PNA(
            F,
            6,
            2,
            K,
            aggregators=["mean", "max", "std"],
            scalers=["identity", "amplification"],
            deg=DEGREES,
            norm="PairNorm",
        )
    ),
    "models.EdgeCNN": Case(lambda: pyg.EdgeCNN(F, 6, 2, K, norm="InstanceNorm")),
}
CASES |= MODELS
