"""What a partition folder holds, what its partition costs, and what each rank will need."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnn_dist.shard.format import Meta, read_meta
from gnn_dist.shard.reader import read_array

__all__ = ["HIDDEN", "LAYERS", "PartitionCard", "read_card"]

# The model that memory is predicted for, in float32.
LAYERS, HIDDEN, VALUE_BYTES = 3, 256, 4


@dataclass(frozen=True)
class PartitionCard:
    """The report card of a partition folder. Lists have one entry per part.

    Attributes:
        folder: Where it lies.
        meta: Its `meta.json`.
        traffic: `traffic[p][q]`: rows that part p sends to part q in an exchange; None where the
            parts have no list of halo nodes.
        data_bytes: Arrays that a rank loads of each part.
        training_bytes: The same and what full-batch training adds: features of halo nodes, and for
            each of `LAYERS` layers of width `HIDDEN` the rows of all sources and the owned rows of
            output and gradient. Allocators, kernels and optimisers take more.
        disk_bytes: The folder's files together.
    """

    folder: str
    meta: Meta
    traffic: list[list[int]] | None
    data_bytes: list[int]
    training_bytes: list[int]
    disk_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        for bulky in ("arrays", "structures"):
            del values["meta"][bulky]
        return {**values.pop("meta"), **values}


def read_card(folder: str | Path) -> PartitionCard:
    """Read a folder's report card: `meta.json`, lengths of files, and lists of halo nodes.

    Raises:
        ShardFormatError: The folder is none, or is damaged.
    """
    meta = read_meta(folder)
    data_bytes = [_data_bytes(meta, part) for part in range(meta.num_parts)]
    quality = meta.quality
    row_bytes = LAYERS * HIDDEN * VALUE_BYTES
    added = [
        halo * (meta.num_features * VALUE_BYTES + row_bytes) + 3 * nodes * row_bytes
        for nodes, halo in zip(quality["num_nodes"], quality["num_halo"], strict=True)
    ]
    return PartitionCard(
        folder=str(folder),
        meta=meta,
        traffic=_traffic(Path(folder), meta),
        data_bytes=data_bytes,
        training_bytes=[data + more for data, more in zip(data_bytes, added, strict=True)],
        disk_bytes=sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()),
    )


def _data_bytes(meta: Meta, part: int) -> int:
    rows = meta.arrays_of(part).values()
    return sum(int(np.prod(row.shape)) * np.dtype(row.dtype).itemsize for row in rows)


def _traffic(folder: Path, meta: Meta) -> list[list[int]] | None:
    """Count the halo nodes of each part by who owns them: halo is sorted, owners are ranges."""
    received = []
    for part in range(meta.num_parts):
        row = meta.arrays_of(part).get("halo")
        if row is None:
            return None
        halo = read_array(folder / row.file, row, verify=False)
        received.append(np.diff(np.searchsorted(halo, meta.node_ptr)))
    traffic: list[list[int]] = np.stack(received, axis=1).tolist()
    return traffic
