"""Every partitioner on every graph: replication factor, cut, balance, seconds, memory.

    python scripts/benchmarks/partition/main.py --root DATA --out results.jsonl
        [--graphs cora debian] [--methods quick best] [--parts 4 16]
    python scripts/benchmarks/partition/main.py --out results.jsonl --table streaming claims

Each partition is made in a process of its own, so that its memory is its own. A row is appended to
OUT for each and skipped if it is there, so that an interrupted benchmark goes on. `--table` makes
nothing: it prints Markdown from the rows there are.

    best ... metis-stream ours, with the constraints nodes, edges and train within 5 per cent
    NAME+refine           the same, refined
    libra hdrf dbh 2ps-l  ours, edges assigned instead of nodes
    peer-metis            pymetis, nodes balanced, its defaults
    peer-metis-volume     pymetis with objtype = volume
    peer-dgl              dgl's METIS with balance_edges (needs dgl)
    peer-mtkahypar        Mt-KaHyPar on the graph's edges, default preset, 3 per cent
    peer-mtkahypar-km1    Mt-KaHyPar on the halo nets, default preset, 3 per cent
    best@PEER             best, each constraint within the imbalance that the peer came to
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import graphs
import tables
from methods import BALANCE, GROUPS, PEER, expand

TIMEOUT_S = 1800
FORK = multiprocessing.get_context("fork")

Key = tuple[str, str, int]


class Results:
    """The rows made so far, in a file."""

    def __init__(self, path: Path, folders: graphs.Folders) -> None:
        self.path, self.folders = path, folders
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[Key, dict[str, Any]] = {
            (row["graph"], row["method"], row["parts"]): row for row in map(json.loads, lines)
        }

    def get(self, key: Key) -> dict[str, Any]:
        """Return a row, made now if it is missing."""
        if key not in self.rows:
            graph, method, parts = key
            peer = method.partition("@")[2]
            theirs = self.get((graph, PEER + peer, parts)) if peer else {}
            if "error" in theirs:
                row = {**theirs, "method": method}
            else:
                row = self._measured(key, imbalance_of(theirs) if peer else BALANCE)
            self.rows[key] = row
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(tables.describe(row), file=sys.stderr, flush=True)
        return self.rows[key]

    def _measured(self, key: Key, balance: str) -> dict[str, Any]:
        """Measure in a process of its own, forked from this one, which has run no kernel yet."""
        from measure import measure  # takes seconds to import, which no table needs

        graph, method, parts = key
        receiver, sender = FORK.Pipe(duplex=False)
        words = (graph, method.partition("@")[0], parts, balance)
        process = FORK.Process(
            target=_send_measured, args=(sender, measure, (*words, self.folders))
        )
        process.start()
        sender.close()
        try:
            found = receiver.recv() if receiver.poll(TIMEOUT_S) else f"more than {TIMEOUT_S} s"
        except EOFError:
            found = "the process died"
        process.kill()
        process.join()
        row = {"graph": graph, "method": method, "parts": parts}
        return row | {"error": found} if isinstance(found, str) else {**found, **row}


def _send_measured(
    sender: Connection, measure: Callable[..., dict[str, Any]], words: tuple[Any, ...]
) -> None:
    """Send a row, or what went wrong, through a pipe."""
    try:
        sender.send(measure(*words))
    except Exception as error:  # a peer that fails is a result too
        sender.send(f"{type(error).__name__}: {error}".splitlines()[0])


def imbalance_of(row: dict[str, Any]) -> str:
    """Return the text of constraints that a row's partition just meets."""
    # One part in 10^9 of room, so that a peer's own result is within the limits.
    words = [f"{k}:{max(0.0, v - 1) + 1e-9:.9f}" for k, v in row["balance"].items()]
    return ",".join(words)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of the datasets")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--graphs", nargs="+", default=[*graphs.REAL, *graphs.SYNTHETIC])
    parser.add_argument(
        "--methods", nargs="+", default=list(GROUPS), help=f"methods, or {', '.join(GROUPS)}"
    )
    parser.add_argument("--parts", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--table", nargs="+", choices=tables.TABLES, help="print, make nothing")
    cache = Path(tempfile.gettempdir()) / "gnn-dist-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for structures")
    args = parser.parse_args()
    if args.root is None and not args.table:
        parser.error("--root is needed to make partitions")
    return args


def main() -> None:
    """Run what the command line asks for."""
    args = parse()
    results = Results(args.out, graphs.Folders(args.root, args.cache))
    if args.table:
        rows = tables.Rows(results.rows, args.graphs, args.parts)
        print("\n\n".join(tables.TABLES[name](rows) for name in args.table))
        return
    for method in expand(args.methods):
        for name in args.graphs:
            for parts in args.parts:
                results.get((name, method, parts))


if __name__ == "__main__":
    main()
