"""Million edges a second of every pass of every streaming partitioner.

    python scripts/benchmarks/partition/rates.py --graph rmat25 --order random

Edges are held in memory, and so many of them as `--edges` says, but among all nodes of the graph:
what a pass costs depends on how large the arrays of nodes are, not on how long it takes.

    random    as an edge file may have them
    csr       by destination, sources ascending: what partitioners get from an external sort; the
              edges are whole rows, evenly chosen

Each pass is timed as its partitioner makes it, from Python; degrees are a pass of their own. `ldg`
and `fennel` read rows, hence have no random order.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.synthetic_streams import open_stream
from gnn_dist.partitioners.balance import make_balance
from gnn_dist.partitioners.clusters import Clusters, cluster_graph, cluster_stream
from gnn_dist.partitioners.dbh import Dbh
from gnn_dist.partitioners.hdrf import Hdrf
from gnn_dist.partitioners.libra import Libra
from gnn_dist.partitioners.metis_stream import MAX_CLUSTERS, METIS_PAIR_BYTES, MetisStream
from gnn_dist.partitioners.restream import shares_of
from gnn_dist.partitioners.sources import Degrees, degrees
from gnn_dist.partitioners.spring import Spring
from gnn_dist.partitioners.two_phase import TwoPhase

Array = NDArray[Any]

GRAPHS = {
    "rmat18": "rmat:scale=18,degree=32",
    "rmat20": "rmat:scale=20,degree=32",
    "rmat25": "rmat:scale=25,degree=32",
    "sbm20": "sbm:nodes=1048576,blocks=64,degree_in=16,degree_out=4",
    "sbm28": "sbm:nodes=13421772,blocks=64,degree_in=16,degree_out=4",
}
CHUNK_EDGES = 1 << 20


@dataclass
class TimedEdges:
    """Edges in chunks, and how long each pass over them took.

    Attributes:
        num_nodes: N.
        src: int32 (E,).
        dst: int32 (E,).
        seconds: One number a pass.
    """

    num_nodes: int
    src: Array
    dst: Array
    seconds: list[float] = field(default_factory=list)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.src)

    def chunks(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[tuple[Array, Array]]:
        """Yield (src, dst)."""
        start = time.perf_counter()
        for first in range(0, self.num_edges, chunk_edges):
            yield self.src[first : first + chunk_edges], self.dst[first : first + chunk_edges]
        self.seconds.append(time.perf_counter() - start)


def sample(word: str, num_edges: int, order: str) -> TimedEdges:
    """Return some of a graph's edges."""
    stream = open_stream(word)
    step = -(-stream.num_edges // num_edges)
    pieces = []
    for src, dst in stream.chunks(1 << 22):
        kept = dst % step == step // 2 if order == "csr" else slice(None)
        pieces.append(np.stack([src[kept], dst[kept]]))
        if order == "random" and sum(piece.shape[1] for piece in pieces) >= num_edges:
            break
    src, dst = np.concatenate(pieces, axis=1)[:, :num_edges]
    if order == "csr":
        chosen = np.argsort(dst.astype(np.int64) << 32 | src)
    else:  # an edge and its reverse would stand together
        chosen = np.random.default_rng(0).permutation(len(src))
    return TimedEdges(stream.num_nodes, src[chosen], dst[chosen])


def cluster(edges: TimedEdges, name: str, num_parts: int) -> None:
    """Go through the edges as `spring` or `metis-stream` would."""
    counted = degrees(edges)
    balance = make_balance(counted, num_parts, "nodes,edges", 0.1)
    if name == "spring":
        options = Spring()
        cluster_stream(
            edges,
            counted,
            balance,
            share=options.cluster_share,
            passes=options.passes,
            richest=True,
        )
        return
    most = min(MAX_CLUSTERS, edges.num_nodes // MetisStream().nodes_per_cluster)
    state = cluster_stream(edges, counted, balance, share=2 * num_parts / most, passes=1)
    clusters = Clusters.of_state(state).bundled(most, state.limit[1:])
    del state
    cluster_graph(edges, clusters, most_pairs=MetisStream().memory_limit // METIS_PAIR_BYTES)


def place(edges: TimedEdges, rule: str, num_parts: int, *, with_pins: bool) -> None:
    """Fill the parts once from rows."""
    from gnn_dist.ops.streaming import Placement, Rows, place_nodes

    in_degree = np.bincount(edges.dst, minlength=edges.num_nodes)
    shares = shares_of(make_balance(Degrees(in_degree, in_degree), num_parts, "nodes,edges", 0.1))
    rows = Rows(np.concatenate([[0], np.cumsum(in_degree)]), edges.src)
    placement = Placement.empty(edges.num_nodes, shares, with_pins=with_pins)
    order = np.flatnonzero(in_degree)  # else most rows would be those without a chosen edge
    start = time.perf_counter()
    place_nodes(placement, rows, shares, rule=rule, filling=True, penalty=1.0, order=order)
    edges.seconds.append(time.perf_counter() - start)


CASES: dict[str, tuple[Callable[[TimedEdges, int], Any], tuple[str, ...]]] = {
    "spring": (lambda e, p: cluster(e, "spring", p), ("degrees", "cluster", "cluster again")),
    "metis-stream": (lambda e, p: cluster(e, "metis", p), ("degrees", "cluster", "pairs")),
    "libra": (lambda e, p: Libra()(e, p), ("degrees", "assign")),
    "hdrf": (lambda e, p: Hdrf()(e, p), ("degrees", "assign")),
    "dbh": (lambda e, p: Dbh()(e, p), ("degrees", "assign")),
    "2ps-l": (lambda e, p: TwoPhase()(e, p), ("degrees", "cluster", "together", "rest")),
}
ROW_CASES: dict[str, tuple[Callable[[TimedEdges, int], Any], tuple[str, ...]]] = {
    f"{rule}, {what}": (
        lambda e, p, rule=rule, pins=pins: place(e, rule, p, with_pins=pins),
        ("fill",),
    )
    for rule in ("ldg", "fennel")
    for what, pins in (("neighbours", False), ("halo rows", True))
}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", choices=GRAPHS, required=True)
    parser.add_argument("--order", choices=("random", "csr"), required=True)
    parser.add_argument("--edges", type=int, default=1 << 26)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--methods", nargs="*", help="all by default")
    args = parser.parse_args()
    edges = sample(GRAPHS[args.graph], args.edges, args.order)
    cases = CASES | (ROW_CASES if args.order == "csr" else {})
    print(f"{args.graph}, {edges.num_nodes} nodes, {edges.num_edges} edges, {args.order} order\n")
    print("| method | million edges a second, by pass |\n|---|---|")
    for name, (run, passes) in cases.items():
        if args.methods and name.split(",")[0] not in args.methods:
            continue
        edges.seconds.clear()
        run(edges, args.parts)
        rates = [edges.num_edges / 1e6 / seconds for seconds in edges.seconds]
        cells = [f"{word} {rate:.1f}" for word, rate in zip(passes, rates, strict=True)]
        print(f"| `{name}` | {', '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
