"""How long is a full-batch epoch? One process against DGL and PyTorch Geometric, and two ranks.

    python scripts/benchmarks/epoch/main.py [--case sage|heavy] [--epochs 7] [--quick]
    python scripts/benchmarks/epoch/main.py --ranks [--backend mpi] [--precision fp32]

The first form trains the same GraphSAGE on the same graph with every candidate in one process, an
epoch of one after an epoch of the other, and prints medians. An epoch is forward, loss, backward
and a step of Adam. DGL is left out where it is not installed, as are PyG's paths that need
torch-sparse. The second form compares one rank of two threads with two ranks of one thread on
partitions of METIS balanced by edges, in alternating runs. Both print Markdown.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))  # peers.py

import candidates
from cases import CASES, QUICK, Case

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks

SHAPE = "features=100,classes=47"
WARM_UP = 2


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--epochs", type=int, default=7, help="timed epochs of each candidate")
    parser.add_argument("--only", nargs="*", help="names of candidates")
    parser.add_argument("--quick", action="store_true", help="a small graph, to see that it runs")
    parser.add_argument("--ranks", action="store_true", help="two ranks against one process")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # of the peers
    cases = QUICK if options.quick else {name: CASES[name] for name in options.case or CASES}
    for case in cases.values():
        if options.ranks:
            compare_ranks(case, options)
        else:
            compare_systems(case, options)


def compare_systems(case: Case, options: argparse.Namespace) -> None:
    """Print a table of one process's epochs."""
    graph = gd.load_dataset(f"{case.dataset},{SHAPE}", seed=0)
    found = {
        name: make
        for name, make in candidates.CANDIDATES.items()
        if not options.only or name in options.only
    }
    epochs = {name: make(graph, case) for name, make in found.items()}
    absent = [name for name, epoch in epochs.items() if epoch is None]
    times = interleaved({k: v for k, v in epochs.items() if v is not None}, options.epochs)
    threads = torch.get_num_threads()
    print(f"\n### {case.name}: n = {graph.num_nodes:,}, nnz = {graph.num_edges:,}\n")
    peers = [name for name in times if not name.startswith("gnn-dist")]
    print("| candidate | s an epoch (median, quartiles) |" + "".join(f" {p} / it |" for p in peers))
    print("|---|---|" + "---|" * len(peers))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        ratios = "".join(f" {medians[peer] / medians[name]:.2f} |" for peer in peers)
        print(f"| {name} | {medians[name]:.3f} ({low:.3f} to {high:.3f}) |{ratios}")
    print(
        f"\n{threads} threads, {torch.__version__}. Not installed: {', '.join(absent) or 'none'}."
    )


def interleaved(epochs: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Return seconds of each candidate's epochs, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for turn in range(WARM_UP + count):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - start)
        print(f"turn {turn + 1} of {WARM_UP + count}", file=sys.stderr)
    return times


def compare_ranks(case: Case, options: argparse.Namespace) -> None:
    """Print a table of one process against two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        graph = gd.load_dataset(f"{case.dataset},{SHAPE}", seed=0)
        parts = Path(folder) / "parts"
        partition = gd.partition_graph(graph, 2, "metis", balance="edges")
        gd.write_partition(graph, partition, parts)
        medians: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(3):
            for ranks, found in medians.items():
                out = Path(folder) / f"run-{ranks}-{turn}"
                found.append(run_median(parts, ranks, out, case, options))
    print(f"\n### {case.name}: two ranks x one thread against one process x two threads\n")
    one, two = (statistics.median(found) for found in medians.values())
    print(f"one process {one:.3f} s, two ranks {two:.3f} s, ratio {two / one:.2f}")
    print(f"medians of epochs, by run: {medians}; {options.backend}, {options.precision}")


def run_median(
    parts: Path, ranks: int, out: Path, case: Case, options: argparse.Namespace
) -> float:
    """Return the median seconds of an epoch of one run."""
    argv = [
        *("train", str(parts), "--out", str(out), "--backend", options.backend),
        *("--epochs", str(WARM_UP + options.epochs), "--eval-every", "1000"),
        *("--hidden", str(case.hidden), "--layers", str(case.layers)),
        *("--dropout", str(case.dropout), "--precision", options.precision),
        "--no-tensorboard",
    ]
    if launch_ranks(argv, ranks, backend=options.backend):
        raise SystemExit(f"the run on {ranks} ranks failed")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["epoch_s"] for row in rows[WARM_UP:])


if __name__ == "__main__":
    main()
