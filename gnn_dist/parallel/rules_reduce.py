"""Rules for functions that bring rows together: sums, means, products of matrices, norms."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.parallel.call import Call
from gnn_dist.parallel.extremes import extreme_of_rows
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.parallel.tracing import (
    Args,
    Kwargs,
    is_positional,
    marked,
    operand,
    refuse,
    rule,
    tensors,
    without_rule,
)

__all__: list[str] = []

SUMS = (
    *(Tensor.sum, torch.sum, Tensor.nansum, torch.nansum),
    *(Tensor.count_nonzero, torch.count_nonzero),
)
SPREADS = (Tensor.var, torch.var, Tensor.std, torch.std)
BOOLS = (Tensor.any, torch.any, Tensor.all, torch.all)
NORMS = (Tensor.norm, torch.norm, torch.linalg.vector_norm, torch.linalg.norm)
EXTREMES = {
    function: name[-3:]
    for name in ("max", "min", "amax", "amin")
    for function in (getattr(torch, name), getattr(Tensor, name))
}


@rule(*SUMS, Tensor.mean, torch.mean, *BOOLS)
def total(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Sums, means and their like."""
    x, placed = _input(args, kwargs)
    if placed is None:
        return func(*args, **kwargs)
    dims, keepdim = _dims(x, args, kwargs)
    if placed.dim not in dims:
        return _beside(func, args, kwargs, placed, dims, keepdim=keepdim)
    _check_values(func, placed)
    if func in BOOLS:
        local = func(*args, **kwargs)
        op = "max" if "any" in func.__name__ else "min"
        return mark(call.extreme_over_ranks(local, op), None)
    if func in (Tensor.mean, torch.mean):
        dtype = kwargs.get("dtype")
        sums = x.sum(dims, keepdim=keepdim, dtype=dtype)
        return mark(call.sum_over_ranks(sums) / _count(call, x, placed, dims), None)
    return mark(call.sum_over_ranks(func(*args, **kwargs)), None)


@rule(*SPREADS, torch.var_mean, torch.std_mean)
def spread(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Variances and deviations, in two passes."""
    x, placed = _input(args, kwargs)
    if placed is None:
        return func(*args, **kwargs)
    correction = kwargs.get("correction", kwargs.get("unbiased", 1))
    given = args[1:]
    if given and isinstance(given[0], bool):
        correction, given = given[0], ()
    elif len(given) > 1 and isinstance(given[1], bool):
        correction, given = given[1], (given[0], *given[2:])
    dims, keepdim = _dims(x, (x, *given), kwargs)
    if placed.dim not in dims:
        return _beside(func, args, kwargs, placed, dims, keepdim=keepdim)
    _check_values(func, placed)
    count = _count(call, x, placed, dims)
    mean = call.sum_over_ranks(x.sum(dims, keepdim=True)) / count
    squares = call.sum_over_ranks((x - mean).square().sum(dims, keepdim=keepdim))
    out = squares / max(count - float(1 if correction is None else correction), 0.0)
    if "std" in func.__name__:
        out = out.sqrt()
    if func in (torch.var_mean, torch.std_mean):
        return out, mean if keepdim else mean.squeeze(dims)
    return mark(out, None)


@rule(*NORMS)
def norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Norms of powers 1, 2 and infinity."""
    x, placed = _input(args, kwargs)
    if placed is None:
        return func(*args, **kwargs)
    power = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))
    dims, keepdim = _dims(x, (x, *args[2:]), kwargs)
    if placed.dim not in dims:
        return _beside(func, args, kwargs, placed, dims, keepdim=keepdim)
    _check_values(func, placed)
    if func is torch.linalg.norm and len(dims) == 2 and power not in (None, "fro"):
        refuse(func, f"of a matrix, of order {power}, is of the rows of this rank")
    return _norm(call, func, x, (dims, keepdim), power)


def _norm(call: Call, func: Any, x: Tensor, over: tuple[list[int], bool], power: Any) -> Tensor:
    dims, keepdim = over
    if power in (None, 2, 2.0, "fro"):
        squares = call.sum_over_ranks(x.square().sum(dims, keepdim=keepdim))
        # The root of 0 has no gradient; that of PyTorch's norm is 0 there.
        some = squares > 0
        return mark(torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0), None)
    if power not in (1, 1.0):
        refuse(func, f"of power {power} is known of the rows of this rank")
    return mark(call.sum_over_ranks(x.abs().sum(dims, keepdim=keepdim)), None)


@rule(F.normalize)
def normalize(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Divide by a norm."""
    x, placed = _input(args, kwargs)
    p = args[1] if len(args) > 1 else kwargs.get("p", 2.0)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 1)
    eps = args[3] if len(args) > 3 else kwargs.get("eps", 1e-12)
    if placed is None or placed.dim != dim % x.dim():
        return without_rule(func, args, kwargs)
    _check_values(func, placed)
    length = _norm(call, func, x, ([dim % x.dim()], True), p)
    return mark(x / length.clamp(min=eps), placed)


@rule(*EXTREMES)
def extreme(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Maxima and minima; of ids, the number of nodes a rank works on."""
    x, placed = _input(args, kwargs)
    other = args[1] if len(args) > 1 else kwargs.get("other")
    if isinstance(other, Tensor):
        return without_rule(func, args, kwargs)
    if placed is None:
        return func(*args, **kwargs)
    op = EXTREMES[func]
    dims, keepdim = _dims(x, args, kwargs)
    if placed.kind.holds_ids:
        # Local ids run from 0 to n - 1 for a model, which adds one and has the number of nodes.
        return x.new_tensor(call.num_owned - 1 if op == "max" else 0)
    if placed.dim not in dims:
        return _beside(func, args, kwargs, placed, dims, keepdim=keepdim)
    by_index = func.__name__ in ("max", "min") and len(args) + len(kwargs) > 1
    value = extreme_of_rows(call, x, dims, op, keepdim=keepdim, first=by_index)
    mark(value, None)
    if not by_index:
        return value
    # Positions mean nothing on other ranks: none that can be used by mistake.
    nowhere = torch.full(value.shape, torch.iinfo(torch.int64).max, device=value.device)
    return getattr(torch.return_types, op)((value, nowhere))


@rule(
    *(Tensor.sort, torch.sort, Tensor.argsort, torch.argsort, Tensor.topk, torch.topk),
    *(Tensor.cumsum, torch.cumsum, Tensor.cumprod, torch.cumprod, torch.cummax, torch.cummin),
    *(Tensor.argmax, torch.argmax, Tensor.argmin, torch.argmin, Tensor.kthvalue, torch.kthvalue),
    *(Tensor.median, torch.median, Tensor.mode, torch.mode, Tensor.prod, torch.prod),
    *(Tensor.softmax, torch.softmax, F.softmax, F.log_softmax, Tensor.log_softmax),
    *(torch.log_softmax, F.softmin, F.gumbel_softmax, Tensor.logsumexp, torch.logsumexp),
    *(Tensor.quantile, torch.quantile, Tensor.diff, torch.diff, Tensor.unique, torch.unique),
    *(torch.unique_consecutive, Tensor.logcumsumexp, torch.logcumsumexp),
    *(torch.special.softmax, torch.special.log_softmax, Tensor.cumsum_, Tensor.cumprod_),
    *(Tensor.cummax, Tensor.cummin, Tensor.msort, torch.msort),
)
def in_order(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """What needs all rows at once, or an order of them."""
    x, placed = _input(args, kwargs)
    if placed is None:
        return func(*args, **kwargs)
    named = 0 if func.__name__ == "msort" else kwargs.get("dim", kwargs.get("axis"))
    if named is None:
        named = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), None)
    if func in (Tensor.topk, torch.topk, Tensor.kthvalue, torch.kthvalue):
        named = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    last = ("sort", "argsort", "topk", "kthvalue", "median", "mode", "diff")
    if named is None and func.__name__ in last and x.dim() > 1:
        named = -1
    if named is None and "soft" in func.__name__:
        named = 1 if x.dim() == 2 else 0
    dim = placed.dim if named is None else named % x.dim()
    softmax = "soft" in func.__name__ or "sum" in func.__name__[:6]
    if dim == placed.dim and (is_positional(placed) or (softmax and "cum" not in func.__name__)):
        refuse(func, f"goes over the rows of this rank's {placed.kind.value}")
    out = func(*args, **kwargs)
    for tensor in tensors((out,)):
        if dim == placed.dim:
            same = tensor.dim() == x.dim() and tensor.size(dim) == x.size(dim)
            mark(tensor, Placement(Kind.EDGES, dim) if same else None)
        elif tensor.dim() == x.dim():
            mark(tensor, placed.rows_only())
        else:
            mark(tensor, placed.rows_only().at(placed.dim - (dim < placed.dim)))
    return out


@rule(Tensor.lt, torch.lt, Tensor.__lt__, Tensor.le, torch.le, Tensor.__le__)
@rule(Tensor.gt, torch.gt, Tensor.__gt__, Tensor.ge, torch.ge, Tensor.__ge__)
def order_of_ids(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Ids compare as those of the whole graph."""
    known = [placement(a) for a in args]
    if not any(p is not None and p.kind.holds_ids for p in known):
        return without_rule(func, args, kwargs)
    if not all(p is not None and p.kind in (Kind.SOURCES, Kind.TARGETS) for p in known):
        refuse(func, "compares local ids of nodes, which depend on the partition,")
    first = known[0]
    assert first is not None  # noqa: S101 - for mypy
    return mark(func(*(call.original_ids(a) for a in args)), first.rows_only())


@rule(
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, Tensor.mm),
    *(torch.bmm, Tensor.bmm, F.linear, torch.mv, Tensor.mv, torch.dot, Tensor.dot),
)
def matmul(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A product of matrices, which may sum over the rows of all ranks."""
    names = ("weight", "other", "mat2", "vec", "tensor")
    a: Tensor = operand(args, kwargs)
    b: Tensor = args[1] if len(args) > 1 else next(kwargs[n] for n in names if n in kwargs)
    if func is Tensor.__rmatmul__:
        a, b = b, a
    first, second = placement(a), placement(b)
    if first is None and second is None:
        return func(*args, **kwargs)
    over = (0 if b.dim() == 1 else b.dim() - 2) if func is not F.linear else b.dim() - 1
    summed = (
        first is not None and first.dim == a.dim() - 1,
        second is not None and second.dim == over,
    )
    if any(summed) and not all(summed):
        refuse(func, "sums over this rank's rows alone")
    if all(summed):
        if func is F.linear:
            refuse(func, "sums over this rank's rows alone")
        return mark(call.sum_over_ranks(func(*args, **kwargs)), None)
    out = func(*args, **kwargs)
    both = [p for p in (first, second) if p is not None]
    batched = len({p.dim for p in both}) == 1 and a.dim() == b.dim() > both[0].dim + 2
    if len(both) == 2 and not batched:
        refuse(func, "pairs each of this rank's rows with each other one")
    if first is not None:
        from_right = a.dim() - first.dim
        at = out.dim() - from_right + (b.dim() == 1)
        return mark(out, first.rows_only().at(at))
    assert second is not None  # noqa: S101 - one of the two
    if func is F.linear:
        return mark(out, second.rows_only().at(out.dim() - 1))
    return mark(out, second.rows_only().at(out.dim() - (b.dim() - second.dim)))


@rule(torch.einsum)
def einsum(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The same, by letters."""
    equation = args[0]
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    known = [placement(x) for x in operands]
    if not isinstance(equation, str) or not any(known):
        return func(*args, **kwargs)
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = {t[p.dim] for t, p in zip(terms, known, strict=True) if p is not None}
    if "." in equation or "->" not in equation or len(letters) != 1:
        refuse(func, f"of {equation!r} brings rows of this rank together")
    letter = letters.pop()
    kept = next(p for p in known if p is not None).rows_only()
    out = func(*args, **kwargs)
    if letter in right:
        return mark(out, kept.at(right.index(letter)))
    if not all((letter in t) == (p is not None) for t, p in zip(terms, known, strict=True)):
        refuse(func, f"of {equation!r} brings rows of this rank together")
    return mark(call.sum_over_ranks(out), None)


@rule(torch.cdist, F.pairwise_distance, F.scaled_dot_product_attention, Tensor.cov, torch.cov)
def pairs(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows with rows."""
    inputs = list(marked(args, kwargs))
    if inputs and func is not F.pairwise_distance:
        refuse(func, "pairs each of this rank's rows with each other one")
    return without_rule(func, args, kwargs)


@rule(F.layer_norm, F.rms_norm)
def layer_norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Normalise over the last dimensions."""
    x, placed = _input(args, kwargs)
    shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
    if placed is not None and placed.dim >= x.dim() - len(shape):
        refuse(func, "normalises over this rank's rows alone")
    return without_rule(func, args, kwargs)


@rule(F.group_norm, F.local_response_norm)
def group_norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Normalise each row, where rows come first."""
    _, placed = _input(args, kwargs)
    if placed is not None and placed.dim != 0:
        refuse(func, "normalises over this rank's rows alone")
    return without_rule(func, args, kwargs)


def _input(args: Args, kwargs: Kwargs) -> tuple[Tensor, Placement | None]:
    x = operand(args, kwargs)
    return x, placement(x)


def _dims(x: Tensor, args: Args, kwargs: Kwargs) -> tuple[list[int], bool]:
    """Return the dimensions that are reduced, and whether they stay."""
    given = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    if given is None or (isinstance(given, tuple | list) and not given):
        return list(range(x.dim())), bool(keepdim)
    dims = given if isinstance(given, tuple | list) else [given]
    return [d % max(x.dim(), 1) for d in dims], bool(keepdim)


def _beside(
    func: Any, args: Args, kwargs: Kwargs, placed: Placement, dims: list[int], *, keepdim: bool
) -> Any:
    """Reduce each row alone."""
    out = func(*args, **kwargs)
    dim = placed.dim if keepdim else placed.dim - sum(d < placed.dim for d in dims)
    for tensor in tensors((out,)):
        mark(tensor, placed.rows_only().at(dim))
    return out


def _check_values(func: Any, placed: Placement) -> None:
    if placed.kind.holds_ids:
        refuse(func, "reduces local ids of nodes, which depend on the partition,")


def _count(call: Call, x: Tensor, placed: Placement, dims: list[int]) -> int:
    """Collective. Return how many elements of all ranks go into each result."""
    own = 1
    for dim in dims:
        own *= x.size(dim) if dim != placed.dim else 1
    rows = call.count(x.size(placed.dim))
    return max(own * rows, 1)
