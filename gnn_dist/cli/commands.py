"""The commands, one dataclass each: its fields are its options.

None of them loads torch before the input has been checked.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from gnn_dist.cli.arguments import as_flags, load_yaml
from gnn_dist.cli.convert import Convert
from gnn_dist.cli.environment import Command, Environment, InferOptions
from gnn_dist.cli.inspect import Inspect
from gnn_dist.cli.partitioning import (
    Generate,
    PartitionCommand,
    PartitioningOptions,
    default_folder,
    given,
)
from gnn_dist.cli.tables import dataset_table
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.errors import ConfigError
from gnn_dist.shard.format import META_FILE, Meta, read_meta
from gnn_dist.sizes import parse_size
from gnn_dist.train.config import CONFIG_FILE, Backend, TrainConfig, check_split

__all__ = [
    "Command",
    "Convert",
    "Datasets",
    "Environment",
    "Evaluate",
    "Generate",
    "Infer",
    "Inspect",
    "PartitionCommand",
    "Train",
    "option_types",
    "with_resumed_config",
]


@dataclass(frozen=True, kw_only=True)
class Datasets:
    """List the datasets that can be loaded, with their sizes."""

    json: bool = False
    """Print JSON."""

    def run(self, environment: Environment) -> int:
        """Print the table."""
        del environment
        from gnn_dist.datasets import list_datasets

        print(dataset_table(list_datasets(), as_json=self.json))
        return 0


@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig, PartitioningOptions):
    """Train a model on a partition folder, or on a dataset, which is partitioned first.

    Examples: gnn-dist train parts/cora --ranks 4 --model gcn;
    torchrun --nproc-per-node 4 -m gnn_dist train parts/cora; mpirun -n 4 gnn-dist train parts/cora;
    srun gnn-dist train parts/cora --config run.yaml. Any option can also be written key=value.
    """

    dataset: Positional[str] = ""
    """Partition folder, name of a dataset, or path of your own graph."""
    ranks: int = 0
    """Ranks to start on this machine; 0: as the launcher says, one without a launcher."""
    parts: int = 0
    """Parts to make of a dataset that is not partitioned yet; 0: one for each rank."""

    def run(self, environment: Environment) -> int:
        """Check the input, start the ranks, or be one of them."""
        from gnn_dist.comm.detect import detect_launch

        dataset = given(self.dataset or environment.default_dataset)
        launch = detect_launch(os.environ)
        if self.parts < 0:
            raise ConfigError(f"parts must not be negative, got {self.parts}")
        world_size = _world_size(self.ranks, launch)
        if world_size > 1 and launch.world_size <= 1:
            folder = self.folder(dataset, world_size, environment)
            self.check_folder(folder, world_size)
            return self.start_ranks(folder)
        return self.be_a_rank(dataset, world_size, environment)

    def folder(self, dataset: str, world_size: int, environment: Environment) -> Path:
        """Return the partition folder of a dataset argument, made now if there is none."""
        if (Path(dataset) / META_FILE).is_file():
            return Path(dataset)
        parts = self.parts or world_size
        out = default_folder(dataset, parts, self)
        if (out / META_FILE).is_file():
            print(f"using the partition in {out}", file=sys.stderr)
            return out
        self.write(dataset, parts, out, environment.root, False)
        return out

    def check_folder(self, folder: str | Path, world_size: int) -> None:
        """Refuse, without torch, what the folder cannot do."""
        meta = read_meta(folder)
        meta.book.parts_of_rank(0, world_size)
        if meta.task is None:
            raise ConfigError(f"the dataset {meta.dataset!r} has no labels: put y beside the edges")
        if meta.num_features == 0:
            raise ConfigError(
                f"the dataset {meta.dataset!r} has no features: put x beside the edges"
            )
        check_split(self.split, meta.num_splits, meta.dataset)
        what = "attention" if self.model == "gat" else "--prune" if self.prune else ""
        what = "--mode minibatch" if self.mode == "minibatch" else what
        if meta.cut == "vertex" and world_size > 1 and what:
            raise ConfigError(
                f"{what} needs all in-edges of a node on one rank, and {folder} is a vertex-cut "
                f"partition (--method {meta.partitioner['method']}): do without, train on one "
                "rank, or partition with an edge-cut method, such as --method metis"
            )

    def start_ranks(self, folder: Path) -> int:
        """Start the ranks on this machine and wait for them."""
        from gnn_dist.launch.local import launch_ranks

        argv = ["train", str(folder), *as_flags(self.config.to_dict(), option_types())]
        return launch_ranks(argv, self.ranks, backend=self.backend)

    def be_a_rank(self, dataset: str, world_size: int, environment: Environment) -> int:
        """Train as one rank."""
        if (Path(dataset) / META_FILE).is_file():
            # Every rank that sees the folder refuses it before it meets the others.
            self.check_folder(dataset, world_size)
        from gnn_dist.cli.ranks import train

        return train(self.config, lambda size: self.folder(dataset, size, environment))

    @property
    def config(self) -> TrainConfig:
        """The options of the run itself."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in fields(TrainConfig)})


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What commands that load a run's best model have in common."""

    run_folder: Positional[str]
    """Run folder."""
    parts: str = ""
    """Partition folder; by default the one that the run was trained on."""
    ranks: int = 0
    """Ranks to start on this machine; 0: as the launcher says, one without a launcher."""
    backend: Backend = "auto"
    """Transport, as for train."""
    timeout: float = 300.0
    """Seconds to wait for another rank before giving up."""

    def opened(self) -> tuple[TrainConfig, str, Meta]:
        """Return the run's options, and the partition folder with its meta data."""
        values = load_yaml(Path(self.run_folder) / CONFIG_FILE)
        folder = self.parts or str(values.pop("dataset", ""))
        values.pop("dataset", None)
        changes = {"backend": self.backend, "timeout": self.timeout, "resume": ""}
        return _parse_config({**values, **changes}), folder, read_meta(folder)

    def world_size(self, meta: Meta) -> int:
        """Return how many ranks there are to be; refuse more than parts."""
        from gnn_dist.comm.detect import detect_launch

        world_size = _world_size(self.ranks, detect_launch(os.environ))
        meta.book.parts_of_rank(0, world_size)
        return world_size

    def start_ranks(
        self, command: str, folder: str, world_size: int, options: dict[str, Any]
    ) -> int | None:
        """Start the ranks on this machine and wait for them; None: this process is a rank."""
        from gnn_dist.comm.detect import detect_launch

        if world_size == 1 or detect_launch(os.environ).world_size > 1:
            return None
        from gnn_dist.launch.local import launch_ranks

        common = {"parts": folder, "backend": self.backend, "timeout": self.timeout}
        argv = [command, self.run_folder, *as_flags({**common, **options}, option_types())]
        return launch_ranks(argv, self.ranks, backend=self.backend)


@dataclass(frozen=True, kw_only=True)
class Evaluate(FinishedRun):
    """Evaluate the best model of a run on the whole graph, on any number of ranks.

    Example: gnn-dist evaluate runs/cora --ranks 4
    """

    json: bool = False
    """Print JSON."""

    def run(self, environment: Environment) -> int:
        """Print the metric of every split."""
        del environment
        config, folder, meta = self.opened()
        options = {"json": self.json}
        code = self.start_ranks("evaluate", folder, self.world_size(meta), options)
        if code is not None:
            return code
        from gnn_dist.cli.ranks import evaluate

        return evaluate(config, folder, self.run_folder, as_json=self.json)


@dataclass(frozen=True, kw_only=True)
class Infer(FinishedRun):
    """Write what the best model of a run says of all nodes, ordered by original id.

    Layer by layer, exactly, in bounded memory. Examples: gnn-dist infer runs/cora --ranks 4;
    gnn-dist infer runs/cora --out results --format parquet --embeddings
    """

    out: str = ""
    """Folder for predictions/ and embeddings/; by default the run folder."""
    format: Literal["npy", "parquet"] = "npy"
    """Of the files; parquet needs the package pyarrow."""
    embeddings: bool = False
    """Write the rows that enter the last layer, too."""
    overwrite: bool = False
    """Replace predictions and embeddings that are there."""
    batch_size: int = 1 << 17
    """Rows of sources that a rank reads at one time, for some of its nodes."""
    halo_memory: str = "1G"
    """Memory of a rank for rows of other ranks' nodes; more lie in a file."""
    work: str = ""
    """Folder on a disk for that file, by default the system's for temporary files. If given, ranks
    with several parts keep features and columns there, too, and not in memory."""

    def run(self, environment: Environment) -> int:
        """Write the files and say where they are."""
        del environment
        config, folder, meta = self.opened()
        world_size = self.world_size(meta)
        self.check(config, meta, world_size)
        code = self.start_ranks("infer", folder, world_size, asdict(self.options))
        if code is not None:
            return code
        from gnn_dist.cli.inference import infer

        # A rank with one part reads features and columns where they are, and needs no disk for it.
        spill = self.work or (folder if meta.num_parts == world_size else "")
        return infer(config, folder, run=self.run_folder, spill=spill, options=self.options)

    def check(self, config: TrainConfig, meta: Meta, world_size: int) -> None:
        """Refuse, without torch, what cannot be."""
        parse_size(self.halo_memory)
        if self.batch_size < 1:
            raise ConfigError(
                f"batch_size must be at least 1, got {self.batch_size}: change --batch-size"
            )
        if self.embeddings and config.layers == 1:
            raise ConfigError(
                "what enters the last layer of a model of one layer are the features: "
                "drop --embeddings"
            )
        if config.model == "gat" and meta.cut == "vertex" and world_size > 1:
            raise ConfigError(
                "attention needs all in-edges of a node on one rank, and the partition is a "
                "vertex-cut: run on one rank, or give an edge-cut partition with --parts"
            )

    @property
    def options(self) -> InferOptions:
        """The options beside those of all finished runs."""
        return InferOptions(**{f.name: getattr(self, f.name) for f in fields(InferOptions)})


def with_resumed_config(words: Sequence[str]) -> list[str]:
    """Put the configuration of a run that is to be resumed before the other words of `train`."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word != "--resume" and not (equals and name in ("--resume", "resume")):
            continue
        run = value if equals else (words[i + 1] if i + 1 < len(words) else "")
        if run and words[0] == "train":
            return [words[0], "--config", str(Path(run) / CONFIG_FILE), *words[1:]]
    return list(words)


def option_types() -> dict[str, object]:
    """Return the type of every option of every command, by name with underscores."""
    classes = (Datasets, PartitionCommand, Generate, Inspect, Convert, Train, Evaluate, Infer)
    return {field.name: field.type for command in classes for field in fields(command)}


def _parse_config(values: dict[str, Any]) -> TrainConfig:
    """Check the options of a run folder by the parser of the command line."""
    import tyro

    words = as_flags(values, option_types())
    config: TrainConfig = tyro.cli(TrainConfig, prog=f"{CONFIG_FILE}:", args=words)
    return config


def _world_size(ranks: int, launch: LaunchInfo) -> int:
    """Return how many ranks there are to be."""
    if ranks < 0:
        raise ConfigError(f"ranks must not be negative, got {ranks}")
    if ranks and launch.world_size > 1:
        raise ConfigError(
            f"--ranks {ranks} starts ranks, but this is one of {launch.world_size} that "
            f"{launch.launcher} has started: leave --ranks out"
        )
    return ranks or launch.world_size or 1
