"""The whole structure on every machine, once, in files that its ranks map.

    rank 0 ──► rows ─┐
    rank 1 ──► rows ─┼──► the first rank of each machine writes ──► all ranks of it map
    ...              ┘

Where the edges of the whole graph fit a machine, every rank draws by itself then, without messages;
features stay with their owners.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnn_dist.comm.control_server import host_identity
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.ops.csr import CSR
from gnn_dist.sampling.topology import Topology

__all__ = ["share_topology"]

BYTES_AT_ONCE = 1 << 26
LIMIT = 2**31


def share_topology(
    topology: Topology, values: Mapping[str, Tensor], world: World
) -> tuple[Topology, dict[str, Tensor]]:
    """Collective. Return the topology of all ranks together, and values of all edges.

    Args:
        topology: This rank's rows.
        values: By name, (e, ...), values of its edges, in the order of `topology.csr`.
        world: The ranks.

    Raises:
        ConfigError: On every rank: there are too many nodes for one structure, or a machine's
            first rank cannot write its files.
    """
    if topology.num_nodes >= LIMIT:
        raise ConfigError("a shared topology needs fewer than 2^31 nodes: keep it in parts")
    csr = topology.csr
    tables = {
        "counts": csr.counts,
        "columns": topology.number.int()[csr.indices.long()],
        "node_id": topology.node_id,
        **{f"edge {name}": rows for name, rows in values.items()},
    }
    with _folder_of_machine(world) as folder:
        mapped = {
            name: _share(f"{number}.bin", rows, folder, world)
            for number, (name, rows) in enumerate(tables.items())
        }
    counts = mapped["counts"]
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    whole = replace(
        topology,
        csr=CSR(indptr, mapped["columns"], topology.num_nodes),
        position=None,
        node_id=mapped["node_id"],
        number=torch.arange(topology.num_nodes),
        is_whole=True,
    )
    return whole, {name: mapped[f"edge {name}"] for name in values}


@contextmanager
def _folder_of_machine(world: World) -> Iterator[Path]:
    """Collective. Make a folder that all ranks of a machine see, while a body runs."""
    own = ""
    with world.everywhere("making a folder for the shared topology"):
        if world.local_rank == 0:
            own = tempfile.mkdtemp(prefix="gnn-dist-topology-")
    try:
        host = host_identity()
        found = world.transport.all_gather_object((host, own))
        yield Path(dict(pair for pair in found if pair[1])[host])
    finally:
        # What is mapped stays readable without a name.
        if own:
            shutil.rmtree(own, ignore_errors=True)


def _share(name: str, rows: Tensor, folder: Path, world: World) -> Tensor:
    """Collective. Return the rows of all ranks, one rank after the other, mapped from a file."""
    sizes = world.transport.all_gather_object(len(rows))
    total, width = sum(sizes), rows[:0].new_empty((1, *rows.shape[1:]))[0].numel()
    if total * width == 0:
        return rows.new_empty((total, *rows.shape[1:]))
    path, shape = folder / name, (total, *rows.shape[1:])
    dtype = rows[:0].numpy().dtype
    out = None
    with world.everywhere("writing the shared topology"):
        if world.local_rank == 0:
            out = np.memmap(path, dtype, "w+", shape=shape)
    at_once, at = max(1, BYTES_AT_ONCE // (width * rows.element_size())), 0
    for rank, size in enumerate(sizes):
        for begin in range(0, size, at_once):
            count = min(at_once, size - begin)
            piece = rows[begin : begin + count].contiguous()
            if rank != world.rank:
                piece = rows.new_empty((count, *rows.shape[1:]))
            world.transport.broadcast(piece, rank)
            if out is not None:
                out[at : at + count] = piece.numpy()
            at += count
    if out is not None:
        out.flush()
    world.transport.barrier()
    # Private: PyTorch takes writable memory only.
    mapped = torch.from_numpy(np.memmap(path, dtype, "c", shape=shape))
    world.transport.barrier()
    return mapped
