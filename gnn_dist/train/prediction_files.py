"""What a model says of all nodes, in files ordered by original id.

    predictions/    meta.json    class.npy, probabilities.npy      one label of several
                                 labels.npy, probabilities.npy     several labels a node
                                 values.npy                        numbers
    embeddings/     meta.json    embeddings.npy

Row i of a file is node i. As Parquet each folder has one table, with a column `node` before the
others, and rows of several numbers are lists of fixed size. Rank 0 writes what it is sent, piece by
piece from first to last, so that no rank holds a whole table, and ranks need no disk in common. A
folder has its name when it is complete.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.in_order import rows_in_order
from gnn_dist.shard.shard import Shard
from gnn_dist.train.task import NodeTask

__all__ = ["FileFormat", "Origin", "check_free", "predictions_of", "write_rows"]

FileFormat = Literal["npy", "parquet"]
META_FILE = "meta.json"


@dataclass(frozen=True)
class Origin:
    """Where rows come from, for whoever finds their folder.

    Attributes:
        dataset: Name of the graph.
        fingerprint: Of the graph.
        run: Run folder of the model.
        epoch: Epochs that the model was trained for.
        what: `multiclass`, `multilabel` or `regression`; `embeddings`.
    """

    dataset: str
    fingerprint: str
    run: str
    epoch: int
    what: str


def predictions_of(output: Tensor, task: NodeTask) -> dict[str, Tensor]:
    """Return by name what a model's output (k, C) says of nodes.

    Args:
        output: Rows of the output.
        task: What was learned.

    Returns:
        `class` int64 (k,) and `probabilities` (k, C); of several labels a node `labels` bool (k, C)
        and `probabilities`; of numbers `values` (k,) or (k, T).
    """
    if task.kind == "multiclass":
        return {"class": output.argmax(1), "probabilities": output.softmax(1)}
    if task.kind == "multilabel":
        return {"labels": output > 0, "probabilities": output.sigmoid()}
    return {"values": output.squeeze(1) if task.y.dim() == 1 else output}


def check_free(folder: Path, file_format: FileFormat, *, overwrite: bool) -> None:
    """Check that rows can be written into a folder.

    Raises:
        ConfigError: It exists and may not be replaced, is not one of ours, or a package is missing.
    """
    if file_format == "parquet":
        _pyarrow()
    if not folder.exists() and not folder.is_symlink():
        return
    if not (folder / META_FILE).is_file():
        raise ConfigError(f"{folder} exists and holds no predictions: choose another --out")
    if not overwrite:
        raise ConfigError(f"{folder} exists: choose another --out, or replace it with --overwrite")


def write_rows(
    folder: Path,
    rows: Tensor,
    shard: Shard,
    world: World,
    *,
    file_format: FileFormat,
    origin: Origin,
    task: NodeTask | None = None,
) -> None:
    """Collective. Write a row for each node of all ranks, replacing a folder of the same name.

    Args:
        folder: Where to; looked at on rank 0 alone.
        rows: (n, C), a model's output for owned nodes, or embeddings.
        shard: This rank's shard.
        world: The ranks.
        file_format: `npy`, or `parquet`, which needs pyarrow.
        origin: What is noted in `meta.json`.
        task: What the output is of; None: the rows are embeddings.

    Raises:
        GnnDistError: On every rank, if rank 0 cannot write; on rank 0 its own error.
    """
    doing, num_nodes = f"writing {folder}", shard.meta.num_nodes
    with _whole_folder(folder, world) as temporary, ExitStack() as stack:
        files: RowFiles | None = None
        with world.everywhere(doing):
            if world.is_main:
                files = _FILES[file_format](temporary, num_nodes)
                stack.callback(files.release)
        for start, piece in rows_in_order(rows, shard.node_id, num_nodes, world.transport):
            with world.everywhere(doing):
                if files is not None:
                    tables = {"embeddings": piece} if task is None else predictions_of(piece, task)
                    files.write(start, {name: _array(table) for name, table in tables.items()})
        with world.everywhere(doing):
            if files is not None:
                noted = {"num_nodes": num_nodes, "format": file_format, **asdict(origin)}
                text = json.dumps({**noted, "arrays": files.finish()}, indent=2)
                (temporary / META_FILE).write_text(text + "\n")


def _array(table: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, in 32 bits where NumPy lacks its dtype."""
    array: NDArray[Any] = (table.float() if table.dtype == torch.bfloat16 else table).numpy()
    return array


@contextmanager
def _whole_folder(folder: Path, world: World) -> Iterator[Path]:
    """Collective. Yield a folder that gets its name if the body succeeds, on rank 0."""
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with world.everywhere(f"making {folder}"):
            if world.is_main:
                temporary.mkdir(parents=True)
        yield temporary
        with world.everywhere(f"renaming to {folder}"):
            if world.is_main:
                _move_into_place(temporary, folder)
    finally:
        if world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(temporary, folder)
        return
    # Renamed first, so that no moment shows a half-deleted folder under the final name.
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
    os.rename(folder, old)
    os.rename(temporary, folder)
    shutil.rmtree(old)


class RowFiles(Protocol):
    """Files that rows are appended to, from node 0 to the last."""

    def write(self, start: int, rows: dict[str, NDArray[Any]]) -> None:
        """Append rows (k, ...) of the nodes from `start` on, by name; always the same names."""

    def finish(self) -> dict[str, dict[str, Any]]:
        """Return by name file, dtype and shape, once all rows are on disk."""

    def release(self) -> None:
        """Close the files, finished or not."""


class _NpyFiles:
    """One `.npy` file a name. They are appended to, not mapped: a full disk is then an error."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self._folder, self._num_nodes = folder, num_nodes
        self._files: dict[str, BinaryIO] = {}
        self._arrays: dict[str, dict[str, Any]] = {}

    def write(self, start: int, rows: dict[str, NDArray[Any]]) -> None:
        """Append rows of each name to its file."""
        for name, values in rows.items():
            if start == 0:
                self._open(name, values)
            self._files[name].write(np.ascontiguousarray(values).data)

    def _open(self, name: str, values: NDArray[Any]) -> None:
        shape = (self._num_nodes, *values.shape[1:])
        file = (self._folder / f"{name}.npy").open("wb")
        self._files[name] = file
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(values.dtype),
                "fortran_order": False,
                "shape": shape,
            },
        )
        self._arrays[name] = {
            "file": f"{name}.npy",
            "dtype": values.dtype.name,
            "shape": list(shape),
        }

    def finish(self) -> dict[str, dict[str, Any]]:
        """Write everything out."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self._arrays

    def release(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _ParquetFile:
    """One table, with a row group for each piece."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self._pyarrow, self._num_nodes = _pyarrow(), num_nodes
        self._path = folder / "nodes.parquet"
        self._writer: Any = None
        self._arrays: dict[str, dict[str, Any]] = {}

    def write(self, start: int, rows: dict[str, NDArray[Any]]) -> None:
        """Append a row group."""
        count = len(next(iter(rows.values())))
        columns = {"node": np.arange(start, start + count), **rows}
        table = self._pyarrow.table({name: self._column(v) for name, v in columns.items()})
        if self._writer is None:
            self._writer = self._pyarrow.parquet.ParquetWriter(self._path, table.schema)
            self._arrays = {
                name: {
                    "file": self._path.name,
                    "dtype": values.dtype.name,
                    "shape": [self._num_nodes, *values.shape[1:]],
                }
                for name, values in columns.items()
            }
        self._writer.write_table(table)

    def _column(self, values: NDArray[Any]) -> Any:  # noqa: ANN401 - pyarrow's
        flat = self._pyarrow.array(values.reshape(-1))
        if values.ndim == 1:
            return flat
        return self._pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])

    def finish(self) -> dict[str, dict[str, Any]]:
        """Write the footer."""
        self.release()
        return self._arrays

    def release(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


_FILES: dict[FileFormat, type[_NpyFiles] | type[_ParquetFile]] = {
    "npy": _NpyFiles,
    "parquet": _ParquetFile,
}


def _pyarrow() -> Any:  # noqa: ANN401 - an untyped package
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"writing Parquet needs the package pyarrow, got no module {error.name!r}: "
            "pip install gnn-dist[parquet], or use --format npy"
        ) from error
    return pyarrow
