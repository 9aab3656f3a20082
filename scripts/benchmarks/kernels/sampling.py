"""Blocks of neighbours for batches of 1024 seeds.

Compared by sampled edges a second, which each candidate counts in its own blocks: PyTorch Geometric
samples for new nodes only, the others for all nodes found so far. Ours and DGL's blocks have CSR
structures and ids of nodes and edges. DGL's fused sampler is left out: its blocks are wrong after
the first batch. Peers run with threads and with worker processes; compare with the better one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from graphs import Graph
from harness import OURS, Case, Setup

from gnn_dist.ops.sampling import BlockSampler, hop_keys

Count = Callable[[], int]


def cases(setup: Setup) -> Iterator[Case]:
    """Make the cases."""
    batch_size, ours, theirs = (64, 4, 2) if setup.quick else (1024, 64, 16)
    for fanouts in ([15, 10, 5], [25, 10]):
        candidates: dict[str, Count] = {OURS: _ours(setup.graph, fanouts, batch_size, ours)}
        threads = torch.get_num_threads()
        if setup.peers.dgl is not None:
            loader = _DglLoader(setup, fanouts, batch_size)
            for num in sorted({1, threads}):
                candidates[f"DGL, {num} threads"] = loader.in_process(4 * theirs, num)
            candidates[f"DGL, {threads} workers"] = loader.in_workers(4 * theirs, threads)
        if setup.peers.pyg_samples:
            for num in (0, threads):
                name = f"PyG on torch-sparse, {num} workers"
                candidates[name] = _pyg(setup, fanouts, batch_size, theirs, num)
        yield Case(f"sampling {fanouts}, batch {batch_size}", candidates, unit="edges")


def _seeds(num_nodes: int, batch_size: int, num_batches: int) -> list[torch.Tensor]:
    return [torch.randperm(num_nodes)[:batch_size] for _ in range(num_batches)]


def _ours(graph: Graph, fanouts: list[int], batch_size: int, num_batches: int) -> Count:
    sampler = BlockSampler(graph.csr, fanouts)
    keys = hop_keys(0, range(num_batches), range(len(fanouts)))
    seeds = _seeds(graph.num_nodes, batch_size, num_batches)

    def call() -> int:
        sampled = sampler.sample(seeds, keys)
        blocks = [block for batch in range(len(sampled)) for block in sampled.blocks(batch)]
        return sum(block.csr.nnz for block in blocks)

    return call


class _DglLoader:
    """Samples with DGL."""

    def __init__(self, setup: Setup, fanouts: list[int], batch_size: int) -> None:
        self.dgl: Any = setup.peers.dgl
        self.graph = setup.graph.of_dgl(self.dgl)
        self.batch_size = batch_size
        # DGL's last fan-out is that of the hop next to the seeds.
        self.sampler = self.dgl.dataloading.NeighborSampler(fanouts[::-1], fused=False)

    def in_process(self, num_batches: int, threads: int) -> Count:
        """Return a call that samples with threads."""
        seeds = _seeds(self.graph.num_nodes(), self.batch_size, num_batches)
        batches = [batch.to(self.graph.idtype) for batch in seeds]

        def call() -> int:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            edges = sum(self._edges(self.sampler.sample(self.graph, b)[2]) for b in batches)
            torch.set_num_threads(before)
            return edges

        return call

    def in_workers(self, num_batches: int, workers: int) -> Count:
        """Return a call that samples in worker processes, which stay between calls."""
        [seeds] = _seeds(self.graph.num_nodes(), self.batch_size * num_batches, 1)
        loader = self.dgl.dataloading.DataLoader(
            self.graph,
            seeds.to(self.graph.idtype),
            self.sampler,
            batch_size=self.batch_size,
            num_workers=workers,
            persistent_workers=True,
        )
        return lambda: sum(self._edges(blocks) for _, _, blocks in loader)

    @staticmethod
    def _edges(blocks: list[Any]) -> int:
        for block in blocks:
            block.adj_tensors("csc")
        return sum(block.num_edges() for block in blocks)


def _pyg(
    setup: Setup, fanouts: list[int], batch_size: int, num_batches: int, workers: int
) -> Count:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    graph = setup.graph
    data = Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes)
    [seeds] = _seeds(graph.num_nodes, batch_size * num_batches, 1)
    loader = NeighborLoader(
        data,
        fanouts,
        input_nodes=seeds,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: sum(batch.edge_index.size(1) for batch in loader)
