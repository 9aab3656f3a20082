"""Outputs for all nodes, layer by layer, in memory of bounded size.

    rows that enter a layer      owned rows | halo rows, each fetched once, in rounds
                                      |            |
    chunks of destinations       rows of a chunk's sources --> layer --> its rows of the next table

A layer is finished on all ranks before the next one begins, so each is computed once for each node,
and no neighbourhood is sampled. Beside the two tables of owned rows a rank holds the sources of one
chunk and the halo rows of one layer; too many of these lie in a file, which the system may drop
from memory. Halo rows come by the rounds of `halo/remat.py`. Chunks need no other rank, so ranks
need not agree on them.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import take_features
from gnn_dist.halo.pieces import each_piece
from gnn_dist.halo.policy import HaloPolicy, Remat
from gnn_dist.halo.transfers import with_halo
from gnn_dist.nn.conv import Rows
from gnn_dist.nn.models import GNN
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.rows import gather_rows_into, new_rows_like
from gnn_dist.ops.sampling import relabel
from gnn_dist.ops.spmm import SparseRows
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.shard import Shard
from gnn_dist.shard.structure import Structure
from gnn_dist.train.ready import shard_blocks

__all__ = ["CHUNK_ROWS", "HALO_BYTES", "Inferred", "LayerMemory", "infer"]

CHUNK_ROWS = 1 << 17
HALO_BYTES = 1 << 30
ROUND_BYTES = 32 << 20  # of halo rows on their way, at most
LEAST_ROUND_ROWS = 16  # whatever they take


@dataclass(frozen=True)
class LayerMemory:
    """What a rank may hold beside the rows that enter a layer and those that leave it.

    Attributes:
        chunk_rows: Rows of sources at one time. A node with more in-neighbours is a chunk alone.
        halo_bytes: Halo rows in memory; more lie in a file. Those that travel are not more, either.
        work: Folder for that file, on a disk; None: the system's for temporary files.

    Raises:
        ConfigError: A number that cannot be.
    """

    chunk_rows: int = CHUNK_ROWS
    halo_bytes: int = HALO_BYTES
    work: str | Path | None = None

    def __post_init__(self) -> None:
        if self.chunk_rows < 1 or self.halo_bytes < 0:
            raise ConfigError(
                "chunk_rows must be at least 1 and halo_bytes at least 0, got "
                f"{self.chunk_rows} and {self.halo_bytes}"
            )


class Inferred(NamedTuple):
    """What a model makes of the nodes of a rank.

    Attributes:
        output: (n, C), float32 at least.
        embeddings: (n, K), the rows that enter the last layer.
    """

    output: Tensor
    embeddings: Rows


@torch.no_grad()
def infer(
    model: GNN,
    shard: Shard,
    world: World,
    *,
    memory: LayerMemory | None = None,
    dtype: torch.dtype | None = None,
) -> Inferred:
    """Collective. Return a ready model's output for all owned nodes, exactly, without dropout.

    On a vertex-cut over several ranks, and on a GPU, a layer is computed for all nodes at once.

    Args:
        model: The model; its mode is left as it is.
        shard: This rank's shard. Features may be mapped from a file and of another floating dtype:
            they are read a chunk at a time.
        world: The ranks.
        memory: How much of it there may be; alike on all ranks.
        dtype: What features become; with bfloat16, layers compute in it by autocast. By default
            that of the parameters.

    Raises:
        ConfigError: On every rank: the graph has no features, some rank has no room for halo rows,
            or the model needs all in-edges of a node on one rank and the partition is a vertex-cut.

    Example:
        >>> import gnn_dist as gd
        >>> # outputs = gd.infer(trainer.model, shard, world).output
    """
    memory = memory or LayerMemory()
    dtype = dtype or next(model.parameters()).dtype
    shard.required_features  # noqa: B018 - refuse a graph without features at once
    was_training = model.training
    model.eval()
    half = dtype == torch.bfloat16
    try:
        with torch.autocast(world.device.type, torch.bfloat16, enabled=half):
            if shard.plan.clones or world.device.type != "cpu":
                return _all_at_once(model, shard.with_dtype(dtype), world.transport)
            return _in_chunks(model, shard, world, memory, dtype)
    finally:
        model.train(was_training)


def _all_at_once(model: GNN, shard: Shard, transport: Transport) -> Inferred:
    """Collective. Compute each layer for all local nodes."""
    exchanges = ExchangeMaker(shard.plan, transport, "overlap")
    rows, entering = shard.required_features, shard.required_features
    for layer, block in enumerate(shard_blocks(shard, exchanges, None, layers=model.num_blocks)):
        entering, rows = rows, model.layer(layer, rows, block)
    return _inferred(rows, entering, shard.num_owned)


def _in_chunks(
    model: GNN, shard: Shard, world: World, memory: LayerMemory, dtype: torch.dtype
) -> Inferred:
    """Collective. Compute each layer for some destinations at a time."""
    entering = rows = shard.required_features
    # Of the shard's widths, edge weights alone are changed at once.
    structure = shard.replace(features=None).with_dtype(dtype).structure
    for i in range(model.num_blocks):
        entering = rows
        # Rows as they are on disk travel, and become what layers take where they are read.
        layer = _Layer(
            model,
            i,
            structure,
            _sources(entering, shard.plan, world, layer=i, memory=memory),
            dtype if i == 0 else None,
        )
        rows = layer.all_rows(memory.chunk_rows)
        del layer  # and the halo rows with it
    return _inferred(rows, entering, shard.num_owned)


def _inferred(rows: Rows, entering: Rows, num_owned: int) -> Inferred:
    if not isinstance(rows, Tensor):
        raise TypeError("a model without a layer has no output")
    if isinstance(entering, Tensor):
        entering = entering[:num_owned]
    output = rows[:num_owned]
    return Inferred(output.to(torch.promote_types(output.dtype, torch.float32)), entering)


class _Sources(NamedTuple):
    """Rows that enter a layer.

    Attributes:
        own: (n, C) of owned nodes; sparse ones, (n + h, C) of all local nodes.
        halo: (h, C) of halo nodes.
    """

    own: Rows
    halo: Tensor

    def take(self, ids: Tensor, dtype: torch.dtype | None) -> Rows:
        """Return rows (k, C), as another floating dtype if asked.

        Args:
            ids: int64 (k,), local ids; those of halo nodes last.
            dtype: Of the result.
        """
        if isinstance(self.own, SparseRows):
            taken = take_features(self.own, ids)
            return taken if dtype is None else taken.to(dtype)
        n = self.own.size(0)
        num_own = int((ids < n).sum())
        like = self.own[:0] if dtype is None else self.own[:0].to(dtype)
        out = new_rows_like(like, ids.numel())
        if num_own:
            gather_rows_into(out[:num_own], self.own, ids[:num_own])
        if num_own < ids.numel():
            gather_rows_into(out[num_own:], self.halo, ids[num_own:] - n)
        return out


def _sources(
    rows: Rows, plan: HaloPlan, world: World, *, layer: int, memory: LayerMemory
) -> _Sources:
    """Collective. Return rows of owned nodes with those of the halo."""
    if isinstance(rows, SparseRows):
        everything = rows if world.world_size == 1 else with_halo(rows, plan, world.transport)
        return _Sources(everything, rows.values[:0])
    if world.world_size == 1:
        return _Sources(rows, rows[:0])
    with world.everywhere("making room for halo rows"):
        halo = _new_table(plan.num_halo, rows, memory)

    def put(begin: int, end: int, values: Tensor) -> None:
        halo[begin:end] = values

    least = LEAST_ROUND_ROWS * rows.element_size() * max(1, rows.size(1))
    policy = HaloPolicy(Remat(max(min(ROUND_BYTES, memory.halo_bytes), least)))
    exchange = ExchangeMaker(plan, world.transport, policy).at(layer)
    each_piece(exchange.forward.start(rows), put)
    return _Sources(rows, halo)


def _new_table(num_rows: int, like: Tensor, memory: LayerMemory) -> Tensor:
    """Return a table (num_rows, C) like rows (n, C), in memory or, if large, in a nameless file.

    Raises:
        ConfigError: The disk is full.
    """
    num_bytes = num_rows * like.size(1) * like.element_size()
    if num_bytes <= memory.halo_bytes:
        return like.new_empty(num_rows, like.size(1))
    try:
        with tempfile.TemporaryFile(dir=memory.work) as file:
            # Reserved, for a full disk would end the process when a mapped page is written.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            pages = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise ConfigError(
            f"{num_bytes} bytes of halo rows must lie in a file, and there is no room "
            f"({error.strerror}): name a folder on a larger disk as work, or raise halo_bytes"
        ) from error
    return torch.frombuffer(pages, dtype=like.dtype).view(num_rows, like.size(1))


class _Layer(NamedTuple):
    """One layer of a model, and all that it reads.

    Attributes:
        model: The model.
        number: Which layer.
        structure: In-edges of all destinations.
        sources: Rows that enter.
        dtype: What they become; None: as they are.
    """

    model: GNN
    number: int
    structure: Structure
    sources: _Sources
    dtype: torch.dtype | None

    def all_rows(self, chunk_rows: int) -> Tensor:
        """Return the rows (n, K) that leave the layer, made some destinations at a time."""
        num_dst = self.structure.num_dst
        ranges = chunk_ranges(self.structure.csr, chunk_rows)
        begin, end = next(ranges)
        first = self.rows(begin, end)
        if end == num_dst:
            return first
        out = first.new_empty(num_dst, first.size(1))
        out[:end] = first
        del first
        for begin, end in ranges:
            out[begin:end] = self.rows(begin, end)
        return out

    def rows(self, begin: int, end: int) -> Tensor:
        """Return the rows (end - begin, K) of some destinations."""
        structure = self.structure
        if end - begin == structure.num_dst:
            # As it is: what layers derive from it is then made once for all of them.
            chunk, ids = structure, torch.arange(structure.num_src)
        else:
            chunk, ids = _chunk_of(structure, begin, end)
        return self.model.layer(self.number, self.sources.take(ids, self.dtype), Block(chunk))


def chunk_ranges(csr: CSR, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of destinations whose sources, themselves included, are at most `most`.

    Entries are counted for sources, which are not more. A destination with more in-edges than that
    is a range alone. Without destinations there is one range, which is empty.

    Example:
        >>> star = CSR(torch.tensor([0, 3, 4, 5, 6]), torch.tensor([1, 2, 3, 0, 0, 0]).int(), 4)
        >>> list(chunk_ranges(star, 3)), list(chunk_ranges(star, 4))
        ([(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 4)])
    """
    if csr.num_cols <= most:
        yield 0, csr.num_rows
        return
    reach = csr.indptr + torch.arange(csr.num_rows + 1)
    begin = 0
    while begin < csr.num_rows:
        end = int(torch.searchsorted(reach, reach[begin] + most, right=True)) - 1
        end = max(end, begin + 1)
        yield begin, end
        begin = end
    if csr.num_rows == 0:
        yield 0, 0


def _chunk_of(structure: Structure, begin: int, end: int) -> tuple[Structure, Tensor]:
    """Return the structure of some destinations, and the local ids (num_src,) of its sources.

    Destinations come first, then owned sources, then halo sources, both ascending: so rows are read
    in the order in which they lie.
    """
    first, last = structure.csr.indptr[[begin, end]].tolist()
    dst = torch.arange(begin, end)
    ids, local = relabel(dst, structure.csr.indices[first:last])
    others, order = ids[end - begin :].sort()
    place = torch.empty(ids.numel(), dtype=torch.int32)
    place[: end - begin] = torch.arange(end - begin, dtype=torch.int32)
    place[order + (end - begin)] = torch.arange(end - begin, ids.numel(), dtype=torch.int32)
    ids = torch.cat([dst, others])
    weight = structure.edge_weight
    weight = None if weight is None else weight[first:last]
    indptr = structure.csr.indptr[begin : end + 1] - first
    csr = CSR(indptr, place[local.long()], ids.numel())
    return Structure(csr, structure.src_id[ids], structure.degree[ids], weight), ids
