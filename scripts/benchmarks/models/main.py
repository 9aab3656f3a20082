"""What does `gd.parallelize` cost at one rank, against the same model of PyTorch Geometric alone?

    python scripts/benchmarks/models/main.py [--graph coauthor_physics] [--root DATA] [--rounds 9]

Both train the same model from the same parameters: forward, backward, a step of Adam; an epoch of
one after an epoch of the other in one process; figures are medians. The probe runs before.
"""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

import gnn_dist as gd
from gnn_dist.partition import Partition

HIDDEN = 64
MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCN": lambda width, out: pyg.GCN(width, HIDDEN, 2, out, dropout=0.5),
    "GCN, cached": lambda width, out: pyg.GCN(width, HIDDEN, 2, out, dropout=0.5, cached=True),
    "GraphSAGE": lambda width, out: pyg.GraphSAGE(width, HIDDEN, 2, out, dropout=0.5),
    "GIN": lambda width, out: pyg.GIN(width, HIDDEN, 2, out, dropout=0.5, norm="BatchNorm"),
    "GAT": lambda width, out: pyg.GAT(width, HIDDEN, 2, out, heads=4, dropout=0.5),
    "GraphConv, max": lambda width, out: Convs(width, out),
    "EdgeCNN": lambda width, out: pyg.EdgeCNN(width, HIDDEN, 2, out),
}


class Convs(nn.Module):
    """Two layers that take maxima."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first = pyg.GraphConv(width, HIDDEN, aggr="max")
        self.second = pyg.GraphConv(HIDDEN, out, aggr="max")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits."""
        return self.second(self.first(x, edge_index).relu(), edge_index)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="sbm:nodes=20000,blocks=16,features=128")
    parser.add_argument("--root", type=Path, help="folder of datasets")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    graph = gd.load_dataset(options.graph, options.root)
    with tempfile.TemporaryDirectory() as work, gd.World.single() as world:
        gd.write_partition(
            graph, Partition(np.zeros(graph.num_nodes, np.int64), 1), Path(work, "p")
        )
        shard = gd.load_shard(Path(work, "p"), world)
        print(
            f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
            f"{shard.x.size(1)} features, {options.threads} threads\n"
        )
        print("| model | PyTorch Geometric, s | parallelized, s | ratio |\n|---|---|---|---|")
        for name in options.models:
            plain, ours = measured(MODELS[name], shard, world, options.rounds)
            print(f"| {name} | {plain:.3f} | {ours:.3f} | {ours / plain:.2f} |", flush=True)


def measured(
    make: Callable[[int, int], nn.Module], shard: gd.Shard, world: gd.World, rounds: int
) -> tuple[float, float]:
    """Return median seconds of an epoch, plain and parallelized."""
    y = torch.as_tensor(shard.y)
    torch.manual_seed(0)
    plain = make(shard.x.size(1), int(y.max()) + 1)
    ours = gd.parallelize(copy.deepcopy(plain), shard, world)
    steps = [epoch_of(model, shard, y) for model in (plain, ours)]
    seconds: list[list[float]] = [[], []]
    for turn in range(rounds + 2):
        for step, found in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            if turn >= 2:
                found.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def epoch_of(model: nn.Module, shard: gd.Shard, y: Tensor) -> Callable[[], None]:
    """Return a function that trains for an epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        loss = F.cross_entropy(model(shard.x, shard.edge_index), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
