"""Estimators of nodes: `fit`, `predict`, `score`, on one process or collectively on many."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from gnn_dist.comm.world import World, world_of_process
from gnn_dist.errors import ConfigError
from gnn_dist.estimators.by_node import everyones_rows, node_ids
from gnn_dist.estimators.parameters import Parameters
from gnn_dist.estimators.saved import OF_A_PROCESS, FittedAs, Saved
from gnn_dist.estimators.shards import shard_of
from gnn_dist.estimators.tasks import pick, scoring_task, training_task
from gnn_dist.shard.shard import Shard
from gnn_dist.train.callbacks import Callback, KeepBest, check_callbacks
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.losses import LossFunction, aligned, check_loss
from gnn_dist.train.metrics import make_metric
from gnn_dist.train.steps import StepReport
from gnn_dist.train.task import MetricFunction, NodeTask, count_train, make_task
from gnn_dist.train.trainer import Trainer

__all__ = ["DistNodeClassifier", "DistNodeRegressor"]

Array = NDArray[Any]
Model = str | nn.Module | Callable[[], nn.Module]


@dataclass(kw_only=True, eq=False)
class _NodeEstimator(Parameters):
    """What classifier and regressor have in common. Options are those of `TrainConfig`."""

    model: Model = "sage"
    """`sage`, `gcn`, `gat` or `gin`; or a module written for one machine with layers of PyTorch
    Geometric, of which a copy is trained; or a function that makes one."""
    parts: Any = None
    """A partition folder; or a `Graph` or PyG `Data`, which is partitioned for the ranks."""
    num_parts: int = 0
    """Parts to make of a graph; 0: one for each rank."""
    hidden: int = 64
    """Width between layers of a ready model."""
    layers: int = 2
    """Convolutions of a ready model."""
    dropout: float = 0.5
    """Dropout of a ready model."""
    heads: int = 4
    """Attention heads of `gat`."""
    aggr: str = "mean"
    """Reduction of `sage`: mean, sum or max."""
    batch_norm: bool = False
    """Batch normalisation in a ready model."""
    epochs: int = 200
    """Passes over the graph."""
    optimizer: str = "adam"
    """adam, adamw, sgd or rmsprop."""
    lr: float = 0.01
    """Learning rate."""
    weight_decay: float = 5e-4
    """Weight decay."""
    scheduler: str = "constant"
    """Learning rate over the epochs: constant, cosine, linear or step."""
    scheduler_step: int = 50
    """Epochs between halvings (step)."""
    loss: str | LossFunction = "auto"
    """A name, or a function; see `node_loss`."""
    metric: str | MetricFunction = "auto"
    """A name, a function or a `torchmetrics.Metric`; see `make_metric`."""
    split: int = 0
    """Which official split; without masks, the number of a seeded one."""
    inductive: bool = False
    """Train on the subgraph of training nodes."""
    eval_every: int = 1
    """Epochs between evaluations."""
    patience: int = 0
    """Stop after so many evaluations without a better validation metric; 0: never."""
    halo: str = "overlap"
    """How halo rows travel in training."""
    precision: str = "fp32"
    """fp32, fp64, or bf16 for ready models."""
    prune: bool = False
    """Leave out what the loss does not depend on (ready models)."""
    keep_best: bool = False
    """End with the parameters of the best evaluation, not of the last epoch."""
    callbacks: Sequence[Callback] = ()
    """Told of what happens; see `Callback`."""
    out: str = ""
    """Run folder with checkpoints; none by default."""
    random_state: Any = None
    """Seed, or `numpy.random.RandomState`; None for another run each time."""
    world: World | None = field(default=None, repr=False)
    """The ranks; by default those that a launcher started with this process, else it alone."""

    def fit(self, nodes: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Collective. Train anew; every rank calls it with the same arguments.

        Args:
            nodes: Original ids (k,), or a mask (N,), of the training nodes. By default the graph's
                training mask.
            y: Their labels, (k, ...). By default the graph's.

        Raises:
            ConfigError: On every rank: a parameter has a value that cannot work.
        """
        world = self.world or world_of_process()
        with world.everywhere("reading parameters"):
            config, callbacks = self._config(), check_callbacks(self.callbacks)
            _check_nodes(nodes, y)
        # Rank 0's seed: without one, each has drawn another.
        config = replace(config, seed=world.transport.all_gather_object(config.seed)[0])
        best = [KeepBest()] if self.keep_best else []
        trainer, classes = self._trainer(config, (nodes, y), world, [*callbacks, *best])
        losses = _Losses()
        trainer.callbacks.append(losses)
        self.summary_ = trainer.fit(keep=bool(self.out))
        self.loss_curve_, self.n_iter_ = losses.curve, trainer.progress.epoch
        self.n_features_in_ = trainer.shard.meta.num_features
        if not self._regression:
            self.classes_ = np.arange(trainer.task.num_classes) if classes is None else classes
        self._fitted_as = FittedAs(self.get_params(), config, nodes, y)
        self._hold(trainer)
        return self

    def predict(self, nodes: ArrayLike | None = None, *, local: bool = False) -> Array:
        """Collective. Return predictions by original id, the same on every rank.

        Args:
            nodes: Original ids (k,), or a mask (N,); all nodes by default.
            local: Return rows of this rank's nodes, `node_ids_`, alone, without any gathering.
        """
        return self._rows(self._predicted, nodes, local)

    def score(self, nodes: ArrayLike | None = None, y: ArrayLike | None = None) -> float:
        """Collective. Return the metric, on the graph's test nodes by default; NaN without any.

        One of which less is better, such as mae, is negated, as scikit-learn's scorers do.

        Args:
            nodes: Original ids (k,), or a mask (N,), of other nodes; the same on all ranks.
            y: Their labels; by default the graph's.
        """
        trainer, world = self._fitted(), self.world_
        shard, task = trainer.shard, replace(trainer.task, metric=self.metric)
        with world.everywhere("choosing nodes to score"):
            _check_nodes(nodes, y)
            if nodes is not None:
                if y is None and self._fitted_as.y is not None:
                    raise ConfigError("fit has had labels of its own: pass those of the nodes too")
                ids = node_ids(nodes, shard.meta.num_nodes)
                known = getattr(self, "classes_", None)
                picked = pick(shard, ids, y, regression=self._regression, classes=known)
                task = scoring_task(task, picked)
            metric = make_metric(task)
        scores = metric.scores(trainer.predict(), task, world)
        value = scores["test" if nodes is None else "nodes"]
        return value if metric.higher_is_better else -value

    @property
    def _regression(self) -> bool:
        return self._estimator_type == "regressor"

    def _predicted(self, outputs: Tensor) -> Tensor:
        """Return predictions of rows."""
        raise NotImplementedError

    def _rows(
        self,
        of: Callable[[Tensor], Tensor],
        nodes: ArrayLike | None,
        local: bool,
    ) -> Array:
        """Collective. Return what is made of the model's outputs, by original id."""
        trainer = self._fitted()
        rows = of(trainer.predict())
        if local:
            return np.asarray(rows.cpu().numpy())
        num_nodes = trainer.shard.meta.num_nodes
        whole = everyones_rows(rows, trainer.shard.node_id, num_nodes, self.world_)
        return whole if nodes is None else whole[node_ids(nodes, num_nodes)]

    def _fitted(self) -> Trainer:
        """Collective after unpickling. Return what it was trained by."""
        if not self.__sklearn_is_fitted__():
            raise ConfigError(f"this {type(self).__name__} is not fitted: call fit first")
        if "trainer_" not in vars(self):
            self._restore()
        trainer: Trainer = self.trainer_
        return trainer

    def _hold(self, trainer: Trainer) -> None:
        """Keep what there is while this process and its world last."""
        self.world_, self.trainer_, self.model_ = trainer.world, trainer, trainer.model
        self.node_ids_ = trainer.shard.node_id.cpu().numpy()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a file can hold: parameters and, if fitted, weights; no world and no graph.

        Collective if the model has an embedding of all nodes, whose rows only rank 0's file has.
        """
        state = {name: value for name, value in vars(self).items() if name not in OF_A_PROCESS}
        state["world"] = None
        if "trainer_" in vars(self):
            state["_saved"] = Saved.of(self.trainer_)
        if "_fitted_as" in state:
            state["_fitted_as"] = self._fitted_as.without_world()
        return state

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - one of several
        """Return what a fitted estimator has, and an unpickled one makes when it is asked for."""
        if name in OF_A_PROCESS and "_saved" in vars(self):
            self._restore()
            return vars(self)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` has been called."""
        return "_fitted_as" in vars(self)

    def _restore(self) -> None:
        """Collective. Load the shard of `parts` and put the weights into a model as it was."""
        world, known = self.world or world_of_process(), self._fitted_as
        made = type(self)(**{**known.params, "parts": self.parts, "num_parts": self.num_parts})
        trainer, _ = made._trainer(known.config, (known.nodes, known.y), world, ())
        self._saved.load_into(trainer)
        self._hold(trainer)

    def _trainer(
        self,
        config: TrainConfig,
        named: tuple[ArrayLike | None, ArrayLike | None],
        world: World,
        callbacks: Sequence[Callback],
    ) -> tuple[Trainer, Array | None]:
        """Collective. Return a trainer on named nodes, and classes where they are the user's."""
        shard = shard_of(self.parts, self.num_parts, world, regression=self._regression)
        task, classes = self._training_task(shard, *named, world)
        own = None if isinstance(self.model, str) else _module(self.model, config.seed)
        return Trainer(config, shard, world, model=own, task=task, callbacks=callbacks), classes

    def _training_task(
        self, shard: Shard, nodes: ArrayLike | None, y: ArrayLike | None, world: World
    ) -> tuple[NodeTask, Array | None]:
        """Collective. Return what is learned, and its classes where they are the user's own."""
        classes, loss, metric = None, self.loss, self.metric
        if nodes is None:
            task = make_task(shard, self.split, world, loss=loss, metric=metric)
        else:
            with world.everywhere("choosing training nodes"):
                ids = node_ids(nodes, shard.meta.num_nodes)
                picked = pick(shard, ids, y, regression=self._regression)
                task = training_task(shard, picked, self.split, own_labels=y is not None)
                check_loss(loss, task.y)
            num_train = count_train(picked.mask, world)
            if num_train == 0:
                raise ConfigError("nodes must hold at least one node to train on, got none")
            classes = picked.classes
            task = replace(task, num_train=num_train, loss=loss, metric=metric)
        if (task.kind == "regression") is not self._regression:
            other = DistNodeClassifier if self._regression else DistNodeRegressor
            raise ConfigError(f"the labels are for {task.kind}: use {other.__name__}")
        return task, classes

    def _config(self) -> TrainConfig:
        """Return the options, with what is not a word at its default."""
        known = {f.name for f in fields(TrainConfig)}
        values = {name: value for name, value in self.get_params().items() if name in known}
        for name in ("model", "loss", "metric"):
            if not isinstance(values[name], str):
                del values[name]
        return TrainConfig(**values, seed=_seed(self.random_state), tensorboard=False)


class DistNodeClassifier(_NodeEstimator):
    """Classifies nodes: one class a node, or several labels. Parameters are those of its fields.

    Attributes:
        classes_: (C,), the classes, ascending; numbers of labels where a node has several.
        model_: The trained module; a copy where `model` is a module.
        loss_curve_: The loss of every epoch.
        n_iter_: Epochs done.
        summary_: What `Trainer.fit` returns.
        node_ids_: int64 (n,), original ids of this rank's nodes.
        trainer_, world_: What it was trained by.

    Example:
        >>> from gnn_dist import load_dataset
        >>> graph = load_dataset("grid:rows=8,cols=8")
        >>> clf = DistNodeClassifier(model="gcn", parts=graph, epochs=5, random_state=0)
        >>> clf.fit().predict([3, 60]).shape
        (2,)
    """

    _estimator_type = "classifier"

    def predict(self, nodes: ArrayLike | None = None, *, local: bool = False) -> Array:
        """Collective. Return classes (k,), or bool (k, C), by original id, the same on all ranks.

        Args:
            nodes: Original ids (k,), or a mask (N,); all nodes by default.
            local: Return rows of this rank's nodes, `node_ids_`, alone, without any gathering.
        """
        rows = super().predict(nodes, local=local)
        return rows if rows.ndim == 2 else np.asarray(self.classes_[rows])

    def predict_proba(self, nodes: ArrayLike | None = None, *, local: bool = False) -> Array:
        """Collective. Return probabilities (k, C) by original id; arguments as for `predict`."""
        several = self._fitted().task.multilabel
        return self._rows(
            lambda outputs: outputs.sigmoid() if several else outputs.softmax(1), nodes, local
        )

    def _predicted(self, outputs: Tensor) -> Tensor:
        return outputs > 0 if self._fitted().task.multilabel else outputs.argmax(1)


class DistNodeRegressor(_NodeEstimator):
    """Predicts one number or several of each node. Parameters and attributes: see the classifier.

    Example:
        >>> import numpy as np
        >>> from gnn_dist import load_dataset
        >>> graph = load_dataset("grid:rows=8,cols=8")
        >>> reg = DistNodeRegressor(parts=graph, epochs=5, random_state=0)
        >>> reg.fit(np.arange(40), np.linspace(0, 1, 40)).predict().shape
        (64,)
    """

    _estimator_type = "regressor"

    def _predicted(self, outputs: Tensor) -> Tensor:
        return aligned(outputs, self._fitted().task.y)[0]


class _Losses(Callback):
    """Keeps the loss of every epoch."""

    def __init__(self) -> None:
        self.curve: list[float] = []

    def on_step_end(self, trainer: Trainer, report: StepReport) -> None:
        del trainer
        self.curve.append(report.loss)


def _check_nodes(nodes: ArrayLike | None, y: ArrayLike | None) -> None:
    if nodes is None and y is not None:
        raise ConfigError("y must come with nodes: pass the original ids whose labels they are")


def _module(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a copy of a module, or a new one, made by draws of a seed of its own."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model()


def _seed(random_state: Any) -> int:  # noqa: ANN401 - as scikit-learn takes them
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if hasattr(random_state, "randint"):
        return int(random_state.randint(2**31 - 1))
    return int(random_state)
