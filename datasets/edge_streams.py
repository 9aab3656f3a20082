"""Edge files larger than memory, as streams.

    edges.bin                       pairs of int32 or int64, little-endian: src dst src dst ...
    edges.npy                       (2, E) or (E, 2), mapped
    edges.csv | .tsv [.gz]          text, piece by piece; a header may name the columns
    edges.parquet                   row group by row group (the extra `parquet`)
    raw/edge.csv.gz                 a node dataset of the Open Graph Benchmark, as unpacked
    folder/ | "part-*.bin"          several files of one kind, in the order of their names

Node data are files beside the edges, as `user.py` has them, mapped into memory. Weights in a third
column are not read. The number of edges, and of nodes where nothing tells it, is found by a pass
over the files when they are opened, which also checks every id.
"""

import glob as globbing
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import read_npy
from gnn_dist.datasets.base import naming
from gnn_dist.datasets.stream_files import SUFFIXES, EdgeFile, open_file, suffix_of
from gnn_dist.datasets.user import files_beside
from gnn_dist.edge_stream import CHUNK_EDGES, EdgeStream, first_bad_edge
from gnn_dist.errors import DatasetError
from gnn_dist.graph import MASK_NAMES, Graph

__all__ = ["open_edge_stream", "write_edges"]

Array = NDArray[Any]
EdgeChunks = Iterator[tuple[Array, Array]]

OGB_EDGES, OGB_NODES = "edge.csv.gz", "num-node-list.csv.gz"
NODE_FIELDS = ("x", "y", *MASK_NAMES)


@dataclass(frozen=True)
class _Files:
    """Files read one after the other."""

    files: tuple[EdgeFile, ...]
    num_nodes: int | None

    def read(self, chunk_edges: int) -> EdgeChunks:
        """Yield chunks of all files, each checked."""
        for file in self.files:
            yield from _checked(file, chunk_edges, self.num_nodes)


def open_edge_stream(
    path: str | Path,
    *,
    num_nodes: int | None = None,
    id_dtype: str = "auto",
    name: str = "",
) -> EdgeStream:
    """Open an edge file, a folder of them, or all files that a pattern matches.

    Args:
        path: As the table above has it.
        num_nodes: N; by default that of the node data, else found by a pass.
        id_dtype: Of `.bin` files: `int32`, `int64`, or `auto`: int32, unless the file looks like
            the other, which is then refused.
        name: The dataset's name; by default the file's or folder's.

    Raises:
        DatasetError: There is no such file, a file is damaged, or an id is no node's; the message
            names the file and the place in it.
    """
    paths = _paths(Path(path).expanduser())
    files = tuple(open_file(p, id_dtype) for p in paths)
    if num_nodes is None and paths[0].name == OGB_EDGES:
        num_nodes = _ogb_num_nodes(paths[0].with_name(OGB_NODES))
    beside = _files_of_nodes(paths)
    fields = {key: read_npy(p, mapped=True) for key, p in beside.items()}
    if num_nodes is None:
        num_nodes = next((len(v) for v in fields.values()), None)
    counts = [file.num_edges for file in files]
    if num_nodes is None or None in counts:
        largest, num_edges = _scan(_Files(files, num_nodes))
        num_nodes = largest + 1 if num_nodes is None else num_nodes
    else:
        num_edges = sum(c for c in counts if c is not None)
    with naming(path):
        nodes = _checked_nodes(fields, num_nodes)
        return EdgeStream(
            _Files(files, num_nodes).read,
            num_nodes,
            num_edges,
            name=name or _name_of(Path(path)),
            version=_version([*paths, *beside.values()]),
            **nodes,
        )


def write_edges(stream: EdgeStream, path: str | Path, *, id_dtype: str = "int32") -> int:
    """Write a stream to a `.bin` file, under another name until it is whole.

    Args:
        stream: The edges.
        path: The file to make or replace.
        id_dtype: `int32` or `int64`.

    Returns:
        The number of edges.

    Raises:
        DatasetError: An id does not fit the dtype, the name does not end in `.bin`, or the file
            cannot be written.
    """
    path, dtype = Path(path), np.dtype(f"<{np.dtype(id_dtype).str[1:]}")
    if stream.num_nodes - 1 > np.iinfo(dtype).max:
        raise DatasetError(
            f"{path} cannot hold ids up to {stream.num_nodes - 1} in {id_dtype}: write int64"
        )
    if suffix_of(path) != ".bin":
        raise DatasetError(f"{path} must end in .bin, as files of integer pairs do: rename it")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            for src, dst in stream.chunks():
                file.write(np.stack([src, dst], axis=1).astype(dtype, copy=False).data)
        temporary.replace(path)
    except OSError as error:
        raise DatasetError(f"cannot write {path}: {error}") from error
    finally:
        if temporary.is_file():
            temporary.unlink()
    return stream.num_edges


def _paths(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return _of_folder(path)
    if globbing.has_magic(str(path)):
        found = sorted(Path(p) for p in globbing.glob(str(path)) if Path(p).is_file())
        return _of_one_kind(path, found)
    raise DatasetError(f"no edge file, folder or pattern {str(path)!r}: check the path")


def _of_folder(folder: Path) -> list[Path]:
    for ogb in (folder / OGB_EDGES, folder / "raw" / OGB_EDGES):
        if ogb.is_file():
            return [ogb]
    files = sorted(p for p in folder.iterdir() if suffix_of(p) in SUFFIXES)
    names = {p.stem for p in files}
    fields = {key for key in (*NODE_FIELDS, "features", "labels") if key in names}
    found = [p for p in files if p.stem not in fields]
    return _of_one_kind(folder, found)


def _of_one_kind(path: Path, found: list[Path]) -> list[Path]:
    kinds = {suffix_of(p).removesuffix(".gz") for p in found}
    if len(kinds) != 1 or not kinds <= {s.removesuffix(".gz") for s in SUFFIXES}:
        names = ", ".join(p.name for p in found[:5]) or "none"
        raise DatasetError(
            f"{path} must hold edge files of one kind ({', '.join(SUFFIXES)}), got {names}"
        )
    return found


def _files_of_nodes(paths: Sequence[Path]) -> dict[str, Path]:
    alone = len(paths) == 1 and paths[0].stem != "edges"
    prefix = f"{paths[0].name.split('.')[0]}." if alone else ""
    beside = files_beside(paths[0], prefix=prefix)
    sparse = [path for path in beside.values() if path.suffix == ".npz"]
    if sparse:
        raise DatasetError(f"{sparse[0]} must be dense to be streamed: save it as x.npy")
    return {key: path for key, path in beside.items() if key in NODE_FIELDS}


def _checked_nodes(fields: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    """Check node data as a graph does, by making one without edges."""
    if not fields:
        return {}
    indptr = np.zeros(num_nodes + 1, np.int64)
    nodes = Graph(indptr, np.zeros(0, np.int32), **fields)
    names = (*fields, *(("num_classes",) if "y" in fields else ()))
    return {name: getattr(nodes, name) for name in names}


def _checked(file: EdgeFile, chunk_edges: int, num_nodes: int | None) -> EdgeChunks:
    limit = 2**63 - 1 if num_nodes is None else num_nodes
    seen = 0
    for src, dst in file.chunks(chunk_edges):
        bad = first_bad_edge(src, dst, limit)
        if bad is not None:
            known = "" if num_nodes is None else f" to {num_nodes - 1} (N = {num_nodes})"
            raise DatasetError(
                f"{file.path}, {file.locate(seen + bad)}: nodes are numbered from 0{known}, got "
                f"{src[bad]} -> {dst[bad]}: correct the edge, or state num_nodes"
            )
        yield src, dst
        seen += len(src)


def _scan(files: _Files) -> tuple[int, int]:
    """Return the largest id, -1 without edges, and the number of edges."""
    largest, num_edges = -1, 0
    for src, dst in files.read(CHUNK_EDGES):
        largest = max(largest, int(src.max(initial=-1)), int(dst.max(initial=-1)))
        num_edges += len(src)
    return largest, num_edges


def _ogb_num_nodes(path: Path) -> int:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return int(file.readline())
    except (OSError, EOFError, ValueError) as error:
        raise DatasetError(f"{path} must hold the number of nodes: {error}") from error


def _name_of(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def _version(paths: Sequence[Path]) -> str:
    stats = [path.stat() for path in paths]
    return ";".join(f"{s.st_size} {s.st_mtime_ns}" for s in stats)
