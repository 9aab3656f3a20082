"""The graph structure that a layer runs on: destinations, their sources, and who these are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import edge_ids
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["Structure"]

ENTRIES_AT_ONCE = 1 << 22


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
        symmetric: Over all ranks, each edge has its reverse, as often and with equal weight.
        num_in_edges: int64 (num_src,), in-edges of each source in the whole graph, or None if only
            those of destinations are known.
    """

    csr: CSR
    src_id: Tensor
    degree: Tensor
    edge_weight: Tensor | None = None
    symmetric: bool = False
    num_in_edges: Tensor | None = None

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

    @property
    def mean_scale(self) -> Tensor:
        """float64, 1 / in-edges, 1 without any: (num_src,) if all are known, else (num_dst,)."""
        return self.csr.mean_scale if self.num_in_edges is None else self._mean_scale_of_all

    @cached_property
    def _mean_scale_of_all(self) -> Tensor:
        return torch.as_tensor(self.num_in_edges).clamp(min=1).double().reciprocal()

    @cached_property
    def loop_edge_weight(self) -> Tensor | None:
        """(nnz,) weights of `csr.with_self_loops`; a new loop has 1, an old one keeps its own.

        None without edge weights: all are 1.
        """
        if self.edge_weight is None:
            return None
        csr, position = self.csr.self_loop_origin
        weight = own_loop_weight(self.csr, self.edge_weight).to(self.edge_weight)
        if position is None:
            return self.edge_weight
        kept = self.edge_weight.index_select(0, position.clamp(min=0))
        return torch.where(position < 0, weight[csr.rows], kept)

    def is_own_factors(self, weight: Tensor | None, scale: Tensor | None = None) -> bool:
        """Return whether weights of edges and scales of nodes are the structure's own, or none."""
        own_weight = weight is None or any(
            weight is own for own in (self.edge_weight, self.__dict__.get("loop_edge_weight"))
        )
        return own_weight and (scale is None or scale is self.__dict__.get("gcn_scale"))

    @cached_property
    def gcn_scale(self) -> Tensor:
        """float64 (num_src,), 1 / sqrt(degree), in the whole graph; 0 where the degree is 0.

        An edge of the normalised adjacency with self-loops weighs this at both its ends.

        Source: "Semi-Supervised Classification with Graph Convolutional Networks" (Kipf, Welling),
        arXiv 1609.02907, section 2, the renormalised adjacency.
        """
        scale = self.degree.pow(-0.5)
        return scale.masked_fill(scale.isinf(), 0.0)

    def to(self, device: torch.device) -> "Structure":
        """Return the structure on another device."""
        return replace(
            self,
            csr=self.csr.to(device),
            src_id=self.src_id.to(device),
            degree=self.degree.to(device),
            edge_weight=None if self.edge_weight is None else self.edge_weight.to(device),
            num_in_edges=None if self.num_in_edges is None else self.num_in_edges.to(device),
        )


def own_loop_weight(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,): the weight of each destination's loop (its last copy), or 1 without."""
    weight = torch.ones(csr.num_rows, dtype=torch.float64, device=csr.device)
    if edge_weight is None:
        return weight
    loops = (csr.indices == csr.rows).nonzero().squeeze(1)
    rows = csr.rows[loops]
    last = torch.ones_like(rows, dtype=torch.bool)
    if rows.numel():
        last[:-1] = rows[1:] != rows[:-1]
    weight[rows[last]] = edge_weight[loops[last]].double()
    return weight


def degree_with_loop(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,), the in-degree of destinations as `Structure.degree` defines it."""
    degree = own_loop_weight(csr, edge_weight)
    # Some rows at a time: numbers per entry would take more memory than the structure.
    for begin, end in _row_ranges(csr.indptr):
        first, last = csr.indptr[[begin, end]].tolist()
        rows = row_index(csr.indptr[begin : end + 1] - first, last - first) + begin
        is_loop = csr.indices[first:last] == rows
        if edge_weight is None:
            weight = torch.ones(last - first, dtype=torch.float64, device=csr.device)
        else:
            weight = edge_weight[first:last].double()
        degree.index_add_(0, rows, weight.masked_fill(is_loop, 0.0))
    return degree


def _row_ranges(indptr: Tensor) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of not many more than ENTRIES_AT_ONCE entries."""
    num_rows, begin = indptr.numel() - 1, 0
    while begin < num_rows:
        most = indptr[begin] + ENTRIES_AT_ONCE
        end = int(torch.searchsorted(indptr, most, right=True)) - 1
        end = min(max(end, begin + 1), num_rows)
        yield begin, end
        begin = end
