"""Embeddings with a row for each node, in a model written for one machine: rows live with owners.

    nn.Embedding(N, d)      weight (N, d)  -->  weight (n, d), the same Parameter: owned rows
    self.emb.weight         the owned rows
    self.emb(node_id)       the owned rows; of other ids, rows from their owners

No class is changed and no module replaced: an optimiser made before still has the parameter, and a
layer that is asked for its type is what it was. What `F.embedding` does with such a weight is
answered here, as other functions are by their rules.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.node_rows import NodeRows, attach, rows_of
from gnn_dist.nn.embedding import draw_rows, look_up, read_rows
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.parallel.tracing import refuse, rule
from gnn_dist.shard.shard import Shard

__all__ = [
    "holds_original_ids",
    "is_table",
    "read_embedding",
    "read_table",
    "refuse_padding",
    "shard_tables",
    "tables",
    "tables_in_use",
]

NODES = Placement(Kind.NODES, 0)


def is_table(module: nn.Module, shard: Shard) -> bool:
    """Return whether a module is an embedding with a row for each node of the graph."""
    return isinstance(module, nn.Embedding) and module.num_embeddings == shard.meta.num_nodes


def tables(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, NodeRows]]:
    """Yield (name, parameter, owners) of the sharded tables; those that are tied by each name."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners = rows_of(parameter)
        if owners is not None:
            yield name, parameter, owners


@contextmanager
def tables_in_use(model: nn.Module) -> Iterator[None]:
    """Have tables be rows of owned nodes while a model runs."""
    found = list(tables(model))
    for _, parameter, owners in found:
        mark(parameter, NODES)  # marks are lost when a model is copied or changed
        owners.are_seen = True
    try:
        yield
    finally:
        for _, _, owners in found:
            owners.are_seen = False


def only_inside(module: nn.Embedding, args: Any) -> None:
    """Refuse to look up original ids among this rank's rows, where nobody would see it.

    Raises:
        ConfigError: A sharded embedding, or a copy of one, is called outside of the model.
    """
    owners = rows_of(module.weight)
    copied = owners is None and module.weight.size(0) != module.num_embeddings
    if copied or (owners is not None and not owners.are_seen):
        raise ConfigError(
            f"this embedding of {module.num_embeddings} nodes holds the rows of this rank's alone: "
            "call it inside the parallelized model's forward, or take its weight, whose rows are "
            "those of shard.node_id"
        )


def shard_tables(model: nn.Module, shard: Shard, world: World, *, seed: int) -> None:
    """Collective. Leave of each embedding of all nodes the rows of this rank's nodes.

    Rank 0's rows go to their owners, a piece at a time. A table on the meta device, which never was
    in memory, is drawn by original ids.

    Raises:
        ConfigError: On every rank: an embedding does what is not exact or is tied to another
            layer, ranks have different ones, or the model was made for another shard.
    """
    for name, _, known in tables(model):
        if not known.is_of(shard):
            raise ConfigError(f"{name} holds the rows of another shard: make the model anew")
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and is_table(module, shard)
        and rows_of(module.weight) is None
    }
    for name, module in found.items():
        _check(model, name, module)
    weights: dict[Tensor, list[nn.Embedding]] = {}
    for module in found.values():
        weights.setdefault(module.weight, []).append(module)
    if not weights:
        return
    _check_alike(list(weights), world)
    owners = NodeRows(shard, world)
    for number, (weight, modules) in enumerate(weights.items()):
        rows = _rows(weight, owners, seed=seed, number=number)
        for module in modules:
            module.register_forward_pre_hook(only_inside)
        if not weight.is_meta:
            weight.data = rows
            attach(weight, owners)
            continue
        made = nn.Parameter(rows, requires_grad=weight.requires_grad)
        attach(made, owners)
        for module in modules:
            module.weight = made


def _check(model: nn.Module, name: str, module: nn.Embedding) -> None:
    where = f"cannot parallelize embedding {name or 'model'}"
    if module.max_norm is not None:
        raise ConfigError(f"{where}: max_norm changes rows whenever they are read: leave it out")
    if module.scale_grad_by_freq:
        raise ConfigError(f"{where}: scale_grad_by_freq counts this rank's ids: leave it out")
    for owner_name, owner in model.named_modules():
        for own_name, parameter in owner.named_parameters(recurse=False):
            if parameter is module.weight and not isinstance(owner, nn.Embedding):
                raise ConfigError(
                    f"{where}: it has a row for each node, of which a rank holds its own, but "
                    f"{owner_name}.{own_name} is the same parameter: untie them"
                )


def _check_alike(weights: list[Tensor], world: World) -> None:
    """Collective. Raise if another rank has other tables; who holds values may differ."""
    mine = [(tuple(w.shape), w.dtype) for w in weights]
    for rank, other in enumerate(world.transport.all_gather_object(mine)):
        if other != mine:
            raise ConfigError(
                f"all ranks must make the same model, but rank {world.rank} has embeddings "
                f"{mine}, rank {rank} {other}"
            )


def _rows(weight: Tensor, owners: NodeRows, *, seed: int, number: int) -> Tensor:
    """Collective. Return this rank's rows (n, d) of rank 0's table (N, d)."""
    world, ids = owners.world, owners.node_id
    if world.transport.all_gather_object(weight.is_meta)[0]:
        return draw_rows(ids, weight.size(1), seed=seed, table=number, dtype=weight.dtype)
    rows = torch.empty((len(ids), weight.size(1)), dtype=weight.dtype, device=world.device)
    return owners.scatter(weight if world.is_main else None, rows)


@rule(look_up)
def _look_up(call: Call, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Rows that `NodeEmbedding` is asked for."""
    weight, ids, _ = args
    placed = placement(ids)
    if placed is not None and placed.kind.holds_ids:
        refuse(func, "takes original ids of nodes; local ids depend on the partition,")
    return read_table(weight, ids, **kwargs)


def holds_original_ids(index: Any) -> bool:
    """Return whether an index is a tensor of ids, and not of local ones."""
    placed = placement(index)
    is_ids = isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8)
    return is_ids and (placed is None or not placed.kind.holds_ids)


def read_embedding(
    func: Any, index: Tensor, weight: Tensor, given: tuple[tuple[Any, ...], dict[str, Any]]
) -> Tensor:
    """Collective. Do what `F.embedding` or `torch.embedding` is given, by original ids."""
    options = _options(func, given)
    sparse = bool(options.get("sparse"))
    return read_table(weight, index, sparse=sparse, padding_idx=_padding(options), arange=True)


def refuse_padding(func: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Raise ConfigError if a row is to have no gradient, where rows are read by local ids."""
    if _padding(_options(func, given)) is not None:
        refuse(func, "with padding_idx reads rows at ends of edges, which have local ids,")


def _options(func: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    names = ["padding_idx", "scale_grad_by_freq", "sparse"]
    if func is F.embedding:
        names[1:1] = ["max_norm", "norm_type"]
    args, kwargs = given
    options = {**dict(zip(names, args[2:], strict=False)), **kwargs}
    if func is torch.embedding and options.get("padding_idx") == -1:
        del options["padding_idx"]  # what stands for none there
    return options


def _padding(options: dict[str, Any]) -> int | None:
    found: int | None = options.get("padding_idx")
    return found


def read_table(
    weight: Tensor,
    ids: Tensor,
    *,
    sparse: bool = False,
    padding_idx: int | None = None,
    arange: bool = False,
) -> Tensor:
    """Collective. Return rows of a table by original id, and mark what they are.

    Args:
        weight: (n, d), the rows of this rank's nodes.
        ids: int64 or int32, original ids.
        sparse: Whether the gradient is sparse.
        padding_idx: An id whose row gets no gradient.
        arange: Whether 0..N-1, or on all ranks 0..n-1, stands for a rank's own nodes: so models
            say "all nodes".
    """
    owners = rows_of(weight)
    if owners is None:
        raise ConfigError("only tables of nodes can be read by original id")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += owners.num_nodes
    all_of = (len(weight), owners.num_nodes) if arange else ()
    lookup = owners.resolve(ids, all_of=all_of)
    out = read_rows(weight, ids, lookup, owners, sparse=sparse, pad=padding_idx)
    if lookup is None:
        return mark(out, NODES)
    placed = placement(ids)
    return out if placed is None else mark(out, placed.rows_only())
