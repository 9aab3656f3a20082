"""What partitioning a stream will take: memory, disk and time, before any of it is used."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from gnn_dist.edge_stream import EdgeStream, id_dtype
from gnn_dist.errors import ConfigError
from gnn_dist.out_of_core.external_sort import SORT_BYTES
from gnn_dist.shard.writer import MARK_BYTES

__all__ = ["Plan", "make_plan"]

MIB = 1 << 20
# The interpreter with PyTorch and the kernels, and blocks of edges on their way to the parts.
BASE_BYTES, BLOCK_BYTES = 400 * MIB, 320 * MIB
LEAST_SORT_BYTES = 64 * MIB
# Two cores and one disk, to give an order of magnitude.
EDGES_PER_S, DISK_BYTES_PER_S = 30e6, 300e6


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        memory_bytes: Anonymous memory at the peak, beside what the partitioner itself asks for.
        sort_bytes: What of it the sort may use.
        mark_bytes: What of it halo marks may use.
        work_bytes: Disk for the work folder.
        out_bytes: Disk for the part folders.
        seconds: Time, partitioner apart.
    """

    memory_bytes: int
    sort_bytes: int
    mark_bytes: int
    work_bytes: int
    out_bytes: int
    seconds: float

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"memory {_size(self.memory_bytes)}, disk {_size(self.work_bytes)} for work and "
            f"{_size(self.out_bytes)} for parts, about {self.seconds / 60:.1f} minutes, all beside "
            "the partitioner's own"
        )


def make_plan(
    stream: EdgeStream,
    num_parts: int,
    out: Path,
    *,
    memory_limit: int | None = None,
    symmetrize: bool = False,
    work: Path | None = None,
) -> Plan:
    """Plan a run.

    Args:
        stream: The edges.
        num_parts: P.
        out: The partition folder to be made.
        memory_limit: Bytes that the process may take; None for no limit.
        symmetrize: Whether reverse edges are added.
        work: The work folder, by default on the disk of `out`. What an earlier run left there is
            not needed again.

    Raises:
        ConfigError: The limit or the disk does not suffice; the message says what would.
    """
    num_nodes = stream.num_nodes
    num_edges = stream.num_edges * (2 if symmetrize else 1)
    # Assignment, order and global ids; a quarter of a byte a node marks the halo of one part.
    ids_bytes = 24 * num_nodes
    one_part = num_nodes // 4
    least = BASE_BYTES + max(LEAST_SORT_BYTES, ids_bytes + one_part + BLOCK_BYTES)
    limit = least + 2 * SORT_BYTES if memory_limit is None else memory_limit
    if limit < least:
        raise ConfigError(
            f"partitioning {stream.name} ({num_nodes} nodes, {num_edges} edges) needs at least "
            f"{_size(least)} of memory beside the partitioner, got --memory-limit {_size(limit)}"
        )
    sort_bytes = min(SORT_BYTES, limit - BASE_BYTES)
    spare = limit - BASE_BYTES - ids_bytes - BLOCK_BYTES
    mark_bytes = min(MARK_BYTES, spare, one_part * num_parts)
    work_bytes = num_edges * (8 + id_dtype(num_nodes).itemsize) + 12 * num_nodes
    parts = num_edges * 4 + 16 * num_nodes + _node_bytes(stream)
    _check_disks([(work or out, "--work", work_bytes - _held(work)), (out, "--out", parts)])
    return Plan(
        BASE_BYTES + max(sort_bytes, ids_bytes + mark_bytes + BLOCK_BYTES),
        sort_bytes,
        mark_bytes,
        work_bytes,
        parts,
        3 * num_edges / EDGES_PER_S + 2 * (work_bytes + parts) / DISK_BYTES_PER_S,
    )


def _node_bytes(stream: EdgeStream) -> int:
    names = ("x", "y", "train_mask", "val_mask", "test_mask")
    return sum(stream.node_data[name].nbytes for name in names if name in stream.node_data)


def _held(work: Path | None) -> int:
    """Return the bytes on disk that a work folder takes already."""
    if work is None or not work.is_dir():
        return 0
    return sum(path.stat().st_blocks * 512 for path in work.iterdir() if path.is_file())


def _check_disks(needs: list[tuple[Path, str, int]]) -> None:
    """Check that each disk has room for all that goes there: (where, option, bytes)."""
    disks: dict[int, list[tuple[Path, str, int]]] = {}
    for path, option, needed in needs:
        folder = path.absolute()
        while not folder.exists():
            folder = folder.parent
        disks.setdefault(folder.stat().st_dev, []).append((folder, option, max(0, needed)))
    for on_disk in disks.values():
        folder, option = on_disk[-1][:2]
        needed, free = sum(n for _, _, n in on_disk), shutil.disk_usage(folder).free
        if free < needed:
            raise ConfigError(
                f"partitioning needs {_size(needed)} of disk under {folder}, got {_size(free)} "
                f"free: choose another {option}"
            )


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
