"""Minibatches of edges: to tell edges from pairs of nodes that are none, or to classify edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.block import Block
from gnn_dist.ops.sampling import relabel
from gnn_dist.sampling.directory import NodeDirectory
from gnn_dist.sampling.edges import EdgeBatches, EdgeRows, EdgeShare
from gnn_dist.sampling.exclude import gather_batches, without_batch
from gnn_dist.sampling.find import EdgeFinder
from gnn_dist.sampling.loading import Gathered, Loader, LoaderOptions
from gnn_dist.sampling.negatives import Negatives, NegativeSampler, NegativeSampling, WholeBatch
from gnn_dist.sampling.neighbor import Sample
from gnn_dist.sampling.seeds import BatchPlan
from gnn_dist.sampling.subgraph import Subgraph, subgraph_of
from gnn_dist.sampling.supervision import all_edges, given_edges, without
from gnn_dist.sampling.topology import topology_of
from gnn_dist.shard.shard import Shard

__all__ = ["LinkBatch", "LinkLoader", "LinkOptions"]

EXCLUDE = ("none", "batch", "all")


@dataclass(frozen=True, kw_only=True)
class LinkOptions(LoaderOptions):
    """How batches of edges are put together. Without `shuffle` one order is drawn for all epochs.

    Attributes:
        exclude: What messages do not go along: `batch`, the batch's own edges, of all ranks, and
            their reverses; `all`, all edges that are learned from, and their reverses; `none`.

    Raises:
        ConfigError: A number or a word that cannot be.
    """

    exclude: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exclude not in EXCLUDE:
            raise ConfigError(f"exclude must be {' or '.join(EXCLUDE)}, got {self.exclude!r}")


@dataclass(frozen=True, eq=False)
class LinkBatch:
    """A rank's part of a batch. Seeds are the distinct ends of its edges and negatives.

    Attributes:
        step: Number of the batch over the whole run: what dropout draws by.
        blocks: One for each layer, in order. Destinations of the last are the seeds.
        x: (num_src, F), features of the first block's sources; None if the graph has none.
        n_id: int64 (num_src,), original ids of the first block's sources, seeds first.
        input_id: int64 (k,), where each edge is among those that were given: of the graph's own,
            their numbers over all ranks.
        size: Edges of all ranks together, by which sums of losses are divided.
        num_negatives: Negatives of all ranks together.
        edge_label_index: int64 (2, m), which seeds the edges connect, negatives behind them; None
            of triplets.
        edge_label: (m, ...), their labels. With binary negatives 1 for an edge, and 0 for a
            negative; classes that were given are counted from 1 then. None if there are none.
        src_index: int64 (k,), of triplets: which seeds the sources are.
        dst_pos_index: int64 (k,), of triplets: which seeds the destinations are.
        dst_neg_index: int64 (k, amount), of triplets: which seeds the negatives are.
        neg_mask: bool (k, amount), of strict triplets: which negatives are no edges.
        sample: What was drawn.
    """

    step: int
    blocks: list[Block]
    x: Tensor | None
    n_id: Tensor
    input_id: Tensor
    size: int
    sample: Sample
    num_negatives: int = 0
    edge_label_index: Tensor | None = None
    edge_label: Tensor | None = None
    src_index: Tensor | None = None
    dst_pos_index: Tensor | None = None
    dst_neg_index: Tensor | None = None
    neg_mask: Tensor | None = None

    @property
    def batch_size(self) -> int:
        """Edges of this rank, k."""
        return self.input_id.numel()

    @cached_property
    def subgraph(self) -> Subgraph:
        """The batch as one graph, seeds first, for models that take `(x, edge_index)`.

        `x[subgraph.rows]` are its features.
        """
        return subgraph_of(self.sample)


class LinkLoader(Loader[EdgeShare, LinkBatch]):
    """Collective. Batches of edges to learn from, with the neighbours drawn around their ends.

    Iterating once is one epoch, which is collective too: each edge is in one batch of it, and
    every rank gets as many batches. Batches, negatives and what is drawn are the same for any
    number of ranks.

    Args:
        shard: This rank's shard, along whose edges messages go.
        world: The ranks.
        num_neighbors: For each layer, that next to the seeds first; -1 for all neighbours.
        batch_size: Edges of a batch, of all ranks together, negatives not counted.
        edge_label_index: int64 (2, k), original ids of sources and destinations: edges to learn
            from, each on one rank, whichever; they need not be the graph's. None for all of this
            shard's.
        edge_label: (k, ...), labels of these edges, or (e, ...), of the shard's.
        neg_sampling: `binary`, `triplet`, one of these with an amount, or a `NegativeSampling`.
            None for no negatives.
        options: Fields of `LinkOptions`.

    Raises:
        ConfigError: On every rank: nothing to learn from, ids of no node, or an option that
            cannot be.

    Example:
        >>> import gnn_dist as gd
        >>> # for batch in LinkLoader(shard, world, [10, 5], batch_size=1024): ...
    """

    def __init__(
        self,
        shard: Shard,
        world: World,
        num_neighbors: Sequence[int],
        *,
        batch_size: int,
        edge_label_index: Tensor | None = None,
        edge_label: Tensor | None = None,
        neg_sampling: NegativeSampling | str | tuple[str, int] | None = "binary",
        **options: Any,  # noqa: ANN401 - any field of LinkOptions
    ) -> None:
        chosen = LinkOptions(**options)
        plan = BatchPlan(batch_size, chosen.shuffle, chosen.drop_last, chosen.seed)
        how = NegativeSampling.parse(neg_sampling)
        self._exclude = chosen.exclude
        super().__init__(world, num_neighbors, chosen)
        transport = self._transport
        topology = topology_of(shard, transport)
        self._num_nodes = topology.num_nodes
        directory = NodeDirectory(topology, transport)
        finder = EdgeFinder(topology, shard.structure.src_id, transport)
        if edge_label_index is None:
            with world.everywhere("reading the edges to learn from"):
                edges = all_edges(shard, topology, world.rank, edge_label)
        else:
            edges = given_edges(
                edge_label_index,
                edge_label,
                topology=topology,
                directory=directory,
                world=world,
                transport=transport,
            )
        with world.everywhere("reading the labels of edges"):
            edges = _labelled(edges, how)
        self.edges = EdgeBatches(edges, plan, transport)
        self._negatives = None
        if how is not None:
            self._negatives = NegativeSampler(
                how, chosen.seed, directory=directory, finder=finder, transport=transport
            )
        if chosen.exclude == "all":
            shard = without(shard, topology, edges, finder)
            topology = topology_of(shard, transport)
        # An end of an edge is drawn as often as it has edges, about twice as many as in-edges.
        often = (2 * topology.csr.counts + 1).double() * batch_size / max(1, self.edges.num_edges)
        self._draw_from(shard, topology, often.clamp(max=1.0))

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.edges)

    def _shares(self, epoch: int) -> Iterator[EdgeShare]:
        return self.edges.epoch(epoch)

    def _bulk(self, shares: list[EdgeShare], step: int) -> Iterator[LinkBatch]:
        steps = range(step, step + len(shares))
        negatives: Sequence[Negatives | None] = [None] * len(shares)
        whole: list[WholeBatch] = []
        if self._exclude == "batch" or self._is_in_batch:
            whole = gather_batches(shares, self._transport)
        if self._negatives is not None:
            negatives = self._negatives.draw(shares, steps, whole)
        named = [_named(s, n) for s, n in zip(shares, negatives, strict=True)]
        samples = self._sampler.sample([seeds for seeds, _ in named], steps)
        if self._exclude == "batch":
            samples = [
                without_batch(sample, batch, self._num_nodes)
                for sample, batch in zip(samples, whole, strict=True)
            ]
        found = self._store.locate([sample.n_id for sample in samples])
        for i, share in enumerate(shares):
            gathered = self._gathered(samples[i], found[i])
            yield self._batch(share, negatives[i], gathered, named[i][1], steps[i])

    @property
    def _is_in_batch(self) -> bool:
        return self._negatives is not None and self._negatives.how.method == "in_batch"

    def _batch(
        self,
        share: EdgeShare,
        negatives: Negatives | None,
        gathered: Gathered,
        local: Tensor,
        step: int,
    ) -> LinkBatch:
        k, edges = len(share.edges), share.edges
        common = {
            **gathered._asdict(),
            "step": step,
            "input_id": edges.position,
            "size": share.batch_size,
            "num_negatives": 0 if negatives is None else negatives.total,
        }
        src, dst = local[:k], local[k : 2 * k]
        if negatives is None or self._negatives is None:
            return LinkBatch(
                **common, edge_label_index=torch.stack([src, dst]), edge_label=edges.label
            )
        other = local[2 * k :].view(negatives.dst.shape)
        if self._negatives.how.mode == "triplet":
            return LinkBatch(
                **common,
                src_index=src,
                dst_pos_index=dst,
                dst_neg_index=other,
                neg_mask=negatives.mask,
            )
        pairs = torch.stack([src[:, None].expand_as(other), other]).flatten(1)
        if negatives.mask is not None:
            pairs = pairs[:, negatives.mask.flatten()]
        label = torch.ones(k) if edges.label is None else edges.label
        none = label.new_zeros(pairs.size(1), *label.shape[1:])
        return LinkBatch(
            **common,
            edge_label_index=torch.cat([torch.stack([src, dst]), pairs], 1),
            edge_label=torch.cat([label, none]),
        )


def _named(share: EdgeShare, negatives: Negatives | None) -> tuple[Tensor, Tensor]:
    """Return the seeds of a batch, int64 numbers, and which of them sources, then ends are."""
    ends = [share.edges.src, share.edges.dst]
    if negatives is not None:
        ends.append(negatives.dst.flatten())
    seeds, local = relabel(share.edges.dst[:0], torch.cat(ends))
    return seeds, local.long()


def _labelled(edges: EdgeRows, how: NegativeSampling | None) -> EdgeRows:
    """Return edges with classes that leave room for what negatives are.

    Raises:
        ConfigError: Labels of triplets, or other labels than classes beside binary negatives.
    """
    if how is None or edges.label is None:
        return edges
    if how.mode == "triplet" or edges.label.dtype != torch.int64:
        raise ConfigError(
            "edge_label must be int64 classes with binary negatives, and None with triplets; got "
            f"{edges.label.dtype} with {how.mode}"
        )
    return EdgeRows(edges.ids, edges.label + 1)
