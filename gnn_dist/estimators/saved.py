"""What a fitted estimator is in a file: how it was fitted, and the weights.

    pickle.dumps     parameters, what `fit` was given, weights      no world, shard or trainer
    first use after  shard of `parts`, in the world of the process  -->  trainer, with the weights

So a file does not depend on the number of ranks, and a graph that lies in a partition folder is
not copied into it.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.table_state import own_state, whole_state
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.progress import Progress
from gnn_dist.train.trainer import Trainer

__all__ = ["OF_A_PROCESS", "FittedAs", "Saved"]

# What a fitted estimator has in one process alone; a file has none of it.
OF_A_PROCESS = ("trainer_", "model_", "world_", "node_ids_")


@dataclass(frozen=True, eq=False)
class FittedAs:
    """How an estimator was fitted, whatever its parameters are set to later.

    Attributes:
        params: Its parameters.
        config: What they became, with the seed that was drawn.
        nodes: What `fit` was given.
        y: Their labels, if they were given.
    """

    params: dict[str, Any]
    config: TrainConfig
    nodes: ArrayLike | None
    y: ArrayLike | None

    def without_world(self) -> "FittedAs":
        """Return the same for a file, which has no world, and no graph but the estimator's."""
        left_out = {"world": None, "callbacks": (), "parts": None}
        return replace(self, params={**self.params, **left_out})


@dataclass(frozen=True, eq=False)
class Saved:
    """Weights, in a form that fits any number of ranks.

    Attributes:
        fingerprint: Of the graph.
        model: `state_dict` of the model, on the CPU.
        progress: Of the run, as `Progress` has it.
    """

    fingerprint: str
    model: dict[str, Any]
    progress: dict[str, Any]

    @classmethod
    def of(cls, trainer: Trainer) -> "Saved":
        """Collective if the model has an embedding of all nodes. Take what a trainer has."""
        state = whole_state(trainer.model, trainer.model.state_dict(), "")
        model = {
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
            for name, value in state.items()
        }
        return cls(trainer.shard.meta.fingerprint, model, asdict(trainer.progress))

    def load_into(self, trainer: Trainer) -> None:
        """Collective if the model has an embedding of all nodes. Give a trainer the weights.

        Raises:
            ConfigError: The graph is another one.
        """
        meta = trainer.shard.meta
        if meta.fingerprint != self.fingerprint:
            raise ConfigError(
                f"the estimator was fitted on another graph than {meta.dataset!r}: set parts to "
                "that graph, or fit anew"
            )
        trainer.model.load_state_dict(own_state(trainer.model, self.model, trainer.world))
        trainer.progress = Progress(**self.progress)
