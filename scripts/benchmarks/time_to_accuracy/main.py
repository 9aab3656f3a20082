"""Full batches or minibatches: which is sooner at an accuracy, and how good do they become?

    python scripts/benchmarks/time_to_accuracy/main.py --root DATA [--graphs NAME ...] [--seeds 3]
        [--ranks 1]

Trains the same GraphSAGE both ways, each with the better of a few learning rates by validation
accuracy, and adds up the seconds of epochs without evaluation. The mark is the lower of the two
best validation accuracies, less half a point: so that both reach it. Prints Markdown, medians over
seeds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks

GRAPHS = ("amazon-computers", "facebook-pages", "debian", "coauthor-physics")
RATES = {"full": (0.03, 0.01, 0.003), "minibatch": (0.01, 0.003, 0.001)}
EPOCHS = {"full": 150, "minibatch": 20}
BELOW = 0.005


@dataclass(frozen=True)
class Curve:
    """A run: seconds of training and accuracies after each epoch."""

    seconds: list[float]
    val: list[float]
    test: list[float]

    @property
    def best(self) -> int:
        """The epoch of the best validation accuracy."""
        return max(range(len(self.val)), key=self.val.__getitem__)

    def until(self, mark: float) -> tuple[float, int]:
        """Return the seconds and epochs until the validation accuracy reaches a mark."""
        epoch = next(i for i, value in enumerate(self.val) if value >= mark)
        return sum(self.seconds[: epoch + 1]), epoch + 1


def main() -> None:
    """Run all graphs; or be a rank of one run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=None, help="where datasets are")
    parser.add_argument("--graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--as-rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_a_rank(*options.as_rank)
        return
    print("| graph | batches | learning rate | test at best val | s to the mark | epochs to it |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / "parts"
            graph = gd.load_dataset(name, root=options.root)
            method = "metis" if options.ranks > 1 else "contiguous"
            parts = gd.partition_graph(graph, options.ranks, method)
            gd.write_partition(graph, parts, folder)
            compare(name, folder, options)


def compare(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the rows of one graph."""
    chosen: dict[str, tuple[float, list[Curve]]] = {}
    for mode, rates in RATES.items():
        first = {rate: run(folder, mode, rate, 0, options.ranks) for rate in rates}
        rate = max(first, key=lambda r: first[r].val[first[r].best])
        others = [run(folder, mode, rate, seed, options.ranks) for seed in range(1, options.seeds)]
        chosen[mode] = rate, [first[rate], *others]
    mark = min(curve.val[curve.best] for _, curves in chosen.values() for curve in curves) - BELOW
    for mode, (rate, curves) in chosen.items():
        test = statistics.mean(curve.test[curve.best] for curve in curves)
        seconds, epochs = (
            statistics.median(curve.until(mark)[i] for curve in curves) for i in (0, 1)
        )
        cells = f"{rate} | {test:.4f} | {seconds:.2f} | {epochs:.0f}"
        print(f"| {name}, val {mark:.4f} | {mode} | {cells} |", flush=True)


def run(folder: Path, mode: str, rate: float, seed: int, ranks: int) -> Curve:
    """Return the curve of one run."""
    out = folder.parent / f"{mode}-{rate}-{seed}"
    config = {
        "mode": mode,
        "model": "sage",
        "hidden": 128,
        "lr": rate,
        "seed": seed,
        "epochs": EPOCHS[mode],
        "num_neighbors": "15,10",
        "batch_size": 1024,
        "weight_decay": 0.0,
        "tensorboard": False,
        "out": str(out),
    }
    words = ["--as-rank", str(folder), json.dumps(config), "run"]
    code = launch_ranks(words, ranks, backend="gloo", command=[sys.executable, __file__])
    if code != 0:
        sys.exit(f"a run of {folder} ended with code {code}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Curve(*([row[key] for row in rows] for key in ("epoch_s", "val_metric", "test_metric")))


def be_a_rank(folder: str, config: str, _: str) -> None:
    """Collective. Train."""
    with gd.World.from_env() as world:
        shard = gd.load_shard(folder, world)
        gd.Trainer(gd.TrainConfig(**json.loads(config)), shard, world).fit()


if __name__ == "__main__":
    main()
