"""Sampling of neighbours, and blocks made of what was found.

The words of a row come from `row_key(key, original id)` and are used in order, as `csrc/draws.h`
defines them. All arithmetic is on integers, or on float64 with each operation rounded by itself, so
that every implementation draws the same entries.
"""

import math

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.words import row_keys, words

__all__ = ["exponential", "relabel", "row_order", "sample_blocks", "sample_neighbors"]

LARGEST = torch.finfo(torch.float64).max
MASK32 = 2**32 - 1
MOST_ROW_ENTRIES = 2**31 - 1


def _fake_sample(
    indptr: Tensor, indices: Tensor, rows: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    nnz = torch.library.get_ctx().new_dynamic_size()
    return indptr.new_empty(rows.numel() + 1), indices.new_empty(nnz), indptr.new_empty(nnz)


@operator(_fake_sample)
def sample_neighbors(
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    row_ids: Tensor,
    fanout: int,
    replace: bool,
    key: int,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw entries of each of `rows`.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        rows: int64 (n,), which may repeat.
        row_ids: int64 (n,), original ids: what the draws of each row depend on, beside `key`.
        fanout: How many entries; -1 for all.
        replace: Draw exactly `fanout` from each row that has any, with repetitions. Otherwise a row
            with no more entries than that gives all of them.
        key: `DrawKey.value`.
        weight: float32 or float64 (nnz,), finite and not negative: an entry's chance is in
            proportion to it, and none where it is zero. None: equal chances.

    Returns:
        int64 (n + 1,) offsets, then int32 columns and int64 numbers of the entries drawn; these
        ascend within a row.

    Raises:
        IndexError: `rows` or `indptr` is out of range.
        ValueError: A weight is negative or not finite, or `fanout` is below -1.
    """
    if fanout < -1:
        raise ValueError(f"fan-outs must be -1 (all) or more, got {fanout}")
    begin, degree = _entries_of(indptr, rows)
    keys = row_keys(key, row_ids)
    if weight is None:
        counts, position = _draw(keys, begin, degree, fanout, replace)
    else:
        counts, position = _draw_weighted(keys, begin, degree, fanout, replace, weight.double())
    out_indptr = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, 0, out=out_indptr[1:])
    return out_indptr, indices[position], position


def _entries_of(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    if rows.numel() and (rows.min() < 0 or rows.max() >= indptr.numel() - 1):
        raise IndexError(f"rows must lie in [0, {indptr.numel() - 1})")
    begin = indptr[rows]
    degree = indptr[rows + 1] - begin
    if degree.numel() and (degree.min() < 0 or degree.max() > MOST_ROW_ENTRIES):
        raise IndexError("indptr must not fall, and rows must have fewer than 2^31 entries")
    return begin, degree


def _draw(
    keys: Tensor, begin: Tensor, degree: Tensor, fanout: int, replace: bool
) -> tuple[Tensor, Tensor]:
    """Return how many entries each row gives, and these, ascending within a row."""
    if fanout >= 0 and replace:
        counts = torch.where(degree > 0, fanout, 0)
        picks = _below(words(keys, fanout), degree[:, None]).sort(1).values
        return counts, (begin[:, None] + picks)[degree > 0].flatten()
    counts = degree if fanout < 0 else degree.clamp(max=fanout)
    some = degree > counts  # the others give all they have
    taken = torch.ones(int(degree.sum()), dtype=torch.bool, device=keys.device)
    owner = torch.repeat_interleave(degree)
    first = degree.cumsum(0) - degree  # where each row begins among the entries of all of them
    taken &= ~some[owner]
    picks = first[some, None] + _floyd(keys[some], degree[some], max(fanout, 0))
    taken[picks.flatten()] = True
    entry = begin[owner] + torch.arange(owner.numel(), device=keys.device) - first[owner]
    return counts, entry[taken]


def _floyd(keys: Tensor, degree: Tensor, count: int) -> Tensor:
    """Draw (n, count) different numbers below each degree (n,), all greater than `count`.

    Source: "Programming Pearls: A Sample of Brilliance" (Bentley, Floyd, 1987): the i-th of k picks
    is a number up to d - k + i, or that number itself where the first is taken.
    """
    drawn = words(keys, count)
    picks = torch.empty_like(drawn)
    for i in range(count):
        last = degree - count + i
        pick = _below(drawn[:, i], last + 1)
        taken = (picks[:, :i] == pick[:, None]).any(1)
        picks[:, i] = torch.where(taken, last, pick)
    return picks


def _below(word: Tensor, bound: Tensor) -> Tensor:
    """Return the whole part of word / 2^64 * bound; words as unsigned numbers, bound < 2^31."""
    high, low = (word >> 32) & MASK32, word & MASK32
    return (high * bound + ((low * bound) >> 32)) >> 32


def _draw_weighted(
    keys: Tensor, begin: Tensor, degree: Tensor, fanout: int, replace: bool, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Do what `_draw` does, row by row."""
    picked = []
    for key, start, size in zip(keys, begin.tolist(), degree.tolist(), strict=True):
        w = weight[start : start + size]
        if size and not bool(((w >= 0.0) & (w <= LARGEST)).all()):
            raise ValueError("weights must be finite and not negative")
        positive = int((w > 0.0).sum())
        if fanout < 0 or positive == 0:
            position = w.nonzero().squeeze(1)
        elif replace:
            position = _by_running_sum(words(key[None], fanout)[0], w)
        else:
            position = _smallest(words(key[None], size)[0], w, min(positive, fanout))
        picked.append(start + position.sort().values)
    counts = [p.numel() for p in picked]
    nothing = begin.new_zeros(0)
    return begin.new_tensor(counts), torch.cat([nothing, *picked])


def _smallest(word: Tensor, weight: Tensor, count: int) -> Tensor:
    """Take the `count` entries of smallest -ln(u) / weight, the first ones among equals.

    Source: "Weighted random sampling with a reservoir" (Efraimidis, Spirakis, 2006).
    """
    candidates = weight.nonzero().squeeze(1)
    times = exponential(word[candidates]) / weight[candidates]
    return candidates[times.argsort(stable=True)[:count]]


def _by_running_sum(word: Tensor, weight: Tensor) -> Tensor:
    """Take, for each word, the entry at which the running sum passes u times the total."""
    sums = weight.cumsum(0)
    total = sums[-1:]
    if not bool(total <= LARGEST):
        raise ValueError("weights are too large to be added up")
    u = ((word >> 11) & (2**53 - 1)).double() / 2**53
    found = torch.searchsorted(sums, u * total, right=True)
    return torch.where(found == sums.numel(), torch.searchsorted(sums, total), found)


def exponential(word: Tensor) -> Tensor:
    """Return float64 -ln(u), u uniform in (0, 1), of int64 words; within 2 units in the last place.

    Written out, because a logarithm of some library differs in its last bit from that of another.
    """
    u = (((word >> 12) & (2**52 - 1)).double() + 0.5) / 2**52
    bits = u.view(torch.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & (2**52 - 1)) | (1023 << 52)).view(torch.float64)
    large = mantissa > math.sqrt(2.0)
    mantissa = torch.where(large, mantissa * 0.5, mantissa)
    exponent = exponent + large
    # ln m = 2 artanh(s), s = (m - 1) / (m + 1); |s| < 0.172, so eleven terms reach 2^-53.
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = torch.zeros_like(z)
    for odd in range(21, 0, -2):
        series = series * z + 1.0 / odd
    return -(exponent.double() * 0.6931471805599453 + (s + s) * series)


def _fake_relabel(dst: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return dst.new_empty(size), columns.new_empty(columns.shape, dtype=torch.int32)


@operator(_fake_relabel)
def relabel(dst: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Number ids from zero in order of first appearance, in `dst` and then in `columns`.

    Args:
        dst: int64 (n,), ids without repetition.
        columns: int64 or int32 (nnz,), ids.

    Returns:
        int64 (num_src,) ids by number, of which `dst` is the beginning; int32 (nnz,) numbers of
        `columns`.

    Raises:
        ValueError: `dst` repeats an id.
    """
    everything = torch.cat([dst, columns.long()])
    ids, index = everything.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    at = torch.arange(index.numel(), device=index.device)
    first = torch.full_like(ids, index.numel()).scatter_reduce_(0, index, at, "amin")
    order = first.argsort()
    if not torch.equal(first[order[: dst.numel()]], at[: dst.numel()]):
        raise ValueError("dst must not repeat an id")
    number = torch.empty_like(order).scatter_(0, order, at[: order.numel()])
    return ids[order], number[index[dst.numel() :]].int()


def _fake_blocks(
    maps: Tensor,
    first_stamp: int,
    indptr: Tensor,
    indices: Tensor,
    seeds: Tensor,
    seed_ptr: Tensor,
    fanouts: list[int],
    *_: object,
) -> list[Tensor]:
    dtypes = (*(torch.int64, torch.int32, torch.int64) * len(fanouts), torch.int64)
    size = torch.library.get_ctx().new_dynamic_size
    num_batches = seed_ptr.numel() - 1
    return [indptr.new_empty(size(), dtype=d) for _ in range(num_batches) for d in dtypes]


@operator(_fake_blocks)
def sample_blocks(
    maps: Tensor,
    first_stamp: int,
    indptr: Tensor,
    indices: Tensor,
    seeds: Tensor,
    seed_ptr: Tensor,
    fanouts: list[int],
    keys: Tensor,
    replace: bool = False,
    ids: Tensor | None = None,
    weight: Tensor | None = None,
) -> list[Tensor]:
    """Sample several hops for many batches, each hop for all nodes found so far.

    Args:
        maps: int64 (T, N), where T threads keep local numbers; zeros to begin with.
        first_stamp: One more than any stamp that was used with `maps`, which had a stamp for each
            batch; 1 to begin with.
        indptr: int64 (N + 1,).
        indices: int32 (nnz,), nodes below N.
        seeds: int64, nodes of all batches.
        seed_ptr: int64 (B + 1,), batch b has seeds[seed_ptr[b]:seed_ptr[b + 1]], none twice.
        fanouts: H numbers, the hop next to the seeds first.
        keys: int64 (B, H), `DrawKey.value` of each hop.
        replace: As of `sample_neighbors`.
        ids: int64 (N,), original ids; None: nodes have their numbers.
        weight: As of `sample_neighbors`.

    Returns:
        For each batch 3 H + 1 tensors. For each hop: int64 (num_dst + 1,) offsets, int32 local
        sources and int64 numbers of the entries drawn. Then int64 nodes by local number: the first
        num_dst are the destinations, and num_src of a hop is num_dst of the next.

    Raises:
        IndexError: A seed, an index or an offset is out of range.
        ValueError: A batch holds a seed twice; and as of `sample_neighbors`.
    """
    out: list[Tensor] = []
    offsets = seed_ptr.tolist()
    for batch, hop_keys in enumerate(keys.tolist()):
        nodes, _ = relabel(seeds[offsets[batch] : offsets[batch + 1]], seeds[:0])
        for fanout, key in zip(fanouts, hop_keys, strict=True):
            row_ids = nodes if ids is None else ids[nodes]
            block_indptr, columns, position = sample_neighbors(
                indptr, indices, nodes, row_ids, fanout, replace, key, weight
            )
            nodes, local = relabel(nodes, columns)
            out += [block_indptr, local, position]
        out.append(nodes)
    return out


@operator(lambda indptr, indices, keys: indptr.new_empty(indices.numel()))
def row_order(indptr: Tensor, indices: Tensor, keys: Tensor) -> Tensor:
    """Put the entries of each row in the order of their columns' keys.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        keys: int64 (K,), one for each column.

    Returns:
        int64 (nnz,), positions of the entries; equal keys stay in the order they had.

    Raises:
        IndexError: An index or an offset is out of range.
    """
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    rows = rows.repeat_interleave(indptr.diff(), output_size=indices.numel())
    by_key = keys[indices.long()].argsort(stable=True)
    return by_key[rows[by_key].argsort(stable=True)]
