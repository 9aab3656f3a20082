"""The kernel benchmark runs, with our own candidates alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np

MAIN = Path(__file__).parents[1] / "scripts/benchmarks/kernels/main.py"


def test_a_quick_run_prints_a_table(tmp_path):
    command = [sys.executable, str(MAIN), "--quick", "--cache", str(tmp_path), "--peers"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    header, *rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    columns = [cell.strip() for cell in header.strip("|").split("|")]
    cells = [
        dict(zip(columns, (c.strip() for c in row.strip("|").split("|")), strict=True))
        for row in rows
    ]
    ours = [row for row in cells if row["candidate"] == "gnn-dist"]
    names = ("sum", "mean", "weighted sum", "max", "GAT layer", "gather_rows", "relu", "sampling")
    for name in names:
        mine = [row for row in ours if row["case"].startswith(name)]
        assert mine
        assert all(float(row["ms"]) > 0 for row in mine)
    largest = max(tmp_path.iterdir(), key=lambda path: path.stat().st_size)
    with np.load(largest) as arrays:
        indptr, indices = arrays["indptr"], arrays["indices"]
    assert indptr.size - 1 == 2**14
    assert indices.size == indptr[-1] == 16 * 2**14
    degree = np.diff(indptr)
    assert degree.max() > 50 * degree.mean()  # hubs
