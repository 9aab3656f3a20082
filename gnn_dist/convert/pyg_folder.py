"""Partition folders of PyTorch Geometric (`torch_geometric.distributed.Partitioner`).

    META.json              num_parts, is_hetero, is_sorted; under "gnn_dist" what only we know
    node_map.pt            int64 (N,), part of each node        edge_map.pt    int64 (E,)
    label.pt               labels by node id, where there are any
    part_0/graph.pt        row, col (original ids, by col), edge_id, size
    part_0/node_feats.pt   global_id, feats: x, and ours: y, train_mask ...; none in an empty part
    part_0/edge_feats.pt   global_id, feats: edge_attr, and ours: edge_weight ...

PyG itself stores features and `edge_attr` only; its examples put labels and splits beside the
folder, where they are found too. The files are plain torch files: PyG is not needed.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.convert.parted import (
    OUR_KEY,
    PartData,
    PartedGraph,
    dense,
    our_record,
    part_of_edges,
    read_record,
)
from gnn_dist.convert.target import new_folder
from gnn_dist.convert.torch_files import load_tensors
from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES
from gnn_dist.partition import Partition
from gnn_dist.shard.records import fits

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_pyg", "write_pyg"]

Array = NDArray[Any]

META = "META.json"
NODE_NAMES = ("x", "y", *MASK_NAMES)


def write_pyg(parted: PartedGraph, out: Path, *, overwrite: bool = False) -> None:
    """Write a folder that PyG's `LocalGraphStore` and `LocalFeatureStore` load.

    One part is in memory at a time, and 8 bytes for each node and edge. Sparse features are
    written in full, since PyG looks rows up by index.

    Raises:
        ShardFormatError: The parts are not the whole graph, or `out` cannot be written.
    """
    edge_map = np.zeros(parted.num_edges, np.int64)
    labels: list[Array] = []
    with new_folder(out, lambda path: (path / META).is_file(), overwrite) as folder:
        for part, data in enumerate(parted.parts()):
            edge_map[data.edge_number] = part
            labels += [dense(data.node["y"])] if "y" in data.node else []
            _write_part(folder / f"part_{part}", data, len(parted.partition.assignment))
        _save(parted.partition.assignment.astype(np.int64), folder / "node_map.pt")
        _save(edge_map, folder / "edge_map.pt")
        if labels:
            _save(np.concatenate(labels)[parted.partition.global_id], folder / "label.pt")
        meta = {
            "num_parts": parted.partition.num_parts,
            "node_types": None,
            "edge_types": None,
            "node_offset": None,
            "is_hetero": False,
            "is_sorted": True,
            OUR_KEY: our_record(parted),
        }
        (folder / META).write_text(json.dumps(meta))


def read_pyg(folder: Path) -> PartedGraph:
    """Read a folder that PyG's `Partitioner` or `write_pyg` wrote.

    Raises:
        ShardFormatError: It is of a heterogeneous graph, or damaged.
    """
    meta = _read_meta(folder)
    ours = read_record(meta, folder / META)
    assignment = _array(load_tensors(folder / "node_map.pt"))
    edge_map = _array(load_tensors(folder / "edge_map.pt"))
    partition = Partition(
        assignment,
        meta["num_parts"],
        method=ours.get("method", "pyg"),
        options=ours.get("options", {}),
        notes=tuple(ours.get("notes", ())),
    )
    beside, sizes = _beside(folder, len(assignment)), partition.sizes

    def read(part: int) -> PartData:
        try:
            data, dst = _read_part(folder / f"part_{part}", beside, bool(sizes[part]))
            return part_of_edges(data, dst, by_number=not ours)
        except (KeyError, TypeError, AttributeError) as error:
            raise ShardFormatError(
                f"{folder / f'part_{part}'} is no part of a homogeneous graph: it lacks {error}"
            ) from error
        except (ValueError, IndexError) as error:  # of arrays that do not fit each other
            if isinstance(error, ShardFormatError):
                raise
            raise ShardFormatError(f"{folder / f'part_{part}'} is damaged: {error}") from error

    return PartedGraph(
        name=ours.get("dataset", folder.name),
        partition=partition,
        num_edges=len(edge_map),
        num_classes=ours.get("num_classes"),
        edge_ids_given=ours.get("edge_ids_given", True),
        read=read,
        sparse_x=ours.get("sparse_x"),
        regression=ours.get("regression", False),
    )


def _write_part(folder: Path, data: PartData, num_nodes: int) -> None:
    folder.mkdir()
    number, src = data.edge_number, data.src.astype(np.int64, copy=False)
    graph = {"edge_id": number, "row": src, "col": data.dst, "size": (num_nodes, num_nodes)}
    _save(graph, folder / "graph.pt")
    # PyG cannot load an empty list of ids, but does without the file, or the list.
    if len(data.node_id):
        node = {name: dense(values) for name, values in data.node.items()}
        _save({"global_id": data.node_id, "feats": node}, folder / "node_feats.pt")
    edge = {"global_id": number, "feats": data.edge} if data.edge and len(number) else {}
    _save(edge, folder / "edge_feats.pt")


def _read_part(folder: Path, beside: dict[str, Array], has_nodes: bool) -> tuple[PartData, Array]:
    """Return a part, its edges in the file's order, and where they end."""
    graph = load_tensors(folder / "graph.pt")
    feats = load_tensors(folder / "node_feats.pt") if has_nodes else {}
    edge_feats = (
        load_tensors(folder / "edge_feats.pt") if (folder / "edge_feats.pt").is_file() else {}
    )
    node_id = _array(feats["global_id"]) if feats else np.zeros(0, np.int64)
    node = _known(feats.get("feats", {}), NODE_NAMES)
    data = PartData(
        node_id=node_id,
        indptr=np.zeros(1, np.int64),
        src=_array(graph["row"]),
        edge_number=_array(graph["edge_id"]),
        node={**{name: values[node_id] for name, values in beside.items()}, **node},
        edge=_known(edge_feats.get("feats", {}), EDGE_NAMES),
    )
    return data, _array(graph["col"])


def _known(feats: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _array(feats[name]) for name in names if feats.get(name) is not None}


def _beside(folder: Path, num_nodes: int) -> dict[str, Array]:
    """Return labels and masks of all nodes, where they lie in or beside the folder.

    Beside it as PyG's examples put them: NAME-partitions/ is the folder, NAME-label/label.pt the
    labels, NAME-train-partitions/partition0.pt ids of training nodes.
    """
    found: dict[str, Array] = {}
    stem = folder.resolve().name.removesuffix("-partitions")
    for path in (folder / "label.pt", folder.resolve().parent / f"{stem}-label" / "label.pt"):
        if path.is_file():
            found["y"] = _array(load_tensors(path))
            break
    for name in MASK_NAMES:
        split = folder.resolve().parent / f"{stem}-{name.removesuffix('_mask')}-partitions"
        if split == folder.resolve() or not split.is_dir():
            continue
        found[name] = np.zeros(num_nodes, bool)
        for path in sorted(split.glob("partition*.pt")):
            found[name][_array(load_tensors(path))] = True
    return found


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text())
        hetero = meta["is_hetero"]
        count = meta["num_parts"]
        if not (fits(count, int) and count > 0 and (folder / f"part_{count - 1}").is_dir()):
            raise ValueError(f"num_parts must be the number of part folders, got {count!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardFormatError(f"{folder / META} is missing or damaged: {error}") from error
    if hetero:
        raise ShardFormatError(
            f"{folder} must be of a homogeneous graph, got node types {meta.get('node_types')}: "
            "partition data.to_homogeneous()"
        )
    return meta


def _save(values: Any, path: Path) -> None:  # noqa: ANN401 - arrays, and dicts of them
    import torch

    try:
        torch.save(_tensors(values), path)
    except RuntimeError as error:  # of the writer of archives: the disk is full
        raise OSError(f"{path}: {error}") from error


def _tensors(values: Any) -> Any:  # noqa: ANN401
    import torch

    if isinstance(values, dict):
        return {key: _tensors(value) for key, value in values.items()}
    # A copy: files in memory are read-only, and a view would be saved with all it looks at.
    return torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else values


def _array(tensor: "Tensor") -> Array:
    return np.asarray(tensor.numpy())
