"""Reading edge lists: `.csv`, `.tsv`, `.parquet` and `.npy`.

Text is parsed by NumPy in one go; only when that fails are the lines gone through one by one, to
say which line and value is at fault.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import read_npy
from gnn_dist.errors import DatasetError

__all__ = ["EDGE_SUFFIXES", "EdgeList", "choose_columns", "header", "read_edges"]

Array = NDArray[Any]

DELIMITERS = {".csv": ",", ".tsv": "\t"}
EDGE_SUFFIXES = (*DELIMITERS, ".parquet", ".npy")
SRC_NAMES = ("src", "source", "from")
DST_NAMES = ("dst", "target", "destination", "to")
INTEGER = re.compile(r"[+-]?\d+")
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges as they stand in a file.

    Attributes:
        src: int64 (E,).
        dst: int64 (E,).
        weight: Floating or integer (E,), or None.
        locate: Tells where an edge stands in the file, by its position in `src`.
    """

    src: Array
    dst: Array
    weight: Array | None
    locate: Callable[[int], str]


def read_edges(path: Path) -> EdgeList:
    """Read an edge list.

    A table has two columns and may have a third, the weight. Columns with names are taken as
    `src`/`source`/`from` and `dst`/`target`/`destination`/`to` where both are there, else the
    first two in order; a further one must be called `weight`. An array has shape (2, E) or (E, 2);
    one of shape (2, 2) is read as (2, E).

    Raises:
        DatasetError: The file is empty, damaged, or holds something else than edges.
    """
    suffix = path.suffix.lower()
    if suffix in DELIMITERS:
        return _read_text(_TextFile(path, DELIMITERS[suffix]))
    return _read_parquet(path) if suffix == ".parquet" else _read_array(path)


@dataclass(frozen=True)
class _TextFile:
    """A text table: lines that are blank or start with `#` do not count."""

    path: Path
    delimiter: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number from 1, fields) of each line that counts."""
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, start=1):
                    text = line.partition("#")[0].strip()
                    if text:
                        yield number, [part.strip() for part in text.split(self.delimiter)]
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{self.path} must be a UTF-8 text file: {error}") from error


def _read_text(file: _TextFile) -> EdgeList:
    top = list(islice(file.rows(), 2))
    if not top:
        raise DatasetError(f"{file.path} must hold edges, got an empty file")
    names = header(top[0][1])
    width = len(top[0][1])
    columns = choose_columns(names or ["src", "dst", "weight"][:width], width, str(file.path))
    body = top[1:] if names else top
    if not body:
        return EdgeList(np.zeros(0, np.int64), np.zeros(0, np.int64), None, str)
    weight_column = columns.get("weight")
    kinds = [(f"f{i}", "f8" if i == weight_column else "i8") for i in range(width)]
    first = int(names is not None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older NumPy only warns where it cuts 1.5 to 1
            table = np.loadtxt(
                file.path,
                kinds,
                delimiter=file.delimiter,
                skiprows=body[0][0] - 1,
                ndmin=1,
                encoding="utf-8-sig",
            )
    except (ValueError, OverflowError, DeprecationWarning) as error:
        raise _text_fault(file, first, kinds, error) from error
    src, dst = table[f"f{columns['src']}"], table[f"f{columns['dst']}"]
    weight = None if weight_column is None else table[f"f{weight_column}"]
    return EdgeList(src, dst, weight, lambda edge: f"line {_line_of(file, first + edge)}")


def header(fields: list[str]) -> list[str] | None:
    """Return column names if the fields are such: none of them is a number."""
    names = [field.strip("\"'") for field in fields]
    return None if any(_is_number(name) for name in names) else names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def choose_columns(names: Sequence[str], width: int, where: str) -> dict[str, int]:
    """Return the positions of `src`, `dst` and, where it is there, `weight`.

    Raises:
        DatasetError: The columns are not those of an edge list; `where` names the file.
    """
    if not 2 <= width <= 3:
        raise DatasetError(
            f"{where} must have two columns, and a third one for weights if any, got {width}"
        )
    lower = [name.lower() for name in names]
    src = [i for i, name in enumerate(lower) if name in SRC_NAMES]
    dst = [i for i, name in enumerate(lower) if name in DST_NAMES]
    if len(src) == len(dst) == 1:
        columns = {"src": src[0], "dst": dst[0]}
    elif not src and not dst and "weight" not in lower[:2]:
        columns = {"src": 0, "dst": 1}
    else:
        raise DatasetError(
            f"{where} must name one column src and one dst, got {', '.join(names)}: rename them"
        )
    for rest in set(range(width)) - set(columns.values()):
        if lower[rest] != "weight":
            raise DatasetError(
                f"{where} may have one column besides the ends, called weight, got "
                f"{names[rest]!r}: rename or drop it"
            )
        columns["weight"] = rest
    return columns


def _text_fault(
    file: _TextFile, first: int, kinds: list[tuple[str, str]], error: Exception
) -> DatasetError:
    """Find the line that NumPy stumbled over."""
    for number, fields in islice(file.rows(), first, None):
        where = f"{file.path}, line {number}"
        if len(fields) != len(kinds):
            return DatasetError(f"{where} must have {len(kinds)} values, got {len(fields)}")
        for text, (_, kind) in zip(fields, kinds, strict=True):
            if kind == "i8" and not (
                INTEGER.fullmatch(text) and INT64.min <= int(text) <= INT64.max
            ):
                return DatasetError(f"{where} must hold whole numbers as node ids, got {text!r}")
            if kind == "f8" and not _is_number(text):
                return DatasetError(f"{where} must hold a number as weight, got {text!r}")
    return DatasetError(f"{file.path} must hold a table of edges: {error}")


def _line_of(file: _TextFile, row: int) -> int:
    return next(islice(file.rows(), row, None))[0]


def _read_parquet(path: Path) -> EdgeList:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"reading {path} needs the package pyarrow, got no module {error.name!r}: "
            "pip install gnn-dist[parquet]"
        ) from error
    try:
        # The names first: two columns of one name cannot be read as a table.
        names = pyarrow.parquet.read_schema(path).names
        choose_columns(names, len(names), str(path))
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path} must be a Parquet file, got a damaged one: {error}") from error
    columns = choose_columns(table.column_names, table.num_columns, str(path))
    arrays = {
        name: _parquet_column(table.column(i), name, f"{path}, column {table.column_names[i]!r}")
        for name, i in columns.items()
    }
    src, dst = (arrays[name].astype(np.int64, copy=False) for name in ("src", "dst"))
    return EdgeList(src, dst, arrays.get("weight"), lambda edge: f"row {edge}")


def _parquet_column(column: Any, name: str, where: str) -> Array:  # noqa: ANN401 - pyarrow's
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DatasetError(f"{where} must be filled, got a null in row {row}")
    values: Array = column.to_numpy()
    if values.dtype.kind not in ("iuf" if name == "weight" else "iu"):
        kind = "numbers as weights" if name == "weight" else "whole numbers as node ids"
        raise DatasetError(f"{where} must hold {kind}, got {column.type}")
    return values


def _read_array(path: Path) -> EdgeList:
    array = read_npy(path)
    if array.ndim != 2 or 2 not in array.shape:
        raise DatasetError(f"{path} must have shape (2, E) or (E, 2), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise DatasetError(f"{path} must hold whole numbers as node ids, got {array.dtype}")
    src, dst = array if array.shape[0] == 2 else array.T
    return EdgeList(src.astype(np.int64), dst.astype(np.int64), None, lambda edge: f"edge {edge}")
