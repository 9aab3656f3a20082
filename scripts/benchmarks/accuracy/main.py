"""Does distribution change what is learned? Four ranks, one process, and a plain PyG script.

    python scripts/benchmarks/accuracy/main.py --root DATA [--seeds 10] [--only cora-gcn]

For every case and seed the same graph, split, model, optimiser and number of epochs are run

    pyg     by an ordinary single-machine PyTorch Geometric training loop,
    one     by gnn-dist in one process,
    four    by gnn-dist on four ranks, over a partition in four parts,

and the test metric at the best validation epoch is compared. `one` and `four` share seeds, and so
initial parameters and dropout masks; `pyg` draws its own. Results go to OUT/results.json; the table
is printed as Markdown.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch_geometric.utils import to_torch_csr_tensor

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks
from gnn_dist.train.metrics import evaluate_metric
from gnn_dist.train.task import make_task

RANKS = 4


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    dataset: str
    model: str
    hidden: int = 64
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    epochs: int = 100
    metric: str = "accuracy"

    def config(self, seed: int, out: Path) -> gd.TrainConfig:
        """Return the options of a run."""
        names = ("model", "hidden", "lr", "weight_decay", "dropout", "epochs", "metric")
        options = {name: getattr(self, name) for name in names}
        return gd.TrainConfig(
            **options, seed=seed, out=str(out / f"seed-{seed}"), tensorboard=False
        )


CASES = [
    Case("cora-gcn", "cora", "gcn"),
    Case("citeseer-gat", "citeseer", "gat"),
    Case("amazon-photo-sage", "amazon-photo", "sage", lr=0.003),
    Case("dblp-sage", "dblp", "sage"),
    Case("tolokers-sage", "tolokers", "sage", metric="roc_auc", weight_decay=0.0),
]
MODELS = {"gcn": pyg.GCN, "sage": pyg.GraphSAGE, "gat": pyg.GAT, "gin": pyg.GIN}


def train_plain(case: Case, shard: gd.Shard, seed: int) -> float:
    """Train as a plain PyG script does; return the test metric at the best validation epoch."""
    torch.manual_seed(seed)
    world = gd.World.single()
    task = make_task(shard, 0, world)
    more = {"heads": 4} if case.model == "gat" else {}
    model = MODELS[case.model](
        shard.meta.num_features, case.hidden, 2, task.num_classes, dropout=case.dropout, **more
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr, weight_decay=case.weight_decay)
    # The adjacency as a matrix takes PyG's fast path, which attention does not have.
    adjacency = shard.edge_index
    if case.model != "gat":
        adjacency = to_torch_csr_tensor(shard.edge_index.flip(0), size=(shard.num_owned,) * 2)
    best = (-1.0, float("nan"))
    for _ in range(case.epochs):
        model.train()
        optimizer.zero_grad()
        logits = model(shard.x, adjacency)
        train = task.masks["train"]
        F.cross_entropy(logits[train], task.y[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = evaluate_metric(case.metric, model(shard.x, adjacency), task, world)
        if scores["val"] > best[0]:
            best = (scores["val"], scores["test"])
    return best[1]


def train_gnn_dist(case: Case, world: gd.World, folder: Path, seeds: int, out: Path) -> None:
    """Train every seed on the ranks of a world; leaves a run folder for each."""
    shard = gd.load_shard(folder, world)
    for seed in range(seeds):
        gd.Trainer(case.config(seed, out), shard, world).fit()


def as_rank(words: list[str]) -> None:
    """Be one rank of `four`."""
    name, folder, seeds, out = words
    [case] = [case for case in CASES if case.name == name]
    with gd.World.from_env("gloo") as world:
        train_gnn_dist(case, world, Path(folder), int(seeds), Path(out))


def read_run(out: Path, seed: int) -> tuple[float, list[float]]:
    """Return the test metric at the best validation epoch, and the loss curve."""
    folder = out / f"seed-{seed}"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    return summary["test_metric_at_best"], [row["loss"] for row in rows]


def run_case(case: Case, root: str, seeds: int, work: Path) -> dict[str, object]:
    """Run one case for all seeds."""
    graph = gd.load_dataset(case.dataset, root)
    one_part = gd.Partition(np.zeros(graph.num_nodes, int), 1)
    gd.write_partition(graph, one_part, work / "one")
    meta = gd.write_partition(graph, gd.partition_graph(graph, RANKS), work / "four")
    shard = gd.load_shard(work / "one", gd.World.single()).with_dtype(torch.float32)
    result: dict[str, object] = {"case": case.name, "pyg": [], "one": [], "four": [], "curve": []}
    result["replication_factor"] = meta.quality["replication_factor"]
    train_gnn_dist(case, gd.World.single(), work / "one", seeds, work / "run-one")
    words = ["--as-rank", case.name, str(work / "four"), str(seeds), str(work / "run-four")]
    command = [sys.executable, __file__]
    if launch_ranks(words, RANKS, backend="gloo", command=command):
        sys.exit(f"{case.name}: the four ranks failed")
    for seed in range(seeds):
        one, one_curve = read_run(work / "run-one", seed)
        four, four_curve = read_run(work / "run-four", seed)
        pairs = zip(one_curve[:60], four_curve[:60], strict=True)
        result["curve"].append(max(abs(a - b) / abs(a) for a, b in pairs))
        result["one"].append(one)
        result["four"].append(four)
        result["pyg"].append(train_plain(case, shard, seed))
        print(
            case.name, seed, *(f"{result[k][-1]:.4f}" for k in ("pyg", "one", "four")), flush=True
        )
    return result


def table(results: list[dict[str, object]]) -> str:
    """Return the Markdown table."""
    lines = [
        "| case | metric | PyG | one process | four ranks | four - one, same seed "
        "| one - PyG, 95% interval | loss curves, first 60 epochs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    metrics = {case.name: case.metric for case in CASES}
    for result in results:
        pyg_, one, four = (np.array(result[k]) for k in ("pyg", "one", "four"))
        cells = [f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in (pyg_, one, four)]
        gap = one.mean() - pyg_.mean()
        apart = abs(four - one)
        # Welch's interval of the difference of two means.
        spread = 2.1 * np.sqrt(one.var(ddof=1) / len(one) + pyg_.var(ddof=1) / len(pyg_))
        lines.append(
            f"| {result['case']} | {metrics[result['case']]} | {' | '.join(cells)} "
            f"| at most {apart.max():.4f}, median {np.median(apart):.4f} "
            f"| {gap - spread:+.4f} .. {gap + spread:+.4f} | within {max(result['curve']):.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all cases and print the table."""
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", required=True, help="folder of datasets")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--out", default="runs/accuracy")
    options = parser.parse_args()
    results = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as work:
            results.append(run_case(case, options.root, options.seeds, Path(work)))
        Path(options.out).mkdir(parents=True, exist_ok=True)
        (Path(options.out) / "results.json").write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
