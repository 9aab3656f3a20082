"""Every partitioner on every graph: replication factor, cut, balance, seconds, memory.

    python scripts/benchmarks/partition/main.py --root DATA --out results.jsonl
        [--graphs cora debian] [--methods best metis] [--parts 4 16] [--claims]

Each partition is made in a process of its own, so that its memory is its own. A row is appended to
OUT for each and skipped if it is there, so that an interrupted benchmark goes on. The tables are
printed as Markdown at the end.

    best ... mtkahypar    ours, with the constraints nodes, edges and train within 5 per cent
    NAME+refine           the same, refined
    peer-metis            pymetis, nodes balanced, its defaults
    peer-metis-volume     pymetis with objtype = volume
    peer-dgl              dgl's METIS with balance_edges (needs dgl)
    peer-mtkahypar        Mt-KaHyPar on the graph's edges, default preset, 3 per cent
    peer-mtkahypar-km1    Mt-KaHyPar on the halo nets, default preset, 3 per cent
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import peers

import gnn_dist as gd
from gnn_dist.partition import Partition, measure_quality
from gnn_dist.partitioners.balance import make_balance

METHODS = ("best", "metis", "metis+refine", "mtkahypar+refine", "fennel", "fennel+refine")
METHODS += ("ldg", "ldg+refine", "spring", "spring+refine", "metis-stream", "metis-stream+refine")
METHODS += ("contiguous", "random", "random+refine")
PEERS = tuple(f"peer-{name}" for name in peers.PEERS)


def partition(graph: gd.Graph, method: str, parts: int, balance: str) -> Partition:
    """Return the partition of a method or peer."""
    if method.startswith("peer-"):
        assignment = peers.PEERS[method.removeprefix("peer-")](graph, parts)
        return Partition(np.asarray(assignment, np.int32), parts)
    name, _, refined = method.partition("+")
    options = {} if name in ("contiguous", "random") else {"balance": balance}
    return gd.partition_graph(graph, parts, name, refine=bool(refined), **options)


def measure(name: str, method: str, parts: int, root: str, balance: str) -> dict[str, Any]:
    """Return one row of the table."""
    graph = graphs.load(name, root)
    graph.is_symmetric  # noqa: B018 - cached now, so that it is no part of what is measured
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    made = partition(graph, method, parts, balance)
    seconds = time.perf_counter() - start
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    quality = measure_quality(graph, made)
    limits = make_balance(graph, parts, "nodes,edges,train", 0.05)
    return {
        "graph": name,
        "method": method,
        "parts": parts,
        "balance_option": balance,
        "rf": quality.replication_factor,
        "cut": quality.edge_cut_fraction,
        "balance": quality.balance,
        "within_limits": limits.is_met(made.assignment),
        "excess": limits.excess(made.assignment),
        "seconds": seconds,
        "mib": max(own - before, 0) // 1024 + child // 1024,
        "notes": list(made.notes),
    }


def run_child(args: argparse.Namespace, key: tuple[str, str, int, str]) -> dict[str, Any]:
    """Measure in a process of its own."""
    name, method, parts, balance = key
    words = ["--one", name, method, str(parts), balance, "--root", args.root]
    done = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return {
            "graph": name,
            "method": method,
            "parts": parts,
            "balance_option": balance,
            "error": lines[-1],
        }
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


class Results:
    """The rows made so far, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {self.key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def key(row: dict[str, Any]) -> tuple[str, str, int, str]:
        """Return what identifies a row."""
        return row["graph"], row["method"], row["parts"], row["balance_option"]

    def get(self, args: argparse.Namespace, key: tuple[str, str, int, str]) -> dict[str, Any]:
        """Return a row, made now if it is missing."""
        if key not in self.rows:
            row = run_child(args, key)
            self.rows[key] = row
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(describe(row), file=sys.stderr, flush=True)
        return self.rows[key]


def describe(row: dict[str, Any]) -> str:
    """Return a row of the Markdown table."""
    head = f"| {row['graph']} | {row['parts']} | {row['method']} |"
    if "error" in row:
        return f"{head} {row['error']} | | | | |"
    balance = " / ".join(f"{value:.2f}" for value in row["balance"].values())
    return (
        f"{head} {row['rf']:.3f} | {row['cut']:.3f} | {balance} | {row['seconds']:.1f} | "
        f"{row['mib']} |"
    )


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return statistics.geometric_mean(values) if values else float("nan")


def print_claims(args: argparse.Namespace, results: Results) -> None:
    """Print `best` against each peer at the peer's own imbalance, and against METIS at ours."""
    default = "nodes,edges,train"
    ratios = []
    print("\n| graph | P | METIS, 3 constraints | best | ratio | best within limits |")
    print("|---|---|---|---|---|---|")
    for name in args.graphs:
        for parts in args.parts:
            metis = results.get(args, (name, "metis", parts, default))
            best = results.get(args, (name, "best", parts, default))
            if "error" in best or "error" in metis:
                continue
            ratios.append(best["rf"] / metis["rf"])
            print(
                f"| {name} | {parts} | {metis['rf']:.3f} | {best['rf']:.3f} | "
                f"{ratios[-1]:.3f} | {best['within_limits']} |"
            )
    print(f"\ngeometric mean of the ratio: {geometric_mean(ratios):.3f}")
    print("\n| graph | P | peer | peer's RF | nodes / edges / train | best at that | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in args.graphs:
        for parts in args.parts:
            for peer in args.peers:
                row = results.get(args, (name, peer, parts, default))
                if "error" in row:
                    continue
                # One part in 10^9 of room, so that a peer's own result is within the limits.
                words = [f"{k}:{max(0.0, v - 1) + 1e-9:.9f}" for k, v in row["balance"].items()]
                best = results.get(args, (name, "best", parts, ",".join(words)))
                if "error" in best:
                    continue
                balance = " / ".join(f"{value:.2f}" for value in row["balance"].values())
                print(
                    f"| {name} | {parts} | {peer} | {row['rf']:.3f} | {balance} | "
                    f"{best['rf']:.3f} | {best['rf'] / row['rf']:.3f} |"
                )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--graphs", nargs="+", default=[*graphs.REAL, *graphs.SYNTHETIC])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--parts", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--claims", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, method, parts, balance = args.one
        print(json.dumps(measure(name, method, int(parts), args.root, balance)))
        return
    results = Results(args.out)
    rows = [
        results.get(args, (name, method, parts, "nodes,edges,train"))
        for name in args.graphs
        for parts in args.parts
        for method in (*args.methods, *args.peers)
    ]
    print("| graph | P | method | RF | cut | nodes / edges / train | s | MiB |")
    print("|---|---|---|---|---|---|---|---|")
    print(*map(describe, rows), sep="\n")
    if args.claims:
        print_claims(args, results)


if __name__ == "__main__":
    main()
