"""Small array tools that graphs, partitions and shards share: CSR selection, blocks and checks.

The checks return an array of the wanted dtype, without a copy where it has that dtype already,
and raise `GraphError` with the name under which the user knows the array.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import GraphError

__all__ = [
    "CHECK_CHUNK",
    "INT32_LIMIT",
    "as_bool",
    "as_float",
    "as_index",
    "as_mask",
    "as_targets",
    "check_ascending",
    "checked_indptr",
    "chunks",
    "csr_blocks",
    "csr_take",
    "describe",
    "lacks_target",
    "row_blocks",
]

Array = NDArray[Any]

INT32_LIMIT = 2**31
CHECK_CHUNK = 1 << 20  # elements looked at together, so that checks need little memory


def csr_take(indptr: Array, rows: Array) -> tuple[Array, Array]:
    """Select rows of a CSR structure.

    Args:
        indptr: int64 (R + 1,).
        rows: Integer (k,), rows to take, in this order.

    Returns:
        The new int64 indptr (k + 1,) and the int64 positions of the entries taken.
    """
    counts = indptr[rows + 1] - indptr[rows]
    new_indptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=new_indptr[1:])
    position = np.arange(new_indptr[-1]) + np.repeat(indptr[rows] - new_indptr[:-1], counts)
    return new_indptr, position


def row_blocks(counts: Array) -> Iterator[slice]:
    """Yield consecutive slices of rows that hold about `CHECK_CHUNK` entries together.

    Args:
        counts: Integer (R,), entries of each row. A row larger than the limit is not split.
    """
    if not len(counts):
        return
    block = np.cumsum(counts, dtype=np.int64) // CHECK_CHUNK
    bounds = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(counts)]
    for start, stop in pairwise(bounds):
        yield slice(start, stop)


def csr_blocks(indptr: Array, limit: int) -> Iterator[slice]:
    """Yield consecutive slices of rows, each of at most `limit` rows and entries, but one row.

    Args:
        indptr: int64 (R + 1,), which may be a mapped file: little of it is read at once.
        limit: A row with more entries is a block of its own.
    """
    start, num_rows = 0, len(indptr) - 1
    while start < num_rows:
        window = indptr[start : start + limit + 1]
        size = int(np.searchsorted(window, window[0] + limit, side="right")) - 1
        stop = start + max(1, size)
        yield slice(start, stop)
        start = stop


def chunks(array: Array) -> Iterator[Array]:
    """Yield consecutive row blocks of about `CHECK_CHUNK` elements."""
    width = max(1, int(np.prod(array.shape[1:])))
    step = max(1, CHECK_CHUNK // width)
    for start in range(0, len(array), step):
        yield array[start : start + step]


def checked_indptr(indptr: Array, num_entries: int, name: str) -> Array:
    """Check CSR offsets and return them as int64: they rise from 0 to `num_entries`."""
    indptr = np.asarray(indptr)
    if indptr.ndim != 1 or len(indptr) == 0 or indptr.dtype.kind not in "iu":
        raise GraphError(f"{name} must be a non-empty integer vector, got {describe(indptr)}")
    indptr = indptr.astype(np.int64, copy=False)
    if indptr[0] != 0 or indptr[-1] != num_entries:
        raise GraphError(
            f"{name} must rise from 0 to the number of entries ({num_entries}), got "
            f"{indptr[0]}..{indptr[-1]}"
        )
    if np.any(np.diff(indptr) < 0):
        row = int(np.argmax(np.diff(indptr) < 0))
        raise GraphError(f"{name} must never fall, got {indptr[row]}, {indptr[row + 1]} at {row}")
    return indptr


def check_ascending(indptr: Array, indices: Array) -> None:
    """Check that the entries of each CSR row ascend (copies may repeat)."""
    for start in range(1, len(indices), CHECK_CHUNK):
        block = indices[start - 1 : start + CHECK_CHUNK]
        falls = start + np.flatnonzero(block[1:] < block[:-1])
        row = np.searchsorted(indptr, falls, side="right") - 1
        inside = indptr[row] != falls  # a fall from one row to the next is no fault
        if inside.any():
            at = int(falls[np.argmax(inside)])
            raise GraphError(
                f"indices must ascend inside a row, got {indices[at]} after {indices[at - 1]} in "
                f"row {row[np.argmax(inside)]}: build the graph with graph_from_edges"
            )


def as_index(indices: Array, limit: int, name: str) -> Array:
    """Check that ids lie in 0..limit-1; int32 while `limit` is below 2^31, else int64."""
    indices = np.asarray(indices)
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and len(indices)):
        raise GraphError(f"{name} must be an integer vector, got {describe(indices)}")
    if len(indices):
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= limit:
            bad = high if high >= limit else low
            raise GraphError(f"{name} must lie in 0..{limit - 1}, got {bad}")
    return indices.astype(np.int32 if limit < INT32_LIMIT else np.int64, copy=False)


def as_float(values: Array, name: str) -> Array:
    """Check that numbers are finite; integers and booleans become float32, floats stay."""
    values = np.asarray(values)
    if values.dtype.kind in "iub":
        return values.astype(np.float32)
    if values.dtype.kind != "f":
        raise GraphError(f"{name} must hold numbers, got {describe(values)}")
    row = 0
    for block in chunks(values):
        finite = np.isfinite(block)
        if not finite.all():
            where = np.argwhere(~finite)[0]
            raise GraphError(
                f"{name} must be finite, got {block[tuple(where)]} in row {row + where[0]}: "
                "replace or drop such values first"
            )
        row += len(block)
    return values


def as_mask(mask: Array, num_nodes: int, name: str) -> Array:
    """Check a mask of one or several splits, (N,) or (N, S), and return it as bool."""
    mask = np.asarray(mask)
    if mask.ndim not in (1, 2) or len(mask) != num_nodes:
        raise GraphError(
            f"{name} must have shape (num_nodes={num_nodes},) or (num_nodes, splits), got "
            f"{mask.shape}"
        )
    return as_bool(mask, name)


def as_bool(values: Array, name: str) -> Array:
    """Check that values are booleans or 0 and 1 of any dtype, and return them as bool."""
    if values.dtype.kind == "b":
        return values
    if values.dtype.kind in "iuf" and bool(np.isin(values, (0, 1)).all()):
        return values.astype(bool)
    raise GraphError(f"{name} must hold booleans or 0 and 1, got {describe(values)}")


def as_targets(y: Array) -> Array:
    """Check that numbers to predict are finite or NaN; integers and booleans become float64."""
    if y.dtype.kind in "iub":
        return y.astype(np.float64)
    if y.dtype.kind != "f":
        raise GraphError(f"y must hold numbers to predict, got {describe(y)}")
    if np.isinf(y).any():
        where = np.argwhere(np.isinf(y))[0]
        raise GraphError(f"y must be finite, or NaN for none, got {y[tuple(where)]} at {where[0]}")
    return y


def lacks_target(y: Array) -> Array:
    """Return bool (N,), nodes of whose targets one is missing."""
    missing: Array = np.isnan(y)
    return missing if y.ndim == 1 else np.asarray(missing.any(axis=1))


def describe(values: Array) -> str:
    """Say an array's shape and dtype, for messages."""
    return f"shape {values.shape} of {values.dtype}"
