"""An unmodified PyTorch Geometric model on a shard, exact.

The seam is inside each message-passing layer, where it reads node rows at the sources of edges:

    model(x, edge_index)             x: owned rows (n); sources 0..n+h-1, targets 0..n-1
      layer.forward                  linear transforms of owned rows, as on one machine
        propagate(x=rows)       -->  propagate(x=([rows; halo rows], rows), size=(n + h, n))
        edge_updater(alpha=a)   -->  the same

The exchange comes after the layer's own transforms, and attention softmax is exact because all
in-edges of an owned node are here. Dropout and batch norm depend on who is where too: while the
model runs, calls of `torch.nn.functional.dropout` and `batch_norm` (which the modules make) draw by
original id and count over all ranks.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.exchange import LayerExchange, halo_exchange, make_exchange
from gnn_dist.nn.norm import global_batch_norm
from gnn_dist.ops.draws import DrawKey, dropout_by_id, edge_ids
from gnn_dist.shard.shard import Shard

__all__ = ["Parallelized", "parallelize"]

# Convolutions whose exactness is tested; their classes live in torch_geometric.nn.conv.
EXACT_CONVS = ("GATConv", "GATv2Conv", "GINConv", "GraphConv", "SAGEConv")
# Normalisations that are exact: by node, or through torch.nn.functional.batch_norm.
EXACT_NORMS = ("BatchNorm", "MessageNorm")
POSITIONAL_DRAWS = (
    F.alpha_dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.feature_alpha_dropout,
    F.rrelu,
)


def parallelize(
    model: nn.Module, shard: Shard, world: World, *, halo: str = "overlap", seed: int = 0
) -> "Parallelized":
    """Collective. Make a model written for one machine work on a shard, exactly.

    Args:
        model: An ordinary module with PyTorch Geometric layers, called as `model(x, edge_index,
            ...)`. It is used, not copied; rank 0's parameters and buffers go to all ranks.
        shard: This rank's shard.
        world: The ranks.
        halo: The halo policy.
        seed: Of the dropout draws.

    Returns:
        A module with the same parameters and the same `state_dict`. Its forward and its backward
        are collective: every rank calls both, also one without training nodes. After `backward`
        the gradients of parameters are those of the sum of all ranks' losses.

    Raises:
        ConfigError: The model has a layer that would not be exact, named with the reason.

    Example:
        See `examples` in the README; in short: `logits = model(shard.x, shard.edge_index)`.
    """
    for name, module in model.named_modules():
        reason = _refusal(module)
        if reason is not None:
            raise ConfigError(
                f"cannot parallelize layer {name or 'model'} ({type(module).__name__}): {reason}"
            )
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            world.transport.broadcast(tensor.data)
    return Parallelized(model, shard, world, halo=halo, seed=seed)


class Parallelized(nn.Module):
    """A model on a shard; made by `parallelize`.

    Attributes:
        module: The model.
        step: Optimiser steps so far, which dropout draws by; each forward in training mode uses
            the next one. Set it to resume a run.
    """

    def __init__(
        self, module: nn.Module, shard: Shard, world: World, *, halo: str, seed: int
    ) -> None:
        super().__init__()
        self.module = module
        self.step = 0
        self._shard, self._world, self._halo, self._seed = shard, world, halo, seed
        self._exchanges: list[LayerExchange] = []
        self._before: list[Tensor | None] | None = None  # gradients set aside during a backward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Collective. Run the model; arguments are those of the model, over the shard's ids."""
        self._before = None  # a backward that failed may have left it
        if self.training:
            self.step += 1
        key = DrawKey(self._seed, self.step, 0)
        call = _Call(self._shard, self._world, key, self._exchange_at)
        with ExitStack() as stack:
            for layer in _message_passing_layers(self.module):
                stack.enter_context(call.inside(layer))
            stack.enter_context(_Intercept(call))
            out = self.module(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
        return out

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own `state_dict`; it loads into the plain model."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the plain model's `state_dict`."""
        return self.module.load_state_dict(*args, **kwargs)

    def _exchange_at(self, site: int) -> LayerExchange:
        while len(self._exchanges) <= site:
            layer = len(self._exchanges)
            self._exchanges.append(
                make_exchange(self._shard.plan, self._world.transport, self._halo, layer=layer)
            )
        return self._exchanges[site]

    def _begin_backward(self, grad: Tensor) -> None:
        """Have the gradients of this backward, and no older ones, summed when it ends.

        A hook on each parameter would be simpler, but a rank on which some parameter has no
        gradient (an empty part may skip a branch of the model) would not reach its reduction.
        """
        del grad
        if self._before is not None:
            return  # another output of the same backward
        parameters = self._trained()
        self._before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        # What DistributedDataParallel does too: no public hook runs at the end of a backward.
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        """Collective. Sum the new gradients over all ranks and add them to the older ones."""
        before, self._before = self._before or [], None
        parameters = self._trained()
        parts = [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in parameters
        ]
        if not parts:
            return
        total = torch.cat(parts)
        self._world.transport.all_reduce(total).wait()
        pieces = torch.split(total, [p.numel() for p in parameters])
        for parameter, old, piece in zip(parameters, before, pieces, strict=True):
            new_grad = piece.view_as(parameter).to(parameter.dtype)
            parameter.grad = new_grad if old is None else old + new_grad

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]


class _Call:
    """One forward of a parallelized model: numbers its exchanges and its draws."""

    def __init__(
        self, shard: Shard, world: World, key: DrawKey, exchange_at: Callable[[int], LayerExchange]
    ) -> None:
        self.shard, self.world, self.key = shard, world, key
        self.exchange_at = exchange_at
        self.num_exchanges = self.num_draws = 0
        self.edge_index: Tensor | None = None  # of the layer that is sending messages now
        self.last: tuple[Tensor, Tensor] | None = None  # rows exchanged last, with the result

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """Have a layer's `propagate` and `edge_updater` see halo rows while this lasts."""
        with ExitStack() as stack:
            for entry, reader in (("propagate", "message"), ("edge_updater", "edge_update")):
                plain = getattr(layer, entry)
                # An attribute of the instance hides the class's method until it is deleted.
                setattr(layer, entry, self._with_halo(layer, plain, _source_names(layer, reader)))
                stack.callback(delattr, layer, entry)
            yield

    def _with_halo(
        self,
        layer: Any,
        plain: Callable[..., Any],
        names: list[str],
    ) -> Callable[..., Any]:
        structure = self.shard.structure

        def entry(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
            del size  # that of one machine
            for name in names:
                kwargs[name] = self._lift(kwargs.get(name), layer, name)
            self.edge_index = edge_index
            try:
                return plain(edge_index, size=(structure.num_src, structure.num_dst), **kwargs)
            finally:
                self.edge_index = None

        return entry

    def _lift(self, value: Any, layer: Any, name: str) -> Any:
        """Return (rows of all sources, rows of owned nodes) for what a layer reads at sources."""
        if value is None:
            return None
        source, target = value if isinstance(value, tuple | list) else (value, value)
        if not isinstance(source, Tensor):
            return value
        dim = layer.node_dim
        if source.size(dim) != self.shard.num_owned:
            raise ConfigError(
                f"{type(layer).__name__} must be given {name!r} with one row per owned node "
                f"({self.shard.num_owned}), got {source.size(dim)}"
            )
        return self._all_sources(source, dim), target

    def _all_sources(self, rows: Tensor, dim: int) -> Tensor:
        if self.last is not None and self.last[0] is rows:
            return self.last[1]
        exchange = self.exchange_at(self.num_exchanges)
        self.num_exchanges += 1
        first = rows.movedim(dim, 0)
        full = torch.cat([first, halo_exchange(first.contiguous(), exchange)]).movedim(0, dim)
        self.last = rows, full
        return full

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, *_: object) -> Tensor:
        """Do what `torch.nn.functional.dropout` does, drawing by id."""
        if not training or p == 0.0:
            return x
        key = DrawKey(self.key.seed, self.key.step, self.num_draws)
        self.num_draws += 1
        return dropout_by_id(x, self._row_ids(x), p, key)

    def _row_ids(self, x: Tensor) -> Tensor:
        shard = self.shard
        edge_index = self.edge_index
        if edge_index is None and x.size(0) == shard.num_owned:
            return shard.node_id
        if edge_index is None and x.size(0) == shard.num_edges:
            edge_index = shard.edge_index
        if edge_index is None or x.size(0) != edge_index.size(1):
            raise ConfigError(
                f"dropout must act on rows of owned nodes ({shard.num_owned}) or of edges, got "
                f"{tuple(x.shape)}: such a draw would depend on the partition"
            )
        src, dst = edge_index
        ids = shard.structure.src_id
        return edge_ids(ids[src], ids[dst], _copy_numbers(src, dst, shard.structure.num_src))

    def batch_norm(  # noqa: PLR0913 - torch's signature
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Do what `torch.nn.functional.batch_norm` does, over the rows of all ranks."""
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        if x.dim() != 2:
            raise ConfigError(f"batch norm must act on two-dimensional rows, got {tuple(x.shape)}")
        return global_batch_norm(
            x,
            (running_mean, running_var),
            (weight, bias),
            momentum=momentum,
            eps=eps,
            transport=self.world.transport,
        )


class _Intercept(TorchFunctionMode):
    """Sends the functions whose result depends on who is where to the call at hand."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.replacements: dict[Any, Callable[..., Tensor]] = {
            F.dropout: call.dropout,
            F.batch_norm: call.batch_norm,
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in POSITIONAL_DRAWS and (True in args[1:] or kwargs.get("training", False)):
            raise ConfigError(
                f"torch.nn.functional.{func.__name__} draws by position, which depends on the "
                "partition: use dropout"
            )
        replacement = self.replacements.get(func)
        if replacement is None:
            return func(*args, **kwargs)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        kwargs.pop("inplace", None)
        return replacement(*args, **kwargs)


def _message_passing_layers(model: nn.Module) -> list[nn.Module]:
    from torch_geometric.nn import MessagePassing

    return [module for module in model.modules() if isinstance(module, MessagePassing)]


def _source_names(layer: nn.Module, function: str) -> list[str]:
    """Names whose rows a layer's function reads at the sources of edges: `x` for `x_j`."""
    parameters = inspect.signature(getattr(layer, function)).parameters
    return [name.removesuffix("_j") for name in parameters if name.endswith("_j")]


def _copy_numbers(src: Tensor, dst: Tensor, num_src: int) -> Tensor:
    """Return int64 (e,): k for the k-th copy (from 0) of an edge, in any order of edges."""
    key = dst * num_src + src
    ordered, order = key.sort(stable=True)
    index = torch.arange(key.numel(), device=key.device)
    start = torch.searchsorted(ordered, ordered)
    return torch.empty_like(index).scatter_(0, order, index - start)


def _refusal(module: nn.Module) -> str | None:
    """Say why a module would not be exact; None if it is."""
    home = type(module).__module__
    if home.startswith("torch_geometric.nn.norm") and type(module).__name__ not in EXACT_NORMS:
        by_node = type(module).__name__ == "LayerNorm" and getattr(module, "mode", "") == "node"
        return None if by_node else "its statistics span all nodes of the graph; use BatchNorm"
    if home.startswith("torch_geometric.nn.pool"):
        return "pooling looks at all nodes of the graph at once"
    from torch_geometric.nn import MessagePassing

    if not isinstance(module, MessagePassing):
        return None
    return _conv_refusal(module)


def _conv_refusal(layer: Any) -> str | None:
    for base in type(layer).__mro__:
        known = base.__name__ in (*EXACT_CONVS, "MessagePassing")
        if base.__module__.startswith("torch_geometric.nn.conv") and not known:
            return (
                f"{base.__name__} is not known to be exact on a shard (layers that normalise by "
                f"degree are not); known are {', '.join(EXACT_CONVS)} and layers of your own"
            )
    if layer.flow != "source_to_target":
        return (
            f"flow must be 'source_to_target', got {layer.flow!r}: owned nodes hold in-edges only"
        )
    if getattr(layer, "decomposed_layers", 1) > 1:
        return "decomposed_layers must be 1"
    for reader, others in (("message", ("aggregate", "update")), ("edge_update", ())):
        lifted = set(_source_names(layer, reader))
        for function in (reader, *others):
            whole = lifted & set(inspect.signature(getattr(layer, function)).parameters)
            if whole:
                return (
                    f"{function} takes {min(whole)!r} whole while {reader} reads it at sources: "
                    f"pass the whole under another name"
                )
    return None
