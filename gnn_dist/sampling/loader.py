"""Minibatches of nodes: seeds, what was drawn around them, and their rows, made ahead of use."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.block import Block
from gnn_dist.sampling.batch import Batch, blocks_of
from gnn_dist.sampling.neighbor import Fanout, Sample, Wanted, make_sampler
from gnn_dist.sampling.prefetch import Prefetch
from gnn_dist.sampling.seeds import BatchPlan, SeedBatches, SeedShare
from gnn_dist.sampling.store import FeatureStore, Fetched, StoreCounts
from gnn_dist.sampling.topology import Topology, topology_of
from gnn_dist.shard.shard import Shard

__all__ = ["Gathered", "Loader", "LoaderOptions", "NodeLoader"]

Share = TypeVar("Share")
Made = TypeVar("Made")

FEATURE_CHANNEL, LABEL_CHANNEL = 1, 2
AHEAD = 2
SUM_TABLES = ("degree", "in_edges")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How batches are put together, and how far ahead.

    Attributes:
        shuffle: Put seeds in another order in each epoch; otherwise they are in that of their
            original ids.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        replace: Draw neighbours with repetitions.
        seed: Of the order and of the draws.
        bulk: Batches that are sampled and fetched in one round of messages. An epoch begins with
            smaller rounds, so that its first batch is there soon.
        ahead: Batches that may lie ready, made by a thread; 0 makes them when they are asked for.
            -1 is 2 where something else than this process's cores works or is waited for: a GPU,
            or other ranks. On one CPU a thread would only take time from the model's.
        sums: Blocks know degrees and edge weights of the whole graph, for layers that add up over
            in-edges (GCN, GIN, sums of GraphSAGE): what they get is right on average.
        shares: Blocks know how many ranks have each node, for batch norm.
        edges: Batches say which edges they hold.

    Raises:
        ConfigError: A number that cannot be.
    """

    shuffle: bool = True
    drop_last: bool = False
    replace: bool = False
    seed: int = 0
    bulk: int = 4
    ahead: int = -1
    sums: bool = True
    shares: bool = True
    edges: bool = False

    def __post_init__(self) -> None:
        if self.bulk < 1 or self.ahead < -1:
            raise ConfigError(
                f"bulk must be at least 1 and ahead at least -1, got {self.bulk} and {self.ahead}"
            )

    def ahead_on(self, world: World) -> int:
        """Return how many batches may lie ready."""
        if self.ahead >= 0:
            return self.ahead
        return 0 if world.world_size == 1 and world.device.type == "cpu" else AHEAD


class Gathered(NamedTuple):
    """What a batch holds of the nodes that were drawn, whatever its seeds are for.

    Attributes:
        blocks: One for each layer.
        n_id: int64 (num_src,), original ids of the first block's sources.
        x: (num_src, F), their features; None if the graph has none.
        e_id: For each block int64 (nnz,), numbers of its edges; None unless asked for.
    """

    blocks: list[Block]
    n_id: Tensor
    x: Tensor | None
    e_id: list[Tensor] | None


class Loader(ABC, Generic[Share, Made]):
    """What loaders of nodes and of edges have in common: shares are made into batches ahead of use.

    Args:
        world: The ranks.
        num_neighbors: For each layer, that next to the seeds first; -1 for all neighbours.
        options: How batches are made.

    Attributes:
        wait_s: Seconds that the present epoch has waited for batches.
        epoch: Number of the next one.
    """

    def __init__(self, world: World, num_neighbors: Sequence[int], options: LoaderOptions) -> None:
        self.world, self.options = world, options
        self.wait_s, self.epoch = 0.0, 0
        self.fanout = Fanout(tuple(num_neighbors), options.replace, options.seed)
        # Messages of its own: batches are made in a thread.
        self._transport = world.split(0).transport

    def _draw_from(self, shard: Shard, topology: Topology) -> None:
        """Prepare to draw neighbours from a shard's edges, and to fetch rows of its nodes."""
        wanted = _wanted_of(shard, topology, self.options, self.world.rank)
        self._sampler = make_sampler(topology, self.fanout, self._transport, wanted=wanted)
        self._store = FeatureStore(
            _tables_of(shard, self.options),
            topology.rank_ptr,
            self._transport,
            channel=FEATURE_CHANNEL,
        )

    @property
    def counts(self) -> StoreCounts:
        """What was fetched since the counts were reset."""
        return self._store.counts

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch."""

    @abstractmethod
    def _shares(self, epoch: int) -> Iterator[Share]:
        """Collective. Yield this rank's part of what each batch of an epoch starts from."""

    @abstractmethod
    def _bulk(self, shares: list[Share], step: int) -> Iterator[Made]:
        """Collective. Make some batches, of which the first has this number over the whole run."""

    def __iter__(self) -> Iterator[Made]:
        """Collective. Yield the batches of the next epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from self.batches(epoch)

    def batches(self, epoch: int) -> Iterator[Made]:
        """Collective. Yield the batches of some epoch; to be exhausted, or no rank goes on."""
        self.wait_s = 0.0
        ahead = self.options.ahead_on(self.world)
        if ahead == 0:
            yield from self._timed(self._made(epoch))
            return
        with Prefetch(lambda: self._made_aside(epoch), ahead=ahead) as ready:
            yield from self._timed(iter(ready))

    def _timed(self, batches: Iterator[Made]) -> Iterator[Made]:
        while True:
            start = time.perf_counter()
            with self.world.control.needing_aside():
                batch = next(batches, None)
            self.wait_s += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def _made_aside(self, epoch: int) -> Iterator[Made]:
        with self.world.control.aside():
            yield from self._made(epoch)

    def _made(self, epoch: int) -> Iterator[Made]:
        """Collective. Make the batches of an epoch, some at a time."""
        shares, step, bulk = self._shares(epoch), epoch * len(self), 1
        while some := list(islice(shares, min(bulk, self.options.bulk))):
            yield from self._bulk(some, step)
            step, bulk = step + len(some), 2 * bulk

    def _gathered(self, sample: Sample, rows: Fetched) -> Gathered:
        """Return what a batch holds of the nodes that were drawn."""
        store = self._store
        n_id = store.take(rows, "node_id")
        sums = [store.take(rows, name) if self.options.sums else None for name in SUM_TABLES]
        return Gathered(
            blocks=blocks_of(sample, n_id, *sums),
            n_id=n_id,
            x=store.take(rows, "x") if "x" in store.tables else None,
            e_id=[values["e_id"] for values in sample.edges] if self.options.edges else None,
        )


class NodeLoader(Loader[SeedShare, Batch]):
    """Collective. Batches of seeds with the neighbours drawn around them.

    Iterating once is one epoch, which is collective too: every rank gets as many batches, some of
    them perhaps without seeds of its own. Batches, and what is drawn, are the same for any number
    of ranks.

    Args:
        shard: This rank's shard.
        world: The ranks.
        num_neighbors: For each layer, that next to the seeds first; -1 for all neighbours.
        batch_size: Seeds of a batch, of all ranks together.
        input_nodes: bool (n,) or int64 local ids: owned nodes to start from; None for all.
        options: Fields of `LoaderOptions`.

    Raises:
        ConfigError: On every rank: nothing to start from, or an option that cannot be.

    Example:
        >>> import gnn_dist as gd
        >>> # for batch in loader: loss = f(model(batch.x, batch.blocks), batch.y) / batch.size
    """

    def __init__(
        self,
        shard: Shard,
        world: World,
        num_neighbors: Sequence[int],
        *,
        batch_size: int,
        input_nodes: Tensor | None = None,
        **options: Any,  # noqa: ANN401 - any field of LoaderOptions
    ) -> None:
        chosen = LoaderOptions(**options)
        plan = BatchPlan(batch_size, chosen.shuffle, chosen.drop_last, chosen.seed)
        super().__init__(world, num_neighbors, chosen)
        topology = topology_of(shard, self._transport)
        with world.everywhere("choosing seeds"):
            seeds = _local_ids(input_nodes, shard.num_owned)
        self.seeds = SeedBatches(
            seeds,
            node_id=shard.node_id,
            first=int(topology.rank_ptr[world.rank]),
            cost=expected_cost(topology.csr.counts[seeds], self.fanout),
            plan=plan,
            transport=self._transport,
        )
        self._draw_from(shard, topology)
        labels = {} if shard.y is None else {"y": shard.y}
        self._labels = FeatureStore(
            labels, topology.rank_ptr, self._transport, channel=LABEL_CHANNEL
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.seeds)

    def _shares(self, epoch: int) -> Iterator[SeedShare]:
        return self.seeds.epoch(epoch)

    def _bulk(self, shares: list[SeedShare], step: int) -> Iterator[Batch]:
        steps = range(step, step + len(shares))
        samples = self._sampler.sample([share.ids for share in shares], steps)
        found = self._store.locate([sample.n_id for sample in samples])
        labels = self._labels.locate([share.ids for share in shares])
        for i, share in enumerate(shares):
            yield self._batch(share, samples[i], found[i], labels[i], steps[i])

    def _batch(
        self, share: SeedShare, sample: Sample, rows: Fetched, labels: Fetched, step: int
    ) -> Batch:
        return Batch(
            **self._gathered(sample, rows)._asdict(),
            step=step,
            y=self._labels.take(labels, "y") if "y" in self._labels.tables else None,
            input_id=share.position,
            size=share.batch_size,
        )


def expected_cost(degree: Tensor, fanout: Fanout) -> Tensor:
    """Return float32 (k,): in proportion to the edges that seeds of these in-degrees bring.

    What is drawn beyond the first hop is taken to be alike for every neighbour.
    """
    first, *others = fanout.num_neighbors
    drawn = degree.double()
    mean = float(drawn.mean()) if len(drawn) else 0.0
    if first >= 0:
        drawn = torch.full_like(drawn, first) if fanout.replace else drawn.clamp(max=first)
    behind = 1.0
    for k in reversed(others):
        behind = 1.0 + (k if k >= 0 else mean) * behind
    return (1.0 + drawn * behind).float()


def _tables_of(shard: Shard, options: LoaderOptions) -> dict[str, Tensor]:
    """Return what batches hold of all their nodes."""
    tables = {"node_id": shard.node_id}
    if shard.features is not None:
        tables["x"] = shard.x
    if options.sums:
        structure = shard.structure
        tables["degree"] = structure.degree[: shard.num_owned]
        tables["in_edges"] = structure.csr.counts
    return tables


def _wanted_of(shard: Shard, topology: Topology, options: LoaderOptions, rank: int) -> Wanted:
    edges = {}
    if options.sums and shard.edge_weight is not None:
        edges["edge_weight"] = topology.take(shard.edge_weight)
    if options.edges:
        edges["e_id"] = topology.edge_number(rank)
    return Wanted(edges, options.shares)


def _local_ids(nodes: Tensor | None, num_owned: int) -> Tensor:
    """Return int64 (k,), nodes to start from.

    Raises:
        ConfigError: They are no owned nodes, or repeat.
    """
    if nodes is None:
        return torch.arange(num_owned)
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_owned,):
            raise ConfigError(
                f"input_nodes must be a mask of {num_owned} owned nodes, got {tuple(nodes.shape)}"
            )
        return nodes.nonzero().squeeze(1)
    ids = nodes.long()
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_owned:
        raise ConfigError(f"input_nodes must be local ids of {num_owned} owned nodes")
    if torch.bincount(ids, minlength=1).max() > 1:
        raise ConfigError("input_nodes must hold no node twice")
    return ids
