"""A second net below the rules: the model runs on a small graph, whole and in two parts.

What a model does outside the functions that are traced (a function in TorchScript, an autograd
function of its own, numpy, sizes used as numbers) no rule can see. So before it is used, a copy of
the model computes outputs and gradients on a graph of some 74 nodes:

    whole      traced, on one virtual rank, ids as in the graph
    plain      without tracing, on the same           must be equal, unless the model draws
    parts      traced, on two virtual ranks           must be equal, also where it draws: by ids

A difference is refused, with the name of the first module that it is seen at. Rank 0 probes for
all ranks. A model that cannot run on another graph than its own is let through, with a warning.
"""

import copy
import logging
import math
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from gnn_dist.comm.virtual import run_virtual
from gnn_dist.comm.world import World
from gnn_dist.errors import CommError, ConfigError, RankError
from gnn_dist.halo.load import shard_from_arrays
from gnn_dist.parallel.placement import mark, placement
from gnn_dist.parallel.probe_compare import (
    Outcome,
    Seen,
    Watch,
    differences,
    first_difference,
    seen,
    upstream,
)
from gnn_dist.parallel.probe_graph import (
    Leaf,
    ProbeArguments,
    ProbeGraph,
    ProbeShape,
    describe,
)
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.shard.reader import ShardArrays, read_parts
from gnn_dist.shard.shard import Shard

__all__ = ["Probe"]

log = logging.getLogger(__name__)

Traced = Callable[[nn.Module, Shard, World], nn.Module]
TOLERANCE = 1e-6  # in float64
MOST_BYTES = 1 << 30  # of a copy's parameters and buffers; there are up to three at a time
OFF = "parallelize(..., probe=False) goes without this check"


class _Verdict(NamedTuple):
    """What the probe has found: both empty if the model is exact."""

    refused: str = ""
    warning: str = ""


@dataclass(frozen=True)
class _Setting:
    """What the runs of one probe have in common.

    Attributes:
        model: The model, which is copied.
        arguments: Those of the probe.
        arrays: What each rank has of its graph, by the number of ranks.
        dtype: Of parameters and floating arguments; None: their own.
        traced: Makes a copy work on a shard.
    """

    model: nn.Module
    arguments: ProbeArguments
    arrays: dict[int, list[ShardArrays]]
    dtype: torch.dtype | None
    traced: Traced

    @property
    def tolerance(self) -> float:
        """Relative to the largest value."""
        if self.dtype == torch.float64:
            return TOLERANCE
        dtypes = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        return 4.0 * math.sqrt(max([torch.finfo(d).eps for d in dtypes], default=1e-7))


class Probe:
    """Checks a model on a small graph, each time when it is called in a new way.

    Args:
        shard: This rank's shard.
        world: The ranks.
        traced: Makes a copy of the model work on a shard of the probe's graph.
    """

    def __init__(self, shard: Shard, world: World, traced: Traced) -> None:
        self._shard, self._world, self._traced = shard, world, traced
        self._known: set[object] = set()

    def check(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Collective. Refuse a model that is not exact; does nothing for a way of calling it known.

        Args:
            model: The model; it is not changed.
            args: Its positional arguments, marked.
            kwargs: Its named arguments, marked.

        Raises:
            ConfigError: On every rank: in two parts the model computes something else.
        """
        way = _way_of_calling(model, args, kwargs)
        if way in self._known:
            return
        transport = self._world.transport
        isolated = bool((self._shard.structure.csr.counts == 0).any())
        described = describe(args, kwargs, self._shard), isolated
        by_rank = transport.all_gather_object(described)
        verdict = None
        if self._world.is_main:
            verdict = _verdict(model, (args, kwargs), by_rank, self._traced)
        verdict = transport.all_gather_object(verdict)[0]
        if verdict.refused:
            raise ConfigError(verdict.refused)
        if verdict.warning and self._world.is_main:
            log.warning("could not check the model on a small graph: %s", verdict.warning)
        self._known.add(way)


def _way_of_calling(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return what a new value of calls for another probe; the same on all ranks."""
    leaves, spec = tree_flatten((args, kwargs))
    kinds = [
        (leaf.dtype, leaf.dim(), leaf.requires_grad) if isinstance(leaf, Tensor) else type(leaf)
        for leaf in leaves
    ]
    modes = tuple(module.training for module in model.modules())
    return modes, torch.is_grad_enabled(), str(spec), tuple(kinds)


def _verdict(
    model: nn.Module,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    by_rank: list[tuple[list[Leaf], bool]],
    traced: Traced,
) -> _Verdict:
    """Probe on this rank alone; whatever happens, there is a verdict to share."""
    if len({len(leaves) for leaves, _ in by_rank}) > 1:
        return _Verdict("the model must be called with the same arguments on all ranks")
    num_bytes = 8 * sum(t.numel() for t in (*model.parameters(), *model.buffers()))
    if num_bytes > MOST_BYTES:
        return _Verdict(warning=f"a copy of it would take {num_bytes / 1e9:.1f} GB")
    with_gradient = torch.is_grad_enabled()  # `inference_mode` changes it
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gnn-dist-probe-") as root,
            torch.inference_mode(mode=False),
            torch.set_grad_enabled(with_gradient),
            _generators_kept(),
        ):
            isolated = any(alone for _, alone in by_rank)
            shape = ProbeShape(model, given, [leaves for leaves, _ in by_rank], isolated=isolated)
            if not shape.has_rows:
                return _Verdict(warning="no argument is known to have rows of nodes or edges")
            arrays = _arrays(shape.graph, Path(root))
            verdict = _Verdict()
            for seed in range(2):
                arguments = ProbeArguments(shape, seed)
                verdict = _probe(_Setting(model, arguments, arrays, torch.float64, traced))
                # Rounding may decide what is behind a step, as that of a ReLU. Hardly twice.
                if not verdict.refused:
                    break
            return verdict
    except ConfigError as error:
        return _Verdict(str(error))
    except Exception as error:
        return _Verdict(warning=f"{type(error).__name__}: {error}")


def _arrays(made: ProbeGraph, folder: Path) -> dict[int, list[ShardArrays]]:
    """Write the graph in one part and in two, and read all of it, in this thread.

    Python 3.11 must not read headers of arrays in two threads at a time: its parser counts how deep
    it is for all of them together.
    """
    graph, partition = made
    # In one part local ids are original ids, which a model may compare.
    whole = Partition(np.zeros(graph.num_nodes, np.int64), 1)
    found = {}
    for number, cut in ((1, whole), (2, partition)):
        write_partition(graph, cut, folder / str(number))
        parts = [range(part, part + 1) for part in range(number)]
        found[number] = [read_parts(folder / str(number), part, verify=False) for part in parts]
    return found


def _probe(setting: _Setting) -> _Verdict:
    """Run a model in all three ways and compare."""
    whole, setting, unseen = _whole(setting)
    before = _generators()
    plain = run_virtual(_on_shard, 1, [_copy_of(setting)], setting, whole.upstream)
    draws, *others = (a != b for a, b in zip(before, _generators(), strict=True))
    if unseen or any(others):
        return _Verdict(
            warning="it draws where that is not seen (Python, NumPy, TorchScript, parameters made "
            "in a forward), from generators that ranks share here"
        )
    copies = [_copy_of(setting) for _ in range(2)]
    try:
        parts = run_virtual(_on_shard, 2, copies, setting, None)
    except RankError as error:
        return _Verdict(f"the ranks of this model would wait for each other: {error}; {OFF}")
    except ConfigError:
        raise
    except Exception as error:
        return _Verdict(warning=f"in two parts it fails: {type(error).__name__}: {error}")
    found = _found(whole, parts, setting.tolerance)
    if found:
        return _Verdict(
            "the model would not be exact on several ranks: on a small graph, cut in two, "
            f"{found}. What is not done by functions of PyTorch is not seen, and a number of rows "
            f"is that of a rank; {OFF}"
        )
    if not draws:
        found = _found(_as_it_lies(whole), [_as_it_lies(one) for one in plain], setting.tolerance)
    if found:
        return _Verdict(
            f"parallelize would change what the model computes: on a small graph {found}; {OFF}"
        )
    return _Verdict()


def _whole(setting: _Setting) -> tuple[Outcome, _Setting, bool]:
    """Run the model traced, with all of the graph; in its own dtype if another does not work.

    Returns:
        What it computed, the setting it works in, and whether it drew without a rule.
    """
    before = _generators()
    try:
        [whole] = run_virtual(_on_shard, 1, [_copy_of(setting)], setting, None)
    except (ConfigError, CommError):
        raise
    except Exception:  # many a model makes tensors of its own dtype
        setting = replace(setting, dtype=None)
        [whole] = run_virtual(_on_shard, 1, [_copy_of(setting)], setting, None)
    return whole, setting, before != _generators()


def _on_shard(
    world: World, copies: list[nn.Module], setting: _Setting, given: list[Tensor] | None
) -> Outcome:
    """Collective. Run a copy of the model, forward and backward.

    Args:
        world: Virtual ranks.
        copies: One for each.
        setting: What all runs have in common.
        given: The gradients that flow into the outputs of the model as it is; None: trace it.
    """
    shard = shard_from_arrays(setting.arrays[world.world_size][world.rank], world.transport)
    model = copies[world.rank]
    args, kwargs, wanted = setting.arguments.on(shard, setting.dtype)
    watch = Watch(model)
    run = model if given is not None else setting.traced(model, shard, world)
    out = run(*args, **kwargs)
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    outcome = Outcome(trace=watch.trace(shard))
    outcome.outputs = {
        f"what the model returns|{i}": seen(leaf, shard) for i, leaf in enumerate(leaves)
    }
    outcome.buffers = {f"buffer {n}": seen(b.clone(), shard) for n, b in model.named_buffers()}
    ones = list(outcome.outputs.values())
    outcome.upstream = given or [upstream(one, world.world_size) for one in ones]
    into = [(a, b) for a, b in zip(leaves, outcome.upstream, strict=True) if a.requires_grad]
    if into:
        torch.autograd.backward([a for a, _ in into], [b for _, b in into])
    # Arguments first: what is last here is what a backward comes to first.
    for number, leaf in enumerate(wanted):
        if leaf is not None:
            outcome.gradients[f"the gradient of argument {number}"] = _gradient(leaf, shard, leaf)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            outcome.gradients[f"the gradient of {name}"] = _gradient(parameter, shard, None)
    return outcome


def _gradient(tensor: Tensor, shard: Shard, rows: Tensor | None) -> Seen:
    gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return Seen(gradient, "same") if rows is None else replace(seen(rows, shard), values=gradient)


def _found(whole: Outcome, parts: list[Outcome], tolerance: float) -> str:
    """Return what differs, or ""; of outputs, where it is seen first."""
    outputs = first_difference(whole.outputs, [p.outputs for p in parts], tolerance)
    if outputs:
        return first_difference(whole.trace, [p.trace for p in parts], tolerance) or outputs
    buffers = first_difference(whole.buffers, [p.buffers for p in parts], tolerance)
    if buffers:
        return buffers
    wrong = list(differences(whole.gradients, [p.gradients for p in parts], tolerance))
    return " ".join(wrong[-1]) if wrong else ""


def _as_it_lies(outcome: Outcome) -> Outcome:
    """Return what is to be compared place by place, with another run on the same shard.

    Whole numbers may be positions, of which a traced maximum returns none.
    """

    def placed(group: dict[str, Seen]) -> dict[str, Seen]:
        return {
            name: Seen(one.values, "same" if one.values.is_floating_point() else "not")
            for name, one in group.items()
        }

    return Outcome(
        placed(outcome.outputs),
        placed(outcome.buffers),
        placed(outcome.gradients),
        placed(outcome.trace),
    )


def _copy_of(setting: _Setting) -> nn.Module:
    """Return a copy of the model as before its first call, on the CPU."""
    # What a model has kept of a call may have a gradient, and is not copied then.
    memo = {
        id(leaf): mark(leaf.detach(), placement(leaf))
        for module in setting.model.modules()
        for leaf in tree_leaves(vars(module))
        if isinstance(leaf, Tensor) and not leaf.is_leaf
    }
    made = copy.deepcopy(setting.model, memo).cpu()
    for module in made.modules():
        for name, value in vars(module).items():
            # Rows of the real graph, as layers with `cached=True` keep them.
            kept = any(placement(leaf) is not None for leaf in tree_leaves(value))
            if kept and name not in ("_parameters", "_buffers", "_modules"):
                setattr(module, name, None)
    for parameter in made.parameters():
        parameter.grad = None
    return made if setting.dtype is None else made.to(setting.dtype)


def _generators() -> list[bytes]:
    """Return the states of PyTorch's, Python's and NumPy's generators."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what a model may draw by
    return [torch.get_rng_state().numpy().tobytes(), *map(pickle.dumps, states)]


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the generators as they were."""
    ours = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(ours[0])
        random.setstate(ours[1])
        np.random.set_state(ours[2])  # noqa: NPY002
