"""Minibatches of nodes: seeds, what was drawn around them, and their rows, made ahead of use."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.sampling.access import access_probability, most_likely
from gnn_dist.sampling.batch import Batch, blocks_of
from gnn_dist.sampling.neighbor import Fanout, Sample, Wanted, make_sampler
from gnn_dist.sampling.prefetch import Gate, Prefetch
from gnn_dist.sampling.seeds import BatchPlan, SeedBatches, SeedShare
from gnn_dist.sampling.store import FeatureStore, Fetched, StoreCounts
from gnn_dist.sampling.topology import Topology, topology_of
from gnn_dist.shard.shard import Shard

__all__ = ["LoaderOptions", "NodeLoader"]

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
        cache_bytes: Memory for rows of other ranks' features, those that batches are most likely to
            need, which then do not travel.
        sums: Blocks know degrees and edge weights of the whole graph, for layers that add up over
            in-edges (GCN, GIN, sums of GraphSAGE): what they get is right on average.
        shares: Blocks know how many ranks have each node, for batch norm.
        edges: Batches say which edges they hold.
        edge_data: Batches hold weights, attributes and types of their edges, as the graph has them.

    Raises:
        ConfigError: A number that cannot be.
    """

    shuffle: bool = True
    drop_last: bool = False
    replace: bool = False
    seed: int = 0
    bulk: int = 4
    ahead: int = -1
    cache_bytes: int = 0
    sums: bool = True
    shares: bool = True
    edges: bool = False
    edge_data: bool = False

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


class NodeLoader:
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

    Attributes:
        expected_hit_rate: Share of the other ranks' rows that are expected to be kept here; NaN
            without any.
        wait_s: Seconds that the present epoch has waited for batches.
        epoch: Number of the next one.

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
        self.world, self.options = world, LoaderOptions(**options)
        self.wait_s, self.epoch = 0.0, 0
        fanout = Fanout(tuple(num_neighbors), self.options.replace, self.options.seed)
        plan = BatchPlan(
            batch_size, self.options.shuffle, self.options.drop_last, self.options.seed
        )
        # Messages of its own: batches are made in a thread.
        transport = world.split(0).transport
        topology = topology_of(shard, transport)
        with world.everywhere("choosing seeds"):
            seeds = _local_ids(input_nodes, shard.num_owned)
        self.seeds = SeedBatches(
            seeds,
            node_id=shard.node_id,
            first=int(topology.rank_ptr[world.rank]),
            cost=expected_cost(topology.csr.counts[seeds], fanout),
            plan=plan,
            transport=transport,
        )
        wanted = _wanted_of(shard, topology, self.options, world.rank)
        self._sampler = make_sampler(topology, fanout, transport, wanted=wanted)
        tables, labels = _tables_of(shard, self.options)
        self._store, self._labels = (
            FeatureStore(some, topology.rank_ptr, transport, channel=channel)
            for some, channel in ((tables, FEATURE_CHANNEL), (labels, LABEL_CHANNEL))
        )
        self.expected_hit_rate = self._keep(shard, topology, seeds, fanout, transport)

    def _keep(
        self,
        shard: Shard,
        topology: Topology,
        seeds: Tensor,
        fanout: Fanout,
        transport: Transport,
    ) -> float:
        """Collective. Fill the cache, and return its expected hit rate."""
        num_rows = self.options.cache_bytes // max(1, self._store.row_bytes)
        if transport.world_size == 1 or not any(transport.all_gather_object(num_rows)):
            return float("nan")
        chance = torch.zeros(shard.num_owned, dtype=torch.float64)
        chance[seeds] = min(1.0, self.seeds.plan.batch_size / self.seeds.num_seeds)
        chances = access_probability(topology, shard.plan, chance, fanout, transport)
        likely = most_likely(chances, topology, num_rows, transport)
        self._store.keep(likely.ids)
        self.counts.reset()
        return likely.hit_rate

    @property
    def counts(self) -> StoreCounts:
        """What was fetched since the counts were reset."""
        return self._store.counts

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.seeds)

    def __iter__(self) -> Iterator[Batch]:
        """Collective. Yield the batches of the next epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from self.batches(epoch)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Collective. Yield the batches of an epoch; to leave the loop early is collective too."""
        self.wait_s = 0.0
        ahead, gate = self.options.ahead_on(self.world), Gate()
        if ahead == 0:
            yield from self._timed(self._made(epoch, gate))
            return
        with Prefetch(lambda: self._made_aside(epoch, gate), ahead=ahead) as ready:
            items = iter(ready)
            try:
                yield from self._timed(items)
            except GeneratorExit:
                self._end_early(items, gate)
                raise

    def _end_early(self, items: Iterator[Batch], gate: Gate) -> None:
        """Collective. Finish, and drop, the rounds that some rank has begun.

        A rank that has left by an exception does not come here in time, or hears of its own end.
        """
        most = torch.tensor([gate.hold()])
        try:
            self.world.transport.all_reduce(most, "max").wait()
        finally:
            gate.open_until(int(most))
        for _ in items:
            pass

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            start = time.perf_counter()
            with self.world.control.needing_aside():
                batch = next(batches, None)
            self.wait_s += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def _made_aside(self, epoch: int, gate: Gate) -> Iterator[Batch]:
        with self.world.control.aside():
            yield from self._made(epoch, gate)

    def _made(self, epoch: int, gate: Gate) -> Iterator[Batch]:
        """Collective. Make the batches of an epoch, some at a time."""
        shares, step, bulk = self.seeds.epoch(epoch), epoch * len(self), 1
        while some := list(islice(shares, min(bulk, self.options.bulk))):
            if not gate.enter():
                return
            yield from self._bulk(some, step)
            step, bulk = step + len(some), 2 * bulk

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
        store = self._store
        n_id = store.take(rows, "node_id")
        sums = [store.take(rows, name) if self.options.sums else None for name in SUM_TABLES]
        return Batch(
            step=step,
            blocks=blocks_of(sample, n_id, *sums),
            x=store.take(rows, "x") if "x" in store.tables else None,
            y=self._labels.take(labels, "y") if "y" in self._labels.tables else None,
            n_id=n_id,
            input_id=share.position,
            size=share.batch_size,
            sample=sample,
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


def _tables_of(shard: Shard, options: LoaderOptions) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what batches hold of all their nodes, and what of their seeds."""
    tables = {"node_id": shard.node_id}
    if shard.features is not None:
        tables["x"] = shard.x
    if options.sums:
        structure = shard.structure
        tables["degree"] = structure.degree[: shard.num_owned]
        tables["in_edges"] = structure.csr.counts
    return tables, {} if shard.y is None else {"y": shard.y}


def _wanted_of(shard: Shard, topology: Topology, options: LoaderOptions, rank: int) -> Wanted:
    has = {"edge_weight": shard.edge_weight}
    if options.edge_data:
        has.update({name: shard.edge_data.get(name) for name in ("edge_attr", "edge_type")})
    wanted = options.sums or options.edge_data
    edges = {
        name: topology.take(values) for name, values in has.items() if wanted and values is not None
    }
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
