"""How long is an epoch in minibatches? One process against DGL's and PyTorch Geometric's loaders.

    python scripts/benchmarks/minibatch/main.py [--graph rmat | coauthor-physics] [--root DATA]
        [--hidden 256 64] [--epochs 5] [--batches 12] [--only NAME ...]

Every candidate trains a 3-layer GraphSAGE (mean, dropout 0.5) on the same training nodes, 1024 at a
time, with 15, 10 and 5 neighbours, an epoch of one after an epoch of the other. An epoch is
sampling, fetching rows, forward, loss, backward and a step of Adam for each batch. Medians as
Markdown. Libraries that are not installed are left out.
"""

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))  # peers.py

from candidates import CANDIDATES, Case, Epoch

import gnn_dist as gd
from gnn_dist.graph import Graph

WIDTH, CLASSES, WARM_UP = 128, 47, 1


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graph", default="rmat", help="rmat, or the name of a dataset")
    parser.add_argument("--root", default=None, help="where datasets are")
    parser.add_argument("--scale", type=int, default=20, help="of rmat")
    parser.add_argument("--hidden", type=int, nargs="*", default=[256, 64])
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each candidate")
    parser.add_argument("--batches", type=int, default=12, help="of an epoch")
    parser.add_argument("--only", nargs="*", help="names of candidates")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # of the peers
    graph = load(options)
    print(f"\n{options.graph}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges")
    for hidden in options.hidden:
        seeds = int(graph.train_mask.sum())
        case = Case(hidden, num_batches=-(-seeds // 1024))
        report(case, measure(graph, case, options))


def load(options: argparse.Namespace) -> Graph:
    """Return the graph, with as many training nodes as the batches hold."""
    if options.graph != "rmat":
        return gd.load_dataset(options.graph, root=options.root)
    name = f"rmat:scale={options.scale},degree=16,features={WIDTH},classes={CLASSES}"
    graph = gd.load_dataset(name, seed=0)
    train = np.zeros(graph.num_nodes, dtype=bool)
    chosen = np.random.default_rng(0).permutation(graph.num_nodes)[: 1024 * options.batches]
    train[chosen] = True
    return graph.replace(train_mask=train, val_mask=~train, test_mask=None)


def measure(graph: Graph, case: Case, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each candidate's epochs, in turns."""
    made: dict[str, Epoch] = {}
    for name, make in CANDIDATES.items():
        epoch = make(graph, case) if not options.only or name in options.only else None
        if epoch is not None:
            made[name] = epoch
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(WARM_UP + options.epochs):
        for name, epoch in made.items():
            start = time.perf_counter()
            epoch()
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return times


def report(case: Case, times: dict[str, list[float]]) -> None:
    """Print a table."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians.get("gnn-dist")
    print(
        f"\nhidden {case.hidden}, {case.num_batches} batches, {torch.get_num_threads()} threads\n"
    )
    print("| candidate | ms a batch (least to most) | gnn-dist / it |\n|---|---|---|")
    for name, values in times.items():
        low, middle, high = (
            1000 * v / case.num_batches for v in (min(values), medians[name], max(values))
        )
        ratio = f"{ours / medians[name]:.2f}" if ours else ""
        print(f"| {name} | {middle:.0f} ({low:.0f} to {high:.0f}) | {ratio} |")


if __name__ == "__main__":
    main()
