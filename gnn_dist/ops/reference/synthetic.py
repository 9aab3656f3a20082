"""Edges of random graphs by their number. All arithmetic is on integers."""

import torch
from torch import Tensor

from gnn_dist.ops.reference.words import row_keys, words

__all__ = ["rmat_edges", "sbm_blocks", "sbm_edges", "shuffle_ids"]

ROUNDS = 3
MASK64 = 2**64 - 1


def shuffle_ids(ids: Tensor, bits: int, key: int) -> Tensor:
    """Permute the numbers of `bits` bits by a key: int64 (n,), of any of them.

    Each round multiplies by an odd number, adds, and mixes high bits into low ones: each step has
    an inverse.
    """
    term = words(row_keys(key, torch.tensor([-1])), 2 * ROUNDS)[0].tolist()
    for i in range(ROUNDS):
        ids = (ids * (term[2 * i] | 1) + term[2 * i + 1]) & ((1 << bits) - 1)
        ids = ids ^ (ids >> ((bits + 1) // 2))
    return ids


def rmat_edges(
    scale: int,
    limit_a: int,
    limit_b: int,
    limit_c: int,
    key: int,
    first: int,
    count: int,
    mirrored: bool,
) -> tuple[Tensor, Tensor]:
    """Draw the edges [first, first + count) of a recursive matrix.

    Args:
        scale: Logarithm of N to base 2.
        limit_a: Odds of the first quadrant, times 2^32.
        limit_b: Odds of the first two.
        limit_c: Odds of the first three.
        key: 64 bits.
        first: Number of the first draw.
        count: Draws.
        mirrored: Put its reverse behind each edge.

    Returns:
        Sources and destinations, int32 (count,), or (2 count,) with `mirrored`.
    """
    keys = row_keys(key, torch.arange(first, first + count))
    word = words(keys, (scale + 1) // 2)
    drawn = torch.stack([word & (2**32 - 1), (word >> 32) & (2**32 - 1)], 2).flatten(1)
    src = dst = torch.zeros(count, dtype=torch.int64)
    for level in range(scale):
        high = [drawn[:, level] >= limit for limit in (limit_a, limit_b, limit_c)]
        src = 2 * src + high[1].long()
        dst = 2 * dst + (high[0] ^ high[1] ^ high[2]).long()
    return _listed(shuffle_ids(src, scale, key), shuffle_ids(dst, scale, key), mirrored)


def sbm_edges(
    nodes: int, blocks: int, inside: int, key: int, first: int, count: int, mirrored: bool
) -> tuple[Tensor, Tensor]:
    """Draw the edges [first, first + count) of a stochastic block model.

    The source is uniform, the destination uniform in its block or in all others.

    Args:
        nodes: N.
        blocks: Number of blocks; node u before the shuffle is of block floor(u blocks / N).
        inside: Chance that an edge stays inside its block, times 2^63.
        key: As for `rmat_edges`.
        first: As for `rmat_edges`.
        count: As for `rmat_edges`.
        mirrored: As for `rmat_edges`.

    Returns:
        As for `rmat_edges`.
    """
    drawn = words(row_keys(key, torch.arange(first, first + count)), 3).tolist()
    ends = torch.tensor([_sbm_ends(d, nodes, blocks, inside) for d in drawn], dtype=torch.int64)
    src, dst = (_walk(e, nodes, key) for e in ends.view(-1, 2).T)
    return _listed(src, dst, mirrored)


def sbm_blocks(nodes: int, blocks: int, key: int) -> Tensor:
    """Return the block of each node, int64 (nodes,), after the shuffle."""
    position = torch.arange(nodes)
    out = torch.empty_like(position)
    out[_walk(position, nodes, key)] = position * blocks // nodes
    return out


def _sbm_ends(drawn: list[int], nodes: int, blocks: int, inside: int) -> tuple[int, int]:
    first, second, third = (d & MASK64 for d in drawn)
    u = first * nodes >> 64
    block = u * blocks // nodes
    start, stop = (-(-b * nodes // blocks) for b in (block, block + 1))
    if second >> 1 < inside or stop - start == nodes:
        return u, start + (third * (stop - start) >> 64)
    v = third * (nodes - (stop - start)) >> 64
    return u, v + (stop - start if v >= start else 0)


def _walk(ids: Tensor, nodes: int, key: int) -> Tensor:
    """Permute 0..nodes-1: along the cycle of a larger bijection to the next that is a node."""
    bits = (nodes - 1).bit_length()
    ids = shuffle_ids(ids, bits, key)
    while bool((ids >= nodes).any()):
        ids = torch.where(ids >= nodes, shuffle_ids(ids, bits, key), ids)
    return ids


def _listed(src: Tensor, dst: Tensor, mirrored: bool) -> tuple[Tensor, Tensor]:
    if mirrored:
        src, dst = torch.stack([src, dst], 1).flatten(), torch.stack([dst, src], 1).flatten()
    return src.int(), dst.int()
