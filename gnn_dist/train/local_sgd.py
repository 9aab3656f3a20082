"""Local SGD: each part trains by itself, and models are averaged every few epochs.

    every epoch    for each part of this rank: its model, its batches, no messages
    every H        the model of all parts := mean of the parts' models, by training nodes

A part is its nodes, their in-edges, and the features of these edges' sources; sources of other
parts have no in-edges in it. So memory holds one part at a time beside what nodes need, and the
result depends on the parts, not on how many ranks share them. The optimiser's moments are each
part's own: an average of them would belong to no trajectory.

Source: "CATGNN: Cost-Efficient and Scalable Distributed Training for Graph Neural Networks" (Huang
et al.), arXiv 2404.02300: model averaging over more partitions than workers.
"""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.halo.transfers import exchange_rows
from gnn_dist.nn.models import GNN
from gnn_dist.nn.norm import BatchNorm
from gnn_dist.ops.csr import CSR
from gnn_dist.sampling.loader import NodeLoader
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.halo_files import Keeper
from gnn_dist.train.losses import check_adds_up, node_loss
from gnn_dist.train.mini_batch import ReadyBatchSteps, adds_up, loader_of
from gnn_dist.train.steps import TrainingSet

__all__ = ["LocalData", "LocalSGD"]


class LocalSGD(ReadyBatchSteps):
    """Collective. Training of a ready model part by part. See `ReadySteps` for the arguments.

    Between averages the parameters are the mean of all parts' models too, for evaluation and
    checkpoints; the parts go on from their own.
    """

    def __init__(
        self,
        model: GNN,
        shard: Shard,
        world: World,
        *,
        training: TrainingSet,
        config: TrainConfig,
    ) -> None:
        alone = World.single()
        super().__init__(
            model,
            shard,
            world,
            training=training,
            halo=HaloPolicy.parse(config.halo),
            seed=config.seed,
            gradients=GradientSync(model, alone.transport),  # of one part
        )
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.transport = None  # statistics are of a part's batch
        self._every = config.average_every()
        # A part takes its share of a batch, as each of so many ranks would.
        batch_size = -(-config.batch_size // shard.meta.num_parts)
        self._config, self._alone = replace(config, batch_size=batch_size), alone
        self._data = LocalData.of(training, world)
        self._states = _PartStates(shard.parts, shard.meta.num_parts)

    @property
    def keepers(self) -> list[Keeper]:
        """What parts have of their own."""
        return [self._states]

    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Train every part by itself; return the mean loss of all seeds."""
        averages = (epoch + 1) % self._every == 0
        start = _state_of(self.model)
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        loss = 0.0
        for part in self.shard.parts:
            data = self._data.part(part)
            num_train = int(data.masks["train_mask"].sum())
            if num_train == 0:
                continue
            self._states.resume(part, self.model, start, optimizer)
            self.loader = self._loader_of(data, num_train)
            loss += num_train * super()._train_epoch(optimizer, epoch)
            for name, value in _state_of(self.model).items():
                mean[name] += num_train * value
            self._states.keep(part, None if averages else self.model, optimizer)
        total = self._over_ranks(mean, loss)
        _load(self.model, mean)
        return total

    def _loader_of(self, data: Shard, num_train: int) -> NodeLoader:
        """Return what makes a part's batches, of which even a small part has one."""
        config = self._config
        drops = config.drop_last and num_train >= config.batch_size
        return loader_of(
            data,
            data.masks["train_mask"],
            self._alone,
            replace(config, drop_last=drops),
            sums=adds_up(config),
            shares=False,
        )

    def _share(self, logits: Tensor, y: Tensor, mask: Tensor, count: int | None = None) -> Tensor:
        """Return the loss of a part's batch; no other rank is asked."""
        loss = self.training.task.loss
        if not self._loss_is_known and not isinstance(loss, str):
            check_adds_up(loss, logits[mask], y[mask])
        self._loss_is_known = True
        return node_loss(logits, y, mask, count or len(y), loss=loss)

    def _over_ranks(self, mean: dict[str, Tensor], loss: float) -> float:
        """Collective. Turn weighted sums of this rank into means of all parts, in place."""
        num_train = self.training.task.num_train
        flat = torch.cat([value.double().flatten() for value in mean.values()])
        flat = torch.cat([flat, torch.tensor([loss], dtype=torch.float64, device=flat.device)])
        self.world.transport.all_reduce(flat).wait()
        flat /= num_train
        sizes = [value.numel() for value in mean.values()]
        for value, part in zip(mean.values(), torch.split(flat[:-1], sizes), strict=True):
            value.copy_(part.view_as(value))
        return float(flat[-1])


class _PartStates:
    """Where each part of this rank left off: its optimiser's moments, and perhaps its model.

    They lie in a nameless folder: of many parts they may be larger than the memory for one.
    """

    stateful = True

    def __init__(self, parts: range, num_parts: int) -> None:
        self.fingerprint = f"local SGD, parts {parts.start}..{parts.stop} of {num_parts}"
        self._folder = Path(tempfile.mkdtemp(prefix="gnn-dist-parts-"))
        # No run says when its last state is read, so the folder goes with this object.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def resume(
        self, part: int, model: GNN, average: dict[str, Tensor], optimizer: Optimizer
    ) -> None:
        """Load a part's state; the average and no moments where it has none."""
        path = self._path(part)
        state = torch.load(path, weights_only=True) if path.exists() else {}
        _load(model, state.get("model") or average)
        groups = optimizer.state_dict()["param_groups"]
        moments = state.get("moments", {})
        optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def keep(self, part: int, model: GNN | None, optimizer: Optimizer) -> None:
        """Store a part's moments, and its model where that is not about to be averaged."""
        state: dict[str, Any] = {"moments": optimizer.state_dict()["state"]}
        if model is not None:
            state["model"] = _state_of(model)
        torch.save(state, self._path(part))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parts."""
        paths = sorted(self._folder.glob("*.pt"))
        return {path.stem: torch.load(path, weights_only=True) for path in paths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the states of all parts."""
        for name, values in state.items():
            torch.save(values, self._path(int(name)))

    def _path(self, part: int) -> Path:
        return self._folder / f"{part}.pt"


@dataclass(frozen=True, eq=False)
class LocalData:
    """A rank's shard as a graph of its own: other ranks' nodes are there, without in-edges.

    Attributes:
        shard: All n + h nodes are owned.
        num_owned: n, the nodes that have in-edges.
    """

    shard: Shard
    num_owned: int

    @classmethod
    def of(cls, training: TrainingSet, world: World) -> "LocalData":
        """Collective. Fetch the features of other ranks' nodes once."""
        shard, task = training.shard, training.task
        plan, structure, n = shard.plan, shard.structure, shard.num_owned
        csr = structure.csr
        features = shard.x
        if plan.num_halo or world.world_size > 1:
            features = torch.cat([features, exchange_rows(features, plan, world.transport)])
        no_edges = csr.indptr[-1:].expand(plan.num_halo)
        square = CSR(torch.cat([csr.indptr, no_edges]), csr.indices, csr.num_cols)
        return cls(
            shard.replace(
                structure=replace(structure, csr=square, symmetric=False),
                plan=HaloPlan(csr.num_cols, plan.send_index[:0], (0, 0), (0, 0), plan.src_id),
                features=features,
                y=_padded(task.y, plan.num_halo),
                masks={"train_mask": _padded(task.masks["train"], plan.num_halo)},
                edge_data={},
            ),
            n,
        )

    def part(self, part: int) -> Shard:
        """Return one part: nodes of other parts have no in-edges in it, and are not trained on.

        Nothing of an edge's size is copied.
        """
        shard, structure = self.shard, self.shard.structure
        csr, ptr = structure.csr, shard.meta.node_ptr
        ends = torch.tensor([ptr[part], ptr[part + 1]], device=csr.device)
        first, stop = torch.searchsorted(shard.global_id[: self.num_owned], ends).tolist()
        begin, end = csr.indptr[[first, stop]].tolist()
        indptr = csr.indptr.clamp(begin, end) - begin
        weight = structure.edge_weight
        mask = torch.zeros_like(shard.masks["train_mask"])
        mask[first:stop] = shard.masks["train_mask"][first:stop]
        return shard.replace(
            structure=replace(
                structure,
                csr=CSR(indptr, csr.indices[begin:end], csr.num_cols),
                edge_weight=None if weight is None else weight[begin:end],
            ),
            parts=range(part, part + 1),
            masks={"train_mask": mask},
        )


def _padded(values: Tensor, num_more: int) -> Tensor:
    return torch.cat([values, values.new_zeros((num_more, *values.shape[1:]))])


def _state_of(model: GNN) -> dict[str, Tensor]:
    """Return copies of what is averaged: all but counters."""
    state = model.state_dict().items()
    return {name: value.clone() for name, value in state if value.is_floating_point()}


def _load(model: GNN, state: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name in state:
                value.copy_(state[name])
