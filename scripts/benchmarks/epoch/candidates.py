"""The same 3-layer GraphSAGE in every system: each function returns one epoch as a callable."""

import importlib.util
import tempfile
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from cases import Case
from peers import load_peers
from torch import Tensor, nn

import gnn_dist as gd
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.partition import Partition
from gnn_dist.train.full_batch import FullBatch, TrainingSet
from gnn_dist.train.task import NodeTask
from gnn_dist.train.trainer import make_model

Epoch = Callable[[], object] | None


def ours(precision: str) -> Callable[[gd.Graph, Case], Epoch]:
    """Return the maker of gnn-dist's epoch."""

    def make(graph: gd.Graph, case: Case) -> Epoch:
        world = gd.World.single()
        with tempfile.TemporaryDirectory() as folder:
            gd.write_partition(graph, Partition([0] * graph.num_nodes, 1), f"{folder}/parts")
            shard = gd.load_shard(f"{folder}/parts", world)
        config = gd.TrainConfig(
            model="sage",
            hidden=case.hidden,
            layers=case.layers,
            dropout=case.dropout,
            precision=precision,
        )
        shard = shard.with_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
        mask = torch.ones(graph.num_nodes, dtype=torch.bool)
        masks = dict.fromkeys(("train", "val", "test"), mask)
        task = NodeTask(shard.y, masks, graph.num_nodes, graph.num_classes)
        model = make_model(config, shard, task, world)
        trainer = FullBatch(
            model,
            shard,
            world,
            training=TrainingSet(shard, task),
            halo=HaloPolicy(),
            seed=0,
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        count = iter(range(1_000_000))
        return lambda: trainer.step(optimizer, next(count))

    return make


class Stack(nn.Module):
    """Convolutions with ReLU and dropout between, as `gnn_dist.nn` has them."""

    def __init__(self, convs: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.convs, self.dropout = nn.ModuleList(convs), dropout

    def forward(self, call: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> Tensor:
        """Run all layers; `call` knows in which order a system wants its arguments."""
        for i, conv in enumerate(self.convs):
            x = call(conv, x)
            if i + 1 < len(self.convs):
                x = F.dropout(x.relu(), self.dropout, self.training)
        return x


def widths(graph: gd.Graph, case: Case) -> list[tuple[int, int]]:
    """Return the layers' (in, out)."""
    inner = [case.hidden] * (case.layers - 1)
    sizes = [graph.x.shape[1], *inner, graph.num_classes]
    return list(pairwise(sizes))


def training(graph: gd.Graph, model: Stack, call: Callable[[nn.Module, Tensor], Tensor]) -> Epoch:
    """Return one epoch of an ordinary loop."""
    x, y = torch.from_numpy(graph.x), torch.from_numpy(graph.y)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(call, x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


def dgl_sage(graph: gd.Graph, case: Case) -> Epoch:
    """DGL's SAGEConv, with its fused kernels on a prebuilt CSC."""
    dgl = load_peers().dgl
    if dgl is None:
        return None
    from dgl.nn import SAGEConv

    src, dst = graph.edges()
    g = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=graph.num_nodes)
    g = g.int().formats(["csr", "csc"])  # 32-bit ids, both directions built before the first epoch
    g.create_formats_()
    convs = [SAGEConv(i, o, "mean") for i, o in widths(graph, case)]
    return training(graph, Stack(convs, case.dropout), lambda conv, x: conv(g, x))


def pyg_sage(graph: gd.Graph, case: Case, adjacency: object) -> Epoch:
    """PyTorch Geometric's SAGEConv over a given form of the adjacency."""
    from torch_geometric.nn import SAGEConv

    convs = [SAGEConv(i, o) for i, o in widths(graph, case)]
    return training(graph, Stack(convs, case.dropout), lambda conv, x: conv(x, adjacency))


def pyg_edge_index(graph: gd.Graph, case: Case) -> Epoch:
    """Gather and scatter."""
    src, dst = graph.edges()
    edge_index = torch.stack([torch.from_numpy(src).long(), torch.from_numpy(dst).long()])
    return pyg_sage(graph, case, edge_index)


def pyg_csr(graph: gd.Graph, case: Case) -> Epoch:
    """PyTorch's sparse CSR tensor, which PyG multiplies with."""
    indptr, indices = torch.from_numpy(graph.indptr).int(), torch.from_numpy(graph.indices).int()
    size = (graph.num_nodes, graph.num_nodes)
    ones = torch.ones(len(indices))
    return pyg_sage(graph, case, torch.sparse_csr_tensor(indptr, indices, ones, size=size))


def pyg_sparse_tensor(graph: gd.Graph, case: Case) -> Epoch:
    """torch-sparse's SparseTensor."""
    if importlib.util.find_spec("torch_sparse") is None:
        return None
    from torch_sparse import SparseTensor

    indptr, indices = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices).long()
    size = (graph.num_nodes, graph.num_nodes)
    matrix = SparseTensor(rowptr=indptr, col=indices, sparse_sizes=size)
    return pyg_sage(graph, case, matrix)


CANDIDATES: dict[str, Callable[[gd.Graph, Case], Epoch]] = {
    "gnn-dist": ours("fp32"),
    "gnn-dist bf16": ours("bf16"),
    "DGL": dgl_sage,
    "PyG CSR": pyg_csr,
    "PyG SparseTensor": pyg_sparse_tensor,
    "PyG edge_index": pyg_edge_index,
}
