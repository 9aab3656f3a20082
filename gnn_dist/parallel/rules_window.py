"""Rules for functions whose results have as many rows, each of them of several rows.

Their results look like those of functions that work on each row alone.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import placement
from gnn_dist.parallel.rules_index import setitem
from gnn_dist.parallel.tracing import (
    Args,
    Kwargs,
    marked,
    operand,
    refuse,
    rule,
    three,
    without_rule,
)

__all__: list[str] = []


def _named(*names: str) -> list[Any]:
    """Return functions by name, from wherever PyTorch has one of that name."""
    places = (torch, F, Tensor, torch._C._nn)
    return [getattr(place, n) for n in names for place in places if hasattr(place, n)]


WINDOWS = {
    function: dims
    for dims in (1, 2, 3)
    for function in _named(
        *(f"{name}{dims}d" for name in ("conv", "conv_transpose", "avg_pool", "max_pool")),
        *(f"{name}{dims}d" for name in ("_max_pool", "lp_pool", "adaptive_avg_pool")),
        *(f"{name}{dims}d" for name in ("adaptive_max_pool", "_adaptive_max_pool")),
        *(f"max_pool{dims}d_with_indices", f"adaptive_max_pool{dims}d_with_indices"),
    )
}
SPARSE = [f"sparse_{name}_tensor" for name in ("coo", "csr", "csc", "compressed")]
FOURIER = [getattr(torch.fft, name) for name in torch.fft.__all__ if "freq" not in name]


@rule(*WINDOWS)
def window(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Convolutions and pooling: each row alone along rows only if the kernel has size one."""
    x = operand(args, kwargs)
    placed = placement(x)
    if placed is None or placed.dim < x.dim() - WINDOWS[func]:
        return without_rule(func, args, kwargs)
    kernel: Any = args[1] if len(args) > 1 else kwargs.get("weight")
    is_conv = func.__name__.startswith("conv") and isinstance(kernel, Tensor)
    if not is_conv or kernel.size(placed.dim - x.dim()) != 1:
        refuse(func, f"goes over the rows of this rank's {placed.kind.value}")
    return without_rule(func, args, kwargs)


@rule(*FOURIER)
@rule(*_named("triu", "tril", "triu_", "tril_", "diag", "diagflat", "resize_"))
@rule(*_named("masked_scatter", "masked_scatter_", "put", "put_", "resize_as_", "set_"))
def by_position(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """What means something else for each position of a row."""
    for _, placed in marked(args, kwargs):
        refuse(func, f"treats rows of {placed.kind.value} by position")
    return func(*args, **kwargs)


@rule(*(f for name in SPARSE if (f := getattr(torch, name, None)) is not None))
def of_entries(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A sparse matrix of edges, whose columns would be sources on other ranks too."""
    if list(marked(args, kwargs)):
        refuse(
            func,
            "makes a matrix of this rank's edges: pass messages along edge_index, or sum with "
            "scatter or index_add; it would hold the nodes of this rank",
        )
    return func(*args, **kwargs)


@rule(*_named("rot90"))
def rotate(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Two dimensions turned."""
    x = operand(args, kwargs)
    placed = placement(x)
    dims: Any = kwargs.get("dims", args[2] if len(args) > 2 else (0, 1))
    if placed is not None and placed.dim in [d % x.dim() for d in dims]:
        refuse(func, f"moves the rows of {placed.kind.value}")
    return without_rule(func, args, kwargs)


@rule(*_named("outer", "ger", "meshgrid"))
def all_pairs(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Each entry with each other one."""
    if len(list(marked(args, kwargs))) > 1:
        refuse(func, "pairs each of this rank's rows with each other one")
    return without_rule(func, args, kwargs)


@rule(*_named("renorm", "renorm_", "_weight_norm"))
def renorm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Norms of all other dimensions."""
    x = operand(args, kwargs)
    placed = placement(x)
    dim: Any = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    if placed is not None and placed.dim != dim % x.dim():
        refuse(func, "normalises over this rank's rows alone")
    return without_rule(func, args, kwargs)


@rule(F.pad, torch._C._nn.pad)
def pad(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """More columns, but not more or fewer rows."""
    x, amounts = operand(args, kwargs), kwargs.get("pad", args[1:2])
    amounts = amounts[0] if isinstance(amounts, tuple) and "pad" not in kwargs else amounts
    placed = placement(x)
    if placed is not None:
        first = 2 * (x.dim() - 1 - placed.dim)
        if any(amounts[first : first + 2]):
            refuse(func, f"shifts the rows of this rank's {placed.kind.value}")
    return without_rule(func, args, kwargs)


@rule(*_named("index_put", "index_put_"))
def index_put(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`x[index] = value` by another name."""
    x, indices, _ = three(args, kwargs, ("input", "indices", "values"))

    def put(*_: Any) -> Any:
        return without_rule(func, args, kwargs)

    put.__name__ = func.__name__  # for the message
    return setitem(call, put, (x, tuple(indices)), {})
