"""Reading parts of a partition folder and joining several into one shard's arrays."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import describe
from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures
from gnn_dist.shard.format import ArrayRow, Meta, part_name, read_meta

__all__ = ["ShardArrays", "read_array", "read_parts"]

Array = NDArray[Any]

OWNED_NAMES = ("y", *MASK_NAMES)
ENTRIES_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class ShardArrays:
    """The arrays of one or several consecutive parts, joined. Read-only, perhaps memory-mapped.

    Local ids: owned nodes first (0..n-1, by ascending global id), then halo nodes by ascending
    global id. Of an edge-cut, rows are owned nodes; of a vertex-cut, all local nodes, since other
    clones have in-edges here too.

    Attributes:
        meta: The folder's `meta.json`.
        parts: The parts, consecutive.
        owned_start: Global id of the first owned node.
        indptr: int64 (n + 1,), or (n + h + 1,) of a vertex-cut.
        indices: int32 (e,), local ids of sources.
        halo: int64 (h,), global ids, ascending.
        node_id: int64 (n,), original ids of owned nodes.
        x: (n, F), `CSRFeatures`, or None.
        owned: `y` and the masks that exist, (n, ...).
        edge: Edge data that exists, (e, ...).
    """

    meta: Meta
    parts: range
    owned_start: int
    indptr: Array
    indices: Array
    halo: Array
    node_id: Array
    x: Array | CSRFeatures | None
    owned: dict[str, Array]
    edge: dict[str, Array]


def read_parts(
    folder: str | Path, parts: range, *, verify: bool = True, spill: Path | None = None
) -> ShardArrays:
    """Read consecutive parts of a partition folder as one shard. Knows no other rank.

    Args:
        folder: The partition folder.
        parts: Which parts, consecutive and at least one.
        verify: Compare every file with its SHA-256; otherwise only dtypes and shapes are compared.
        spill: A folder for a nameless file with the columns of several parts, which then are mapped
            and not in memory. Those of one part are always mapped.

    Raises:
        ShardFormatError: A file is missing, truncated or damaged; the message names it.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    if not parts or parts.start < 0 or parts.stop > meta.num_parts or parts.step != 1:
        raise ShardFormatError(
            f"parts must be consecutive parts of 0..{meta.num_parts - 1}, got {parts}"
        )
    loaded = [_read_part(folder, meta, part, verify) for part in parts]
    start, stop = meta.node_ptr[parts.start], meta.node_ptr[parts.stop]
    joined = {
        name: _join([arrays.get(name) for arrays in loaded], spill if name == "x" else None)
        for name in loaded[0]
    }
    edge_ids = joined.get("edge_id")
    joint = _join_structures(folder, loaded, meta, parts, edge_ids, spill)
    edge = {name: joined[name] for name in EDGE_NAMES if name in joined}
    if joint.order is not None:
        edge = {name: values[joint.order] for name, values in edge.items()}
    shard = ShardArrays(
        meta=meta,
        parts=parts,
        owned_start=start,
        indptr=joint.indptr,
        indices=joint.indices,
        halo=joint.halo,
        node_id=joined["node_id"],
        x=_join_features(loaded, joined, meta),
        owned={name: joined[name] for name in OWNED_NAMES if name in joined},
        edge=edge,
    )
    _check(shard, folder, stop - start)
    return shard


def _read_part(folder: Path, meta: Meta, part: int, verify: bool) -> dict[str, Array]:
    rows = meta.arrays_of(part)
    missing = {"indptr", "indices", "halo", "node_id"} - set(rows)
    if missing:
        raise ShardFormatError(
            f"{folder / 'meta.json'} must list {sorted(missing)} for part {part}, and does not"
        )
    if not (folder / part_name(part)).is_dir():
        raise ShardFormatError(
            f"{folder / part_name(part)} is missing: copy the part here, or partition again"
        )
    return {name: read_array(folder / row.file, row, verify) for name, row in rows.items()}


def read_array(path: Path, row: ArrayRow, verify: bool) -> Array:
    """Read one array, mapped where it is not empty.

    Args:
        path: Its file.
        row: What `meta.json` says of it.
        verify: Compare the file with its SHA-256.

    Raises:
        ShardFormatError: The file is missing or damaged, or another array.
    """
    advice = "copy the part again, or partition the dataset again"
    if not path.is_file():
        raise ShardFormatError(f"{path} is missing: {advice}")
    if verify:
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ShardFormatError(f"{path} cannot be read ({error}): {advice}") from error
        if digest != row.sha256:
            raise ShardFormatError(
                f"{path} is damaged: its SHA-256 must be {row.sha256[:16]}..., got "
                f"{digest[:16]}...: {advice}"
            )
    try:
        # An empty file cannot be mapped.
        empty = 0 in row.shape
        values: Array = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ShardFormatError(f"{path} is damaged ({error}): {advice}") from error
    if (
        not isinstance(values, np.ndarray)
        or values.dtype.name != row.dtype
        or values.shape != row.shape
    ):
        got = "an archive" if not isinstance(values, np.ndarray) else describe(values)
        raise ShardFormatError(
            f"{path} must be {row.dtype} of shape {row.shape}, got {got}: {advice}"
        )
    return values


def _join(arrays: list[Array | None], spill: Path | None) -> Array:
    """Return arrays one after the other, in a nameless file where a folder is given."""
    present = [array for array in arrays if array is not None]
    if len(present) == 1:
        return present[0]
    total = sum(map(len, present))
    if spill is None or total == 0:
        return np.concatenate(present)
    shape = (total, *present[0].shape[1:])
    with tempfile.TemporaryFile(dir=spill) as file:
        joined = np.memmap(file, present[0].dtype, "w+", shape=shape)
    at = 0
    for array in present:
        joined[at : at + len(array)] = array
        at += len(array)
    return joined


def _join_indptr(indptrs: list[Array]) -> Array:
    if len(indptrs) == 1:
        return indptrs[0]
    return _offsets(np.concatenate([np.diff(indptr) for indptr in indptrs]))


def _offsets(counts: Array) -> Array:
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


class _Rows(NamedTuple):
    """A structure as it was read, and how many nodes it is said to be of."""

    indptr: Array
    indices: Array
    num_owned: int
    num_halo: int


class _JointStructure(NamedTuple):
    """Structure of several parts; `order` is of the edges one part after the other, if not that."""

    indptr: Array
    indices: Array
    halo: Array
    order: Array | None


def _join_structures(
    folder: Path,
    loaded: list[dict[str, Array]],
    meta: Meta,
    parts: range,
    edge_id: Array | None,
    spill: Path | None,
) -> _JointStructure:
    if len(loaded) == 1:
        only = loaded[0]
        return _JointStructure(only["indptr"], only["indices"], only["halo"], None)
    for part, arrays in zip(parts, loaded, strict=True):
        num_owned = meta.node_ptr[part + 1] - meta.node_ptr[part]
        rows = _Rows(arrays["indptr"], arrays["indices"], num_owned, len(arrays["halo"]))
        _check_structure(rows, meta, str(folder / part_name(part)))
    tables, halo = _join_ids(loaded, meta, parts)
    indptr = _join_indptr([arrays["indptr"] for arrays in loaded])
    indices = _join_columns([a["indices"] for a in loaded], tables, spill)
    if meta.cut == "edge":
        return _JointStructure(indptr, indices, halo, None)
    # A node has a row in every part where it has a clone. Copies of an edge stand side by side, in
    # the order in which they were given where that is known.
    row = np.repeat(np.concatenate(tables), np.diff(indptr))
    order = np.lexsort((indices, row) if edge_id is None else (edge_id, indices, row))
    num_rows = meta.node_ptr[parts.stop] - meta.node_ptr[parts.start] + len(halo)
    indptr = _offsets(np.bincount(row, minlength=num_rows))
    return _JointStructure(indptr, indices[order], halo, order)


def _join_columns(columns: list[Array], tables: list[Array], spill: Path | None) -> Array:
    """Return columns one part after the other, each part's translated by its table."""
    total = sum(map(len, columns))
    if spill is None or total == 0:
        joined: Array = np.empty(total, np.int32)
    else:
        with tempfile.TemporaryFile(dir=spill) as file:
            joined = np.memmap(file, np.int32, "w+", shape=(total,))
    at = 0
    for values, table in zip(columns, tables, strict=True):
        for begin in range(0, len(values), ENTRIES_AT_ONCE):
            piece = values[begin : begin + ENTRIES_AT_ONCE]
            # They lie within the table; numpy would buffer what it might have to refuse.
            np.take(table, piece, out=joined[at : at + len(piece)], mode="clip")
            at += len(piece)
    return joined


def _join_ids(
    loaded: list[dict[str, Array]], meta: Meta, parts: range
) -> tuple[list[Array], Array]:
    """Return each part's table from its local ids to the shard's, and the shard's halo.

    A halo node of one part may be owned by another of them.
    """
    start, stop = meta.node_ptr[parts.start], meta.node_ptr[parts.stop]
    halos = np.concatenate([arrays["halo"] for arrays in loaded])
    halo = np.unique(halos[(halos < start) | (halos >= stop)])
    tables = []
    for part, arrays in zip(parts, loaded, strict=True):
        own = np.arange(meta.node_ptr[part], meta.node_ptr[part + 1])
        global_id = np.concatenate([own, arrays["halo"]])
        inside = (global_id >= start) & (global_id < stop)
        remote = stop - start + np.searchsorted(halo, global_id)
        tables.append(np.where(inside, global_id - start, remote).astype(np.int32))
    return tables, halo


def _join_features(
    loaded: list[dict[str, Array]], joined: dict[str, Array], meta: Meta
) -> Array | CSRFeatures | None:
    if "x_indptr" not in joined:
        return joined.get("x")
    indptr = _join_indptr([arrays["x_indptr"] for arrays in loaded])
    return CSRFeatures(indptr, joined["x_indices"], joined.get("x_data"), meta.num_features)


def _check(shard: ShardArrays, folder: Path, num_owned: int) -> None:
    """Check that the arrays of hash-less or hand-made folders fit each other."""
    where = f"{folder}, parts {shard.parts.start}..{shard.parts.stop - 1}"
    num_edges = len(shard.indices)
    rows = _Rows(shard.indptr, shard.indices, num_owned, len(shard.halo))
    _check_structure(rows, shard.meta, where)
    _check_halo(shard, where, num_owned)
    lengths = {"node_id": len(shard.node_id), **{k: len(v) for k, v in shard.owned.items()}}
    if shard.x is not None:
        lengths["x"] = shard.x.shape[0]
    wrong = {name: count for name, count in lengths.items() if count != num_owned}
    wrong.update({k: len(v) for k, v in shard.edge.items() if len(v) != num_edges})
    if wrong:
        raise ShardFormatError(
            f"{where}: arrays must have {num_owned} rows, or {num_edges} for edges, got {wrong}"
        )


def _check_structure(structure: _Rows, meta: Meta, where: str) -> None:
    indptr, indices, num_owned, num_halo = structure
    num_edges, num_local = len(indices), num_owned + num_halo
    num_rows = num_local if meta.cut == "vertex" else num_owned
    if len(indptr) != num_rows + 1 or indptr[0] != 0 or indptr[-1] != num_edges:
        raise ShardFormatError(
            f"{where}: indptr must rise from 0 to {num_edges} over {num_rows} nodes"
        )
    if (np.diff(indptr) < 0).any():
        raise ShardFormatError(f"{where}: indptr must not fall")
    if num_edges and not 0 <= indices.min() <= indices.max() < num_local:
        raise ShardFormatError(f"{where}: indices must lie in 0..{num_local - 1}")


def _check_halo(shard: ShardArrays, where: str, num_owned: int) -> None:
    halo, start = shard.halo, shard.owned_start
    if len(halo) and (
        (np.diff(halo) <= 0).any()
        or halo[0] < 0
        or halo[-1] >= shard.meta.num_nodes
        or ((halo >= start) & (halo < start + num_owned)).any()
    ):
        raise ShardFormatError(
            f"{where}: halo must hold ascending global ids of nodes that other parts own"
        )
