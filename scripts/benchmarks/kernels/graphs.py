"""Random graphs with the skewed degrees of real ones, kept in a folder between runs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.halo.block import Block
from gnn_dist.ops.csr import CSR
from gnn_dist.shard.structure import Structure


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph as gnn-dist and its peers want it.

    Attributes:
        csr: Rows are destinations.
    """

    csr: CSR

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.csr.num_rows

    @cached_property
    def block(self) -> Block:
        """The layer graph without exchange."""
        ids = torch.arange(self.num_nodes)
        return Block(Structure(self.csr, ids, self.csr.indptr.diff().double()))

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 (2, nnz), sources and destinations."""
        degree = self.csr.indptr.diff()
        return torch.stack([self.csr.indices.long(), torch.repeat_interleave(degree)])

    def matrix(self, values: Tensor) -> Tensor:
        """Return a torch CSR tensor with int32 indices, which MKL takes."""
        size = (self.num_nodes, self.num_nodes)
        csr = self.csr
        return torch.sparse_csr_tensor(csr.indptr.int(), csr.indices, values, size=size)

    def of_dgl(self, dgl: ModuleType) -> Any:  # noqa: ANN401
        """Return the graph of DGL, with int32 ids, which it is faster with."""
        parts = (self.csr.indptr, self.csr.indices.long(), torch.empty(0, dtype=torch.int64))
        return dgl.graph(("csc", parts), num_nodes=self.num_nodes).int()


def rmat_graph(scale: int, degree: int, cache: Path) -> Graph:
    """Make, or read from `cache`, a graph of 2^scale nodes and `degree` edges a node.

    Source: "R-MAT: A Recursive Model for Graph Mining" (Chakrabarti, Zhan, Faloutsos, 2004), with
    the parameters .57, .19, .19, .05 of the Graph 500 benchmark. Ids are not shuffled; a row's
    sources ascend; edges may repeat.
    """
    path = cache / f"rmat-{scale}-{degree}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        indptr, indices = _rmat(scale, degree)
        np.savez(path, indptr=indptr, indices=indices)
    with np.load(path) as arrays:
        indptr, indices = (torch.from_numpy(arrays[name]) for name in ("indptr", "indices"))
    return Graph(CSR(indptr, indices, indptr.numel() - 1))


def _rmat(scale: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 1 << scale, degree << scale
    key = np.zeros(num_edges, np.int64)  # destination, then source
    for bit in range(scale):
        quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(num_edges), side="right")
        key |= ((quadrant & 1) << (scale + bit)) | ((quadrant >> 1) << bit)
    key.sort()
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(key >> scale, minlength=num_nodes), out=indptr[1:])
    return indptr, (key & (num_nodes - 1)).astype(np.int32)
