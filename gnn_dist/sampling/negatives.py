"""Pairs of nodes that are no edges, to learn from beside those that are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.ops.draws import DrawKey, edge_ids, uniform_by_id
from gnn_dist.sampling.directory import NodeDirectory
from gnn_dist.sampling.edges import EdgeShare
from gnn_dist.sampling.find import EdgeFinder

__all__ = ["NegativeSampler", "NegativeSampling", "Negatives", "WholeBatch"]

NEGATIVE_SITE = 1 << 23  # apart from the sites of models, splits, hops and orders
MODES = ("binary", "triplet")
METHODS = ("uniform", "degree", "in_batch")


@dataclass(frozen=True)
class NegativeSampling:
    """How many negatives an edge gets, and which. They have its source and another destination.

    Attributes:
        mode: `binary`, labels tell edges from negatives; or `triplet`, an edge is to be told from
            its own negatives.
        amount: Negatives of each edge.
        method: `uniform`, any node; `degree`, in proportion to in-edges; `in_batch`, destinations
            of other edges of the same batch, shifted by as many places for all of them (drawn
            alike from all nodes in a batch of a single edge).
        strict: No negative is an edge of the graph. What is one is drawn again, `tries` times at
            most; what still is one then is left out (`neg_mask`).
        tries: How often a negative is drawn at most.

    Raises:
        ConfigError: A word or a number that cannot be.
    """

    mode: str = "binary"
    amount: int = 1
    method: str = "uniform"
    strict: bool = False
    tries: int = 16

    def __post_init__(self) -> None:
        for name, names in (("mode", MODES), ("method", METHODS)):
            if getattr(self, name) not in names:
                raise ConfigError(
                    f"{name} of negatives must be {' or '.join(names)}, got {getattr(self, name)!r}"
                )
        if self.amount < 1 or self.tries < 1:
            raise ConfigError(
                "amount and tries of negatives must be at least 1, got "
                f"{self.amount} and {self.tries}"
            )

    @classmethod
    def parse(
        cls, given: "NegativeSampling | str | tuple[str, int] | None"
    ) -> "NegativeSampling | None":
        """Return the meaning of `binary`, `triplet`, or one of these with an amount."""
        if given is None or isinstance(given, NegativeSampling):
            return given
        return cls(given) if isinstance(given, str) else cls(*given)


class Negatives(NamedTuple):
    """Negatives of a rank's edges of one batch.

    Attributes:
        dst: int64 (k, amount), numbers of their destinations.
        mask: bool (k, amount), which are no edges; None where nobody looked.
        total: How many there are on all ranks, those left out not counted.
    """

    dst: Tensor
    mask: Tensor | None
    total: int


class WholeBatch(NamedTuple):
    """The edges of a batch of all ranks, in its order.

    Attributes:
        src: int64 (B,), numbers of the sources.
        dst: int64 (B,), numbers of the destinations.
    """

    src: Tensor
    dst: Tensor


class NegativeSampler:
    """Draws negatives by what they belong to: for any number of ranks the same ones.

    Args:
        how: How many, and which.
        seed: Of the draws.
        directory: Draws nodes of all ranks.
        finder: Knows edges of all ranks.
        transport: The ranks.

    Raises:
        ConfigError: On every rank: by degree in a graph without edges.
    """

    def __init__(
        self,
        how: NegativeSampling,
        seed: int,
        *,
        directory: NodeDirectory,
        finder: EdgeFinder,
        transport: Transport,
    ) -> None:
        if how.method == "degree" and directory.num_edges == 0:
            raise ConfigError("negatives cannot be drawn by degree in a graph without edges")
        self.how, self._seed = how, seed
        self._directory, self._finder, self._transport = directory, finder, transport

    def draw(
        self, shares: Sequence[EdgeShare], steps: Sequence[int], whole: Sequence[WholeBatch]
    ) -> list[Negatives]:
        """Collective. Return negatives for each batch.

        Args:
            shares: This rank's part of each batch.
            steps: Number of each batch over the whole run.
            whole: All edges of each batch; needed for `in_batch` alone, else it may be empty.
        """
        how = self.how
        sizes = [len(share.edges) * how.amount for share in shares]
        empty = torch.empty(0, dtype=torch.int64)
        src_id = torch.cat([empty, *(s.edges.src_id.repeat_interleave(how.amount) for s in shares)])
        dst = torch.empty_like(src_id)
        is_edge = torch.ones_like(src_id, dtype=torch.bool)
        for attempt in range(how.tries if how.strict else 1):
            drawn = self._candidates(shares, steps, whole, attempt)
            dst[is_edge] = drawn[is_edge]
            if not how.strict:
                break
            open_ = is_edge.nonzero().squeeze(1)
            is_edge[open_] = self._finder.exist(dst[open_], src_id[open_])
            left = is_edge.sum().view(1)
            self._transport.all_reduce(left).wait()
            if int(left) == 0:
                break
        counts = torch.tensor([share.batch_size * how.amount for share in shares])
        if how.strict:
            lost = torch.tensor([int(part.sum()) for part in torch.split(is_edge, sizes)])
            self._transport.all_reduce(lost).wait()
            counts -= lost
        parts = zip(
            torch.split(dst, sizes), torch.split(is_edge, sizes), counts.tolist(), strict=True
        )
        return [
            Negatives(
                nodes.view(-1, how.amount), ~wrong.view(-1, how.amount) if how.strict else None, n
            )
            for nodes, wrong, n in parts
        ]

    def _candidates(
        self,
        shares: Sequence[EdgeShare],
        steps: Sequence[int],
        whole: Sequence[WholeBatch],
        attempt: int,
    ) -> Tensor:
        """Collective. Return int64, destinations for all negatives of all batches."""
        by_place = [self.how.method == "in_batch" and s.batch_size > 1 for s in shares]
        drawn = {}
        others = [i for i, shifts in enumerate(by_place) if not shifts]
        if others:
            uniform = [self._uniform(shares[i], steps[i], attempt) for i in others]
            nodes = self._directory.draw(torch.cat(uniform), by_degree=self.how.method == "degree")
            drawn = dict(zip(others, torch.split(nodes, [len(u) for u in uniform]), strict=True))
        return torch.cat(
            [
                self._shifted(shares[i], steps[i], whole[i], attempt) if shifts else drawn[i]
                for i, shifts in enumerate(by_place)
            ]
        )

    def _uniform(self, share: EdgeShare, step: int, attempt: int) -> Tensor:
        """Return float64 (k * amount,): a number for each negative."""
        amount, edges = self.how.amount, share.edges
        which = torch.arange(amount).repeat(len(edges))
        ids = edge_ids(
            edges.draw_id.repeat_interleave(amount), which, torch.full_like(which, attempt)
        )
        return uniform_by_id(DrawKey(self._seed, step, NEGATIVE_SITE), ids)

    def _shifted(self, share: EdgeShare, step: int, whole: WholeBatch, attempt: int) -> Tensor:
        """Return int64 (k * amount,): destinations of edges so many places on in the batch."""
        amount, size = self.how.amount, share.batch_size
        which = torch.arange(amount) + attempt * amount
        drawn = uniform_by_id(DrawKey(self._seed, step, NEGATIVE_SITE), which)
        shift = 1 + (drawn * (size - 1)).long().clamp_(max=size - 2)
        return whole.dst[(share.place[:, None] + shift) % size].flatten()
