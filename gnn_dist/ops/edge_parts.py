"""Streaming edge partitioning: what has been assigned so far, and kernels that assign a chunk more.

    stream of (src, dst) --> EdgeAssigner.libra | hdrf | dbh | ... --> part of each edge
                                 |  clones (N, W) bits, loads (P,)
                                 v
                             choose_roots --> part of each node's root

Edges are taken one after the other, each by what those before have left, so the result does not
depend on threads or on how the stream is cut in chunks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels

__all__ = ["EdgeAssigner", "choose_roots", "clone_table", "count_ends", "homes_of"]

ROOT_SWEEPS = 3  # a second and third choice, knowing all others'; a fourth changes next to nothing
# Draws of the stream's edges, of hashed nodes, and of roots do not depend on one another.
EDGE_SITE, ROOT_SITE = 0, 1


def count_ends(degree: Tensor, src: Tensor, dst: Tensor) -> None:
    """Add to `degree`, int32 (N,), how many ends of the edges each node is.

    Args:
        degree: Changed. Stays at 2^31 - 1 rather than overflow.
        src: int32 or int64 (e,).
        dst: Like `src`.

    Raises:
        IndexError: An end is no node.
    """
    kernels.count_ends(degree, src, dst)


def clone_table(num_nodes: int, num_parts: int) -> Tensor:
    """Return an empty set of parts for each node: int64 (N, ceil(P / 64)), one bit a part."""
    return torch.zeros(num_nodes, -(-num_parts // 64), dtype=torch.int64)


def homes_of(part: Tensor, volume: Tensor, degree: Tensor) -> Tensor:
    """Return what is known of each node's cluster, side by side: an edge then reads two places.

    Args:
        part: int32 (N,), the part of each node's cluster.
        volume: int64 (N,), how many edge ends each node's cluster has.
        degree: int32 (N,).

    Returns:
        int64 (N, 2): the volume; and two int32, the part and the degree.
    """
    homes = torch.empty(part.numel(), 2, dtype=torch.int64)
    homes[:, 0] = volume
    halves = homes.view(torch.int32)
    halves[:, 2] = part
    halves[:, 3] = degree
    return homes


def choose_roots(clones: Tensor, train: Tensor | None, *, num_parts: int, seed: int) -> Tensor:
    """Choose one of each node's clones as its root, so that parts have equally much to do.

    Nodes with few clones come first. Each takes the clone that raises the sum of squares of three
    costs of the parts, relative to their means, least: roots, roots that train, and (with a weight
    of 1/16) other clones that roots have to hear from. O(N RF) time a sweep, 8 bytes a node.

    Args:
        clones: int64 (N, ceil(P / 64)), as `clone_table` makes them. A node without any gets one.
        train: bool (N,), or None.
        num_parts: P.
        seed: Of what ties are broken by.

    Returns:
        int32 (N,), the part of each node's root.
    """
    key = DrawKey(seed, 0, ROOT_SITE).value
    root: Tensor = kernels.choose_roots(clones, train, num_parts, ROOT_SWEEPS, key)
    return root


@dataclass(frozen=True, eq=False)
class EdgeAssigner:
    """Assigns the edges of a stream to parts, chunk after chunk.

    Attributes:
        clones: int64 (N, ceil(P / 64)), the parts that hold each node; grows.
        loads: int64 (P,), edges of each part; grows.
        degree: int32 (N,), ends of edges at each node, of the whole stream.
        limit: The most edges that a part may have.
        seed: Of what ties are broken by.

    Example:
        >>> degree = torch.tensor([3, 1, 1, 1], dtype=torch.int32)
        >>> assigner = EdgeAssigner.empty(degree, num_parts=2, limit=2)
        >>> hub, leaf = torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3])
        >>> sorted(assigner.libra(hub, leaf, first=0).bincount().tolist())
        [1, 2]
    """

    clones: Tensor
    loads: Tensor
    degree: Tensor
    limit: int
    seed: int = 0

    @classmethod
    def empty(cls, degree: Tensor, *, num_parts: int, limit: int, seed: int = 0) -> "EdgeAssigner":
        """Return one that has assigned nothing."""
        loads = torch.zeros(num_parts, dtype=torch.int64)
        return cls(clone_table(degree.numel(), num_parts), loads, degree, limit, seed)

    @property
    def num_parts(self) -> int:
        """P."""
        return self.loads.numel()

    @property
    def _key(self) -> int:
        return DrawKey(self.seed, 0, EDGE_SITE).value

    def libra(self, src: Tensor, dst: Tensor, *, first: int) -> Tensor:
        """Assign edges to the least loaded part that holds both ends, one of them, or none.

        Args:
            src: int32 or int64 (e,).
            dst: Like `src`.
            first: Number of the first of these edges in the stream.

        Returns:
            int32 (e,), their parts.

        Raises:
            IndexError: An end is no node.
            ValueError: The limit leaves no room, or a shape or dtype is wrong.
        """
        parts = _new_parts(src)
        state = (self.clones, self.loads, src, dst, self.degree)
        kernels.libra_edges(parts, *state, self.limit, self._key, first)
        return parts

    def hdrf(self, src: Tensor, dst: Tensor, *, balance_weight: float, first: int) -> Tensor:
        """Assign edges to the part of highest score: clones of low degree kept, and room.

        Args, returns and raises are as of `libra`; `balance_weight` is how much room counts.
        """
        parts = _new_parts(src)
        state = (self.clones, self.loads, src, dst, self.degree)
        kernels.hdrf_edges(parts, *state, balance_weight, self.limit, self._key, first)
        return parts

    def dbh(self, src: Tensor, dst: Tensor) -> Tensor:
        """Assign edges by a hash of the end of lower degree, whatever the limit.

        Args, returns and raises are as of `libra`.
        """
        parts = _new_parts(src)
        kernels.dbh_edges(parts, src, dst, self.degree, self.num_parts, self._key)
        kernels.mark_clones(self.clones, parts, src, dst, self.num_parts)
        self.loads.add_(torch.bincount(parts, minlength=self.num_parts))
        return parts

    def two_phase(
        self,
        parts: Tensor,
        edges: tuple[Tensor, Tensor],
        homes: Tensor,
        *,
        rest: bool,
        first: int,
    ) -> None:
        """Assign edges near the parts of their ends' clusters.

        Args:
            parts: int32 (e,), filled in; -1 for what is left to the call with `rest`.
            edges: `src` and `dst`, as of `libra`.
            homes: int64 (N, 2), as `homes_of` makes them.
            rest: False: edges whose two clusters have one part. True: those that are left.
            first: Number of the first of these edges in the stream.

        Raises:
            IndexError: An end is no node, a part is none.
            ValueError: The limit leaves no room, or a shape or dtype is wrong.
        """
        state = (self.clones, self.loads, *edges, homes)
        kernels.two_phase_edges(parts, *state, self.limit, rest, self._key, first)


def _new_parts(src: Tensor) -> Tensor:
    return src.new_empty(src.numel(), dtype=torch.int32)
