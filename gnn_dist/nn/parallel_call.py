"""One forward of a parallelized model: halo rows for its layers, draws by id, statistics of all.

See `parallelize.py` for the seam.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.exchange import LayerExchange, halo_exchange
from gnn_dist.nn.norm import global_batch_norm
from gnn_dist.nn.refusal import source_names
from gnn_dist.ops.draws import DrawKey, copy_numbers, dropout_by_id, edge_ids
from gnn_dist.shard.shard import Shard

__all__ = ["Call", "Intercept"]

# What draws by position, always or in training, and so would depend on the partition.
DRAWS = (
    *(torch.bernoulli, torch.multinomial, torch.normal, torch.poisson, torch.rand, torch.randn),
    *(torch.rand_like, torch.randn_like, torch.randint, torch.randint_like, torch.randperm),
    *(getattr(Tensor, f"{name}_") for name in ("bernoulli", "cauchy", "exponential", "geometric")),
    *(Tensor.log_normal_, Tensor.normal_, Tensor.random_, Tensor.uniform_),
)
DRAWS_IN_TRAINING = (
    *(F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout, F.rrelu),
    *(torch.dropout, torch.dropout_, torch.alpha_dropout, torch.rrelu),
)


class Call:
    """One forward of a parallelized model: numbers its exchanges and its draws."""

    def __init__(
        self, shard: Shard, world: World, key: DrawKey, exchange_at: Callable[[int], LayerExchange]
    ) -> None:
        self.shard, self.world, self.key = shard, world, key
        self.exchange_at = exchange_at
        self.num_exchanges = self.num_draws = 0
        self.edge_index: Tensor | None = None  # of the layer that is sending messages now
        self.last: tuple[Tensor, int, Tensor] | None = None  # rows exchanged last, and the result
        self.with_gradient = torch.is_grad_enabled()

    @contextmanager
    def inside(self, layer: Any) -> Iterator[None]:
        """Have a layer's `propagate` and `edge_updater` see halo rows while this lasts."""
        with ExitStack() as stack:
            for entry, reader in (("propagate", "message"), ("edge_updater", "edge_update")):
                plain = getattr(layer, entry)
                # An attribute of the instance hides the class's method until it is deleted.
                setattr(layer, entry, self._with_halo(layer, plain, source_names(layer, reader)))
                stack.callback(delattr, layer, entry)
            layer.update = self._of_nodes(layer.update)
            stack.callback(delattr, layer, "update")
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
            self.check_gradient(type(layer).__name__)
            for name in names:
                kwargs[name] = self._lift(kwargs.get(name), layer, name)
            self.edge_index = edge_index
            try:
                return plain(edge_index, size=(structure.num_src, structure.num_dst), **kwargs)
            finally:
                self.edge_index = None

        return entry

    def _of_nodes(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Have `update` draw by nodes: what it gets is aggregated."""

        def update(*args: Any, **kwargs: Any) -> Any:
            edge_index, self.edge_index = self.edge_index, None
            try:
                return plain(*args, **kwargs)
            finally:
                self.edge_index = edge_index

        return update

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
        version = rows._version  # an in-place change makes other rows of the same tensor
        if self.last is not None and self.last[0] is rows and self.last[1] == version:
            return self.last[2]
        exchange = self.exchange_at(self.num_exchanges)
        self.num_exchanges += 1
        first = rows.movedim(dim, 0)
        full = torch.cat([first, halo_exchange(first.contiguous(), exchange)]).movedim(0, dim)
        self.last = rows, version, full
        return full

    def check_gradient(self, what: str) -> None:
        """Refuse what a backward runs again, outside this call, with other rows and draws."""
        if self.with_gradient and not torch.is_grad_enabled():
            raise ConfigError(
                f"{what} runs without gradients inside a model that has them: use "
                "checkpoint(..., use_reentrant=False) outside layers, or requires_grad_(False) in "
                "place of no_grad()"
            )

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, *_: object) -> Tensor:
        """Do what `torch.nn.functional.dropout` does, drawing by id."""
        if not training or p == 0.0:
            return x
        self.check_gradient("dropout")
        key = DrawKey(self.key.seed, self.key.step, self.num_draws)
        self.num_draws += 1
        return dropout_by_id(x, self._row_ids(x), p, key)

    def _row_ids(self, x: Tensor) -> Tensor:
        shard = self.shard
        edge_index = self.edge_index
        sends_edges = edge_index is not None and x.size(0) == edge_index.size(1)
        if not sends_edges and x.size(0) == shard.num_owned:
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
        return edge_ids(ids[src], ids[dst], copy_numbers(src, dst, shard.structure.num_src))

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
        self.check_gradient("batch norm")
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


class Intercept(TorchFunctionMode):
    """Sends the functions whose result depends on who is where to the call at hand."""

    def __init__(self, call: Call) -> None:
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
        in_training = func in DRAWS_IN_TRAINING and (
            any(a is True for a in args[1:]) or bool(kwargs.get("training") or kwargs.get("train"))
        )
        if in_training or func in DRAWS:
            raise ConfigError(
                f"{func.__name__} draws by position, which depends on the partition: use "
                "torch.nn.functional.dropout"
            )
        if func is torch.batch_norm:
            raise ConfigError("torch.batch_norm counts this rank only: use torch.nn.BatchNorm1d")
        replacement = self.replacements.get(func)
        if replacement is None:
            return func(*args, **kwargs)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        inplace = bool(kwargs.pop("inplace", False)) or (func is F.dropout and True in args[3:4])
        out = replacement(*args, **kwargs)
        return args[0].copy_(out) if inplace and out is not args[0] else out
