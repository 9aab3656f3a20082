"""Partition folders of DGL (`dgl.distributed.partition_graph`), written and read with DGL 1.1.3.

    NAME.json              ranges of node and edge ids of each part, names of the files;
                           under "gnn_dist" what only we know
    original_ids.npy       int64 (N,), ours: the original id of each of DGL's node ids
    part0/graph.dgl        owned nodes first, then halo; in-edges of owned nodes. DGL's ids under
                           "_ID", "inner_node", "inner_edge", "part_id", and ours: "orig_id"
    part0/node_feat.dgl    _N/feat, _N/label, _N/train_mask ... of owned nodes
    part0/edge_feat.dgl    _N:_E:_N/weight ... of their in-edges

DGL's ids are our global ids: part p has a range of them. Its files have no booleans, so masks are
uint8 there.
"""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from gnn_dist.interop import DGL_EDGE_NAMES, DGL_NODE_NAMES, import_dgl
from gnn_dist.partition import Partition, PartitionBook

__all__ = ["original_ids_of", "read_dgl", "write_dgl"]

Array = NDArray[Any]

NODE_TYPE, EDGE_TYPE = "_N", "_N:_E:_N"
NODE_ID, EDGE_ID = "_ID", "_ID"
ORIGINAL_IDS = "original_ids.npy"
FILES = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
# A frame of DGL has no name for an edge's id that is no position.
EDGE_NAMES: dict[str, tuple[str, ...]] = {**DGL_EDGE_NAMES, "edge_id": ("edge_id",)}


def write_dgl(parted: PartedGraph, out: Path, *, overwrite: bool = False) -> None:
    """Write a folder that `dgl.distributed.load_partition` loads.

    One part is in memory at a time. Sparse features are written in full, since DGL has dense
    frames only. Parts without nodes are written too; DGL's own tools refuse to make them.

    Raises:
        ConfigError: DGL is not installed.
        ShardFormatError: The parts are not the whole graph, or `out` cannot be written.
    """
    dgl = import_dgl("DGL's partition folders need DGL")
    partition, book = parted.partition, parted.partition.book
    name = re.sub(r"[^\w.-]+", "_", parted.name) or "graph"
    edge_ptr = [0]
    with new_folder(out, _holds_a_graph, overwrite) as folder:
        for part, data in enumerate(parted.parts()):
            path = folder / f"part{part}"
            path.mkdir()
            graph = _part_graph(dgl, data, partition, (part, edge_ptr[-1]))
            dgl.save_graphs(str(path / FILES["part_graph"]), [graph])
            for kind, values in (("node_feats", data.node), ("edge_feats", data.edge)):
                dgl.data.utils.save_tensors(str(path / FILES[kind]), _frame(kind, values))
            edge_ptr.append(edge_ptr[-1] + len(data.src))
        np.save(folder / ORIGINAL_IDS, partition.order)
        config = {
            "graph_name": name,
            "num_nodes": book.num_nodes,
            "num_edges": parted.num_edges,
            "part_method": partition.method,
            "num_parts": partition.num_parts,
            "halo_hops": 1,
            "node_map": {NODE_TYPE: list(pairwise(book.node_ptr.tolist()))},
            "edge_map": {EDGE_TYPE: list(pairwise(edge_ptr))},
            "ntypes": {NODE_TYPE: 0},
            "etypes": {EDGE_TYPE: 0},
            **{
                f"part-{part}": {kind: f"part{part}/{file}" for kind, file in FILES.items()}
                for part in range(partition.num_parts)
            },
            OUR_KEY: our_record(parted),
        }
        (folder / f"{name}.json").write_text(json.dumps(config, indent=1))


def read_dgl(config: Path, original_ids: Path | None = None) -> PartedGraph:
    """Read a folder that DGL or `write_dgl` wrote.

    Args:
        config: The folder's .json file.
        original_ids: File (.npy or .pt) with the original id of each of DGL's node ids; by default
            the one that `write_dgl` writes. Without one DGL's ids are taken as they are.

    Raises:
        ConfigError: DGL is not installed.
        ShardFormatError: The folder is of a heterogeneous graph, or damaged.
    """
    dgl, raw = import_dgl("DGL's partition folders need DGL"), _read_config(config)
    ours = read_record(raw, config)
    (node_map,) = raw["node_map"].values()
    # Older folders list where each part ends, newer ones where it starts and ends.
    ends = [stop[1] if isinstance(stop, list) else stop for stop in node_map]
    book = PartitionBook(np.array([0, *ends]))
    if book.num_nodes != raw["num_nodes"] or book.num_parts != raw["num_parts"]:
        raise ShardFormatError(
            f"{config}: node_map must cover {raw['num_nodes']} nodes in {raw['num_parts']} parts, "
            f"got {book.num_nodes} in {book.num_parts}"
        )
    known = config.parent / ORIGINAL_IDS
    path = original_ids or (known if known.is_file() else None)
    original = original_ids_of(path, book.num_nodes) if path else np.arange(book.num_nodes)
    assignment = np.empty(book.num_nodes, np.int32)
    assignment[original] = np.repeat(np.arange(book.num_parts), np.diff(book.node_ptr))
    partition = Partition(
        assignment,
        book.num_parts,
        method=ours.get("method", str(raw.get("part_method", "dgl"))),
        options=ours.get("options", {}),
        notes=tuple(ours.get("notes", ())),
    )

    def read(part: int) -> PartData:
        return _read_part(dgl, config.parent, raw[f"part-{part}"], original)

    return PartedGraph(
        name=ours.get("dataset", raw["graph_name"]),
        partition=partition,
        num_edges=int(raw["num_edges"]),
        num_classes=ours.get("num_classes"),
        edge_ids_given=ours.get("edge_ids_given", False),
        read=read,
        sparse_x=ours.get("sparse_x"),
        regression=ours.get("regression", False),
    )


def _holds_a_graph(folder: Path) -> bool:
    return any((path / FILES["part_graph"]).is_file() for path in folder.glob("part*"))


def _part_graph(dgl: Any, data: PartData, partition: Partition, first: tuple[int, int]) -> Any:  # noqa: ANN401
    """Return one part as DGL has it; `first` is (the part, DGL's id of its first edge)."""
    part, first_edge = first
    owned, src = partition.global_id[data.node_id], partition.global_id[data.src]
    halo = np.setdiff1d(src, owned)
    num_owned, num_edges = len(owned), len(src)
    local = np.searchsorted(halo, src) + num_owned
    inside = partition.assignment[data.src] == part
    start = partition.book.node_ptr[part]
    local[inside] = src[inside] - start
    row = np.repeat(np.arange(num_owned), np.diff(data.indptr))
    graph = dgl.graph((_tensor(local), _tensor(row)), num_nodes=num_owned + len(halo))
    ids = np.concatenate([owned, halo])
    graph.ndata[NODE_ID] = _tensor(ids)
    graph.ndata["orig_id"] = _tensor(partition.order[ids])
    graph.ndata["part_id"] = _tensor(partition.book.part_of(ids))
    graph.ndata["inner_node"] = _tensor((np.arange(len(ids)) < num_owned).astype(np.uint8))
    graph.edata[EDGE_ID] = _tensor(np.arange(first_edge, first_edge + num_edges))
    graph.edata["orig_id"] = _tensor(data.edge_number)
    graph.edata["inner_edge"] = _tensor(np.ones(num_edges, np.uint8))
    return graph


def _read_part(dgl: Any, folder: Path, files: dict[str, str], original: Array) -> PartData:  # noqa: ANN401
    paths = {kind: folder / files[kind] for kind in FILES}
    for path in paths.values():
        if not path.is_file():
            raise ShardFormatError(f"{path} is missing: copy the part here, or partition again")
    try:
        graph = dgl.load_graphs(str(paths["part_graph"]))[0][0]
        node, edge = (
            dgl.data.utils.load_tensors(str(paths[kind])) for kind in ("node_feats", "edge_feats")
        )
    except dgl.DGLError as error:
        raise ShardFormatError(f"{folder} is damaged: {error}") from error
    inner_node = graph.ndata["inner_node"].numpy().astype(bool)
    inner_edge = graph.edata["inner_edge"].numpy().astype(bool)
    ids = original[graph.ndata[NODE_ID].numpy()]
    src, dst = (ids[ends.numpy()[inner_edge]] for ends in graph.edges(order="eid"))
    numbers = graph.edata["orig_id" if "orig_id" in graph.edata else EDGE_ID].numpy()
    data = PartData(
        node_id=ids[inner_node],
        indptr=np.zeros(1, np.int64),
        src=src,
        edge_number=numbers[inner_edge],
        node=_known(node, DGL_NODE_NAMES),
        edge=_known(edge, EDGE_NAMES),
    )
    return part_of_edges(data, dst, by_number=False)


def _frame(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return tensors under the names that DGL's users give them."""
    names, type_name = (
        (DGL_NODE_NAMES, NODE_TYPE) if kind == "node_feats" else (EDGE_NAMES, EDGE_TYPE)
    )
    frame = {}
    for name, array in values.items():
        full = dense(array)
        plain = full.astype(np.uint8) if full.dtype == bool else full
        frame[f"{type_name}/{names[name][0]}"] = _tensor(plain)
    return frame


def _known(frame: dict[str, Any], wanted: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return what `Graph` has a field for; users' own data stay where they are."""
    by_name = {key.rpartition("/")[2]: values.numpy() for key, values in frame.items()}
    return {
        name: next(by_name[key] for key in keys if key in by_name)
        for name, keys in wanted.items()
        if any(key in by_name for key in keys)
    }


def _read_config(path: Path) -> dict[str, Any]:
    needed = ("graph_name", "num_nodes", "num_edges", "num_parts", "node_map", "part-0")
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
        missing = [key for key in needed if key not in raw]
        if not missing and not isinstance(raw["node_map"], dict):
            raw["node_map"] = {NODE_TYPE: list(raw["node_map"])}
    except (OSError, ValueError, TypeError) as error:
        raise ShardFormatError(f"{path} is missing or damaged: {error}") from error
    if missing:
        raise ShardFormatError(f"{path} is no partition of DGL: it lacks {', '.join(missing)}")
    types = {kind: list(raw.get(kind, {0: 0})) for kind in ("ntypes", "etypes")}
    if any(len(names) != 1 for names in types.values()):
        raise ShardFormatError(
            f"{path} must be of a homogeneous graph, got node types {types['ntypes']} and edge "
            f"types {types['etypes']}: partition dgl.to_homogeneous(graph)"
        )
    return raw


def original_ids_of(path: Path, num_nodes: int) -> Array:
    """Return int64 (N,), the original id of each of DGL's node ids, from a file.

    Raises:
        ShardFormatError: The file holds no permutation of the nodes.
    """
    try:
        values = np.load(path) if path.suffix == ".npy" else load_tensors(path)
        ids = np.asarray(values)
    except (OSError, ValueError, EOFError) as error:
        raise ShardFormatError(f"{path} cannot be read as original ids: {error}") from error
    if ids.shape != (num_nodes,) or not np.array_equal(np.sort(ids), np.arange(num_nodes)):
        raise ShardFormatError(
            f"{path} must hold each id of 0..{num_nodes - 1} once, got shape {ids.shape}"
        )
    return np.asarray(ids, np.int64)


def _tensor(values: Array) -> Any:  # noqa: ANN401
    import torch

    return torch.from_numpy(np.array(values))
