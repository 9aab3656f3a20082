"""Rules for draws, which follow original ids, and for batch norm, which counts all ranks' rows."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.nn.norm import global_batch_norm
from gnn_dist.ops.draws import dropout_by_id, uniform_by_id
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.parallel.tracing import Args, Kwargs, operand, rule

__all__: list[str] = []

# What draws by position, always or in training, and so would depend on the partition.
DRAWS = (
    *(torch.multinomial, torch.normal, torch.poisson, torch.randn, torch.randn_like),
    *(torch.randint, torch.randint_like, torch.randperm, torch.rand_like, torch.bernoulli),
    *(getattr(Tensor, f"{name}_") for name in ("bernoulli", "cauchy", "exponential", "geometric")),
    *(Tensor.log_normal_, Tensor.normal_, Tensor.random_, Tensor.uniform_, Tensor.multinomial),
)
DRAWS_IN_TRAINING = (
    *(F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, F.rrelu),
    *(torch.dropout, torch.dropout_, torch.alpha_dropout, torch.rrelu),
)


@rule(*(f for f in DRAWS if f not in (torch.rand_like, torch.bernoulli)), draws=True)
def draw(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Refused."""
    raise ConfigError(
        f"{func.__name__} draws by position, which depends on the partition: use "
        "torch.nn.functional.dropout or torch.rand_like"
    )


@rule(*DRAWS_IN_TRAINING, draws=True)
def draw_in_training(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Refused in training."""
    training = kwargs.get("training") or kwargs.get("train")
    if any(a is True for a in args[1:]) or training:
        draw(call, func, args, kwargs)
    out = func(*args, **kwargs)
    return mark(out, placement(args[0])) if args and isinstance(out, Tensor) else out


@rule(torch.rand, draws=True)
def rand(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Uniform numbers; their size says what for, on this rank or another."""
    size = args[0] if args and isinstance(args[0], tuple | list) else args
    like = torch.empty(tuple(size or kwargs["size"]), dtype=kwargs.get("dtype"), device="meta")
    if like.dim() == 0 or like.size(0) not in call.known_sizes():
        return draw(call, func, args, kwargs)
    like = torch.empty_like(like, device=call.world.device)
    if call.ends is None or like.size(0) != call.ends.size(1):
        rows = like.size(0)
        both = call.agreed(rows == call.num_owned, rows == call.shard.num_edges)
        if all(both):
            raise ConfigError("torch.rand may be meant for nodes or for edges: use torch.rand_like")
        if any(both):
            mark(like, Placement(Kind.NODES if both[0] else Kind.EDGES, 0))
    return _uniform(call, like)


@rule(torch.rand_like, draws=True)
def rand_like(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Uniform numbers, by id."""
    x = operand(args, kwargs)
    dtype = kwargs.get("dtype") or x.dtype
    return mark(_uniform(call, mark(x.detach().to(dtype), placement(x))), placement(x))


@rule(torch.bernoulli, draws=True)
def bernoulli(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Zeros and ones of given probabilities, by id."""
    p = operand(args, kwargs)
    if len(args) > 1 or "p" in kwargs:
        draw(call, func, args, kwargs)
    return mark((_uniform(call, p.detach()) < p).to(p), placement(p))


def _uniform(call: Call, like: Tensor) -> Tensor:
    """Draw numbers in [0, 1) for the rows of a tensor; columns differ too."""
    call.check_gradient("a draw")
    ids, dim = call.row_ids(like, "a draw")
    rows = like.movedim(dim, 0)
    columns = [uniform_by_id(call.next_key(), ids) for _ in range(rows.shape[1:].numel())]
    drawn = torch.stack(columns, 1) if columns else torch.zeros(len(rows), 0)
    placed = placement(like)
    out = drawn.view(rows.shape).movedim(0, dim).to(like.dtype)
    # Rounding must not make it 1.
    limit = 1 - torch.finfo(like.dtype).eps if like.is_floating_point() else 1
    return mark(out.clamp(max=limit), placed)


@rule(F.dropout, draws=True)
def dropout(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """By id."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    x, p = given["input"], given.get("p", 0.5)
    if not given.get("training", True) or p == 0.0:
        return x
    call.check_gradient("dropout")
    ids, dim = call.row_ids(x, "dropout")
    rows = x if dim == 0 else x.movedim(dim, 0).contiguous()
    out = dropout_by_id(rows, ids, p, call.next_key())
    out = out if dim == 0 else out.movedim(0, dim)
    if given.get("inplace"):
        return x.copy_(out)
    return mark(out, placement(x))


@rule(F.batch_norm, draws=True)
def batch_norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """With the statistics of all ranks' rows."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
    given = dict(zip((*names, "eps"), args, strict=False)) | kwargs
    x, placed = given["input"], placement(given["input"])
    if not given.get("training"):
        return mark(func(*args, **kwargs), placed)
    call.check_gradient("batch norm")
    if x.dim() != 2 or (placed is not None and placed.dim != 0):
        raise ConfigError(f"batch norm must act on two-dimensional rows, got {tuple(x.shape)}")
    out = global_batch_norm(
        x,
        (given["running_mean"], given["running_var"]),
        (given.get("weight"), given.get("bias")),
        momentum=given.get("momentum", 0.1),
        eps=given.get("eps", 1e-5),
        transport=call.transport,
    )
    return mark(out, placed)


@rule(F.instance_norm, draws=True)
def instance_norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The same, of rows that lie along the last dimension of one instance."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats")
    given = dict(zip((*names, "momentum", "eps"), args, strict=False)) | kwargs
    x, placed = given["input"], placement(given["input"])
    if placed is None or not given.get("use_input_stats", True):
        out = func(*args, **kwargs)
        return out if placed is None else mark(out, placed)
    if x.dim() != 3 or placed.dim != 2 or x.size(0) != 1:
        raise ConfigError(
            f"instance norm must act on one graph, (1, channels, nodes), got {tuple(x.shape)}"
        )
    out = global_batch_norm(
        x[0].t(),
        (given.get("running_mean"), given.get("running_var")),
        (given.get("weight"), given.get("bias")),
        momentum=given.get("momentum", 0.1),
        eps=given.get("eps", 1e-5),
        transport=call.transport,
    )
    return mark(out.t()[None], placed)


@rule(torch.batch_norm, torch.instance_norm, draws=True)
def raw_batch_norm(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Refused."""
    raise ConfigError(f"torch.{func.__name__} counts this rank only: use torch.nn.BatchNorm1d")
