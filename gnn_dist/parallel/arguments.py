"""What the arguments of a model are: rows of nodes, rows of edges, edge lists, or none of these."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.placement import Kind, Placement, edge_list, mark
from gnn_dist.shard.shard import Shard

__all__ = ["Arguments"]

# What an argument may be; rows of the edges of the k-th edge list among them are written "list k".
ENDS, NODES, EDGES, SAME = "ends", "nodes", "edges", "same"
OF_EDGES = ("edge", "weight", "attr")  # in the names that models give to what edges have
NO_LISTS = ("EdgeIndex", "SparseTensor")


class Arguments:
    """Knows what the arguments of a model are.

    Each rank says what its sizes allow, once for each way in which the model is called; what all
    ranks' sizes allow is what an argument is. So none is taken for rows of nodes that has as many
    by chance on one rank, and a rank with as many nodes as edges, perhaps none, is told by others.

    Args:
        model: The model.
        shard: This rank's shard.
        world: The ranks.
    """

    def __init__(self, model: nn.Module, shard: Shard, world: World) -> None:
        self._model, self._shard, self._world = model, shard, world
        self._agreed: dict[tuple[object, ...], list[str]] = {}

    def mark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Mark the tensors that the model is called with. Collective for a new way of calling it.

        Those of the shard are marked too: a model may have kept them.

        Raises:
            ConfigError: One is a graph of another kind than an edge list, or has another number of
                rows than in an earlier call that was alike.
        """
        self._mark_own()
        given = list(_named(self._model, args, kwargs))
        lists = [tensor for name, tensor in given if self._is_list(name, tensor)]
        way = tuple((name, tensor.dtype, tensor.dim()) for name, tensor in given)
        if way not in self._agreed:
            allowed = [self._allowed(name, tensor, lists) for name, tensor in given]
            self._agreed[way] = self._ask([name for name, _ in given], allowed)
        for (name, tensor), kind in zip(given, self._agreed[way], strict=True):
            if kind not in self._allowed(name, tensor, lists):
                raise ConfigError(
                    f"{name} had rows of {kind} in an earlier call, and has {tuple(tensor.shape)} "
                    "now: keep to one of them, or give the model another parameter for it"
                )
            mark(tensor, self._placement(tensor, kind, lists))

    def _ask(self, names: list[str], allowed: list[list[str]]) -> list[str]:
        """Collective. Return for each argument the first that all ranks allow; its name decides."""
        agreed = []
        by_rank = self._world.transport.all_gather_object(allowed)
        if len({len(kinds) for kinds in by_rank}) > 1:
            raise ConfigError("the model must be called with the same arguments on all ranks")
        for name, *kinds in zip(names, *by_rank, strict=True):
            common = [kind for kind in kinds[0] if all(kind in other for other in kinds)]
            of_edges = [kind for kind in common if kind not in (NODES, SAME)]
            hinted = any(word in name for word in OF_EDGES)
            agreed.append((of_edges if hinted and of_edges else common)[0])
        return agreed

    def _mark_own(self) -> None:
        """Mark the tensors of the shard."""
        shard = self._shard
        ends = shard.edge_index
        mark(ends, edge_list(ends))
        for rows in (shard.features, shard.y, *shard.masks.values()):
            if isinstance(rows, Tensor):
                mark(rows, Placement(Kind.NODES, 0))
        for rows in (shard.edge_weight, *shard.edge_data.values()):
            if rows is not None:
                mark(rows, Placement(Kind.EDGES, 0, ends))

    def _is_list(self, name: str, tensor: Tensor) -> bool:
        if tensor is self._shard.edge_index:
            return True
        pairs = tensor.dtype == torch.int64 and tensor.dim() == 2 and tensor.size(0) == 2
        return pairs and (self._shard.num_owned != 2 or "edge" in name or "adj" in name)

    def _allowed(self, name: str, tensor: Tensor, lists: list[Tensor]) -> list[str]:
        """Return what an argument may be, as far as this rank can tell."""
        shard = self._shard
        if self._is_list(name, tensor):
            return [ENDS]
        if any(tensor is own for own in (shard.edge_weight, *shard.edge_data.values())):
            return [EDGES]
        if any(tensor is own for own in (shard.features, shard.y, *shard.masks.values())):
            return [NODES]
        if tensor.dim() == 0:
            return [SAME]
        rows = tensor.size(0)
        found = [NODES] if rows == shard.num_owned else []
        found += [EDGES] if rows == shard.num_edges else []
        found += [f"list {k}" for k, ends in enumerate(lists) if rows == ends.size(1)]
        return [*found, SAME]

    def _placement(self, tensor: Tensor, kind: str, lists: list[Tensor]) -> Placement | None:
        if kind == ENDS:
            return edge_list(tensor)
        if kind == NODES:
            return Placement(Kind.NODES, 0)
        if kind == SAME:
            return None
        own = kind == EDGES
        ends = self._shard.edge_index if own else lists[int(kind.removeprefix("list "))]
        return Placement(Kind.EDGES, 0, ends)


def _named(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors, also those of a PyTorch Geometric `Data`, with the names they are given by."""
    try:
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    for name, value in given.items():
        for leaf in tree_leaves(value):
            sparse = isinstance(leaf, Tensor) and leaf.layout != torch.strided
            if sparse or type(leaf).__name__ in NO_LISTS:
                raise ConfigError(
                    f"{name} is a {'sparse tensor' if sparse else type(leaf).__name__}: pass the "
                    "graph as shard.edge_index"
                )
            if isinstance(leaf, Tensor):
                yield str(name), leaf
            elif hasattr(leaf, "edge_index") and hasattr(leaf, "to_dict"):
                parts = leaf.to_dict().items()
                yield from ((str(key), part) for key, part in parts if isinstance(part, Tensor))
