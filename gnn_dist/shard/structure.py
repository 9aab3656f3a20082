"""The graph structure that a layer runs on: destinations, their sources, and who these are."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import edge_ids

__all__ = ["Structure"]


@dataclass(frozen=True, eq=False)
class Structure:
    """A bipartite graph whose first sources are the destinations themselves.

        sources   0 .. num_dst-1 | num_dst .. num_src-1
                  destinations   | other sources (a shard's halo)

    Attributes:
        csr: Rows are destinations (n), columns sources (n + h).
        src_id: int64 (num_src,), original ids of the sources.
        degree: float64 (num_src,), weighted in-degree of each source in the whole graph, its own
            loop counted once: with weight 1, or with the loop's own weight where it has one.
        edge_weight: Floating (e,), or None for ones.
    """

    csr: CSR
    src_id: Tensor
    degree: Tensor
    edge_weight: Tensor | None = None

    @property
    def num_dst(self) -> int:
        """Number of destinations, n."""
        return self.csr.num_rows

    @property
    def num_src(self) -> int:
        """Number of sources, n + h."""
        return self.csr.num_cols

    @property
    def dst_id(self) -> Tensor:
        """int64 (n,), original ids of the destinations."""
        return self.src_id[: self.num_dst]

    def edge_draw_ids(self, csr: CSR) -> Tensor:
        """Return int64 (nnz,) keys for draws per edge of a structure over the same ids."""
        src, dst = self.src_id[csr.indices.long()], self.src_id[csr.rows]
        return edge_ids(src, dst, csr.copy_number)

    @cached_property
    def loop_edge_weight(self) -> Tensor:
        """(nnz,) weights of `csr.with_self_loops`; a new loop has 1, an old one keeps its own."""
        csr, position = self.csr.self_loop_origin
        if self.edge_weight is None or position is None:
            return torch.ones(csr.nnz, dtype=self.degree.dtype, device=csr.device)
        loop_weight = own_loop_weight(self.csr, self.edge_weight)
        is_loop = position < 0
        return torch.where(
            is_loop, loop_weight[csr.rows], self.edge_weight[position.clamp(min=0)].to(loop_weight)
        )

    @cached_property
    def gcn_weight(self) -> Tensor:
        """float64 (nnz,) of `csr.with_self_loops`: weight / sqrt(degree of both ends).

        Source: "Semi-Supervised Classification with Graph Convolutional Networks" (Kipf, Welling),
        arXiv 1609.02907, section 2, the renormalised adjacency. Degrees are the whole graph's.
        """
        csr = self.csr.with_self_loops
        scale = self.degree.pow(-0.5)
        scale = scale.masked_fill(scale.isinf(), 0.0)
        return scale[csr.indices.long()] * self.loop_edge_weight * scale[csr.rows]

    def to(self, device: torch.device) -> "Structure":
        """Return the structure on another device."""
        weight = None if self.edge_weight is None else self.edge_weight.to(device)
        return Structure(
            self.csr.to(device), self.src_id.to(device), self.degree.to(device), weight
        )


def own_loop_weight(csr: CSR, edge_weight: Tensor) -> Tensor:
    """Return float64 (n,): the weight of each destination's loop (its last copy), or 1 without."""
    weight = torch.ones(csr.num_rows, dtype=torch.float64, device=csr.device)
    loops = (csr.indices == csr.rows).nonzero().squeeze(1)
    rows = csr.rows[loops]
    last = torch.ones_like(rows, dtype=torch.bool)
    if rows.numel():
        last[:-1] = rows[1:] != rows[:-1]
    weight[rows[last]] = edge_weight[loops[last]].double()
    return weight


def degree_with_loop(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,), the in-degree of destinations as `Structure.degree` defines it."""
    if edge_weight is None:
        loop = torch.ones(csr.num_rows, dtype=torch.float64, device=csr.device)
        edge_weight = torch.ones(csr.nnz, dtype=torch.float64, device=csr.device)
    else:
        loop = own_loop_weight(csr, edge_weight)
    weight = edge_weight.double().masked_fill(csr.indices == csr.rows, 0.0)
    return loop.index_add_(0, csr.rows, weight)
