"""Clustering of a stream of edges, edge by edge in plain Python: the oracle of the tests.

See `gnn_dist.ops.streaming` for what they do. What `csrc/clustering.cpp` keeps in one record a node
is here one tensor a field.
"""

import heapq

import torch
from torch import Tensor

__all__ = ["cluster_edges", "count_ids", "count_pairs", "merge_clusters"]


def count_ids(counts: Tensor, ids: Tensor) -> None:
    """Add one to `counts` for each id."""
    counts += torch.bincount(ids.long(), minlength=counts.numel())


def cluster_edges(
    cluster: Tensor,
    cluster_load: Tensor,
    richest: Tensor | None,
    src: Tensor,
    dst: Tensor,
    node_load: Tensor,
    limit: Tensor,
    besides: bool,
) -> None:
    """Move ends of edges into the cluster of the other end."""
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        if u == v:
            continue
        a, b = int(cluster[u]), int(cluster[v])
        own = (node_load[u, 0], node_load[v, 0]) if besides else (0, 0)
        at_u, at_v = cluster_load[a, 0] - own[0], cluster_load[b, 0] - own[1]
        mover, to = (u, b) if at_u <= at_v else (v, a)
        if a != b and bool((cluster_load[to] + node_load[mover] <= limit).all()):
            cluster_load[cluster[mover]] -= node_load[mover]
            cluster_load[to] += node_load[mover]
            cluster[mover] = to
        if richest is not None:
            known = int(richest[v])
            if known < 0 or node_load[u, 0] > node_load[known, 0]:
                richest[v] = u


def merge_clusters(
    cluster: Tensor, cluster_load: Tensor, richest: Tensor, node_load: Tensor, limit: Tensor
) -> None:
    """Join clusters, the least full first, to that of their richest neighbour."""
    of, load, limits = cluster.tolist(), cluster_load.tolist(), limit.tolist()
    parent = list(range(len(of)))
    best: list[int] = [-1] * len(of)

    def root(c: int) -> int:
        while parent[c] != c:
            c = parent[c]
        return c

    def richer(nodes: list[int]) -> int:
        return min(nodes, key=lambda u: (-int(node_load[u, 0]), u), default=-1)

    def entry(c: int) -> tuple[float, int]:
        return max(float(a) / float(b) for a, b in zip(load[c], limits, strict=True)), c

    outside = [(of[v], u) for v, u in enumerate(richest.tolist()) if u >= 0 and of[u] != of[v]]
    for c, u in outside:
        best[c] = richer([x for x in (best[c], u) if x >= 0])
    heap = [entry(c) for c in range(len(of)) if best[c] >= 0]
    heapq.heapify(heap)
    while heap:
        size, c = heapq.heappop(heap)
        if root(c) != c or best[c] < 0 or (size, c) != entry(c):
            continue
        to = root(of[best[c]])
        both = [a + b for a, b in zip(load[c], load[to], strict=True)]
        if to == c or any(a > b for a, b in zip(both, limits, strict=True)):
            continue
        parent[c], load[to], load[c] = to, both, [0] * len(both)
        best[to] = richer([u for u in (best[c], best[to]) if u >= 0 and root(of[u]) != to])
        if best[to] >= 0:
            heapq.heappush(heap, entry(to))
    cluster.copy_(torch.tensor([root(c) for c in of]))
    cluster_load.copy_(torch.tensor(load).view_as(cluster_load))


def count_pairs(src: Tensor, dst: Tensor, cluster: Tensor) -> dict[tuple[int, int], int]:
    """Return the edges between each pair (lower, higher) of different clusters, none left out."""
    pairs: dict[tuple[int, int], int] = {}
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        a, b = sorted((int(cluster[u]), int(cluster[v])))
        if a != b:
            pairs[a, b] = pairs.get((a, b), 0) + 1
    return pairs
