"""An unmodified PyTorch Geometric model on a shard, exact.

    model(x, edge_index)             x: owned rows (n); sources 0..n+h-1, targets 0..n-1
      layer.forward                  linear transforms of owned rows, as on one machine
        x[edge_index[0]]        -->  rows of sources: those of other ranks are fetched
        scatter(m, edge_index[1]) -> as on one machine: all in-edges of an owned node are here
        x_j, weighted, summed   -->  our kernels, while halo rows travel

While the model runs, every function of PyTorch that it calls is seen (`tracing.py`), with what the
rows of its arguments are (`placement.py`). So it does not matter whether a layer, a helper of a
library or the model itself reads rows at the sources of edges, counts degrees, takes a mean over
all nodes or drops out: each is done over all ranks, or refused with the reason.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.collectives import broadcast_state
from gnn_dist.halo.exchange import CLONES_ADD, ExchangeMaker, LayerExchange
from gnn_dist.halo.node_rows import rows_of
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.ops.draws import DrawKey
from gnn_dist.parallel import (
    rules_draw,
    rules_index,
    rules_recurrent,
    rules_reduce,
    rules_scatter,
    rules_shape,
    rules_window,
)
from gnn_dist.parallel.arguments import Arguments
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.checkpointing import Replayer
from gnn_dist.parallel.dgl_call import inside_dgl, uses_dgl
from gnn_dist.parallel.edge_lists import EdgeLists
from gnn_dist.parallel.layers import (
    compiled_modules,
    inside,
    message_passing_layers,
    not_compiled,
    of_many_rows,
    row_by_row,
    row_by_row_modules,
    single_element_norms,
)
from gnn_dist.parallel.probe import Probe
from gnn_dist.parallel.refusal import located, refused_modules
from gnn_dist.parallel.table_state import (
    clip_gradients,
    load_optimizer,
    own_gradient,
    own_state,
    whole_optimizer,
    whole_state,
)
from gnn_dist.parallel.tables import is_table, shard_tables, tables, tables_in_use
from gnn_dist.parallel.tracing import Tracing
from gnn_dist.profile.meter import GRAD_SYNC, Meter
from gnn_dist.shard.shard import Shard

__all__ = ["Parallelized", "parallelize"]

RULES = (
    rules_draw,
    rules_index,
    rules_recurrent,
    rules_window,
    rules_reduce,
    rules_scatter,
    rules_shape,
)  # importing them registers them
EXACT_SITES = 1000  # exchanges that no policy applies to are numbered from here


def parallelize(
    model: nn.Module,
    shard: Shard,
    world: World,
    *,
    halo: str = "overlap",
    seed: int = 0,
    probe: bool = True,
    meter: Meter | None = None,
) -> "Parallelized":
    """Collective. Make a model written for one machine work on a shard, exactly.

    Args:
        model: An ordinary module with PyTorch Geometric layers, called as `model(x, edge_index,
            ...)`. It is used, not copied; rank 0's parameters and buffers go to all ranks. Of an
            `nn.Embedding` with a row for each node, each rank keeps those of its own nodes
            (docs/embeddings.md).
        shard: This rank's shard.
        world: The ranks.
        halo: The halo policy of training mode. In evaluation mode halo rows are exact. After one
            that uses rows of earlier steps, call `drain` at the end.
        seed: Of the draws of dropout and of the policy.
        probe: In the first forward, and when it is called in a new way (training or evaluation,
            other kinds of arguments), copies of the model run on a small graph, whole and in two
            parts, and what differs is refused. It takes some tenths of a second on rank 0, and
            there three times the memory of the parameters in float64. Without it a model that
            computes with rows where PyTorch cannot see it may be wrong without notice. A model
            with an embedding of all nodes is not probed.
        meter: Where bytes, and seconds of waiting and of summing gradients, are counted.

    Only `backward` sums gradients over ranks; `torch.autograd.grad` returns this rank's share.

    Returns:
        A module with the same parameters and the same `state_dict`. Its forward and its backward
        are collective: every rank calls both, also one without training nodes. After `backward`
        the gradients of parameters are those of the sum of all ranks' losses.

    Raises:
        ConfigError: The model has a layer that would not be exact, named with the reason, or there
            is no such policy, or the shard is of a vertex-cut. In a forward: the model calls what
            would not be exact, or the policy is for sums alone, or bounds halo memory, and a layer
            does not only sum, or the probe has found a difference.

    Example:
        The README has a training loop; `tests/test_docs_examples.py` runs it.
    """
    for name, module, reason in refused_modules(model):
        if is_table(module, shard):
            continue  # its gradients, sparse or not, are not summed over ranks
        raise ConfigError(f"cannot parallelize layer {name} ({type(module).__name__}): {reason}")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ConfigError(
                f"{name} has no shape yet, so ranks could not start equal: give the layer its "
                "in_channels"
            )
    if shard.plan.clones:
        raise ConfigError(
            f"layers of PyTorch Geometric may do more than sum rows, but {CLONES_ADD}"
        )
    policy = HaloPolicy.parse(halo)
    shard_tables(model, shard, world, seed=seed)
    broadcast_state(model, world.transport)
    made = Parallelized(model, shard, world, policy=policy, seed=seed, meter=meter)
    # Of a table with a row for each node, the small graph's nodes have none.
    if probe and not any(tables(model)):
        made.add_probe()
    return made


class Parallelized(nn.Module):
    """A model on a shard; made by `parallelize`.

    Attributes:
        module: The model.
        step: Optimiser steps so far, which dropout draws by; each forward in training mode uses
            the next one. Set it to resume a run.
    """

    def __init__(
        self,
        module: nn.Module,
        shard: Shard,
        world: World,
        *,
        policy: HaloPolicy,
        seed: int,
        meter: Meter | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.step = 0
        self._shard, self._world, self._seed = shard, world, seed
        self._clock, self._meter = Clock(seed), meter or Meter()
        self._makers = {
            exact: ExchangeMaker(
                shard.plan, world.transport, used, clock=self._clock, meter=self._meter
            )
            for exact, used in ((True, HaloPolicy()), (False, policy))
        }
        self._exchanges: dict[tuple[bool, int], LayerExchange] = {}
        self._lists = EdgeLists(shard)
        self._arguments = Arguments(module, shard, world)
        self._before: list[Tensor | None] | None = None  # gradients set aside during a backward
        self._probe: Probe | None = None

    def add_probe(self) -> None:
        """Check the model on a small graph whenever it is called in a new way."""

        def traced(model: nn.Module, shard: Shard, world: World) -> nn.Module:
            made = Parallelized(model, shard, world, policy=HaloPolicy(), seed=self._seed)
            made.training = model.training  # not `train`, which would change parts of the model
            return made

        self._probe = Probe(self._shard, self._world, traced)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Collective. Run the model; arguments are those of the model, over the shard's ids."""
        self._restore_gradients()
        self._arguments.mark(args, kwargs)
        # A probe's virtual ranks are threads, and DGL's kernels have one owner at a time.
        if self._probe is not None and not uses_dgl(self.module, (args, kwargs)):
            self._probe.check(self.module, args, kwargs)
        if self.training:
            self.step += 1
            self._clock.begin(self.step)
        key = DrawKey(self._seed, self.step, 0)
        call = Call(self._shard, self._world, key, self._exchange_at, self._lists)
        followed = partial(self._followed, given=(args, kwargs))
        policy = self._makers[False].policy
        inexact = str(policy) if self.training and not policy.exact else ""
        call.on_use = Replayer(followed, inexact).note
        with followed(call):
            try:
                out = self.module(*args, **kwargs)
            except ConfigError as error:
                raise located(error, self.module) from error
        self._watch(out)
        return out

    @contextmanager
    def _followed(self, call: Call, *, given: Any) -> Iterator[None]:
        """Have what the model calls be seen while this lasts."""
        with ExitStack() as stack:
            stack.enter_context(tables_in_use(self.module))
            for compiled in compiled_modules(self.module):
                stack.enter_context(not_compiled(compiled))
            for layer in message_passing_layers(self.module):
                stack.enter_context(inside(layer, call))
            for module in row_by_row_modules(self.module):
                stack.enter_context(row_by_row(module, call))
            for norm in single_element_norms(self.module):
                stack.enter_context(of_many_rows(norm))
            stack.enter_context(inside_dgl(call, self.module, given))
            stack.enter_context(Tracing(call))
            yield

    def _watch(self, out: Any) -> None:
        """Have a backward from any output begin with `_begin_backward`."""
        leaves = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        if torch.is_grad_enabled() and self._trained() and not leaves:
            raise ConfigError(
                "the model must return tensors that depend on its parameters, alone or in tuples, "
                f"lists and dictionaries, got {type(out).__name__}: the ranks' gradients would not "
                "be summed"
            )
        for leaf in leaves:
            leaf.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own `state_dict`; it loads into the plain model.

        Collective if the model has an embedding of all nodes: rank 0 gets the table (N, d), by
        original id, and other ranks (0, d) in its place. `module.state_dict()` does not
        communicate and holds this rank's rows.
        """
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        return whole_state(self.module, self.module.state_dict(*args, **kwargs), prefix)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the plain model's `state_dict`.

        Collective if the model has an embedding of all nodes: the table of rank 0 counts.

        Raises:
            ConfigError: On every rank, if that table has another shape.
        """
        state = own_state(self.module, state_dict, self._world)
        return self.module.load_state_dict(state, *args, **kwargs)

    def optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """Collective. Return an optimiser's `state_dict` that fits any number of ranks.

        What it keeps for the rows of an embedding of all nodes is on rank 0, by original id.

        Raises:
            ConfigError: On every rank, if it keeps something else than rows and single numbers.
        """
        return whole_optimizer(optimizer, self._world)

    def load_optimizer_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Collective. Load rank 0's `optimizer_state_dict`, or that of a plain optimiser.

        Raises:
            ConfigError: On every rank, if it is of other parameters.
        """
        load_optimizer(optimizer, state_dict, self._world)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Collective. Scale all gradients so that their norm is at most `max_norm`.

        `torch.nn.utils.clip_grad_norm_` would count this rank's rows of an embedding of all nodes
        alone, and scale by another factor on each rank.

        Returns:
            float64 scalar, the norm before, equal on all ranks.
        """
        return clip_gradients(
            self.module, self._world, max_norm=float(max_norm), norm_type=float(norm_type)
        )

    def drain(self) -> None:
        """Wait for rows that a halo policy still has on their way; due before the world closes."""
        self._makers[False].drain()

    @property
    def exchanges(self) -> ExchangeMaker:
        """What makes the exchanges that the policy applies to."""
        return self._makers[False]

    @property
    def sites(self) -> list[int]:
        """Numbers of the exchanges made so far, ascending, the same on all ranks."""
        return sorted({site for _, site in self._exchanges})

    def _exchange_at(self, number: int, exact: bool) -> LayerExchange:
        site = number + EXACT_SITES if exact else number
        without_policy = exact or not self.training
        key = without_policy, site
        if key not in self._exchanges:
            self._exchanges[key] = self._makers[without_policy].at(site)
        return self._exchanges[key]

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

    def _restore_gradients(self) -> None:
        """Put back what a backward that failed has set aside."""
        if self._before is None:
            return
        for parameter, old in zip(self._trained(), self._before, strict=True):
            parameter.grad = old
        self._before = None

    def _end_backward(self) -> None:
        """Collective. Sum the new gradients over all ranks and add them to the older ones."""
        before, self._before = self._before or [], None
        parameters = self._trained()
        whole = [p for p in parameters if rows_of(p) is None]  # other rows have one owner
        parts = [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in whole
        ]
        if not parameters:
            return
        # Two more numbers for each parameter: how many ranks have a gradient, and a sparse one. A
        # parameter that none has used keeps none, as on one machine.
        have = [p.grad is not None for p in parameters]
        have += [p.grad is not None and p.grad.is_sparse for p in parameters]
        counts = torch.tensor(have).to(parts[0] if parts else parameters[0])
        total = torch.cat([*parts, counts])
        with self._meter.timed(GRAD_SYNC):
            self._world.transport.all_reduce(total).wait()
        *pieces, counts = torch.split(total, [*(p.numel() for p in whole), len(have)])
        summed = dict(zip(whole, pieces, strict=True))
        users = (counts > 0).view(2, -1).T.tolist()
        for parameter, old, (used, sparse) in zip(parameters, before, users, strict=True):
            if not used:
                parameter.grad = old
                continue
            if parameter in summed:
                new_grad = summed[parameter].view_as(parameter).to(parameter.dtype)
            else:
                new_grad = own_gradient(parameter, sparse=sparse)
            parameter.grad = new_grad if old is None else old + new_grad

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]
