"""The graph structure that a layer runs on: destinations, their sources, and who these are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.errors import GraphError
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.draws import edge_ids
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["CloneRows", "Clones", "Structure"]


class CloneRows(NamedTuple):
    """A structure cut by rows, so that what others wait for can be summed first.

    Attributes:
        halo: (h, num_src), rows of clones that are no roots.
        boundary: (b, num_src), rows of roots whose nodes have other clones.
        interior: (num_dst, num_src), rows of the other roots; those of cloned nodes are empty.
    """

    halo: SubCSR
    boundary: SubCSR
    interior: SubCSR


@dataclass(frozen=True, eq=False)
class Clones:
    """What else the structure of a vertex-cut tells: in-edges of a node lie at several clones.

        rows    0 .. num_roots-1    | num_roots .. num_dst-1
                roots               | other clones

    Attributes:
        num_roots: n. A root holds its node's self-loop.
        boundary: int64 (b,), roots of nodes that have other clones, ascending.
        loop_weight: float64 (num_dst,), weight of the node's loop (its last copy), 1 without one.
        num_others: int64 (num_dst,), the node's in-edges of the whole graph that are no loops.
    """

    num_roots: int
    boundary: Tensor
    loop_weight: Tensor
    num_others: Tensor

    def rows_of(self, csr: CSR) -> CloneRows:
        """Cut a structure over the shard's local nodes."""
        other = torch.arange(self.num_roots, csr.num_rows, device=csr.device)
        interior = torch.ones(csr.num_rows, dtype=torch.bool, device=csr.device)
        interior[other] = False
        interior[self.boundary] = False
        return CloneRows(
            csr.take_rows(other), csr.take_rows(self.boundary), csr.select(interior[csr.rows])
        )

    def to(self, device: torch.device) -> "Clones":
        """Return the same on another device."""
        tensors = (self.boundary, self.loop_weight, self.num_others)
        return Clones(self.num_roots, *(values.to(device) for values in tensors))


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
        symmetric: Over all ranks, each edge has its reverse, as often and with equal weight, and
            destinations have all their in-edges here.
        num_in_edges: int64 (num_src,), in-edges of each source in the whole graph, or None if only
            those of destinations are known.
        clones: Of a vertex-cut over several ranks; None where destinations have all in-edges here.
        represents: float64 (num_dst,), of a structure that was drawn: how many in-edges of the
            whole graph each drawn one stands for, so that sums are right on average. None for ones.
    """

    csr: CSR
    src_id: Tensor
    degree: Tensor
    edge_weight: Tensor | None = None
    symmetric: bool = False
    num_in_edges: Tensor | None = None
    clones: Clones | None = None
    represents: Tensor | None = None

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

    @property
    def loop_mean_scale(self) -> Tensor:
        """float64 (num_dst,), 1 / in-edges, where each node has exactly one loop."""
        if self.clones is None:
            return self.csr.with_self_loops.mean_scale
        return (self.clones.num_others + 1).double().reciprocal()

    @cached_property
    def with_self_loops(self) -> SubCSR:
        """The structure with one loop a node, at its root; origins as `self_loop_origin`."""
        if self.clones is None:
            return self.csr.self_loop_origin
        return self.csr.loops_below(self.clones.num_roots)

    @cached_property
    def clone_rows(self) -> CloneRows:
        """`csr`, cut by rows; with clones only."""
        return self._cut(self.csr)

    @cached_property
    def looped_clone_rows(self) -> CloneRows:
        """`with_self_loops`, cut by rows; with clones only."""
        return self._cut(self.with_self_loops.csr)

    def _cut(self, csr: CSR) -> CloneRows:
        if self.clones is None:
            raise GraphError("a structure whose nodes have all in-edges here has no clones")
        return self.clones.rows_of(csr)

    @cached_property
    def loop_edge_weight(self) -> Tensor | None:
        """(nnz,) weights of `with_self_loops`; a new loop has 1, an old one keeps its own.

        Of a structure that was drawn, times what each edge but a loop represents. None if all
        are 1.
        """
        if self.represents is None:
            return self._loop_weight
        csr = self.with_self_loops.csr
        weight = self._loop_weight
        stands = self.represents.index_select(0, csr.rows)
        stands = torch.where(csr.indices == csr.rows, torch.ones_like(stands), stands)
        return stands.float() if weight is None else weight * stands.to(weight.dtype)

    @cached_property
    def _loop_weight(self) -> Tensor | None:
        """(nnz,) weights of `with_self_loops` alone."""
        if self.edge_weight is None:
            return None
        csr, position = self.with_self_loops
        if self.clones is None:
            weight = own_loop_weight(self.csr, self.edge_weight)
        else:
            weight = self.clones.loop_weight
        weight = weight.to(self.edge_weight)
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
            clones=None if self.clones is None else self.clones.to(device),
            represents=None if self.represents is None else self.represents.to(device),
        )


def last_loops(csr: CSR) -> tuple[Tensor, Tensor]:
    """Return int64 (k,), (k,): rows that have a loop, ascending, and positions of the last one."""
    rows = csr.rows
    loops = (csr.indices == rows).nonzero().squeeze(1)
    rows = rows[loops]
    last = torch.ones_like(rows, dtype=torch.bool)
    if rows.numel():
        last[:-1] = rows[1:] != rows[:-1]
    return rows[last], loops[last]


def own_loop_weight(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,): the weight of each destination's loop (its last copy), or 1 without."""
    weight = torch.ones(csr.num_rows, dtype=torch.float64, device=csr.device)
    if edge_weight is None:
        return weight
    rows, position = last_loops(csr)
    weight[rows] = edge_weight[position].double()
    return weight


def weight_without_loops(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,), the weighted in-degree of destinations, loops left out."""
    degree = torch.zeros(csr.num_rows, dtype=torch.float64, device=csr.device)
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


def degree_with_loop(csr: CSR, edge_weight: Tensor | None) -> Tensor:
    """Return float64 (n,), the in-degree of destinations as `Structure.degree` defines it."""
    return weight_without_loops(csr, edge_weight) + own_loop_weight(csr, edge_weight)


def _row_ranges(indptr: Tensor) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of not many more than ENTRIES_AT_ONCE entries."""
    num_rows, begin = indptr.numel() - 1, 0
    while begin < num_rows:
        most = indptr[begin] + ENTRIES_AT_ONCE
        end = int(torch.searchsorted(indptr, most, right=True)) - 1
        end = min(max(end, begin + 1), num_rows)
        yield begin, end
        begin = end
