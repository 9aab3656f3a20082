"""Neighbours of seeds, drawn where they are: each rank draws for the nodes that it owns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.sampling import BlockSampler, hop_keys, relabel, sample_neighbors
from gnn_dist.sampling.requests import Requests
from gnn_dist.sampling.topology import Topology

__all__ = ["HOP_SITE", "Fanout", "Sample", "Sampler", "Wanted", "make_sampler"]

HOP_SITE = 1 << 21  # apart from the sites of models and splits
SAMPLE_CHANNEL = 0


@dataclass(frozen=True)
class Fanout:
    """How many neighbours are drawn, and how.

    Attributes:
        num_neighbors: For each hop, that next to the seeds first; -1 for all.
        replace: Draw exactly so many from each node that has any, with repetitions.
        seed: Of the draws.

    Raises:
        ConfigError: No hop, or a number below -1.
    """

    num_neighbors: tuple[int, ...]
    replace: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.num_neighbors or any(k < -1 or k > 2**31 - 1 for k in self.num_neighbors):
            raise ConfigError(
                "num_neighbors must have a number for each hop, -1 for all neighbours, got "
                f"{list(self.num_neighbors)}"
            )

    @property
    def num_hops(self) -> int:
        """H."""
        return len(self.num_neighbors)

    def keys(self, steps: Sequence[int]) -> Tensor:
        """Return int64 (batches, hops), what the draws of each batch and hop depend on."""
        return hop_keys(self.seed, steps, range(HOP_SITE, HOP_SITE + self.num_hops))


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is to be known of the edges and nodes of a batch, alike on all ranks.

    Attributes:
        edges: By name, (e, ...), values of this rank's edges in the order of `Topology.csr`.
        shares: By how many ranks the nodes of each layer are wanted.
    """

    edges: Mapping[str, Tensor] = field(default_factory=dict)
    shares: bool = False


@dataclass(frozen=True, eq=False)
class Sample:
    """What was drawn for one batch.

    Attributes:
        layers: (num_dst, num_src) structures in the order in which layers use them: the last hop
            first. All sources of a layer but the first are destinations of the one before.
        n_id: int64, numbers (see `Topology`) of the first layer's sources; seeds first, and a
            prefix of them is the sources of each later layer.
        edges: For each layer, by name, (nnz, ...), values of the edges, as far as they are wanted.
        row_share: For each layer float64 (num_dst,), one by how many ranks have the destination
            in this batch; None if each is on one rank, or it is not wanted.
        drawn: For each layer int64 (num_dst,), how many entries were drawn, where some of them
            were left out afterwards; None: those that are there.
    """

    layers: list[CSR]
    n_id: Tensor
    edges: list[dict[str, Tensor]]
    row_share: list[Tensor] | None = None
    drawn: list[Tensor] | None = None


class Sampler(Protocol):
    """Draws neighbours of seeds for several batches at a time."""

    def sample(self, seeds: Sequence[Tensor], steps: Sequence[int]) -> list[Sample]:
        """Collective. Return what is drawn for each batch.

        Args:
            seeds: For each batch int64 numbers of nodes, none twice; of any rank. As many batches
                on every rank; batches may be empty.
            steps: For each batch its number over the whole run.

        Raises:
            IndexError: A seed is no node.
            ValueError: A batch holds a seed twice.
        """


def make_sampler(
    topology: Topology,
    fanout: Fanout,
    transport: Transport,
    *,
    wanted: Wanted | None = None,
    weight: Tensor | None = None,
) -> Sampler:
    """Return what draws neighbours from a structure that all ranks hold together.

    Args:
        topology: This rank's rows.
        fanout: How many neighbours.
        transport: The ranks; nobody else uses it while a sampler works.
        wanted: What is to be known beside the edges themselves.
        weight: Floating (e,), in the order of `topology.csr`: what the chance of each edge is in
            proportion to; None: equal chances. On all ranks or on none.
    """
    kind = _WholeSampler if topology.is_whole else _ShardSampler
    return kind(topology, fanout, transport, wanted or Wanted(), weight)


class _WholeSampler:
    """This rank has all rows, and takes each batch through all hops in one call."""

    def __init__(
        self,
        topology: Topology,
        fanout: Fanout,
        transport: Transport,
        wanted: Wanted,
        weight: Tensor | None,
    ) -> None:
        self._fanout, self._wanted = fanout, wanted
        self._rank_ptr, self._transport = topology.rank_ptr, transport
        self._sampler = BlockSampler(
            topology.csr,
            fanout.num_neighbors,
            replace=fanout.replace,
            ids=topology.node_id,
            weight=weight,
        )

    def sample(self, seeds: Sequence[Tensor], steps: Sequence[int]) -> list[Sample]:
        """Return what is drawn for each batch. See `Sampler`."""
        drawn = self._sampler.sample(seeds, self._fanout.keys(steps))
        samples = []
        for batch in range(len(seeds)):
            blocks = drawn.blocks(batch)
            edges = [
                {name: rows[block.e_id] for name, rows in self._wanted.edges.items()}
                for block in blocks
            ]
            samples.append(Sample([block.csr for block in blocks], drawn.n_id(batch), edges))
        return samples if self._transport.world_size == 1 else self._with_shares(samples)

    def _with_shares(self, samples: list[Sample]) -> list[Sample]:
        """Collective. Ask the owners who else has the destinations, if that is wanted."""
        if not self._wanted.shares:
            return samples
        shares: list[list[Tensor]] = [[] for _ in samples]
        for layer in range(self._fanout.num_hops):
            nodes = [sample.n_id[: sample.layers[layer].num_rows] for sample in samples]
            requests = Requests.send(nodes, self._rank_ptr, self._transport, SAMPLE_CHANNEL)
            of_batches = requests.of_batches(requests.answer_rows(requests.shares()))
            for share, rows in zip(shares, of_batches, strict=True):
                share.append(rows)
        return [replace(s, row_share=share) for s, share in zip(samples, shares, strict=True)]


class _Drawn(NamedTuple):
    """What came back for the nodes of one batch and hop."""

    indptr: Tensor
    columns: Tensor
    edges: dict[str, Tensor]
    row_share: Tensor | None


class _ShardSampler:
    """Each hop: nodes go to their owners, who draw; what they drew comes back."""

    def __init__(
        self,
        topology: Topology,
        fanout: Fanout,
        transport: Transport,
        wanted: Wanted,
        weight: Tensor | None,
    ) -> None:
        self._topology, self._fanout, self._transport = topology, fanout, transport
        self._wanted, self._weight = wanted, weight
        narrow = topology.num_nodes < 2**31
        self._column_number = topology.number.int() if narrow else topology.number

    def sample(self, seeds: Sequence[Tensor], steps: Sequence[int]) -> list[Sample]:
        """Collective. Return what is drawn for each batch. See `Sampler`."""
        nodes = list(seeds)
        hops: list[list[tuple[CSR, _Drawn]]] = []
        for hop, fanout in enumerate(self._fanout.num_neighbors):
            keys = [DrawKey(self._fanout.seed, step, HOP_SITE + hop) for step in steps]
            drawn = self._draw(nodes, fanout, keys)
            found = [relabel(ids, d.columns) for ids, d in zip(nodes, drawn, strict=True)]
            hops.append(
                [
                    (CSR(d.indptr, local, ids.numel()), d)
                    for d, (ids, local) in zip(drawn, found, strict=True)
                ]
            )
            nodes = [ids for ids, _ in found]
        samples = []
        for batch, n_id in enumerate(nodes):
            layers = [hop[batch] for hop in reversed(hops)]
            edges = [d.edges for _, d in layers]
            shares = [d.row_share for _, d in layers if d.row_share is not None] or None
            samples.append(Sample([csr for csr, _ in layers], n_id, edges, shares))
        return samples

    def _draw(self, nodes: Sequence[Tensor], fanout: int, keys: Sequence[DrawKey]) -> list[_Drawn]:
        """Collective. Return what is drawn for the nodes of each batch."""
        topology, csr = self._topology, self._topology.csr
        requests = Requests.send(nodes, topology.rank_ptr, self._transport, SAMPLE_CHANNEL)
        drawn = [
            sample_neighbors(
                csr,
                rows,
                row_ids=topology.node_id[rows],
                fanout=fanout,
                key=keys[batch],
                replace=self._fanout.replace,
                weight=self._weight,
            )
            for batch, rows in requests.groups()
        ]
        empty = csr.indptr[:0]
        counts = torch.cat([empty, *(sample.indptr.diff() for sample in drawn)])
        columns = torch.cat([csr.indices[:0], *(sample.columns for sample in drawn)])
        entries = torch.cat([empty, *(sample.position for sample in drawn)])
        values = [rows[entries] for rows in self._wanted.edges.values()]
        indptr, came = requests.answer(counts, [self._column_number[columns.long()], *values])
        by_batch = [requests.split(indptr, value) for value in came]
        shares: Sequence[Tensor | None] = [None] * len(nodes)
        if self._wanted.shares:
            shares = requests.of_batches(requests.answer_rows(requests.shares()))
        return [
            _Drawn(offsets, columns, dict(zip(self._wanted.edges, values, strict=True)), share)
            for offsets, (columns, *values), share in zip(
                requests.offsets(indptr), zip(*by_batch, strict=True), shares, strict=True
            )
        ]
