"""Rows of nodes that live with their owners: any of them, and all of them, by original id.

    ids ── id % P ──► directory: the rank that knows the global id ──► owner ──► rows
                      N / P numbers on each rank                      gradients go back, and add

The directory deals original ids out one by one and not in ranges: ids that are asked for often,
such as low ones, would lie together in a range, and one rank would answer for all.

Source: sharding by a function of the id that spreads dense regions, and gradients that go to the
owner alone, "ZEN: Empowering Distributed Training with Sparsity-driven Data Synchronization"
(arXiv 2309.13254), sections 3 and 4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.load import build_plan
from gnn_dist.halo.transfers import PLAN_CHANNEL, send_counted
from gnn_dist.ops.rows import gather_rows, scatter_add_rows
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.shard import Shard

__all__ = ["Lookup", "NodeRows", "attach", "rows_of"]

LOOKUP_CHANNEL = 31_000  # of no layer's exchange
CHUNK_BYTES = 32 << 20  # of a table, on its way between its owners and rank 0
ATTRIBUTE = "_gnn_dist_rows"


@dataclass(frozen=True, eq=False)
class Lookup:
    """How some rows come from their owners.

    Attributes:
        ids: int64 (k,), the original ids, as asked for.
        plan: What travels: each row once to each rank that asks for it; from this rank too.
        index: int64 (k,), where among the rows that arrive is the one of each id.
    """

    ids: Tensor
    plan: HaloPlan
    index: Tensor


class NodeRows:
    """Collective. Knows which rank holds the row of each node; made once for a shard.

    Args:
        shard: This rank's; together they are a whole graph.
        world: The ranks.

    Attributes:
        num_nodes: N.
        node_id: int64 (n,), original ids of the rows that are here.
        world: The ranks.
        are_seen: Whether a parallelized model runs, so that lookups of original ids are seen.

    Raises:
        ConfigError: On every rank: the shards are of a vertex-cut, or of a subgraph.
    """

    def __init__(self, shard: Shard, world: World) -> None:
        if shard.plan.clones:
            raise ConfigError(
                "on a vertex-cut partition several ranks compute with a node's row: use an "
                "edge-cut partition, such as --method metis, for embeddings of nodes"
            )
        self.num_nodes, self.node_id = shard.meta.num_nodes, shard.node_id
        self.world, self._transport = world, world.transport
        self._global_id = shard.global_id[: shard.num_owned]
        self._book = shard.meta.book
        self._order = self.node_id.argsort()
        self._ascending = self.node_id[self._order]
        self._directory = self._make_directory()
        self._last: Lookup | None = None
        self.are_seen = False

    # A parameter that knows its owners can be copied and saved; the copy is an ordinary one.
    def __deepcopy__(self, memo: object) -> "NodeRows":
        return self

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()

    def _make_directory(self) -> Tensor:
        """Collective. Return int64 (N / P,), global ids of the ids that this rank answers for."""
        size, rank = self._transport.world_size, self._transport.rank
        order, ptr = self._by_directory(self.node_id)
        pairs = torch.stack([self.node_id, self._global_id], 1)[order]
        known, _ = send_counted(pairs, ptr, self._transport)
        found = known.new_full(((self.num_nodes - rank + size - 1) // size,), -1)
        found[known[:, 0] // size] = known[:, 1]
        missing = (found < 0).sum().view(1)
        self._transport.all_reduce(missing).wait()
        if missing:
            raise ConfigError(
                f"{int(missing)} of the graph's {self.num_nodes} nodes are on no rank, so their "
                "embeddings would be lost: use the shard of the whole graph"
            )
        return found

    def _by_directory(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Return the order (k,) that groups ids by who answers for them, and the offsets."""
        size = self._transport.world_size
        answers = ids % size
        counts = torch.bincount(answers, minlength=size)
        return answers.argsort(stable=True), [0, *counts.cumsum(0).tolist()]

    def is_of(self, shard: Shard) -> bool:
        """Return whether the rows here are those of a shard's owned nodes."""
        return torch.equal(self.node_id, shard.node_id)

    def resolve(self, ids: Tensor, *, all_of: tuple[int, ...] = ()) -> Lookup | None:
        """Collective. Find out how rows come here. Every rank asks, be it for none.

        Args:
            ids: Of an integer dtype, of any shape: original ids, each rank its own.
            all_of: Lengths k of which 0..k-1, on all ranks, stands for each rank's own nodes too.

        Returns:
            None if each rank asks for its own nodes, once and in their order.

        Raises:
            ConfigError: On every rank, if one asks for a node that the graph has not.
        """
        flat, fault = self._checked(ids)
        own = ids.dim() == 1 and (
            torch.equal(flat, self.node_id)
            or (len(flat) in all_of and torch.equal(flat, torch.arange(len(flat)).to(flat.device)))
        )
        same = self._last is not None and torch.equal(flat, self._last.ids)
        # Whether rows travel, and whether their way is to be found, all ranks decide alike.
        told = torch.tensor([not own, not same, fault is not None], dtype=torch.int64)
        told = told.to(self._transport.device)
        self._transport.all_reduce(told, "max").wait()
        others, new, wrong = told.tolist()
        if wrong:
            self.world.raise_everywhere(fault, "looking up embeddings of nodes")
        if not others:
            return None
        if new or self._last is None:
            self._last = self._find(flat)
        return self._last

    def _checked(self, ids: Tensor) -> tuple[Tensor, ConfigError | None]:
        flat = ids.detach().reshape(-1)
        if ids.dtype not in (torch.int64, torch.int32):
            return flat.new_empty(0, dtype=torch.int64), ConfigError(
                f"ids of nodes must be int64 or int32, got {ids.dtype}"
            )
        flat = flat.long()
        outside = ((flat < 0) | (flat >= self.num_nodes)).nonzero().squeeze(1)
        if not len(outside):
            return flat.clone(), None
        return flat, ConfigError(
            f"ids of nodes must lie in 0..{self.num_nodes - 1}, got {int(flat[outside[0]])} on "
            f"rank {self._transport.rank}"
        )

    def _find(self, ids: Tensor) -> Lookup:
        """Collective. Ask the directory for global ids, then owners for their rows."""
        wanted, position = torch.unique(ids, return_inverse=True)
        order, ptr = self._by_directory(wanted)
        asked, asked_ptr = send_counted(wanted[order], ptr, self._transport)
        answers = self._directory[asked // self._transport.world_size]
        received = torch.empty_like(wanted)
        self._transport.exchange(answers, asked_ptr, received, ptr, PLAN_CHANNEL).wait()
        global_id = torch.empty_like(wanted)
        global_id[order] = received
        ascending, order = global_id.sort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        plan = build_plan(self._global_id, ascending, self.node_id, self._book, self._transport)
        return Lookup(ids, plan, place[position])

    def read(self, rows: Tensor, lookup: Lookup, *, sparse: bool = False) -> Tensor:
        """Collective, and so is its backward. Return the rows that were asked for.

        Args:
            rows: (n, d), floating: of the nodes here, in their order.
            lookup: Of `resolve`.
            sparse: Whether the gradient is a sparse tensor, of the rows that some rank reads.

        Returns:
            (k, d), differentiable: gradients go to the owners, where they are added.
        """
        out: Tensor = _Read.apply(rows, lookup, self, sparse)  # type: ignore[no-untyped-call]
        return out

    def move(self, rows: Tensor, plan: HaloPlan, *, back: bool) -> Tensor:
        """Collective. Send rows along a plan, or back along it."""
        send, recv = (plan.recv_ptr, plan.send_ptr) if back else (plan.send_ptr, plan.recv_ptr)
        received = rows.new_empty((recv[-1], *rows.shape[1:]))
        self._transport.exchange(rows.contiguous(), send, received, recv, LOOKUP_CHANNEL).wait()
        return received

    def gather(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Collective. Bring the rows of all nodes to rank 0, in the order of original ids.

        Beside the result no more than `CHUNK_BYTES` of the table are in memory.

        Args:
            rows: (n, ...), of the nodes here.
            out: (N, ...), on rank 0: where to write, such as a tensor over a mapped file.

        Returns:
            On rank 0, (N, ...) on the CPU; elsewhere (0, ...).
        """
        rows = rows.detach()
        at_root = self.world.is_main
        if out is None or not at_root:
            shape = (self.num_nodes if at_root else 0, *rows.shape[1:])
            out = torch.empty(shape, dtype=rows.dtype)
        for ids, here in self._chunks(rows):
            ptr = self._to_root(len(ids))
            sent_ids, _ = send_counted(ids, ptr, self._transport)
            sent, _ = send_counted(rows[here], ptr, self._transport)
            if at_root:
                out[sent_ids.to(out.device)] = sent.to(out.device)
        return out

    def scatter(self, table: Tensor | None, out: Tensor) -> Tensor:
        """Collective. Give each rank the rows of its nodes, of a table that rank 0 has.

        Args:
            table: (N, ...), in the order of original ids; not looked at on other ranks.
            out: (n, ...), overwritten; of the trailing shape of `table`, perhaps not its dtype.
        """
        for ids, here in self._chunks(out):
            ptr = self._to_root(len(ids))
            asked, asked_ptr = send_counted(ids, ptr, self._transport)
            if self.world.is_main and table is not None:
                answers = table.detach()[asked.to(table.device)].to(out)
            else:
                answers = out.new_empty((0, *out.shape[1:]))
            received = out.new_empty((len(ids), *out.shape[1:]))
            self._transport.exchange(answers, asked_ptr, received, ptr, PLAN_CHANNEL).wait()
            out[here] = received
        return out

    def _to_root(self, count: int) -> list[int]:
        return [0] + [count] * self._transport.world_size

    def _chunks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for ranges of original ids, those here, and where; as often on all ranks."""
        width = rows.element_size() * max(1, rows[:0].flatten(1).size(1) if rows.dim() > 1 else 1)
        step = max(1, CHUNK_BYTES // width)
        for start in range(0, self.num_nodes, step):
            ends = torch.tensor([start, start + step], device=self._ascending.device)
            first, last = torch.searchsorted(self._ascending, ends).tolist()
            yield self._ascending[first:last], self._order[first:last]


class _Read(torch.autograd.Function):
    """Forward: rows from their owners. Backward: gradients to the owners, added."""

    @staticmethod
    def forward(ctx, rows, lookup, owners, sparse):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.lookup, ctx.owners, ctx.sparse, ctx.shape = lookup, owners, sparse, rows.shape
        arrived = owners.move(gather_rows(rows, lookup.plan.send_index), lookup.plan, back=False)
        return gather_rows(arrived, lookup.index)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        plan, index = ctx.lookup.plan, ctx.lookup.index
        sums = grad.new_zeros((plan.num_halo, *ctx.shape[1:]))
        scatter_add_rows(sums, index, grad.contiguous())
        arrived = ctx.owners.move(sums, plan, back=True)
        if ctx.sparse:
            touched = torch.sparse_coo_tensor(
                plan.send_index[None], arrived, ctx.shape, check_invariants=False
            )
            return touched, None, None, None
        return plan.add_boundary(grad.new_zeros(ctx.shape), arrived), None, None, None


def attach(parameter: Tensor, owners: NodeRows) -> None:
    """Note that a parameter holds this rank's rows of a table with a row for each node."""
    setattr(parameter, ATTRIBUTE, owners)


def rows_of(parameter: object) -> NodeRows | None:
    """Return who owns the rows of a table of nodes; None of any other tensor."""
    found = getattr(parameter, ATTRIBUTE, None)
    return found if isinstance(found, NodeRows) else None
