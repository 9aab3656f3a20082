"""What a model computed on the probe graph: seen whole, seen on each part, and compared.

A tensor with rows of nodes or edges is put together from both parts by original ids. Of rows whose
ids are not known the sums are compared; anything else must be equal everywhere.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gnn_dist.ops.draws import DrawKey, copy_numbers, edge_ids, uniform_by_id
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.shard.shard import Shard

__all__ = ["Outcome", "Seen", "Watch", "differences", "first_difference", "seen", "upstream"]

UPSTREAM = DrawKey(7, 0, 0)


@dataclass(frozen=True)
class Seen:
    """A tensor, and how it is compared.

    Attributes:
        values: Its values.
        how: `rows`: by ids; `sum`: the sum over rows; `same`: as it is; `not`: not at all, as it
            holds local ids or positions.
        dim: The dimension of rows.
        ids: int64, equal however the graph is cut; where `how` is `rows`.
    """

    values: Tensor
    how: str
    dim: int = 0
    ids: Tensor | None = None


@dataclass
class Outcome:
    """What one rank has of a run.

    Attributes:
        outputs: What the model returned, by name.
        buffers: Its buffers afterwards.
        gradients: Those of arguments, then of parameters in the order of the model.
        trace: What went into modules and what came from them, in the order of execution.
        upstream: The gradients that flowed into the outputs.
    """

    outputs: dict[str, Seen] = field(default_factory=dict)
    buffers: dict[str, Seen] = field(default_factory=dict)
    gradients: dict[str, Seen] = field(default_factory=dict)
    trace: dict[str, Seen] = field(default_factory=dict)
    upstream: list[Tensor] = field(default_factory=list)


def seen(tensor: Tensor, shard: Shard) -> Seen:
    """Return a tensor with how it is to be compared."""
    values, placed = tensor.detach(), placement(tensor) or _by_size(tensor, shard)
    if placed is None:
        return Seen(values, "same")
    if placed.kind.holds_ids or placed.kind is Kind.PICKED:
        return Seen(values, "not")
    rows = values.size(placed.dim) if placed.dim < values.dim() else -1
    if placed.kind is Kind.NODES and rows == shard.num_owned:
        return Seen(values, "rows", placed.dim, shard.node_id)
    ends = placed.ends
    if placed.kind is Kind.EDGES and ends is None and rows == shard.num_edges:
        ends = shard.edge_index
    if ends is not None and ends.size(1) == rows:
        ids = shard.structure.src_id
        copies = copy_numbers(ends[0], ends[1], shard.structure.num_src)
        return Seen(values, "rows", placed.dim, edge_ids(ids[ends[0]], ids[ends[1]], copies))
    return Seen(values, "sum" if rows >= 0 else "not", placed.dim)


def _by_size(tensor: Tensor, shard: Shard) -> Placement | None:
    """Tell rows of what came from outside PyTorch; the probe's sizes are those of nothing else."""
    if tensor.dim() and tensor.size(0) == shard.num_owned:
        return Placement(Kind.NODES, 0)
    is_edges = tensor.dim() and tensor.size(0) == shard.num_edges
    return Placement(Kind.EDGES, 0) if is_edges else None


def upstream(one: Seen, num_ranks: int) -> Tensor:
    """Return the gradient that flows into an output: alike however the graph is cut."""
    values = one.values
    if one.how == "sum":
        return torch.ones_like(values)
    if one.ids is None:
        return _waves(torch.zeros(1, dtype=torch.float64), values[None])[0] / num_ranks
    rows = values.movedim(one.dim, 0)
    return _waves(uniform_by_id(UPSTREAM, one.ids), rows).movedim(0, one.dim)


def _waves(phase: Tensor, rows: Tensor) -> Tensor:
    columns = torch.arange(rows[:1].numel() if len(rows) else 0, dtype=torch.float64)
    waves = torch.sin(50 * phase[:, None] + columns + 1)
    return waves.view(rows.shape).to(rows.dtype) if len(rows) else torch.zeros_like(rows)


class Watch:
    """Keeps what goes into a model's modules and what comes out of them.

    Args:
        model: The model; it is a copy, and keeps its hooks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[str, Tensor]] = []
        self._calls: Counter[str] = Counter()
        for name, module in model.named_modules():
            if name and not isinstance(module, torch.jit.ScriptModule):
                self._hook(f"layer {name} ({type(module).__name__})", module)

    def _hook(self, name: str, module: nn.Module) -> None:
        def before(module: nn.Module, args: object, kwargs: object) -> None:
            self._calls[name] += 1
            self._keep(f"what goes into {name}", self._calls[name], (args, kwargs))

        def after(module: nn.Module, args: object, out: object) -> None:
            self._keep(f"what comes from {name}", self._calls[name], out)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _keep(self, what: str, call: int, values: object) -> None:
        for number, leaf in enumerate(tree_leaves(values)):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                # A copy: the model may go on to change it. Ids are found later, as the functions
                # that find them would be traced here.
                copy = mark(leaf.detach().clone(), placement(leaf))
                self._kept.append((f"{what}|{call}|{number}", copy))

    def trace(self, shard: Shard) -> dict[str, Seen]:
        """Return all of it, in the order of execution."""
        return {name: seen(tensor, shard) for name, tensor in self._kept}


def differences(
    whole: dict[str, Seen], parts: Sequence[dict[str, Seen]], tolerance: float
) -> Iterator[tuple[str, str]]:
    """Yield what differs: its name, and by how much, in words.

    Args:
        whole: By name, what one rank has that holds the whole graph.
        parts: The same of each rank.
        tolerance: Relative to the largest value of a tensor.
    """
    # What is zero but for rounding has no scale of its own.
    largest = max((_largest(one.values) for one in whole.values()), default=0.0)
    for name, one in whole.items():
        others = [part[name] for part in parts if name in part]
        if len(others) == len(parts):
            found = _difference(one, others, tolerance, 1e-3 * largest)
            if found:
                yield name.partition("|")[0], found


def first_difference(
    whole: dict[str, Seen], parts: Sequence[dict[str, Seen]], tolerance: float
) -> str:
    """Return in words what differs first, or ""."""
    return next((f"{n} {why}" for n, why in differences(whole, parts, tolerance)), "")


def _largest(values: Tensor) -> float:
    if not values.is_floating_point() or values.numel() == 0:
        return 0.0
    return float(values.double().nan_to_num(0.0, 0.0, 0.0).abs().max())


def _difference(one: Seen, others: list[Seen], tolerance: float, floor: float) -> str:
    hows = {other.how for other in others}
    if "not" in hows or one.how == "not":
        return ""
    if hows == {"rows"} and one.how == "rows":
        return _rows_difference(one, others, tolerance, floor)
    if "sum" in hows or "rows" in hows:
        if any(other.dim >= other.values.dim() for other in (one, *others)):
            return ""
        sums = [other.values.sum(other.dim) for other in others]
        pairs = [(one.values.sum(others[0].dim), sum(sums[1:], sums[0]))]
    else:
        pairs = [(one.values, other.values) for other in others]
    return next((found for a, b in pairs if (found := _far(a, b, tolerance, floor))), "")


def _rows_difference(one: Seen, others: list[Seen], tolerance: float, floor: float) -> str:
    ids = torch.cat([other.ids for other in others if other.ids is not None])
    if one.ids is None or len(ids) != len(one.ids):
        return f"has {len(ids)} rows in two parts, {one.values.size(one.dim)} whole"
    rows = [other.values.movedim(other.dim, 0) for other in others]
    if any(r.shape[1:] != rows[0].shape[1:] for r in rows):
        return "has rows of other shapes on other ranks"
    here, there = one.ids.argsort(stable=True), ids.argsort(stable=True)
    if not torch.equal(one.ids[here], ids[there]):
        return "has rows of other nodes or edges"
    return _far(one.values.movedim(one.dim, 0)[here], torch.cat(rows)[there], tolerance, floor)


def _far(a: Tensor, b: Tensor, tolerance: float, floor: float) -> str:
    """Say how far apart two tensors are; "" if they are equal within the tolerance."""
    if a.shape != b.shape:
        return f"has shape {tuple(b.shape)} in place of {tuple(a.shape)}"
    if a.dtype == torch.bool or not (a.is_floating_point() or a.is_complex()):
        wrong = int((a != b).sum())
        return f"has {wrong} of {a.numel()} other values" if wrong else ""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b.to(a.dtype))
    a, b = a.double(), b.double()
    scale = max(_largest(a), floor)
    close = torch.isclose(a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True)
    if bool(close.all()):
        return ""
    gap = float((a - b)[~close].nan_to_num(float("inf"), float("inf"), float("inf")).abs().max())
    return f"differs by {gap:.1e}, where values are up to {scale:.1e}"
