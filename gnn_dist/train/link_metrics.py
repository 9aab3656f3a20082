"""How well edges are told from pairs that are none, over the edges of all ranks, exactly."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError

__all__ = ["link_metrics"]


def link_metrics(
    pos: Tensor | Mapping[str, Tensor],
    neg: Tensor | None = None,
    *,
    ks: Sequence[int] = (1, 3, 10),
    world: World | None = None,
) -> dict[str, float]:
    """Collective. Return the mean reciprocal rank and Hits@K of edges.

    An edge's rank is one more than the negatives that score higher; a negative that scores equal
    counts one half. With negatives of its own an edge is a hit if its rank is at most K. With
    shared ones it is if it scores higher than the K-th best negative, and always where there are
    fewer than K: these are the rules of the Open Graph Benchmark's evaluators.

    Args:
        pos: Floating (k,), scores of this rank's edges; or a mapping with `y_pred_pos` and
            `y_pred_neg`, as those evaluators take.
        neg: Floating (k, K), of each edge's own negatives; or (m,), negatives shared by all edges
            of all ranks, each given by one rank.
        ks: Which K.
        world: The ranks that the edges are on; None for this one alone, which then sends nothing.

    Returns:
        `mrr` and `hits@K` for each K; NaN without edges.

    Raises:
        ConfigError: Scores that do not fit, on every rank.

    Source: "Open Graph Benchmark: Datasets for Machine Learning on Graphs" (Hu et al.), arXiv
    2005.00687, section on link property prediction.

    Example:
        >>> scores = {"y_pred_pos": torch.tensor([2.0, 0.0]), "y_pred_neg": torch.tensor([1.0])}
        >>> link_metrics(scores, ks=[1])
        {'mrr': 0.75, 'hits@1': 0.5}
    """
    world = world or World.single()
    if isinstance(pos, Mapping):
        neg, pos = pos["y_pred_neg"], pos["y_pred_pos"]
    with world.everywhere("reading scores of edges"):
        pos, neg = _checked(pos, neg)
        if not ks or min(ks) < 1:
            raise ConfigError(f"ks must be numbers from 1 on, got {list(ks)}")
    values = _own(pos, neg, ks) if neg.dim() == 2 else _shared(pos, neg, ks, world)
    total = torch.cat([values.sum(0), values.new_tensor([len(values)])])
    world.transport.all_reduce(total).wait()
    mean = (total[:-1] / total[-1]).tolist()
    return dict(zip(["mrr", *(f"hits@{k}" for k in ks)], mean, strict=True))


def _checked(pos: Tensor, neg: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return scores on the CPU, in one dtype.

    Raises:
        ConfigError: Their shapes do not fit, or one of them is not a number.
    """
    if neg is None or pos.dim() != 1 or neg.dim() not in (1, 2):
        raise ConfigError(
            "scores must be (k,) of edges and (k, K) or (m,) of negatives, got "
            f"{tuple(pos.shape)} and {None if neg is None else tuple(neg.shape)}"
        )
    if neg.dim() == 2 and len(neg) != len(pos):
        raise ConfigError(
            f"there must be a row of negatives for each of {len(pos)} edges, got {len(neg)}"
        )
    if pos.isnan().any() or neg.isnan().any():
        raise ConfigError("scores must be numbers, and some are NaN: the model has diverged")
    wide = torch.promote_types(torch.promote_types(pos.dtype, neg.dtype), torch.float32)
    return pos.detach().to("cpu", wide), neg.detach().to("cpu", wide)


def _own(pos: Tensor, neg: Tensor, ks: Sequence[int]) -> Tensor:
    """Return float64 (k, 1 + number of ks), what each edge contributes."""
    higher, equal = (neg > pos[:, None]).sum(1), (neg == pos[:, None]).sum(1)
    rank = 1.0 + higher.double() + 0.5 * equal.double()
    return torch.stack([1.0 / rank, *((rank <= k).double() for k in ks)], 1)


def _shared(pos: Tensor, neg: Tensor, ks: Sequence[int], world: World) -> Tensor:
    """Collective. Return float64 (k, 1 + number of ks), what each edge contributes."""
    scores = torch.cat(world.transport.all_gather_object(neg)).sort().values
    not_higher = torch.searchsorted(scores, pos, right=True)
    lower = torch.searchsorted(scores, pos)
    rank = 1.0 + (len(scores) - not_higher).double() + 0.5 * (not_higher - lower).double()
    hits = [
        (pos > scores[-k]).double() if k <= len(scores) else torch.ones(len(pos)).double()
        for k in ks
    ]
    return torch.stack([1.0 / rank, *hits], 1)
