"""Between arrays by original node id, alike on all ranks, and the rows that a rank owns."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError

__all__ = ["everyones_rows", "node_ids", "owned_among", "targets_of"]

Array = NDArray[Any]


def node_ids(nodes: ArrayLike, num_nodes: int) -> Array:
    """Return original ids as int64 (k,); a mask, bool (N,), gives those that it holds.

    Raises:
        ConfigError: An id is no node's, or comes twice.
    """
    ids = np.asarray(nodes)
    if ids.ndim == 2 and ids.shape[1] == 1:  # a column, as scikit-learn has features
        ids = ids[:, 0]
    if ids.dtype == bool and ids.shape == (num_nodes,):
        return np.flatnonzero(ids)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        raise ConfigError(
            f"nodes must be original ids (k,) or a mask ({num_nodes},), got shape {ids.shape} of "
            f"{ids.dtype}"
        )
    ids = ids.astype(np.int64)
    bad = ids[(ids < 0) | (ids >= num_nodes)]
    if len(bad):
        raise ConfigError(f"original ids must lie in 0..{num_nodes - 1}, got {bad[0]}")
    return ids


def owned_among(ids: Array, owned: Tensor) -> tuple[Tensor, Tensor]:
    """Find out which owned nodes are among some.

    Args:
        ids: int64 (k,), original ids.
        owned: int64 (n,), original ids of owned nodes.

    Returns:
        bool (n,), and for those that are, in their order, int64 positions in `ids`.

    Raises:
        ConfigError: An id comes twice.
    """
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    if (np.diff(ascending) == 0).any():
        twice = ascending[1:][np.diff(ascending) == 0][0]
        raise ConfigError(f"nodes must not repeat, got {twice} twice")
    mine = owned.cpu().numpy()
    place = np.searchsorted(ascending, mine)
    found = np.zeros(len(mine), bool)
    inside = place < len(ascending)
    found[inside] = ascending[place[inside]] == mine[inside]
    where = torch.from_numpy(order[place[found]])
    return torch.from_numpy(found).to(owned.device), where.to(owned.device)


def targets_of(values: ArrayLike, num_ids: int) -> Array:
    """Return labels of some nodes, (k,) or (k, C).

    Raises:
        ConfigError: There are more or fewer than nodes.
    """
    y = np.asarray(values)
    if y.ndim not in (1, 2) or len(y) != num_ids:
        raise ConfigError(f"y must have a row for each of {num_ids} nodes, got shape {y.shape}")
    return y


def everyones_rows(rows: Tensor, owned: Tensor, num_nodes: int, world: World) -> Array:
    """Collective. Return rows of all nodes, (N, ...), by original id, on every rank.

    Args:
        rows: (n, ...), of owned nodes.
        owned: int64 (n,), their original ids.
        num_nodes: N.
        world: The ranks.
    """
    mine = owned.cpu().numpy(), rows.cpu().numpy()
    everyone = world.transport.all_gather_object(mine)
    whole = np.empty((num_nodes, *mine[1].shape[1:]), mine[1].dtype)
    for ids, values in everyone:
        whole[ids] = values
    return whole
