"""The benchmark's rows as Markdown tables."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import graphs
from methods import PEER, STREAMING, VERTEX_CUTS
from peers import PEERS

Row = dict[str, Any]

UNLIMITED = ("contiguous", "random", "dbh")
NO_VALUE = "-"


@dataclass(frozen=True)
class Rows:
    """Rows by graph, method and parts, and which graphs and parts are to be shown."""

    rows: dict[tuple[str, str, int], Row]
    graphs: list[str]
    parts: list[int]

    def find(self, graph: str, method: str, parts: int) -> Row | None:
        """Return a row, or None if it was not made or failed."""
        row = self.rows.get((graph, method, parts))
        return None if row is None or "error" in row else row

    def rf(self, graph: str, method: str, parts: int) -> float:
        """Return a replication factor, not a number where there is none."""
        row = self.find(graph, method, parts)
        return float("nan") if row is None else float(row["rf"])

    def cases(self) -> Iterator[tuple[str, int]]:
        """Yield graphs and numbers of parts."""
        for graph in self.graphs:
            for parts in self.parts:
                yield graph, parts

    @property
    def real(self) -> list[str]:
        """The graphs that were not drawn."""
        return [name for name in self.graphs if name in graphs.REAL]


def describe(row: Row) -> str:
    """Return a row of the table of all."""
    head = [row["graph"], row["parts"], row["method"]]
    if "error" in row:
        return _line([*head, row["error"], "", "", "", ""])
    costs = [f"{row['rf']:.3f}", f"{row['cut']:.3f}", _balance(row)]
    return _line([*head, *costs, f"{row['seconds']:.1f}", row["mib"]])


def every_row(rows: Rows) -> str:
    """Return all there is; for vertex-cuts `cut` is the share of nodes that are cut."""
    header = ["graph", "P", "method", "RF", "cut", "nodes / edges / train", "s", "MiB"]
    chosen = (
        row for row in rows.rows.values() if (row["graph"], row["parts"]) in set(rows.cases())
    )
    return "\n".join([*_head(header), *map(describe, chosen)])


def summary(rows: Rows) -> str:
    """Return RF of each method over that of METIS, on the real graphs that have both."""
    lines = []
    for method in dict.fromkeys(key[1] for key in rows.rows if "@" not in key[1]):
        cells: list[Any] = [f"`{method}`"]
        for parts in rows.parts:
            ratios = [rows.rf(g, method, parts) / rows.rf(g, "metis", parts) for g in rows.real]
            cells += [_mean(ratios), sum(ratio == ratio for ratio in ratios)]
        lines.append(cells)
    header = [words for parts in rows.parts for words in (f"P = {parts}", "graphs")]
    return _table(["method", *header], lines)


def in_memory(rows: Rows) -> str:
    """Return RF of METIS under three constraints, of the same refined, and of `best`."""
    header = ["graph"]
    for parts in rows.parts:
        header += [f"P = {parts}: metis", "refined", "best", "best / metis", "best, s"]
    lines = []
    for graph in rows.graphs:
        cells: list[Any] = [graph]
        for parts in rows.parts:
            best = rows.find(graph, "best", parts)
            metis = rows.rf(graph, "metis", parts)
            refined, own = (rows.rf(graph, name, parts) for name in ("metis+refine", "best"))
            cells += map(_number, (metis, refined, own, own / metis))
            cells.append(NO_VALUE if best is None else f"{best['seconds']:.1f}")
        lines.append(cells)

    names = ("metis", "metis+refine", "best")
    whole = [
        (graph, parts)
        for graph, parts in rows.cases()
        if graph in rows.real and all(rows.find(graph, name, parts) for name in names)
    ]

    def mean(method: str, *some: int) -> str:
        cases = [case for case in whole if case[1] in some]
        return _mean(rows.rf(g, method, p) / rows.rf(g, "metis", p) for g, p in cases)

    said = [
        f"`{method}` {mean(method, *rows.parts)} "
        f"({', '.join(f'P = {parts}: {mean(method, parts)}' for parts in rows.parts)})"
        for method in ("best", "metis+refine")
    ]
    title = f"RF over that of `metis`, geometric mean over {len(whole)} cases of real graphs:"
    return _table(header, lines) + f"\n\n{title} {'; '.join(said)}."


def streaming(rows: Rows) -> str:
    """Return RF over that of random parts, without and with refinement."""
    drawn = [name for name in rows.graphs if name not in rows.real]
    header = ["P", "method", *drawn, "real graphs, geometric mean", "of graphs"]
    lines = []
    for parts in rows.parts:
        for method in (*STREAMING, *(f"{name}+refine" for name in STREAMING)):
            ratio = {
                graph: rows.rf(graph, method, parts) / rows.rf(graph, "random", parts)
                for graph in rows.graphs
            }
            cells = [_number(ratio[graph]) for graph in drawn]
            real = [ratio[graph] for graph in rows.real if ratio[graph] == ratio[graph]]
            lines.append([parts, f"`{method}`", *cells, _mean(real), len(real)])
    return _table(header, lines)


def streaming_over_metis(rows: Rows) -> str:
    """Return RF of refined streaming partitions over that of METIS with the same constraints."""
    methods = [f"{name}+refine" for name in STREAMING]
    lines = []
    for graph, parts in rows.cases():
        ratios = [rows.rf(graph, name, parts) / rows.rf(graph, "metis", parts) for name in methods]
        lines.append([graph, parts, *map(_number, ratios)])
    means = [
        _mean(rows.rf(g, m, p) / rows.rf(g, "metis", p) for g in rows.real for p in rows.parts)
        for m in methods
    ]
    lines.append(["real graphs, geometric mean", "", *means])
    return _table(["graph", "P", *(f"`{name}`" for name in methods)], lines)


def vertex_cuts(rows: Rows) -> str:
    """Return the sum of clones over nodes / edge balance of partitions that cut nodes."""
    lines = []
    for graph, parts in rows.cases():
        found = [rows.find(graph, method, parts) for method in VERTEX_CUTS]
        cells = [
            NO_VALUE if row is None else f"{row['rf']:.2f} / {row['balance']['edges']:.3f}"
            for row in found
        ]
        lines.append([graph, parts, *cells])
    return _table(["graph", "P", *VERTEX_CUTS], lines)


def at_peers_balance(rows: Rows) -> str:
    """Return `best` against each peer, within the imbalance that the peer came to."""
    header = ["graph", "P", "peer", "RF", "nodes / edges / train", "best at that", "its balance"]
    lines, losses, count = [], [], 0
    for graph, parts in rows.cases():
        for peer in PEERS:
            theirs = rows.find(graph, PEER + peer, parts)
            ours = rows.find(graph, f"best@{peer}", parts)
            if theirs is None or ours is None:
                continue
            count += 1
            ratio = ours["rf"] / theirs["rf"]
            if ratio > 1:
                losses.append(f"{graph} P = {parts} {peer} ({ratio:.4f})")
            cells = [f"{theirs['rf']:.3f}", _balance(theirs), f"{ours['rf']:.3f}", _balance(ours)]
            lines.append([graph, parts, peer, *cells, f"{ratio:.4f}"])
    said = f"{count - len(losses)} of {count} at most 1. Above: {', '.join(losses) or 'none'}."
    return _table([*header, "ratio"], lines) + f"\n\n{said}"


def limits(rows: Rows) -> str:
    """Return which partitions of methods that keep limits are above one."""
    count: dict[str, int] = {}
    above: dict[str, list[str]] = {}
    shown = set(rows.cases())
    for (graph, method, parts), row in rows.rows.items():
        unlimited = method in UNLIMITED or method.startswith(PEER) or "@" in method
        if (graph, parts) not in shown or "error" in row or unlimited:
            continue
        count[method] = count.get(method, 0) + 1
        if not row["within_limits"]:
            above.setdefault(method, []).append(f"{graph} {parts} (+{100 * row['excess']:.1f} %)")
    lines = [
        [f"`{method}`", f"{number - len(above.get(method, []))} of {number}",
         ", ".join(above.get(method, [])) or "none"]
        for method, number in count.items()
    ]  # fmt: skip
    return _table(["method", "within the limits", "above"], lines)


TABLES: dict[str, Callable[[Rows], str]] = {
    "all": every_row,
    "summary": summary,
    "memory": in_memory,
    "streaming": streaming,
    "streaming-over-metis": streaming_over_metis,
    "vertex-cuts": vertex_cuts,
    "peers": at_peers_balance,
    "limits": limits,
}


def _balance(row: Row) -> str:
    return " / ".join(f"{value:.2f}" for value in row["balance"].values())


def _number(value: float) -> str:
    return NO_VALUE if value != value else f"{value:.3f}"


def _mean(values: Iterable[float]) -> str:
    known = [value for value in values if value == value]
    return _number(statistics.geometric_mean(known)) if known else NO_VALUE


def _line(cells: list[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _head(header: list[str]) -> list[str]:
    return [_line(header), "|" + "---|" * len(header)]


def _table(header: list[str], lines: list[list[Any]]) -> str:
    return "\n".join([*_head(header), *map(_line, lines)])
