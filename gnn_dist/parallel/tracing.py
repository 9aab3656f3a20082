"""Sees every function of PyTorch that a model calls; has it do on shards what it does whole.

    rule        functions with a rule do, or refuse, what needs other ranks    rules_*.py
    no rule     the function is called, and its result marked as its arguments are

The marks are those of `placement.py`. A function without a rule that turns rows of nodes into
something that has no such rows is refused: it would have put this rank's rows together.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NoReturn

from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, Placement, mark, placement

__all__ = [
    "RULES",
    "Args",
    "Kwargs",
    "Rule",
    "Tracing",
    "follow",
    "function_name",
    "marked",
    "operand",
    "refuse",
    "rule",
    "three",
]

# What a function is called with.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Rule = Callable[[Call, Any, Args, Kwargs], Any]
RULES: dict[Any, Rule] = {}
OPERANDS = ("input", "self", "x")  # names of the tensor that a function works on
DRAWS: set[Any] = set()  # those that apply even where all rows are known to be here


def rule(*functions: Any, draws: bool = False) -> Callable[[Rule], Rule]:
    """Make the decorated function the rule of others."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, made))
        if draws:
            DRAWS.update(functions)
        return made

    return register


class Tracing(TorchFunctionMode):
    """Applies the rules while a model runs."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._call.paused:
            return func(*args, **kwargs)
        self._call.on_use(self._call)
        made = RULES.get(func)
        if self._call.local and (made is None or func not in DRAWS):
            return func(*args, **kwargs)
        if made is not None:
            return made(self._call, func, args, kwargs)
        return without_rule(func, args, kwargs)


def without_rule(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call a function and mark what it returns as its arguments are."""
    out = func(*args, **kwargs)
    if not isinstance(out, Tensor | tuple | list):
        return out
    inputs = list(marked(args, kwargs))
    if inputs:
        for tensor in tensors((out,)):
            follow(tensor, inputs, func)
    return out


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among values, and in tuples and lists there."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors(value)


def marked(args: Args, kwargs: Kwargs) -> Iterator[tuple[Tensor, Placement]]:
    """Yield a function's arguments that have a mark."""
    for tensor in tensors((*args, *kwargs.values())):
        placed = placement(tensor)
        if placed is not None:
            yield tensor, placed


def follow(out: Tensor, inputs: list[tuple[Tensor, Placement]], func: Any) -> Tensor:
    """Mark the result of a function that works on each row alone.

    Raises:
        ConfigError: It has no such rows, so that the function has put rows together.
    """
    kinds = {placed.kind for _, placed in inputs}
    if len(kinds & {Kind.NODES, Kind.SOME}) == 2:
        refuse(func, "puts the rows of this rank's nodes beside some, picked by position")
    for tensor, placed in inputs:
        dim = _same_rows(out, tensor, placed.dim)
        if dim is not None:
            return mark(out, placed.rows_only().at(dim))
    for tensor, placed in inputs:
        if not placed.kind.holds_ids and tensor.size(placed.dim) != 0:
            refuse(func, f"puts the rows of this rank's {placed.kind.value} together")
    return out


def _same_rows(out: Tensor, tensor: Tensor, dim: int) -> int | None:
    """Return where the rows of an argument are in a result: broadcast, or left as they are."""
    size = tensor.size(dim)
    from_right = out.dim() - (tensor.dim() - dim)
    places = (from_right, dim) if out.dim() > tensor.dim() else (dim, from_right)
    for place in places:
        if 0 <= place < out.dim() and out.size(place) == size:
            return place
    return None


def reshaped(out: Tensor, tensor: Tensor, dim: int) -> int | None:
    """Return where rows are after a view: the dimensions before them are the same in number."""
    before = prod(tensor.shape[:dim])
    for place in range(out.dim()):
        if out.size(place) == tensor.size(dim) and prod(out.shape[:place]) == before:
            return place
    return None


def refuse(func: Any, why: str) -> NoReturn:
    """Raise ConfigError about a function."""
    raise ConfigError(f"{function_name(func)} {why.rstrip(',')}, and not those of all ranks")


def function_name(func: Any) -> str:
    """Return how a user writes a function."""
    name = resolve_name(func) if callable(func) else None
    return name or str(getattr(func, "__name__", func))


def is_rows(placed: Placement | None) -> bool:
    """Return whether a tensor's rows are spread over the ranks, each on one."""
    return placed is not None and not placed.kind.holds_ids


def is_positional(placed: Placement | None) -> bool:
    """Return whether the order of rows depends on the partition, and means something.

    Edges of a node are all on one rank: to sort them, say, is to prepare for work on each node.
    """
    return placed is not None and placed.kind in (Kind.NODES, Kind.SOME)


def operand(args: Args, kwargs: Kwargs) -> Tensor:
    """Return the tensor that a function works on, given by position or by name."""
    tensor: Tensor = args[0] if args else next(kwargs[n] for n in OPERANDS if n in kwargs)
    return tensor


def three(args: Args, kwargs: Kwargs, names: tuple[str, str, str]) -> tuple[Any, Any, Any]:
    """Return a function's first three arguments, by position or by name."""
    given = list(args[:3])
    given += [kwargs[name] for name in names[len(given) :]]
    return given[0], given[1], given[2]
