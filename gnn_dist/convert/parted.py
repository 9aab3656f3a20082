"""What all formats of partition folders have in common: a graph that is read part by part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import csr_take
from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import CSRFeatures, Graph
from gnn_dist.partition import Partition
from gnn_dist.shard.records import fits

__all__ = [
    "OUR_KEY",
    "PartData",
    "PartedGraph",
    "dense",
    "our_record",
    "part_of_edges",
    "read_record",
]

Array = NDArray[Any]

OUR_KEY = "gnn_dist"  # in the metadata of other systems: what they have no word for
OUR_FIELDS: dict[str, Any] = {
    "dataset": str,
    "method": str,
    "options": dict[str, Any],
    "notes": list[str],
    "num_classes": int | None,
    "edge_ids_given": bool,
    "sparse_x": str | None,
    "regression": bool,
}


@dataclass(frozen=True, eq=False)
class PartData:
    """One part: its nodes, and all their in-edges. Ids are original ids.

    Attributes:
        node_id: int64 (n,), the nodes that the part owns, ascending.
        indptr: int64 (n + 1,), offsets of their rows.
        src: Integer (e,), where each in-edge starts.
        edge_number: int64 (e,), the edge's position in the list of all edges.
        node: `x y train_mask ...` where they exist, (n, ...).
        edge: `edge_weight ...` where they exist, (e, ...).
    """

    node_id: Array
    indptr: Array
    src: Array
    edge_number: Array
    node: dict[str, Array | CSRFeatures]
    edge: dict[str, Array]

    @property
    def dst(self) -> Array:
        """int64 (e,), where each in-edge ends."""
        return np.repeat(self.node_id, np.diff(self.indptr))


@dataclass(frozen=True, eq=False)
class PartedGraph:
    """A partitioned graph on disk.

    Attributes:
        name: Of the dataset.
        partition: Which part owns each node, and how that was decided.
        num_edges: E.
        num_classes: C; None where only the labels tell.
        edge_ids_given: Whether edge numbers are positions in the user's list of edges; otherwise
            they were made up when the folder was written.
        read: Reads one part.
        sparse_x: Whether features were sparse before others' formats held them in full: `ones`
            where every stored value was one, `values`, or None. They are made sparse again.
        regression: Whether `y` are numbers to predict.
    """

    name: str
    partition: Partition
    num_edges: int
    num_classes: int | None
    edge_ids_given: bool
    read: Callable[[int], PartData]
    sparse_x: str | None = None
    regression: bool = False

    def parts(self) -> Iterator[PartData]:
        """Read all parts, one after the other, and check that they are the whole graph.

        Raises:
            ShardFormatError: A part holds other nodes than the partition says, or there are more
                or fewer edges than there should be.
        """
        node_ptr = self.partition.book.node_ptr
        num_edges = 0
        for part in range(self.partition.num_parts):
            data = self.read(part)
            owned = self.partition.order[node_ptr[part] : node_ptr[part + 1]]
            if not np.array_equal(data.node_id, owned):
                raise ShardFormatError(
                    f"part {part} must hold the {len(owned)} nodes that the partition gives it, "
                    f"got {len(data.node_id)}, or others: write the folder again"
                )
            num_edges += len(data.src)
            x = data.node.get("x")
            if self.sparse_x and isinstance(x, np.ndarray):
                data = replace(data, node={**data.node, "x": _sparse(x, self.sparse_x)})
            yield data
        if num_edges != self.num_edges:
            raise ShardFormatError(
                f"the parts must hold the graph's {self.num_edges} edges together, got "
                f"{num_edges}: write the folder again"
            )

    def graph(self) -> Graph:
        """Return the whole graph, which needs memory for it twice.

        Raises:
            ShardFormatError: The parts are not the whole graph.
            GraphError: An array has a wrong shape, dtype or value.
        """
        parts = list(self.parts())
        counts = np.concatenate([np.diff(part.indptr) for part in parts])
        indptr = np.concatenate([[0], np.cumsum(counts)])
        src = np.concatenate([part.src for part in parts])
        # The parts one after the other are the graph by global ids.
        rows = self.partition.global_id
        indptr, position = csr_take(indptr, rows)
        node = {
            name: _take(_joined(values), rows)
            for name, values in _columns([p.node for p in parts], [len(p.node_id) for p in parts])
        }
        edge = {
            name: _take(_joined(values), position)
            for name, values in _columns([p.edge for p in parts], [len(p.src) for p in parts])
        }
        if self.edge_ids_given:
            numbers = np.concatenate([part.edge_number for part in parts])
            edge["edge_id"] = numbers[position]
        fields = {**node, **edge, "num_classes": self.num_classes, "name": self.name}
        return Graph(indptr, src[position], regression=self.regression, **fields)


def our_record(parted: PartedGraph) -> dict[str, Any]:
    """Return what the metadata of other systems have no word for, as plain values."""
    return {
        "dataset": parted.name,
        "num_classes": parted.num_classes,
        "edge_ids_given": parted.edge_ids_given,
        "sparse_x": parted.sparse_x,
        "regression": parted.regression,
        "method": parted.partition.method,
        "options": parted.partition.options,
        "notes": list(parted.partition.notes),
    }


def dense(values: Array | CSRFeatures) -> Array:
    """Return an array of its own, which may be changed; sparse features in full."""
    return values.to_dense() if isinstance(values, CSRFeatures) else np.array(values)


def _sparse(x: Array, kind: str) -> CSRFeatures:
    stored = x != 0
    rows, columns = np.nonzero(stored)
    counts = np.bincount(rows, minlength=len(x))
    values = None if kind == "ones" and (x[stored] == 1).all() else x[stored]
    return CSRFeatures(np.concatenate([[0], np.cumsum(counts)]), columns, values, x.shape[1])


def read_record(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what we wrote under our key of other systems' metadata; nothing if they wrote it.

    Raises:
        ShardFormatError: It is something else than we write; `path` names the file.
    """
    record = meta.get(OUR_KEY, {})
    if not isinstance(record, dict):
        raise ShardFormatError(f"{path} is damaged: {OUR_KEY} must be a table, got {record!r}")
    for name, annotation in OUR_FIELDS.items():
        if name in record and not fits(record[name], annotation):
            raise ShardFormatError(
                f"{path} is damaged: {OUR_KEY}, {name} must be {annotation}, got {record[name]!r}"
            )
    return record


def part_of_edges(data: PartData, dst: Array, *, by_number: bool) -> PartData:
    """Bring a part that is a list of edges in the order that `PartData` has.

    Args:
        data: Its nodes in any order; its edges too, `indptr` not looked at.
        dst: Integer (e,), where each edge ends.
        by_number: Sort copies of an edge by their numbers, as `graph_from_edges` does with a
            user's list; otherwise they stay in the given order.

    Returns:
        Nodes by id, edges by (dst, src).

    Raises:
        ShardFormatError: An edge ends at a node that the part does not own.
    """
    by_id = np.argsort(data.node_id, kind="stable")
    node_id = data.node_id[by_id]
    row = np.searchsorted(node_id, dst)
    foreign = node_id[np.minimum(row, len(node_id) - 1)] != dst if len(node_id) else dst == dst
    if foreign.any():
        raise ShardFormatError(
            f"a part must hold in-edges of its own nodes only, got an edge that ends at node "
            f"{dst[np.argmax(foreign)]}: write the folder again"
        )
    keys = (data.src, row)
    order = np.lexsort((data.edge_number, *keys) if by_number else keys)
    counts = np.bincount(row, minlength=len(node_id))
    return replace(
        data,
        node_id=node_id,
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        src=data.src[order],
        edge_number=data.edge_number[order],
        node={name: _take(values, by_id) for name, values in data.node.items()},
        edge={name: values[order] for name, values in data.edge.items()},
    )


def _take(values: Array | CSRFeatures, rows: Array) -> Any:  # noqa: ANN401 - either of the two
    return values.take(rows) if isinstance(values, CSRFeatures) else values[rows]


def _columns(
    parts: Sequence[Mapping[str, Array | CSRFeatures]], sizes: Sequence[int]
) -> Iterator[tuple[str, list[Array | CSRFeatures]]]:
    """Yield every name with its values in each part, which all parts but empty ones must have."""
    filled = [part for part in range(len(parts)) if sizes[part]] or [0]
    names = sorted(parts[filled[0]])
    for part in filled:
        if sorted(parts[part]) != names:
            raise ShardFormatError(
                f"all parts must hold the same data, got {names} in part {filled[0]} and "
                f"{sorted(parts[part])} in part {part}"
            )
    for name in names:
        yield name, [parts[part][name] for part in filled]


def _joined(blocks: list[Array | CSRFeatures]) -> Array | CSRFeatures:
    sparse = [block for block in blocks if isinstance(block, CSRFeatures)]
    if not sparse:
        return np.concatenate([block for block in blocks if isinstance(block, np.ndarray)])
    counts = np.concatenate([np.diff(block.indptr) for block in sparse])
    values = [block.data for block in sparse if block.data is not None]
    return CSRFeatures(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([block.indices for block in sparse]),
        np.concatenate(values) if values else None,
        sparse[0].num_features,
    )
