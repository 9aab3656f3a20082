"""The partition folder: the contract between the machine that partitions and those that train.

    meta.json        format version, sizes, node_ptr, quality, and one row for every array
    part-0000/       indptr.npy indices.npy halo.npy node_id.npy x.npy y.npy train_mask.npy ...

    cut: edge        indptr has a row for each owned node: every in-edge of it is in its part, once
    cut: vertex      indptr has a row for each local node: owned (roots of clones), then halo (other
                     clones); every edge is in exactly one part

Plain `.npy` files that a rank maps into memory, no pickles, a SHA-256 for each. A folder is written
under a temporary name and renamed when it is complete, so a folder that exists is whole.
"""

import glob
import hashlib
import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.edge_partition import (
    EdgePartition,
    EdgePartitionQuality,
    check_covers,
    measure_edge_quality,
)
from gnn_dist.errors import InputError, PartitionError, ShardFormatError
from gnn_dist.graph import CSRFeatures, Graph
from gnn_dist.partition import Partition, PartitionBook, PartitionQuality
from gnn_dist.partition_entropy import LabelEntropy, measure_label_entropy
from gnn_dist.shard.locks import locked
from gnn_dist.shard.records import check_record, fits
from gnn_dist.shard.vertex_cut import write_vertex_cut
from gnn_dist.shard.writer import MARK_BYTES, ArrayRow, Progress, part_name, write_parts

__all__ = [
    "FORMAT_VERSION",
    "META_FILE",
    "ArrayRow",
    "Meta",
    "check_target",
    "part_name",
    "read_meta",
    "remove_leftovers",
    "write_partition",
]

Array = NDArray[Any]

FORMAT_VERSION = 1
META_FILE = "meta.json"
QUALITIES: dict[str, type] = {"edge": PartitionQuality, "vertex": EdgePartitionQuality}
PARTITIONER = {"method": str, "options": dict[str, Any], "notes": list[str]}
TASKS = (None, "multiclass", "multilabel", "regression")
EDGES = {"name": "edges", "indptr": "indptr", "indices": "indices"}
STRUCTURE_ROWS = {"edge": "owned", "vertex": "local"}
FEATURE_NAMES = ("x", "x_indptr", "x_indices", "x_data")


@dataclass(frozen=True)
class Meta:
    """`meta.json`: everything about a partition folder but the arrays.

    Attributes:
        format_version: `FORMAT_VERSION` of the writer.
        dataset: Name of the dataset.
        fingerprint: Hash of the graph, the same for every partition of it.
        num_nodes: N.
        num_edges: E.
        num_parts: P.
        num_features: F, 0 without features.
        num_classes: C, None without labels and for regression.
        task: `multiclass`, `multilabel`, `regression` (`y` is floating) or None.
        num_splits: Official splits in the masks, 0 without masks.
        node_ptr: Global ids `[node_ptr[p], node_ptr[p + 1])` belong to part p.
        cut: `edge`: every in-edge of an owned node is in its part, once. `vertex`: every edge is in
            exactly one part.
        symmetric: Whether each edge has its reverse, as often and with equal weight.
        partitioner: `method`, `options` and `notes` of the partition.
        quality: `PartitionQuality.to_dict()` or `EdgePartitionQuality.to_dict()`, and where there
            are labels `label_entropy`: `LabelEntropy.to_dict()`.
        structures: Named indptr/indices pairs over the same ids, and what `rows` they have:
            `owned`, or `local` (owned, then halo).
        arrays: One row for every array of every part.
    """

    format_version: int
    dataset: str
    fingerprint: str
    num_nodes: int
    num_edges: int
    num_parts: int
    num_features: int
    num_classes: int | None
    task: str | None
    num_splits: int
    node_ptr: tuple[int, ...]
    cut: str
    symmetric: bool
    partitioner: dict[str, Any]
    quality: dict[str, Any]
    structures: tuple[dict[str, str], ...]
    arrays: tuple[ArrayRow, ...]

    @property
    def book(self) -> PartitionBook:
        """The partition book."""
        return PartitionBook(np.array(self.node_ptr))

    def arrays_of(self, part: int) -> dict[str, ArrayRow]:
        """Return the rows of one part's arrays by name."""
        return self._arrays_by_part.get(part_name(part), {})

    @cached_property
    def _arrays_by_part(self) -> dict[str, dict[str, ArrayRow]]:
        by_part: dict[str, dict[str, ArrayRow]] = {}
        for row in self.arrays:
            by_part.setdefault(row.file.partition("/")[0], {})[row.name] = row
        return by_part


def write_partition(
    graph: Graph,
    partition: Partition | EdgePartition,
    out: str | Path,
    *,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
    mark_bytes: int = MARK_BYTES,
) -> Meta:
    """Write a partition folder.

    Args:
        graph: The graph, in memory or on disk; its arrays keep their dtypes.
        partition: Its partition.
        out: The folder to make. Its parents are made too.
        overwrite: Replace an existing partition folder. Anything else is never replaced.
        progress: Called with (stage, edges done, edges in all).
        mark_bytes: As for `write_parts`.

    Returns:
        What was written to `meta.json`.

    Raises:
        PartitionError: The partition is of another graph.
        ShardFormatError: `out` exists and may not be replaced, or cannot be written.
    """
    # A link's folder is replaced, not the link to it.
    out = Path(out).resolve() if Path(out).is_symlink() else Path(out)
    _check_partition(graph, partition)
    check_target(out, overwrite)
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.mkdir(parents=True)
        with locked(temporary):  # so that nobody takes it for one that was left behind
            meta = _write_into(
                temporary, graph, partition, mark_bytes=mark_bytes, progress=progress
            )
            _move_into_place(temporary, out)
    except OSError as error:
        raise ShardFormatError(f"cannot write the partition folder {out}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return meta


def _write_into(
    folder: Path,
    graph: Graph,
    partition: Partition | EdgePartition,
    *,
    mark_bytes: int,
    progress: Progress,
) -> Meta:
    """Write all parts, then `meta.json`."""
    nodes = partition if isinstance(partition, Partition) else partition.nodes
    if isinstance(partition, Partition):
        cut = "edge"
        rows, measured = write_parts(
            graph, partition, folder, mark_bytes=mark_bytes, progress=progress
        )
        quality = measured.to_dict()
    else:
        quality = measure_edge_quality(graph, partition).to_dict()  # refuses wrong roots
        cut, rows = "vertex", write_vertex_cut(graph, partition, folder)
    meta = Meta(
        format_version=FORMAT_VERSION,
        dataset=graph.name,
        fingerprint=_fingerprint(graph),
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_parts=partition.num_parts,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        task=graph.task,
        num_splits=graph.num_splits,
        node_ptr=tuple(nodes.book.node_ptr.tolist()),
        cut=cut,
        symmetric=graph.is_symmetric,
        partitioner={
            "method": partition.method,
            "options": partition.options,
            "notes": list(partition.notes),
        },
        quality=quality | _label_entropy(graph, nodes),
        structures=({**EDGES, "rows": STRUCTURE_ROWS[cut]},),
        arrays=rows,
    )
    (folder / META_FILE).write_text(json.dumps(asdict(meta), indent=1))
    return meta


def read_meta(folder: str | Path) -> Meta:
    """Read and check `meta.json`.

    Raises:
        ShardFormatError: There is no such folder, it is no partition folder, it is of another
            format version, or `meta.json` is damaged.
    """
    folder = Path(folder)
    path = folder / META_FILE
    if not path.is_file():
        what = (
            "is no partition folder (it has no meta.json)" if folder.exists() else "does not exist"
        )
        raise ShardFormatError(f"{folder} {what}: make one with `gnn-dist partition`")
    try:
        raw = json.loads(path.read_text())
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            raise ShardFormatError(
                f"{path} must be of format version {FORMAT_VERSION}, got {version}: partition the "
                "dataset again with this version of gnn-dist"
            )
        check_record({**raw, "arrays": []}, Meta, "it")
        for row in raw["arrays"]:
            check_record(row, ArrayRow, "a row of arrays")
        raw["arrays"] = tuple(ArrayRow(**{**r, "shape": tuple(r["shape"])}) for r in raw["arrays"])
        raw["structures"] = tuple(raw["structures"])
        raw["node_ptr"] = tuple(raw["node_ptr"])
        meta = Meta(**raw)
        _check_meta(meta)
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        if isinstance(error, InputError) and not isinstance(error, PartitionError):
            raise
        raise ShardFormatError(
            f"{path} is damaged ({error}): partition the dataset again"
        ) from error
    return meta


def _check_meta(meta: Meta) -> None:
    book = meta.book
    if book.num_parts != meta.num_parts or book.num_nodes != meta.num_nodes:
        raise ValueError(
            f"node_ptr is of {book.num_parts} parts and {book.num_nodes} nodes, the header of "
            f"{meta.num_parts} and {meta.num_nodes}"
        )
    if meta.cut not in QUALITIES:
        raise ValueError(f"cut must be 'edge' or 'vertex', got {meta.cut!r}")
    if meta.task not in TASKS:
        raise ValueError(f"task must be one of {TASKS}, got {meta.task!r}")
    if min(meta.num_features, meta.num_splits, meta.num_classes or 0) < 0:
        raise ValueError("a number of features, splits or classes is negative")
    for key, annotation in PARTITIONER.items():
        if not fits(meta.partitioner.get(key), annotation):
            raise ValueError(f"partitioner lacks {key}, or it is no {annotation}")
    _check_quality(meta)
    _check_rows(meta)


def _check_rows(meta: Meta) -> None:
    for row in meta.arrays:
        folder, _, file = row.file.partition("/")
        # A name never leads out of the folder.
        if (
            file != f"{row.name}.npy"
            or not row.name.isidentifier()
            or not folder.startswith("part-")
        ):
            raise ValueError(f"array {row.name!r} has the file name {row.file!r}")
        if min(row.shape, default=0) < 0 or np.dtype(row.dtype).hasobject:
            raise ValueError(f"{row.file} has shape {row.shape} and dtype {row.dtype!r}")


def _check_quality(meta: Meta) -> None:
    check_record(meta.quality, QUALITIES[meta.cut], "quality")
    if not fits(meta.quality.get("balance"), dict[str, float]):
        raise ValueError(f"quality lacks balance, or it is {meta.quality.get('balance')!r}")
    tables = [("quality", meta.quality)]
    if "label_entropy" in meta.quality:
        check_record(meta.quality["label_entropy"], LabelEntropy, "label_entropy")
        tables.append(("label_entropy", meta.quality["label_entropy"]))
    for name, table in tables:
        for key, values in table.items():
            if isinstance(values, list) and len(values) != meta.num_parts:
                raise ValueError(f"{name}: {key} must have {meta.num_parts} entries, got {values}")
    if sum(meta.quality["num_edges"]) != meta.num_edges:
        raise ValueError(f"num_edges is {meta.num_edges}, of the parts {meta.quality['num_edges']}")


def check_target(out: Path, overwrite: bool) -> None:
    """Check that a partition folder may be written.

    Raises:
        ShardFormatError: `out` exists and is no partition folder, or may not be replaced.
    """
    if not out.exists() and not out.is_symlink():
        return
    if not (out / META_FILE).is_file():
        raise ShardFormatError(f"{out} exists and is no partition folder: choose another --out")
    if not overwrite:
        raise ShardFormatError(
            f"{out} exists: choose another --out, or replace it with --overwrite"
        )


def remove_leftovers(out: Path) -> None:
    """Delete what a process that was killed while it wrote `out` has left beside it.

    What a process is still writing stays.
    """
    for path in out.parent.glob(f".{glob.escape(out.name)}.????????.tmp"):
        with locked(path) as abandoned:
            if abandoned:
                shutil.rmtree(path, ignore_errors=True)


def _move_into_place(temporary: Path, out: Path) -> None:
    if out.exists():
        # Renamed first, so that no moment shows a half-deleted folder under the final name.
        old = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.old")
        os.rename(out, old)
        os.rename(temporary, out)
        shutil.rmtree(old)
    else:
        os.rename(temporary, out)


def _check_partition(graph: Graph, partition: Partition | EdgePartition) -> None:
    """Check that a partition is of a graph's size.

    Raises:
        PartitionError: It is not.
    """
    if isinstance(partition, EdgePartition):
        check_covers(graph, partition)
    elif len(partition.assignment) != graph.num_nodes:
        raise PartitionError(
            f"the partition must cover the graph's {graph.num_nodes} nodes, got "
            f"{len(partition.assignment)}"
        )


def _label_entropy(graph: Graph, nodes: Partition) -> dict[str, Any]:
    """Return the report on labels by its key; nothing without classes."""
    if graph.y is None or graph.task == "regression":
        return {}
    entropy = measure_label_entropy(
        graph.y, nodes.assignment, nodes.num_parts, train_mask=graph.train_mask
    )
    return {} if entropy is None else {"label_entropy": entropy.to_dict()}


def _fingerprint(graph: Graph) -> str:
    """Hash what training depends on; equal for every partition of one graph."""
    digest = hashlib.sha256(f"{graph.num_nodes} {graph.num_edges} {graph.num_features}".encode())
    arrays = [graph.indptr, graph.indices, graph.y, graph.edge_weight]
    if isinstance(graph.x, CSRFeatures):
        arrays += [graph.x.indptr, graph.x.indices, graph.x.data]
    else:
        arrays.append(graph.x)
    for values in arrays:
        if values is not None:
            digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:32]
