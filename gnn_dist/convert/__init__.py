"""Partition folders of DGL and PyG, to and from ours, part by part.

    own folder   ──► read_own ─┐                ┌─► write_own   meta.json, part-0000/
    DGL's folder ──► read_dgl ─┼─► PartedGraph ─┼─► write_dgl   NAME.json, part0/graph.dgl ...
    PyG's folder ──► read_pyg ─┘                └─► write_pyg   META.json, part_0/graph.pt ...

All three give the in-edges of a node to the part that owns it, so nothing is lost on any of the
ways: parts, replication factor, copies of edges, labels, masks and edge data stay.
"""

import json
from pathlib import Path
from typing import Literal

from gnn_dist.convert.parted import PartedGraph
from gnn_dist.errors import ConfigError, ShardFormatError
from gnn_dist.shard.format import META_FILE

__all__ = ["FolderFormat", "convert_folder", "folder_format"]

FolderFormat = Literal["gnn-dist", "dgl", "pyg"]
PYG_META = "META.json"


def convert_folder(
    folder: str | Path,
    to: FolderFormat,
    out: str | Path,
    *,
    overwrite: bool = False,
    original_ids: str | Path | None = None,
) -> PartedGraph:
    """Write a partition folder in the format of another system.

    Args:
        folder: A partition folder of gnn-dist, DGL (or its .json file) or PyG.
        to: The format to write.
        out: The folder to make.
        overwrite: Replace a folder of that same format.
        original_ids: For a folder of DGL, which does not keep them: a file (.npy or .pt) with the
            node's id in the user's graph for each of DGL's ids, as `partition_graph` returns it
            with `return_mapping=True`. Without it, DGL's ids are taken for the original ones.

    Returns:
        What was read; its parts can be read again while `folder` exists.

    Raises:
        ConfigError: The folder has that format already, or DGL is needed and missing.
        ShardFormatError: The folder is none of the three, is damaged, or cannot be written.
        GraphError: Its arrays are no graph that gnn-dist takes.

    Example:
        >>> import tempfile
        >>> import gnn_dist as gd
        >>> graph = gd.graph_from_edges([0, 1, 2], [1, 2, 0])
        >>> partition = gd.partition_graph(graph, 2, "contiguous")
        >>> with tempfile.TemporaryDirectory() as name:
        ...     _ = gd.write_partition(graph, partition, f"{name}/ours")
        ...     _ = convert_folder(f"{name}/ours", "pyg", f"{name}/pyg")
        ...     convert_folder(f"{name}/pyg", "gnn-dist", f"{name}/back").num_edges
        3
    """
    source = folder_format(folder)
    if source == to:
        raise ConfigError(f"{folder} has the format {to!r} already: choose another --to")
    if original_ids is not None and source != "dgl":
        raise ConfigError(
            f"original_ids must go with a folder of DGL, got a folder of format {source!r}: "
            "it holds its original ids itself"
        )
    parted = _read(Path(folder), source, None if original_ids is None else Path(original_ids))
    _write(parted, to, Path(out), overwrite)
    return parted


def folder_format(folder: str | Path) -> FolderFormat:
    """Tell whose partition folder it is.

    Raises:
        ShardFormatError: It is none that is known.
    """
    folder = Path(folder)
    # Names are compared exactly: some file systems take META.json for meta.json.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if META_FILE in names:
        return "gnn-dist"
    if PYG_META in names:
        return "pyg"
    if folder.suffix == ".json" and folder.is_file():
        return "dgl"
    if any(_is_dgl_config(folder / name) for name in names if name.endswith(".json")):
        return "dgl"
    what = "is no partition folder of gnn-dist, DGL or PyG" if folder.exists() else "does not exist"
    raise ShardFormatError(f"{folder} {what}: give one, or make one with `gnn-dist partition`")


def _is_dgl_config(path: Path) -> bool:
    try:
        return "part-0" in json.loads(path.read_text())
    except (ValueError, OSError, TypeError):
        return False


def _read(folder: Path, source: FolderFormat, original_ids: Path | None) -> PartedGraph:
    if source == "gnn-dist":
        from gnn_dist.convert.own_folder import read_own

        return read_own(folder)
    if source == "pyg":
        from gnn_dist.convert.pyg_folder import read_pyg

        return read_pyg(folder)
    from gnn_dist.convert.dgl_folder import read_dgl

    configs = (
        [folder] if folder.is_file() else sorted(filter(_is_dgl_config, folder.glob("*.json")))
    )
    if len(configs) > 1:
        raise ShardFormatError(
            f"{folder} must hold one partitioned graph, got {', '.join(p.name for p in configs)}: "
            "name one of these files"
        )
    return read_dgl(configs[0], original_ids)


def _write(parted: PartedGraph, to: FolderFormat, out: Path, overwrite: bool) -> None:
    if to == "gnn-dist":
        from gnn_dist.convert.own_folder import write_own

        write_own(parted, out, overwrite=overwrite)
    elif to == "pyg":
        from gnn_dist.convert.pyg_folder import write_pyg

        write_pyg(parted, out, overwrite=overwrite)
    else:
        from gnn_dist.convert.dgl_folder import write_dgl

        write_dgl(parted, out, overwrite=overwrite)
