"""The partitioning benchmark runs on a small graph, goes on where it was, and prints its tables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).parents[1] / "scripts/benchmarks/partition/main.py"
GRAPH = "sbm:nodes=400,blocks=8,degree_in=8,degree_out=2,features=1"
METHODS = ("random", "metis", "ldg", "ldg+refine", "libra", "peer-metis", "best@metis", "peer-none")


def run(folder, *words):
    command = [sys.executable, str(MAIN), "--out", str(folder / "rows.jsonl"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout


def tables(folder, *names):
    """Return the lines of tables as dictionaries."""
    text = run(folder, "--graphs", GRAPH, "--parts", "4", "--table", *names)
    found, header = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells
            found.append([])
        elif not line.startswith("|-"):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    words = ["--root", str(folder), "--cache", str(folder), "--graphs", GRAPH, "--parts", "4"]
    for _ in range(2):  # the second time all rows are there
        run(folder, *words, "--methods", *METHODS)
    return folder


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return {row["method"]: row for row in rows}, len(rows)


def test_every_row_is_made_once(folder):
    rows, number = rows_of(folder)
    assert number == len(rows) == len(METHODS)
    assert "KeyError" in rows.pop("peer-none")["error"]
    for row in rows.values():
        assert 1 <= row["rf"] <= 4
        assert row["seconds"] > 0
        assert 0 <= row["mib"] < 4000
        assert set(row["balance"]) == {"nodes", "edges", "train"}
    assert rows["metis"]["within_limits"]
    assert rows["metis"]["rf"] < rows["random"]["rf"]
    assert rows["best@metis"]["rf"] <= rows["peer-metis"]["rf"]


def test_tables_show_the_rows(folder):
    rows, _ = rows_of(folder)
    factor = {name: row.get("rf") for name, row in rows.items()}
    every, streaming, cuts, peers, limits = tables(
        folder, "all", "streaming", "vertex-cuts", "peers", "limits"
    )
    every = {line["method"]: line for line in every}
    assert set(every) == set(METHODS)
    assert every["metis"]["RF"] == f"{factor['metis']:.3f}"
    over_random = {line["method"]: line[GRAPH] for line in streaming}
    assert over_random["`ldg+refine`"] == f"{factor['ldg+refine'] / factor['random']:.3f}"
    assert over_random["`spring`"] == "-"
    assert cuts[0]["libra"].split(" / ")[0] == f"{factor['libra']:.2f}"
    assert peers[0]["ratio"] == f"{factor['best@metis'] / factor['peer-metis']:.4f}"
    within = {line["method"]: line["within the limits"] for line in limits}
    assert within["`metis`"] == "1 of 1"
    assert "`random`" not in within


def test_tables_of_no_rows_are_empty(tmp_path):
    every, memory = tables(tmp_path, "all", "memory")
    assert every == []
    assert {line["best, s"] for line in memory} == {"-"}
