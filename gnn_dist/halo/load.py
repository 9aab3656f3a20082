"""From a partition folder to a shard with its plan, on every rank."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.errors import ShardFormatError
from gnn_dist.graph import CSRFeatures
from gnn_dist.halo.clone_structure import clone_structure
from gnn_dist.halo.transfers import PLAN_CHANNEL, exchange_rows, send_counted, with_halo
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.spmm import SparseRows
from gnn_dist.partition import PartitionBook
from gnn_dist.shard.format import read_meta
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.reader import ShardArrays, read_parts
from gnn_dist.shard.shard import Shard
from gnn_dist.shard.structure import Structure, degree_with_loop

__all__ = ["build_plan", "exchange_rows", "induced_shard", "load_shard", "take_features"]


def load_shard(
    folder: str | Path, world: World, *, verify: bool = True, spill: str | Path | None = None
) -> Shard:
    """Collective. Load this rank's parts and build the plan of their halo exchange.

    Args:
        folder: The partition folder. A rank reads `meta.json` and its own parts only.
        world: The ranks; at most as many as parts.
        verify: Compare every file with its SHA-256.
        spill: A folder on a local disk. Columns of the structure and features then stay in files
            (joined, where a rank has several parts, in nameless ones there), and the system may
            drop them from memory.

    Returns:
        The shard, on the device that the transport takes rows from.

    Raises:
        ShardFormatError: On every rank, if one rank finds its files missing or damaged.
        PartitionError: There are more ranks than parts.
    """
    with world.everywhere(f"loading {folder}"):
        meta = read_meta(folder)
        parts = meta.book.parts_of_rank(world.rank, world.world_size)
        to = None if spill is None else Path(spill)
        arrays = read_parts(folder, parts, verify=verify, spill=to)
    _check_same_folder(arrays, world)
    return shard_from_arrays(arrays, world.transport, mapped=spill is not None)


def shard_from_arrays(arrays: ShardArrays, transport: Transport, *, mapped: bool = False) -> Shard:
    """Collective. Make a shard of arrays read from disk; columns may stay mapped from there."""
    device = transport.device
    num_owned = len(arrays.node_id)
    owned = torch.arange(arrays.owned_start, arrays.owned_start + num_owned, device=device)
    halo = _tensor(arrays.halo, device)
    node_id = _tensor(arrays.node_id, device)
    plan = build_plan(owned, halo, node_id, arrays.meta.book, transport)
    # One rank has all clones of a node, which are one node then.
    plan = replace(plan, clones=arrays.meta.cut == "vertex" and transport.world_size > 1)
    indptr = _tensor(arrays.indptr, device)
    indices = _tensor(arrays.indices, device, mapped=mapped)
    csr = CSR(indptr, indices, num_owned + len(halo))
    edge = {name: _tensor(values, device) for name, values in arrays.edge.items()}
    weight = edge.pop("edge_weight", None)
    structure = _structure(csr, weight, edge.get("edge_id"), plan, transport)
    if not plan.clones:
        structure = replace(structure, symmetric=arrays.meta.symmetric)
    owned_data = {name: _tensor(values, device) for name, values in arrays.owned.items()}
    features = _features(arrays, device, mapped)
    if plan.clones and features is not None:
        features = with_halo(features, plan, transport)
    return Shard(
        structure=structure,
        plan=plan,
        meta=arrays.meta,
        parts=arrays.parts,
        global_id=torch.cat([owned, halo]),
        features=features,
        y=owned_data.pop("y", None),
        masks=owned_data,
        edge_data=edge,
    )


def build_plan(
    owned: Tensor, halo: Tensor, node_id: Tensor, book: PartitionBook, transport: Transport
) -> HaloPlan:
    """Collective. Tell each owner which of its rows this rank reads.

    Args:
        owned: int64 (n,), global ids of owned nodes, ascending.
        halo: int64 (h,), global ids of halo nodes, ascending, each owned by another rank.
        node_id: int64 (n,), original ids of owned nodes.
        book: Which parts, and so which rank, a global id belongs to.
        transport: The ranks.

    Raises:
        ShardFormatError: On every rank, if a rank is asked for a node that it does not own.
    """
    rank_ptr = torch.from_numpy(book.rank_ptr(transport.world_size)).to(halo.device)
    recv = tuple(torch.searchsorted(halo, rank_ptr).tolist())
    wanted, send_ptr = send_counted(halo, recv, transport)
    index = torch.searchsorted(owned, wanted).clamp_(max=max(0, len(owned) - 1))
    missing = len(wanted) if len(owned) == 0 else int((owned[index] != wanted).sum())
    lacking = transport.all_gather_object(missing)
    if any(lacking):
        rank = next(rank for rank, count in enumerate(lacking) if count)
        raise ShardFormatError(
            f"every halo node must be owned by the rank that its id says, but rank {rank} lacks "
            f"{lacking[rank]} nodes that others read: partition the dataset again"
        )
    halo_id = node_id.new_empty(len(halo))
    transport.exchange(node_id[index], send_ptr, halo_id, recv, PLAN_CHANNEL).wait()
    return HaloPlan(len(owned), index, send_ptr, recv, torch.cat([node_id, halo_id]))


def induced_shard(shard: Shard, keep: Tensor, transport: Transport) -> Shard:
    """Collective. Return the shard of the subgraph that some nodes induce (for inductive training).

    Args:
        shard: The whole shard.
        keep: bool (n,), owned nodes to keep.
        transport: The ranks.

    Returns:
        A shard over fewer nodes: edges between kept nodes only, degrees counted in the subgraph,
        original ids as before.
    """
    keep_all = torch.cat([keep, exchange_rows(keep, shard.plan, transport)])
    csr, clones = shard.structure.csr, shard.plan.clones
    rows = csr.rows
    edge = (keep_all[csr.indices.long()] & keep_all[rows]).nonzero().squeeze(1)
    owned, n = keep.nonzero().squeeze(1), shard.num_owned
    # Of the halo only what kept edges touch stays.
    used = torch.zeros_like(keep_all)
    used[csr.indices[edge].long()] = True
    used[rows[edge]] = True
    halo = n + used[n:].nonzero().squeeze(1)
    kept = torch.cat([owned, halo])
    local = torch.full_like(shard.global_id, -1)
    local[kept] = torch.arange(len(kept), device=local.device)
    inputs = kept if clones else owned
    counts = torch.bincount(local[rows[edge]], minlength=len(inputs))
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sub_csr = CSR(indptr, local[csr.indices[edge].long()].int(), len(kept))
    global_id = shard.global_id[kept]
    own, other = global_id[: len(owned)], global_id[len(owned) :]
    plan = build_plan(own, other, shard.node_id[owned], shard.meta.book, transport)
    plan = replace(plan, clones=clones)
    edge_data = {name: values[edge] for name, values in shard.edge_data.items()}
    weight = None if shard.edge_weight is None else shard.edge_weight[edge]
    structure = _structure(sub_csr, weight, edge_data.get("edge_id"), plan, transport)
    return shard.replace(
        structure=replace(structure, symmetric=shard.structure.symmetric),
        plan=plan,
        global_id=global_id,
        features=None if shard.features is None else take_features(shard.features, inputs),
        y=None if shard.y is None else shard.y[owned],
        masks={name: mask[owned] for name, mask in shard.masks.items()},
        edge_data=edge_data,
    )


def _structure(
    csr: CSR, weight: Tensor | None, edge_id: Tensor | None, plan: HaloPlan, transport: Transport
) -> Structure:
    """Collective. Make the structure of a shard's edges, with what is known of the whole graph."""
    if plan.clones:
        return clone_structure(csr, plan, transport, edge_weight=weight, edge_id=edge_id)
    degree = degree_with_loop(csr, weight)
    return Structure(
        csr=csr,
        src_id=plan.src_id,
        degree=torch.cat([degree, exchange_rows(degree, plan, transport)]),
        edge_weight=weight,
        num_in_edges=torch.cat([csr.counts, exchange_rows(csr.counts, plan, transport)]),
    )


def _check_same_folder(arrays: ShardArrays, world: World) -> None:
    meta = arrays.meta
    mine = (meta.fingerprint, meta.node_ptr)
    others = world.transport.all_gather_object(mine)
    different = [rank for rank, other in enumerate(others) if other != others[0]]
    if different:
        raise ShardFormatError(
            "all ranks must read parts of one partition, but rank 0 and rank "
            f"{different[0]} have different ones: copy the same folder to both machines"
        )


def _features(
    arrays: ShardArrays, device: torch.device, mapped: bool
) -> Tensor | SparseRows | None:
    if arrays.x is None:
        return None
    if not isinstance(arrays.x, CSRFeatures):
        return _tensor(arrays.x, device, mapped=mapped)
    x = arrays.x
    csr = CSR(_tensor(x.indptr, device), _tensor(x.indices, device), x.num_features)
    values = torch.ones(csr.nnz, device=device) if x.data is None else _tensor(x.data, device)
    return SparseRows(csr, values)


def take_features(features: Tensor | SparseRows, rows: Tensor) -> Tensor | SparseRows:
    """Return some rows, int64 (k,), of features."""
    if isinstance(features, Tensor):
        return features[rows]
    kept = features.csr.take_rows(rows)
    return SparseRows(kept.csr, kept.take(features.values))


def _tensor(values: NDArray[Any], device: torch.device, *, mapped: bool = False) -> Tensor:
    """Return an array as a tensor; what is mapped from a file is copied, unless it is to stay."""
    if mapped and isinstance(values, np.memmap) and not values.flags.writeable:
        # PyTorch takes writable memory only. What is written to this one stays in memory.
        path = str(values.filename)
        values = np.memmap(path, values.dtype, "c", values.offset, values.shape)
    own = values if values.flags.writeable else np.array(values)
    return torch.from_numpy(own).to(device)
