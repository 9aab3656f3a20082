"""What loaders of nodes and of edges have in common: options, rounds, and what is gathered."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.block import Block
from gnn_dist.sampling.access import access_probability, most_likely
from gnn_dist.sampling.batch import blocks_of
from gnn_dist.sampling.compact import Storage, features_in, stored
from gnn_dist.sampling.neighbor import Fanout, Sample, Wanted, make_sampler
from gnn_dist.sampling.prefetch import Gate, Prefetch
from gnn_dist.sampling.shared import share_topology
from gnn_dist.sampling.store import FeatureStore, Fetched, StoreCounts
from gnn_dist.sampling.topology import Topology
from gnn_dist.shard.shard import Shard

__all__ = ["Gathered", "Loader", "LoaderOptions"]

Share = TypeVar("Share")
Made = TypeVar("Made")

FEATURE_CHANNEL = 1
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
            -1 is 2 where other ranks are waited for; alone a thread would only take time from the
            model's.
        cache_bytes: Memory for rows of other ranks' features, those that batches are most likely to
            need, which then do not travel.
        topology: `parts`: each rank draws for the nodes that it owns; `shared`: every machine has
            the edges of the whole graph once, and ranks draw without messages.
        storage: How features lie in memory and travel: `same`, `fp16`, `bf16` or `int8`; batches
            have them in the shard's dtype.
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
    topology: Literal["parts", "shared"] = "parts"
    storage: Storage = "same"
    sums: bool = True
    shares: bool = True
    edges: bool = False
    edge_data: bool = False

    def __post_init__(self) -> None:
        if self.bulk < 1 or self.ahead < -1:
            raise ConfigError(
                f"bulk must be at least 1 and ahead at least -1, got {self.bulk} and {self.ahead}"
            )
        for name, words in (("storage", get_args(Storage)), ("topology", ("parts", "shared"))):
            if getattr(self, name) not in words:
                raise ConfigError(
                    f"{name} must be one of {', '.join(words)}, got {getattr(self, name)!r}"
                )

    def ahead_on(self, world: World) -> int:
        """Return how many batches may lie ready."""
        if self.ahead >= 0:
            return self.ahead
        return AHEAD if world.world_size > 1 else 0


class Gathered(NamedTuple):
    """What a batch holds of the nodes that were drawn, whatever its seeds are for.

    Attributes:
        blocks: One for each layer.
        n_id: int64 (num_src,), original ids of the first block's sources.
        x: (num_src, F), their features; None if the graph has none.
        sample: What was drawn.
    """

    blocks: list[Block]
    n_id: Tensor
    x: Tensor | None
    sample: Sample


class Loader(ABC, Generic[Share, Made]):
    """What loaders of nodes and of edges have in common: shares are made into batches ahead of use.

    Args:
        world: The ranks.
        num_neighbors: For each layer, that next to the seeds first; -1 for all neighbours.
        options: How batches are made.

    Raises:
        ConfigError: The ranks' tensors do not lie on CPUs.

    Attributes:
        expected_hit_rate: Share of the other ranks' rows that are expected to be kept here; NaN
            without any.
        wait_s: Seconds that the present epoch has waited for batches.
        epoch: Number of the next one.
    """

    def __init__(self, world: World, num_neighbors: Sequence[int], options: LoaderOptions) -> None:
        if world.device.type != "cpu":
            raise ConfigError(
                f"batches are made on CPUs, and this world's tensors lie on {world.device}: make "
                "it with device='cpu', or train on full batches"
            )
        self.world, self.options = world, options
        self.wait_s, self.epoch = 0.0, 0
        self.expected_hit_rate = float("nan")
        self.fanout = Fanout(tuple(num_neighbors), options.replace, options.seed)
        # Messages of its own: batches are made in a thread.
        self._transport = world.split(0).transport

    def _draw_from(self, shard: Shard, topology: Topology, chance: Tensor) -> None:
        """Collective. Prepare to draw neighbours from a shard's edges, and to fetch rows of nodes.

        Args:
            shard: This rank's shard.
            topology: Its edges, as far as they are to be drawn.
            chance: float64 (n,), how likely each owned node is to be a seed of a batch.
        """
        wanted = _wanted_of(shard, topology, self.options, self.world.rank)
        whole = topology
        if self.options.topology == "shared" and self.world.world_size > 1:
            whole, edges = share_topology(topology, wanted.edges, self.world)
            wanted = replace(wanted, edges=edges)
        self._sampler = make_sampler(whole, self.fanout, self._transport, wanted=wanted)
        with self.world.everywhere("storing features"):
            tables = _tables_of(shard, self.options)
        self._dtype = shard.x.dtype if shard.features is not None else torch.float32
        self._store = FeatureStore(
            tables,
            topology.rank_ptr,
            self._transport,
            channel=FEATURE_CHANNEL,
        )
        num_rows = self.options.cache_bytes // max(1, self._store.row_bytes)
        if self.world.world_size > 1 and any(self._transport.all_gather_object(num_rows)):
            chances = access_probability(topology, shard.plan, chance, self.fanout, self._transport)
            likely = most_likely(chances, topology, num_rows, self._transport)
            self._store.keep(likely.ids)
            self.counts.reset()
            self.expected_hit_rate = likely.hit_rate

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

    def _end_early(self, items: Iterator[Made], gate: Gate) -> None:
        """Collective. Finish, and drop, the rounds that some rank has begun."""
        most = torch.tensor([gate.hold()])
        try:
            self.world.transport.all_reduce(most, "max").wait()
        finally:
            gate.open_until(int(most))
        for _ in items:
            pass

    def _timed(self, batches: Iterator[Made]) -> Iterator[Made]:
        while True:
            start = time.perf_counter()
            with self.world.control.needing_aside():
                batch = next(batches, None)
            self.wait_s += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def _made_aside(self, epoch: int, gate: Gate) -> Iterator[Made]:
        with self.world.control.aside():
            yield from self._made(epoch, gate)

    def _made(self, epoch: int, gate: Gate) -> Iterator[Made]:
        """Collective. Make the batches of an epoch, some at a time."""
        shares, step, bulk = self._shares(epoch), epoch * len(self), 1
        # The gate comes first: to find shares may be collective, and would be for nothing.
        while gate.enter() and (some := list(islice(shares, min(bulk, self.options.bulk)))):
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
            x=features_in(store, rows, self._dtype),
            sample=sample,
        )


def _tables_of(shard: Shard, options: LoaderOptions) -> dict[str, Tensor]:
    """Return what batches hold of all their nodes."""
    tables = {"node_id": shard.node_id}
    if shard.features is not None:
        tables.update(stored(shard.x, options.storage))
    if options.sums:
        structure = shard.structure
        tables["degree"] = structure.degree[: shard.num_owned]
        tables["in_edges"] = structure.csr.counts
    return tables


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
