"""Tools in a process of their own, so that nothing they do can harm or mislead the caller."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.partitioners.balance import Balance

__all__ = ["ChildResult", "run_child", "run_metis", "write_integers"]

Array = NDArray[Any]

WORKER = Path(__file__).with_name("_worker.py")
LOG_TAIL = 400  # characters of the tool's output that a message quotes
MIN_IMBALANCE = 0.001


class ChildResult(NamedTuple):
    """What a tool returned.

    Attributes:
        parts: int32 (N,), parts in 0..P - 1, of which some may be empty.
        folded: Whether several constraints had to be folded into one.
    """

    parts: Array
    folded: bool


def write_integers(file: BinaryIO, values: Array) -> None:
    """Append integers to a file, as raw int64 of this machine's byte order.

    Plain writes, since a full disk then is an `OSError`; behind a memory map it kills the process.
    """
    file.write(values.astype(np.int64, copy=False).data)


def run_metis(
    folder: Path, balance: Balance, *, recursive: bool, options: dict[str, int]
) -> ChildResult:
    """Run METIS on the vectors that a folder holds and check what it returns.

    Args:
        folder: Holds `indptr indices` and perhaps `edge_weight`, as `write_integers` writes them,
            in `<name>.int64`.
        balance: The constraints on the graph's N nodes, 2 <= P <= N.
        recursive: Recursive bisection instead of the direct k-way algorithm.
        options: METIS options by their lower-case names.

    Raises:
        PartitionError: The process could not be started or failed, or its result is no partition.
        OSError: The folder cannot be written to.
    """
    problem = {
        "tool": "metis",
        "num_constraints": len(balance.names),
        "targets": balance.targets.tolist(),
        # METIS does not converge on an imbalance of nothing at all.
        "imbalance": np.maximum(balance.imbalance, MIN_IMBALANCE).tolist(),
        "recursive": recursive,
        "options": options,
    }
    where = f"METIS on {len(balance.weights)} nodes in {balance.num_parts} parts"
    return run_child(folder, problem, balance.weights, balance.num_parts, where=where)


def run_child(
    folder: Path, problem: dict[str, Any], weights: Array, num_parts: int, *, where: str
) -> ChildResult:
    """Run a tool on what a folder holds and check what it returns.

    Args:
        folder: Holds the vectors that the tool takes, but for the weights.
        problem: `tool`, and what else the worker's function for it reads.
        weights: int64 (N,) or (N, K), the nodes' weights.
        num_parts: P.
        where: What is being done, for messages.

    Raises:
        PartitionError: The process could not be started or failed, or its result is no partition.
        OSError: The folder cannot be written to.
    """
    (folder / "problem.json").write_text(json.dumps(problem))
    with (folder / "node_weight.int64").open("wb") as node_weight:
        write_integers(node_weight, weights)
    # A fresh interpreter, not a fork, which would copy locks that other threads hold. -P keeps
    # this folder, and so the name of every module in it, out of the child's path.
    command = [sys.executable, "-P", "-W", "ignore", str(WORKER), str(folder), str(os.getpid())]
    with (folder / "log.txt").open("wb") as log:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        raise PartitionError(f"{where} {_reason(code, folder / 'log.txt')}")
    return _checked(folder, len(weights), num_parts, where)


def _reason(code: int, log: Path) -> str:
    """Say how the child ended, what it said last, and what to do."""
    lines = log.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip().splitlines()
    said = f" ({lines[-1]})" if lines else ""
    if code == -signal.SIGKILL:
        return (
            f"was killed{said}, most likely because memory ran out: use a machine with more of "
            "it, or --method contiguous"
        )
    end = f"failed with exit code {code}"
    if code < 0:
        end = f"died of signal {-code}, {signal.strsignal(-code)}"
    return f"{end}{said}: try another seed, recursive=True or False, or --method contiguous"


def _checked(folder: Path, num_nodes: int, num_parts: int, where: str) -> ChildResult:
    parts: Array = np.load(folder / "parts.npy")
    result = json.loads((folder / "result.json").read_text())
    low, high = int(parts.min(initial=0)), int(parts.max(initial=0))
    cut = result["cut"]
    if parts.shape == (num_nodes,) and low >= 0 and high < num_parts and cut >= 0:
        return ChildResult(parts, bool(result["folded"]))
    raise PartitionError(
        f"{where} returned no partition ({len(parts)} entries in {low}..{high}, cut {cut}): try "
        "another seed, or --method contiguous"
    )
