"""Do minibatches reach the accuracy of PyTorch Geometric's NeighborLoader? On real graphs.

    python scripts/benchmarks/minibatch/accuracy.py --root DATA --out OUT.jsonl [--seeds 5]
        [--graphs cora amazon-photo ...]

The same GraphSAGE (mean), optimiser, fan-outs, batches and epochs on both sides, each with its own
initial parameters and draws; evaluated on the whole graph after every epoch. Compared is the test
accuracy at the best validation epoch. A run that OUT holds is not made again. Prints Markdown.
PyTorch Geometric needs torch-sparse or pyg-lib to sample.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import gnn_dist as gd
from gnn_dist.graph import Graph

SEEDS = 5


@dataclass(frozen=True)
class Case:
    """A graph and how it is trained on."""

    dataset: str
    batch_size: int = 512
    epochs: int = 20
    hidden: int = 64
    lr: float = 0.003
    dropout: float = 0.5
    num_neighbors: tuple[int, ...] = (10, 10)


CASES = [
    Case("cora", batch_size=64, epochs=40, lr=0.005),
    Case("amazon-photo"),
    Case("amazon-computers"),
    Case("facebook-pages"),
]


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=None, help="where datasets are")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--graphs", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # of PyTorch Geometric
    rows = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    done = {(row["graph"], row["system"], row["seed"]) for row in rows}
    for case in CASES:
        if options.graphs and case.dataset not in options.graphs:
            continue
        graph = None
        for seed in range(options.seeds):
            for system, run in (("gnn-dist", ours), ("PyG", pyg)):
                if (case.dataset, system, seed) in done:
                    continue
                graph = graph or with_masks(gd.load_dataset(case.dataset, root=options.root))
                start = time.perf_counter()
                row = {"graph": case.dataset, "system": system, "seed": seed}
                row |= {"test": run(graph, case, seed), "s": time.perf_counter() - start}
                rows.append(row)
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    report(rows)


def with_masks(graph: Graph) -> Graph:
    """Return the graph with one split: the official one, else a seeded 50/20/30."""
    if graph.train_mask is not None:
        masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
        return graph.replace(**{k: m if m.ndim == 1 else m[:, 0] for k, m in masks.items()})
    place = np.random.default_rng(0).random(graph.num_nodes)
    train, test = place < 0.5, place >= 0.7
    return graph.replace(train_mask=train, val_mask=~train & ~test, test_mask=test)


def ours(graph: Graph, case: Case, seed: int) -> float:
    """Train with gnn-dist, one rank; any number has the same curve."""
    with tempfile.TemporaryDirectory() as folder:
        gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), Path(folder) / "p")
        world = gd.World.single()
        config = gd.TrainConfig(
            mode="minibatch",
            model="sage",
            hidden=case.hidden,
            dropout=case.dropout,
            lr=case.lr,
            batch_size=case.batch_size,
            num_neighbors=",".join(map(str, case.num_neighbors)),
            epochs=case.epochs,
            seed=seed,
        )
        summary = gd.Trainer(config, gd.load_shard(Path(folder) / "p", world), world).fit(
            keep=False
        )
    return float(summary["test_metric_at_best"])


def pyg(graph: Graph, case: Case, seed: int) -> float:
    """Train with PyTorch Geometric."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(seed)
    x = graph.x if isinstance(graph.x, np.ndarray) else gd.graph_to_pyg(graph).x
    y, tensors = torch.from_numpy(graph.y), {}
    for name in ("train_mask", "val_mask", "test_mask"):
        tensors[name] = torch.from_numpy(getattr(graph, name))
    dst = torch.repeat_interleave(torch.from_numpy(graph.indptr).diff())
    edge_index = torch.stack([torch.from_numpy(graph.indices).long(), dst])
    data = Data(x=torch.as_tensor(x), y=y, edge_index=edge_index)
    labelled = tensors["train_mask"] & (y >= 0)
    loader = NeighborLoader(
        data,
        num_neighbors=list(case.num_neighbors),
        batch_size=case.batch_size,
        input_nodes=labelled,
        shuffle=True,
    )
    layers = len(case.num_neighbors)
    model = GraphSAGE(data.num_features, case.hidden, layers, int(y.max()) + 1, case.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, weight_decay=5e-4)
    best = (-1.0, 0.0)
    for _ in range(case.epochs):
        model.train()
        for batch in loader:
            out: Tensor = model(batch.x, batch.edge_index)[: batch.batch_size]
            optimizer.zero_grad()
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(data.x, data.edge_index).argmax(1) == y
        val, test = (
            float(right[tensors[name] & (y >= 0)].float().mean())
            for name in ("val_mask", "test_mask")
        )
        best = max(best, (val, test), key=lambda pair: pair[0])
    return best[1]


def report(rows: list[dict[str, Any]]) -> None:
    """Print a table: means, spreads, and the difference with its standard error."""
    print(
        "| graph | gnn-dist | PyG NeighborLoader | difference ± standard error | s, ours / PyG's |"
    )
    print("|---|---|---|---|---|")
    for graph in dict.fromkeys(row["graph"] for row in rows):
        tests, seconds = {}, {}
        for system in ("gnn-dist", "PyG"):
            mine = [r for r in rows if r["graph"] == graph and r["system"] == system]
            tests[system] = [r["test"] for r in mine]
            seconds[system] = statistics.median(r["s"] for r in mine)
        mean = {system: statistics.mean(values) for system, values in tests.items()}
        spread = {system: statistics.stdev(values) for system, values in tests.items()}
        error = sum(spread[s] ** 2 / len(tests[s]) for s in tests) ** 0.5
        cells = [f"{mean[s]:.4f} ± {spread[s]:.4f}" for s in ("gnn-dist", "PyG")]
        difference = mean["gnn-dist"] - mean["PyG"]
        ratio = seconds["gnn-dist"] / seconds["PyG"]
        print(f"| {graph} | {' | '.join(cells)} | {difference:+.4f} ± {error:.4f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
