"""One forward of a parallelized model: what its functions need of other ranks, and its draws."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.collectives import all_reduce_sum
from gnn_dist.halo.exchange import LayerExchange, halo_exchange
from gnn_dist.ops.draws import DrawKey, copy_numbers, edge_ids
from gnn_dist.parallel.edge_lists import EdgeLists
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.shard.shard import Shard

__all__ = ["Call", "ExchangeAt", "Place"]

AUTOGRAD = torch.autograd.function.__file__
# Takes a number and whether halo rows must be exact.
ExchangeAt = Callable[[int, bool], LayerExchange]


class Place(NamedTuple):
    """How far a call has come: exchanges that are exact, others, and draws."""

    exact: int
    others: int
    draws: int
    local: bool


class Call:
    """Numbers the exchanges and the draws of one forward, and does them.

    Args:
        shard: This rank's shard.
        world: The ranks.
        key: Of the draws: seed and step.
        exchange_at: Gives exchanges by number.
        edge_lists: Structures of edge lists, kept from call to call.
    """

    def __init__(
        self, shard: Shard, world: World, key: DrawKey, exchange_at: ExchangeAt, lists: EdgeLists
    ) -> None:
        self.shard, self.world, self.key, self.lists = shard, world, key, lists
        self.transport = world.transport
        self.paused = False  # while our own code runs, its functions are not the model's
        self.local = False  # while all rows that a function works on are here
        self.ends: Tensor | None = None  # edges of the layer that is sending messages now
        self.with_gradient = torch.is_grad_enabled()
        self.on_use: Callable[[Call], None] = lambda call: None  # before anything is numbered
        self._exchange_at = exchange_at
        self._used = {True: 0, False: 0}  # exchanges so far: exact ones, and others
        self._num_draws = 0
        self._last: tuple[Tensor, int | None, int, Tensor] | None = None  # rows lifted last
        self._masked: list[tuple[Tensor, Tensor, Tensor]] = []  # mask, ends before, ends after

    @property
    def num_owned(self) -> int:
        """Nodes of this rank, n."""
        return self.shard.num_owned

    @contextmanager
    def pause(self) -> Iterator[None]:
        """See no functions while this lasts."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @contextmanager
    def all_here(self) -> Iterator[None]:
        """See nothing but draws while this lasts: what runs has all the rows it works on."""
        before, self.local = self.local, True
        try:
            yield
        finally:
            self.local = before

    def place(self) -> Place:
        """Return where this call is; what it has fetched last is fetched anew from here on."""
        self._last = None
        return Place(self._used[True], self._used[False], self._num_draws, self.local)

    @contextmanager
    def back_at(self, place: Place) -> Iterator[None]:
        """Be where this call was while this lasts."""
        now, ends, paused = self.place(), self.ends, self.paused
        self._go(place)
        self.ends, self.paused = None, False
        try:
            yield
        finally:
            self._go(now)
            self.ends, self.paused = ends, paused

    def _go(self, place: Place) -> None:
        self._used = {True: place.exact, False: place.others}
        self._num_draws, self.local, self._last = place.draws, place.local, None

    def next_exchange(self, *, exact: bool) -> LayerExchange:
        """Return the exchange of the next place that needs one."""
        self.on_use(self)
        number = self._used[exact]
        self._used[exact] += 1
        return self._exchange_at(number, exact)

    def lift(self, rows: Tensor, dim: int) -> Tensor:
        """Collective. Return the rows of all sources, n + h of them along a dimension, of n."""
        if self.world.world_size == 1:
            return rows
        # An in-place change makes other rows of the same tensor; in inference mode none is counted.
        version = None if rows.is_inference() else rows._version
        if self._last is not None:
            last, *same, full = self._last
            if last is rows and version is not None and same == [version, dim]:
                return full
        # What has no gradient is what the model knows of the graph, such as degrees: no policy
        # may make it stale, and it is little.
        exchange = self.next_exchange(exact=not rows.requires_grad)
        first = rows.movedim(dim, 0)
        full = torch.cat([first, halo_exchange(first.contiguous(), exchange)]).movedim(0, dim)
        self._last = rows, version, dim, full
        return full

    def fold(self, rows: Tensor, dim: int) -> Tensor:
        """Collective. Return sums (n along a dimension) of rows of all sources (n + h)."""
        if self.world.world_size == 1:
            return rows
        exchange = self.next_exchange(exact=True)
        first = rows.movedim(dim, 0).contiguous()
        out: Tensor = _Fold.apply(first, exchange, self.num_owned)  # type: ignore[no-untyped-call]
        return out.movedim(0, dim)

    def sum_over_ranks(self, x: Tensor) -> Tensor:
        """Collective. Return the sum of `x` over the ranks, differentiably."""
        if self.world.world_size == 1:
            return x
        return all_reduce_sum(x.contiguous(), self.transport)

    def extreme_over_ranks(self, x: Tensor, op: str) -> Tensor:
        """Collective. Return the `max` or `min` of `x` over the ranks, without a gradient."""
        out = x.detach().clone(memory_format=torch.contiguous_format)
        self.transport.all_reduce(out, op).wait()
        return out

    def count(self, rows: int) -> int:
        """Collective. Return a number of rows, summed over the ranks."""
        total = torch.tensor([rows], device=self.world.device)
        self.transport.all_reduce(total).wait()
        return int(total)

    def agreed(self, *true_here: bool) -> list[bool]:
        """Collective. Return for each condition whether it is true on all ranks."""
        told = torch.tensor([int(value) for value in true_here], device=self.world.device)
        if self.world.world_size > 1:
            self.transport.all_reduce(told, "min").wait()
        return [bool(value) for value in told.tolist()]

    def next_key(self) -> DrawKey:
        """Return the key of the next draw."""
        key = DrawKey(self.key.seed, self.key.step, self._num_draws)
        self._num_draws += 1
        return key

    def row_ids(self, x: Tensor, what: str) -> tuple[Tensor, int]:
        """Return int64 ids of a tensor's rows, equal however the graph is cut, and their dimension.

        Raises:
            ConfigError: Its rows are neither nodes nor edges.
        """
        placed = placement(x) or self._placed_by_size(x)
        if placed is not None and placed.kind is Kind.NODES:
            return self.shard.node_id, placed.dim
        if placed is not None and placed.kind.by_edge:
            ends = placed.ends
            rows = x.size(placed.dim)
            for other in (self.ends, self.shard.edge_index):
                if ends is None and other is not None and other.size(1) == rows:
                    ends = other
            if ends is not None and ends.size(1) == rows:
                return self._edge_ids(ends), placed.dim
        raise ConfigError(
            f"{what} must act on rows of owned nodes ({self.num_owned}) or of edges, got "
            f"{tuple(x.shape)}: such a draw would depend on the partition"
        )

    def _placed_by_size(self, x: Tensor) -> Placement | None:
        """Guess what the rows of a tensor are that some function outside PyTorch made."""
        if x.dim() == 0:
            return None
        if self.ends is not None and x.size(0) == self.ends.size(1):
            return Placement(Kind.EDGES, 0)
        if x.size(0) == self.num_owned:
            return Placement(Kind.NODES, 0)
        return Placement(Kind.EDGES, 0) if x.size(0) == self.shard.num_edges else None

    def known_sizes(self) -> set[int]:
        """Return numbers of rows that are those of nodes or edges."""
        edges = [] if self.ends is None else [self.ends.size(1)]
        return {self.num_owned, self.shard.num_edges, *edges}

    def _edge_ids(self, ends: Tensor) -> Tensor:
        src, dst = ends
        ids = self.shard.structure.src_id
        return edge_ids(ids[src], ids[dst], copy_numbers(src, dst, self.shard.structure.num_src))

    def original_ids(self, local: Tensor) -> Tensor:
        """Return the original ids of local ids of any shape."""
        return self.shard.structure.src_id[local]

    def select_edges(self, ends: Tensor, index: object, kept: Tensor) -> Tensor:
        """Note that edges were picked, so that what is picked alike later is known to belong."""
        if isinstance(index, Tensor):
            self._masked.append((index, ends, kept))
        return kept

    def selected(self, ends: Tensor | None, index: object) -> Tensor | None:
        """Return the edges that an index has picked of others, or None."""
        for by, before, after in self._masked:
            if by is index and before is ends:
                return after
        return None

    def check_gradient(self, what: str) -> None:
        """Refuse what a backward runs again, outside this call, with other rows and draws."""
        if self.with_gradient and not torch.is_grad_enabled() and _in_own_backward():
            raise ConfigError(
                f"{what} runs in a function with a backward of its own, which would run it again: "
                "use checkpoint(..., use_reentrant=False)"
            )

    def as_nodes(self, x: Tensor, dim: int) -> Tensor:
        """Mark rows of owned nodes."""
        return mark(x, Placement(Kind.NODES, dim))


def _in_own_backward() -> bool:
    """Return whether a function with a backward of its own runs, whose forward has no gradients."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "apply" and code.co_filename == AUTOGRAD:
            return True
        frame = frame.f_back
    return False


class _Fold(torch.autograd.Function):
    """Sends sums for halo nodes to their owners, where they are added. Collective both ways."""

    @staticmethod
    def forward(ctx, rows, exchange, num_owned):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.exchange = exchange
        boundary = exchange.reverse.start(rows[num_owned:].contiguous()).wait()
        return exchange.add_boundary(rows[:num_owned].clone(), boundary)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        grad = grad.contiguous()
        return torch.cat([grad, ctx.exchange.forward.start(grad).wait()]), None, None
