"""How well, and how fast, are edges predicted? One process against PyG's LinkNeighborLoader.

    python scripts/benchmarks/link/main.py [--root DATA] [--graphs amazon-photo coauthor-cs]
        [--epochs 10] [--seeds 3] [--only NAME ...]

Every candidate trains a 2-layer GraphSAGE (mean, 64 wide) with a perceptron of the product of both
ends' rows, on the training edges of one seeded split, 1024 at a time, with 10 and 10 neighbours and
one uniform negative an edge (binary cross entropy); an epoch of one after an epoch of the other.
Evaluated alike: rows of all nodes along training edges, each test edge against the same 100 strict
negatives of its own. Medians over the seeds as Markdown. Without torch-sparse or pyg-lib PyG is
left out.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))  # peers.py

from peers import load_peers

import gnn_dist as gd
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.shard.shard import Shard

WIDTH, BATCH_SIZE, RATE, NUM_NEIGHBORS = 64, 1024, 0.005, (10, 10)


@dataclass(frozen=True)
class Case:
    """A graph with a split of its edges.

    Attributes:
        shard: All of it.
        message: Its training edges.
        seed: Of parameters and draws.
    """

    shard: Shard
    message: Shard
    seed: int


@dataclass(frozen=True)
class Candidate:
    """Something that learns.

    Attributes:
        epoch: Trains an epoch.
        rows: Returns rows (N, d) of all nodes, along training edges.
        decoder: Scores pairs of rows.
    """

    epoch: Callable[[], object]
    rows: Callable[[], Tensor]
    decoder: nn.Module


def make_ours(case: Case, **options: object) -> Candidate:
    """Train with gnn-dist."""
    world = gd.World.single()
    loader = gd.LinkLoader(
        case.message, world, NUM_NEIGHBORS, batch_size=BATCH_SIZE, seed=case.seed, **options
    )
    torch.manual_seed(case.seed)
    encoder = build_model("sage", ModelShape(case.shard.x.size(1), WIDTH, WIDTH))
    model = gd.LinkModel(encoder, gd.LinkMLP(WIDTH, WIDTH))
    steps = gd.LinkSteps(model, loader, torch.optim.Adam(model.parameters(), lr=RATE), world)
    numbers = iter(range(1 << 30))
    return Candidate(
        epoch=lambda: steps.epoch(next(numbers)),
        rows=lambda: gd.node_rows(encoder, case.message, world),
        decoder=model.decoder,
    )


def make_pyg(case: Case) -> Candidate | None:
    """Train with PyTorch Geometric."""
    if not load_peers(["pyg"]).pyg_samples:
        return None
    from torch_geometric.data import Data
    from torch_geometric.loader import LinkNeighborLoader
    from torch_geometric.nn import GraphSAGE

    data = Data(x=case.message.x, edge_index=case.message.edge_index)
    loader = LinkNeighborLoader(
        data,
        num_neighbors=list(NUM_NEIGHBORS),
        edge_label_index=data.edge_index,
        batch_size=BATCH_SIZE,
        neg_sampling="binary",
        shuffle=True,
    )
    torch.manual_seed(case.seed)
    encoder = GraphSAGE(data.num_features, WIDTH, 2, WIDTH)
    decoder = gd.LinkMLP(WIDTH, WIDTH)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE)

    def epoch() -> None:
        for batch in loader:
            rows = encoder(batch.x, batch.edge_index)
            src, dst = batch.edge_label_index
            scores = decoder(rows[src], rows[dst])
            loss = F.binary_cross_entropy_with_logits(scores, batch.edge_label.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def rows() -> Tensor:
        return encoder(data.x, data.edge_index)

    return Candidate(epoch, rows, decoder)


CANDIDATES: dict[str, Callable[[Case], Candidate | None]] = {
    "gnn-dist": make_ours,
    "gnn-dist, exclude=none": lambda case: make_ours(case, exclude="none"),
    "PyG": make_pyg,
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=None, help="where datasets are")
    parser.add_argument("--graphs", nargs="+", default=["amazon-photo", "coauthor-cs"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of candidates")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # of the peers
    print("| graph | candidate | MRR | Hits@10 | s an epoch | gnn-dist / it |")
    print("|---|---|---|---|---|---|")
    for name in options.graphs:
        runs = [run(name, seed, options) for seed in range(options.seeds)]
        ours = statistics.median(r["gnn-dist"][2] for r in runs) if "gnn-dist" in runs[0] else None
        for candidate in runs[0]:
            mrr, hits, epoch_s = (
                statistics.median(column)
                for column in zip(*(r[candidate] for r in runs), strict=True)
            )
            ratio = f"{ours / epoch_s:.2f}" if ours else ""
            print(f"| {name} | {candidate} | {mrr:.3f} | {hits:.3f} | {epoch_s:.2f} | {ratio} |")


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, tuple[float, ...]]:
    """Return MRR, Hits@10 and the median seconds of an epoch, by candidate."""
    world = gd.World.single()
    graph = gd.load_dataset(name, root=options.root)
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), parts)
        shard = gd.load_shard(parts, world)
    split = gd.split_edges(shard, world, val=0.05, test=0.1)
    case = Case(shard, split.shard, seed)
    how = gd.NegativeSampling("triplet", 100, strict=True)
    held_out = gd.LinkEvaluation(shard, world, split.test, how=how)
    made = {
        name: candidate
        for name, make in CANDIDATES.items()
        if (not options.only or name in options.only) and (candidate := make(case)) is not None
    }
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.epochs):
        for name, candidate in made.items():
            start = time.perf_counter()
            candidate.epoch()
            times[name].append(time.perf_counter() - start)
    found = {}
    for name, candidate in made.items():
        metrics = held_out(candidate.rows(), candidate.decoder)
        found[name] = metrics["mrr"], metrics["hits@10"], statistics.median(times[name])
    return found


if __name__ == "__main__":
    main()
