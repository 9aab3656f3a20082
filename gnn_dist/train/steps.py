"""What all ways of making a step have in common: its loss over all ranks, and its report."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.profile.meter import BATCH_WAIT, GRAD_SYNC, HALO_WAIT, HaloCount, Lane, Meter
from gnn_dist.sampling.store import StoreCounts
from gnn_dist.shard.shard import Shard
from gnn_dist.train.halo_files import Keeper
from gnn_dist.train.losses import check_adds_up, node_loss
from gnn_dist.train.task import NodeTask

__all__ = ["StepReport", "Steps", "TrainingSet"]


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """What a model is trained on.

    Attributes:
        shard: The whole shard, or one of a subgraph (inductive training).
        task: Its labels and masks.
        prune: Leave out what the loss does not depend on; not with batch norm, whose statistics
            are of all nodes, and not on a vertex-cut over several ranks.

    Raises:
        ConfigError: Pruning on such a vertex-cut.
    """

    shard: Shard
    task: NodeTask
    prune: bool = False

    def __post_init__(self) -> None:
        if self.prune and self.shard.plan.clones:
            raise ConfigError(
                "prune needs all in-edges of a node on one rank, and this partition is a "
                "vertex-cut: drop --prune, or use an edge-cut method, such as --method metis"
            )


@dataclass(frozen=True)
class StepReport:
    """One epoch on this rank.

    Attributes:
        loss: Of all ranks.
        epoch_s: Seconds of the whole epoch.
        compute_s: Of it, neither waiting for rows or batches nor in the gradient reduction.
        halo_wait_s: Waiting for halo rows.
        batch_wait_s: Waiting for minibatches to be sampled and fetched.
        grad_sync_s: In the gradient reduction after the backward, waiting for slower ranks
            included.
        halo_bytes: Bytes of halo rows and of their gradients that this rank sent; of minibatches,
            bytes of rows that it fetched.
        halo_messages: Messages that they went in.
        halo: The same and more by layer and direction.
        staleness: Where halo rows are stale, how much this step's new values differ from what was
            used before, as a share of its norm: the worst layer's. NaN if none came.
    """

    loss: float
    epoch_s: float
    compute_s: float
    halo_wait_s: float
    batch_wait_s: float
    grad_sync_s: float
    halo_bytes: int
    halo_messages: int
    halo: dict[Lane, HaloCount]
    staleness: float


class Steps(ABC):
    """Steps and predictions of a model over the shards of all ranks.

    Args:
        model: What is trained.
        shard: This rank's shard, which predictions are made on.
        world: The ranks.
        training: What steps are made on.

    Attributes:
        meter: Counts what a step does, from its beginning.
        exchanges: What makes those of training, which may hold rows from step to step.
    """

    def __init__(
        self, model: nn.Module, shard: Shard, world: World, *, training: TrainingSet
    ) -> None:
        self.model, self.shard, self.world = model, shard, world
        self.training = training
        self.meter = Meter()
        self.exchanges: list[ExchangeMaker] = []
        self._fetched = StoreCounts()
        self._loss_is_known = isinstance(training.task.loss, str)

    def step(self, optimizer: Optimizer, epoch: int) -> StepReport:
        """Collective. Do an epoch: one update of the parameters, or one for each minibatch.

        Raises:
            GnnDistError: On every rank, if the loss is not finite.
            ConfigError: On every rank, if a loss of the user's own is a mean.
        """
        start = time.perf_counter()
        self.meter.reset()
        self.world.control.progress(f"epoch {epoch}")
        total = self._train_epoch(optimizer, epoch)
        elapsed = time.perf_counter() - start
        phases = (HALO_WAIT, BATCH_WAIT, GRAD_SYNC)
        halo_wait, batch_wait, grad_sync = (self.meter.seconds(phase) for phase in phases)
        return StepReport(
            loss=total,
            epoch_s=elapsed,
            compute_s=elapsed - halo_wait - batch_wait - grad_sync,
            halo_wait_s=halo_wait,
            batch_wait_s=batch_wait,
            grad_sync_s=grad_sync,
            halo_bytes=self.meter.halo_bytes + self._fetched.fetched_bytes,
            halo_messages=self.meter.halo_messages,
            # Copies: an evaluation counts on.
            halo={lane: replace(count) for lane, count in self.meter.halo.items()},
            staleness=self.meter.largest_change("forward", "up", "down"),
        )

    @abstractmethod
    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Update the parameters; return the loss of all ranks."""

    @abstractmethod
    def predict(self) -> Tensor:
        """Collective. Return logits (n, C) of the owned nodes, exactly, without dropout."""

    @property
    @abstractmethod
    def layers(self) -> Sequence[int]:
        """Numbers of the layers that exchange rows, the same on all ranks."""

    @property
    @abstractmethod
    def keepers(self) -> Sequence[Keeper]:
        """What may hold something from step to step."""

    @property
    def holds_rows(self) -> bool:
        """Whether halo rows of earlier steps are used in training."""
        return any(exchanges.policy.holds for exchanges in self.exchanges)

    def drain(self) -> None:
        """Wait for halo rows that are still on their way, which is due before the ranks part."""
        for exchanges in self.exchanges:
            exchanges.drain()

    @staticmethod
    def _update(optimizer: Optimizer, total: float, epoch: int) -> None:
        """Change the parameters by their gradients.

        Raises:
            GnnDistError: The loss, alike on all ranks, is not finite.
        """
        if not math.isfinite(total):
            raise GnnDistError(
                f"the loss became {total} in epoch {epoch}: lower --lr, or look for "
                "huge features and negative edge weights"
            )
        optimizer.step()

    def _share(self, logits: Tensor, y: Tensor, mask: Tensor, count: int | None = None) -> Tensor:
        """Collective the first time. Return this rank's share of the loss.

        Args:
            logits: Rows of the model's output.
            y: Their labels.
            mask: bool, which rows count.
            count: How many rows of all ranks count; by default the training nodes.
        """
        task = self.training.task
        if not self._loss_is_known:
            with self.world.everywhere("checking the loss"):
                if not isinstance(task.loss, str):
                    check_adds_up(task.loss, logits[mask], y[mask])
            self._loss_is_known = True
        return node_loss(logits, y, mask, count or task.num_train, loss=task.loss)
