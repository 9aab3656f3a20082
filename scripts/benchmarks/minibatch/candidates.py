"""What trains the same GraphSAGE on the same batches of seeds: ours, DGL's, PyTorch Geometric's.

Each maker returns a function that trains one epoch and returns its mean loss, or None where the
library is not installed.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from peers import load_peers
from torch import Tensor, nn

import gnn_dist as gd
from gnn_dist.graph import Graph

__all__ = ["CANDIDATES", "Case", "Epoch"]

Epoch = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """A model, and how its batches are drawn.

    Attributes:
        hidden: Width between layers.
        num_neighbors: The hop next to the seeds first.
        batch_size: Seeds of a batch.
        num_batches: Of an epoch.
        dropout: Probability.
    """

    hidden: int
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    num_batches: int = 12
    dropout: float = 0.5

    @property
    def num_seeds(self) -> int:
        """Training nodes."""
        return self.batch_size * self.num_batches


def make_ours(graph: Graph, case: Case, **more: object) -> Epoch:
    """Train with gnn-dist."""
    folder = Path(tempfile.mkdtemp()) / "parts"
    gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), folder)
    world = gd.World.single()
    shard = gd.load_shard(folder, world)
    config = gd.TrainConfig(
        mode="minibatch",
        model="sage",
        hidden=case.hidden,
        layers=len(case.num_neighbors),
        dropout=case.dropout,
        batch_size=case.batch_size,
        num_neighbors=",".join(map(str, case.num_neighbors)),
        tensorboard=False,
        weight_decay=0.0,
        **more,
    )
    trainer = gd.Trainer(config, shard, world)

    def epoch() -> float:
        return trainer.train_step().loss

    return epoch


def make_ours_beforehand(graph: Graph, case: Case) -> Epoch:
    """Train with gnn-dist on batches that were made beforehand and lie in memory."""
    epoch = make_ours(graph, case)
    trainer = epoch.__closure__[0].cell_contents  # type: ignore[index]
    loader = trainer.steps.loader
    batches = list(loader.batches(0))
    loader.batches = lambda number: iter(batches)
    return epoch


def make_dgl(graph: Graph, case: Case, num_workers: int = 0) -> Epoch | None:
    """Train with DGL."""
    dgl = load_peers(["dgl"]).dgl
    if dgl is None:
        return None
    dst = torch.repeat_interleave(torch.from_numpy(graph.indptr).diff())
    whole = dgl.graph((torch.from_numpy(graph.indices).long(), dst), num_nodes=graph.num_nodes)
    whole = whole.int()
    whole.ndata["feat"] = torch.from_numpy(graph.x)
    whole.ndata["label"] = torch.from_numpy(graph.y)
    whole.create_formats_()
    seeds = torch.from_numpy(graph.train_mask).nonzero().squeeze(1).int()
    fanouts = list(reversed(case.num_neighbors))
    sampler = dgl.dataloading.NeighborSampler(
        fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"], fused=False
    )
    loader = dgl.dataloading.DataLoader(
        whole,
        seeds,
        sampler,
        batch_size=case.batch_size,
        shuffle=True,
        num_workers=num_workers,
        use_prefetch_thread=False,
    )
    widths = [graph.x.shape[1], *[case.hidden] * (len(fanouts) - 1), int(graph.y.max()) + 1]
    layers = nn.ModuleList(dgl.nn.SAGEConv(a, b, "mean") for a, b in pairwise(widths))
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)

    def epoch() -> float:
        total = 0.0
        for _, _, blocks in loader:
            rows = blocks[0].srcdata["feat"]
            for i, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
                rows = layer(block, rows)
                if i + 1 < len(layers):
                    rows = F.dropout(F.relu(rows), case.dropout)
            loss = F.cross_entropy(rows, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss)
        return total / case.num_batches

    return epoch


def make_pyg(graph: Graph, case: Case, num_workers: int = 0) -> Epoch | None:
    """Train with PyTorch Geometric's NeighborLoader, which needs torch-sparse or pyg-lib."""
    if not load_peers(["pyg"]).pyg_samples:
        return None
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    dst = torch.repeat_interleave(torch.from_numpy(graph.indptr).diff())
    edge_index = torch.stack([torch.from_numpy(graph.indices).long(), dst])
    data = Data(x=torch.from_numpy(graph.x), y=torch.from_numpy(graph.y), edge_index=edge_index)
    loader = NeighborLoader(
        data,
        num_neighbors=list(case.num_neighbors),
        batch_size=case.batch_size,
        input_nodes=torch.from_numpy(graph.train_mask),
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    classes = int(graph.y.max()) + 1
    model = GraphSAGE(
        graph.x.shape[1], case.hidden, len(case.num_neighbors), classes, dropout=case.dropout
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch() -> float:
        total = 0.0
        for batch in loader:
            out: Tensor = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss)
        return total / case.num_batches

    return epoch


CANDIDATES: dict[str, Callable[[Graph, Case], Epoch | None]] = {
    "gnn-dist": make_ours,
    "gnn-dist, prefetch": lambda graph, case: make_ours(graph, case, prefetch=2),
    "gnn-dist, batches in memory": make_ours_beforehand,
    "DGL": make_dgl,
    "DGL, 1 worker": lambda graph, case: make_dgl(graph, case, 1),
    "PyG": make_pyg,
    "PyG, 2 workers": lambda graph, case: make_pyg(graph, case, 2),
}
