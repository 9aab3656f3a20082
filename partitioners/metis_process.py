"""METIS in a process of its own, so that nothing it does can harm or mislead the caller."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError

__all__ = ["run_metis", "write_integers"]

Array = NDArray[Any]

WORKER = Path(__file__).with_name("_metis_worker.py")
LOG_TAIL = 400  # characters of METIS's output that a message quotes


def write_integers(file: BinaryIO, values: Array) -> None:
    """Append integers to a file, as raw int64 of this machine's byte order.

    Plain writes, since a full disk then is an `OSError`; behind a memory map it kills the process.
    """
    file.write(values.astype(np.int64, copy=False).data)


def run_metis(
    folder: Path, num_nodes: int, num_parts: int, *, recursive: bool, options: dict[str, int]
) -> Array:
    """Run METIS on the vectors that a folder holds and check what it returns.

    Args:
        folder: Holds `indptr indices node_weight` and perhaps `edge_weight`, as `write_integers`
            writes them, in `<name>.int64`.
        num_nodes: The graph's nodes.
        num_parts: 2 to `num_nodes`.
        recursive: Recursive bisection instead of the direct k-way algorithm.
        options: METIS options by their lower-case names.

    Returns:
        int32 (num_nodes,), parts in 0..num_parts - 1, of which some may be empty.

    Raises:
        PartitionError: The process could not be started or failed, or its result is no partition.
    """
    problem = {"num_parts": num_parts, "recursive": recursive, "options": options}
    (folder / "problem.json").write_text(json.dumps(problem))
    # A fresh interpreter, not a fork, which would copy locks that other threads hold. -P keeps
    # this folder, and so the name of every module in it, out of the child's path.
    command = [sys.executable, "-P", "-W", "ignore", str(WORKER), str(folder), str(os.getpid())]
    with (folder / "log.txt").open("wb") as log:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    where = f"METIS on {num_nodes} nodes in {num_parts} parts"
    if code:
        raise PartitionError(f"{where} {_reason(code, folder / 'log.txt')}")
    return _checked(folder, num_nodes, num_parts, where)


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


def _checked(folder: Path, num_nodes: int, num_parts: int, where: str) -> Array:
    parts: Array = np.load(folder / "parts.npy")
    cut = json.loads((folder / "cut.json").read_text())
    low, high = int(parts.min(initial=0)), int(parts.max(initial=0))
    if parts.shape == (num_nodes,) and low >= 0 and high < num_parts and cut >= 0:
        return parts
    raise PartitionError(
        f"{where} returned no partition ({len(parts)} entries in {low}..{high}, cut {cut}): try "
        "another seed, or --method contiguous"
    )
