"""Reading parts of a partition folder and joining several into one shard's arrays."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures
from gnn_dist.shard.format import ArrayRow, Meta, part_name, read_meta

__all__ = ["ShardArrays", "read_parts"]

Array = NDArray[Any]

OWNED_NAMES = ("y", *MASK_NAMES)


@dataclass(frozen=True, eq=False)
class ShardArrays:
    """The arrays of one or several consecutive parts, joined. Read-only, perhaps memory-mapped.

    Local ids: owned nodes first (0..n-1, by ascending global id), then halo nodes by ascending
    global id.

    Attributes:
        meta: The folder's `meta.json`.
        parts: The parts, consecutive.
        owned_start: Global id of the first owned node.
        indptr: int64 (n + 1,).
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


def read_parts(folder: str | Path, parts: range, *, verify: bool = True) -> ShardArrays:
    """Read consecutive parts of a partition folder as one shard. Knows no other rank.

    Args:
        folder: The partition folder.
        parts: Which parts, consecutive and at least one.
        verify: Compare every file with its SHA-256; otherwise only dtypes and shapes are compared.

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
    joined = {name: _join([arrays.get(name) for arrays in loaded]) for name in loaded[0]}
    indices, halo = _join_sources(loaded, meta, parts)
    shard = ShardArrays(
        meta=meta,
        parts=parts,
        owned_start=start,
        indptr=_join_indptr([arrays["indptr"] for arrays in loaded]),
        indices=indices,
        halo=halo,
        node_id=joined["node_id"],
        x=_join_features(loaded, joined, meta),
        owned={name: joined[name] for name in OWNED_NAMES if name in joined},
        edge={name: joined[name] for name in EDGE_NAMES if name in joined},
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
    return {name: _read_array(folder / row.file, row, verify) for name, row in rows.items()}


def _read_array(path: Path, row: ArrayRow, verify: bool) -> Array:
    advice = "copy the part again, or partition the dataset again"
    if not path.is_file():
        raise ShardFormatError(f"{path} is missing: {advice}")
    if verify:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
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
    if values.dtype.name != row.dtype or values.shape != row.shape:
        raise ShardFormatError(
            f"{path} must be {row.dtype} of shape {row.shape}, got {values.dtype} of shape "
            f"{values.shape}: {advice}"
        )
    return values


def _join(arrays: list[Array | None]) -> Array:
    present = [array for array in arrays if array is not None]
    return present[0] if len(present) == 1 else np.concatenate(present)


def _join_indptr(indptrs: list[Array]) -> Array:
    if len(indptrs) == 1:
        return indptrs[0]
    counts = np.concatenate([np.diff(indptr) for indptr in indptrs])
    joined = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=joined[1:])
    return joined


def _join_sources(loaded: list[dict[str, Array]], meta: Meta, parts: range) -> tuple[Array, Array]:
    """Return (indices, halo): a halo node of one part may be owned by another of them."""
    if len(loaded) == 1:
        return loaded[0]["indices"], loaded[0]["halo"]
    start, stop = meta.node_ptr[parts.start], meta.node_ptr[parts.stop]
    halos = np.concatenate([arrays["halo"] for arrays in loaded])
    halo = np.unique(halos[(halos < start) | (halos >= stop)])
    joined = []
    for part, arrays in zip(parts, loaded, strict=True):
        # A table from the part's local ids to the shard's: work per node, not per edge.
        own = np.arange(meta.node_ptr[part], meta.node_ptr[part + 1])
        global_id = np.concatenate([own, arrays["halo"]])
        inside = (global_id >= start) & (global_id < stop)
        remote = stop - start + np.searchsorted(halo, global_id)
        table = np.where(inside, global_id - start, remote).astype(np.int32)
        joined.append(table[arrays["indices"]])
    return np.concatenate(joined), halo


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
    indptr = shard.indptr
    if len(indptr) != num_owned + 1 or indptr[0] != 0 or indptr[-1] != num_edges:
        raise ShardFormatError(
            f"{where}: indptr must rise from 0 to {num_edges} over {num_owned} nodes"
        )
    if (np.diff(indptr) < 0).any():
        raise ShardFormatError(f"{where}: indptr must not fall")
    num_sources = num_owned + len(shard.halo)
    if num_edges and not 0 <= shard.indices.min() <= shard.indices.max() < num_sources:
        raise ShardFormatError(f"{where}: indices must lie in 0..{num_sources - 1}")
    _check_halo(shard, where, num_owned)
    rows = {"node_id": len(shard.node_id), **{k: len(v) for k, v in shard.owned.items()}}
    if shard.x is not None:
        rows["x"] = shard.x.shape[0]
    wrong = {name: count for name, count in rows.items() if count != num_owned}
    wrong.update({k: len(v) for k, v in shard.edge.items() if len(v) != num_edges})
    if wrong:
        raise ShardFormatError(
            f"{where}: arrays must have {num_owned} rows, or {num_edges} for edges, got {wrong}"
        )


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
