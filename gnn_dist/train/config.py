"""The options of a training run. The command line, YAML files and Python share this object.

No field name occurs twice, so all of them are flat: `--hidden 64`, `hidden: 64`, `hidden=64`.
"""

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gnn_dist.errors import ConfigError
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.sizes import parse_size

__all__ = [
    "CONFIG_FILE",
    "Backend",
    "BatchConfig",
    "DataConfig",
    "LoopConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "TrainConfig",
    "check_split",
]

CONFIG_FILE = "config.yaml"  # in a run folder
MAX_TIMEOUT_S = 30 * 86400.0

Backend = Literal["auto", "gloo", "nccl", "mpi"]
MetricName = Literal["auto", "accuracy", "micro_f1", "macro_f1", "roc_auc", "r2", "mae", "rmse"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model."""

    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    """Kind of convolution."""
    hidden: int = 64
    """Width between layers."""
    layers: int = 2
    """Number of convolutions."""
    dropout: float = 0.5
    """Probability of dropping an element, after each layer but the last."""
    heads: int = 4
    """Attention heads (gat); must divide hidden."""
    aggr: Literal["mean", "sum", "max"] = "mean"
    """Reduction over neighbours (sage)."""
    batch_norm: bool = False
    """Batch normalisation between layers, over the nodes of all ranks."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        _at_least(self, 1, "hidden", "layers", "heads")
        _inside(self, 0.0, 1.0, "dropout")
        if self.model == "gat" and self.hidden % self.heads:
            raise ConfigError(
                f"heads must divide hidden={self.hidden}, got {self.heads}: change --heads"
            )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How parameters are updated."""

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimiser (sgd with momentum 0.9)."""
    lr: float = 0.01
    """Learning rate."""
    weight_decay: float = 5e-4
    """Weight decay."""
    scheduler: Literal["constant", "cosine", "linear", "step"] = "constant"
    """Learning rate over the epochs: to zero by cosine or linear, halved by step."""
    scheduler_step: int = 50
    """Epochs between halvings (scheduler step)."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        _at_least(self, 1, "scheduler_step")
        _at_least(self, 0.0, "weight_decay")
        if not 0.0 < self.lr < float("inf"):
            raise ConfigError(f"lr must be above 0, got {self.lr}: change --lr")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which nodes are for what."""

    split: int = 0
    """Which official split; without any, the number of a seeded 50/20/30 split."""
    inductive: bool = False
    """Train on the subgraph of training nodes; evaluate on the whole graph."""
    loss: Literal["auto", "cross_entropy", "bce", "mse", "l1"] = "auto"
    """What is minimised; auto: cross_entropy, bce for several labels a node, mse for numbers."""
    metric: MetricName = "auto"
    """What is reported and watched; auto: accuracy, micro_f1 for several labels, r2 for numbers."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        _at_least(self, 0, "split")


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How long, and what is watched."""

    epochs: int = 200
    """Passes over the training nodes."""
    eval_every: int = 1
    """Epochs between evaluations; 0: never."""
    patience: int = 0
    """Stop after so many evaluations without a better validation metric; 0: never."""
    checkpoint_every: int = 50
    """Epochs between checkpoints; one is also made every minute, and at the end."""
    seed: int = 0
    """Of the initial parameters and of every draw."""
    precision: Literal["fp32", "fp64", "bf16"] = "fp32"
    """Floating dtype of features and parameters; bf16: of rows and products only, by autocast."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        _at_least(self, 1, "epochs", "checkpoint_every")
        _at_least(self, 0, "patience", "eval_every")
        _inside(self, 0, 2**63 - 1, "seed")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Full-batch or minibatches, and which."""

    mode: Literal["full", "minibatch"] = "full"
    """One update an epoch from the whole graph, or one for each batch of training nodes."""
    batch_size: int = 1024
    """Training nodes of a batch, of all ranks together (minibatch)."""
    num_neighbors: str = "10"
    """Neighbours drawn, from the last layer to the first, as 15,10,5; -1 for all (minibatch)."""
    sync: str = "step"
    """When ranks agree: step, or local:every=H, parts by themselves for H epochs (minibatch)."""
    replace: bool = False
    """Draw neighbours with repetitions (minibatch)."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller (minibatch)."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        _at_least(self, 1, "batch_size")
        self.fanout()
        if self.average_every() and self.mode != "minibatch":
            raise ConfigError("sync=local is for minibatches: add --mode minibatch")

    def average_every(self) -> int:
        """Return after how many epochs the models of parts are averaged; 0 if there is one model.

        Raises:
            ConfigError: `sync` is neither step nor local.
        """
        if self.sync == "step":
            return 0
        found = re.fullmatch(r"local(?::every=(\d+))?", self.sync)
        every = int(found[1] or 1) if found else 0
        if every < 1:
            raise ConfigError(
                f"sync must be step, local or local:every=H with H epochs, got {self.sync!r}"
            )
        return every

    def fanout(self) -> tuple[int, ...]:
        """Return the neighbours to draw in each layer, that next to the output first."""
        layers = getattr(self, "layers", 0)
        try:
            numbers = tuple(int(word) for word in str(self.num_neighbors).split(","))
        except ValueError:
            numbers = ()
        if not numbers or any(k < -1 for k in numbers):
            raise ConfigError(
                "num_neighbors must be numbers joined by commas, -1 for all neighbours, got "
                f"{self.num_neighbors!r}: such as --num-neighbors 15,10"
            )
        if len(numbers) == 1:
            return numbers * max(1, layers)
        if len(numbers) != layers and self.mode == "minibatch":
            raise ConfigError(
                f"num_neighbors must have one number for each of {layers} layers, got "
                f"{self.num_neighbors}: change --num-neighbors or --layers"
            )
        return numbers


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How ranks work together, and where the run folder goes."""

    backend: Backend = "auto"
    """Transport: auto takes mpi under mpirun, nccl with a GPU for each rank, else gloo."""
    halo: str = "overlap"
    """How halo rows travel: terms joined by +, such as overlap or sampled:p=0.5+bf16."""
    grad_buckets: Literal["one", "layers", "planned"] = "one"
    """Messages that sum gradients: one, one a layer during the backward, or planned by time."""
    grad_encoding: Literal["exact", "bf16", "topk"] = "exact"
    """Gradients on the wire: as they are, 16 bits, or the largest alone (the rest comes later)."""
    grad_share: float = 0.01
    """Share of the gradients' elements that topk sends."""
    prune: bool = False
    """Leave out of training, layer by layer, what the loss does not depend on; exact."""
    profile_skew: bool = False
    """Tell waiting for ranks that are late from transfer, at the cost of small messages."""
    cache: str = "0"
    """Memory of a rank for rows of others that batches need most, as 256M (minibatch)."""
    topology: Literal["parts", "shared"] = "parts"
    """Edges to draw from: a part a rank, or the whole once a machine (minibatch)."""
    storage: Literal["same", "fp16", "bf16", "int8"] = "same"
    """How features lie in memory and travel (minibatch)."""
    bulk: int = 4
    """Batches that are sampled and fetched in one round of messages (minibatch)."""
    prefetch: int = -1
    """Batches that may lie ready ahead of use (minibatch); 0: none; -1: 2, where that helps."""
    timeout: float = 300.0
    """Seconds to wait for another rank before giving up."""
    verify: bool = True
    """Compare part files with their SHA-256 when loading."""
    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    spill: str = ""
    """Folder on a local disk: features and edges then stay in files, and memory may drop them."""
    out: str = ""
    """Run folder; by default runs/<dataset>-<model>-<time>."""
    resume: str = ""
    """Run folder to continue from its last checkpoint."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot work."""
        HaloPolicy.parse(self.halo)
        _at_least(self, 1, "bulk")
        self.cache_bytes()
        self._check_mode()
        _at_least(self, -1, "prefetch")
        if not 0.0 < self.grad_share <= 1.0:
            raise ConfigError(
                f"grad_share must lie in (0, 1], got {self.grad_share}: change --grad-share"
            )
        if self.prune and getattr(self, "batch_norm", False):
            raise ConfigError(
                "prune would leave out nodes that batch norm counts: drop --prune or --batch-norm"
            )
        if not 0.0 < self.timeout <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"timeout must be above 0 seconds and at most {MAX_TIMEOUT_S:.0f}, got "
                f"{self.timeout}"
            )

    def _check_mode(self) -> None:
        """Raise ConfigError for options that minibatches have no use for."""
        if getattr(self, "mode", "full") != "minibatch":
            return
        if self.prune:
            raise ConfigError("prune is for full batches: drop --prune, or --mode minibatch")
        if not HaloPolicy.parse(self.halo).exact:
            raise ConfigError(
                f"halo={self.halo} is for full batches, and minibatches have no halo but in "
                "evaluation, which is exact: drop --halo, or --mode minibatch"
            )

    def cache_bytes(self) -> int:
        """Return the size that `cache` means.

        Raises:
            ConfigError: It is no size.
        """
        return 0 if str(self.cache) == "0" else parse_size(str(self.cache))


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig, BatchConfig, LoopConfig, DataConfig, OptimConfig, ModelConfig):
    """Everything about a training run but the graph.

    Raises:
        ConfigError: A value that cannot work; the message names the option.

    Example:
        >>> TrainConfig(model="gcn", epochs=10).hidden
        64
    """

    def __post_init__(self) -> None:
        for name, words in _choices().items():
            if getattr(self, name) not in words:
                raise ConfigError(
                    f"{name} must be one of {', '.join(words)}, got {getattr(self, name)!r}"
                )
        for group in (ModelConfig, OptimConfig, DataConfig, LoopConfig, BatchConfig, RunConfig):
            group.check(self)

    def mathematics(self) -> dict[str, object]:
        """Return the fields that decide what is computed, which a resumed run may not change."""
        groups = (ModelConfig, OptimConfig, DataConfig, BatchConfig)
        names = [field.name for group in groups for field in fields(group)]
        return {name: getattr(self, name) for name in [*names, "seed", "precision"]}

    def to_dict(self) -> dict[str, object]:
        """Return the fields as plain values, in their order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@cache
def _choices() -> dict[str, tuple[Any, ...]]:
    """Return the words that an option may have, for those that have a few."""
    hints = get_type_hints(TrainConfig)
    return {name: get_args(h) for name, h in hints.items() if get_origin(h) is Literal}


def check_split(split: int, num_splits: int, dataset: str) -> None:
    """Raise ConfigError if a dataset with official splits has none of this number."""
    if num_splits and split >= num_splits:
        raise ConfigError(
            f"split must lie in 0..{num_splits - 1} for {dataset!r}, got {split}: change --split"
        )


def _at_least(config: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not value >= least:
            flag = name.replace("_", "-")
            raise ConfigError(f"{name} must be at least {least}, got {value}: change --{flag}")


def _inside(config: object, low: float, high: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high:
            flag = name.replace("_", "-")
            raise ConfigError(f"{name} must lie in [{low}, {high}], got {value}: change --{flag}")
