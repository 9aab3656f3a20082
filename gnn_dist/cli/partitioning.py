"""The commands `partition` and `generate`, and the options of partitioning that `train` shares."""

import ast
import glob
import hashlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tyro.conf import Positional

from gnn_dist.cli.environment import Environment
from gnn_dist.cli.tables import quality_table
from gnn_dist.errors import ConfigError, ShardFormatError
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.shard.format import Meta, write_partition

__all__ = [
    "Generate",
    "Method",
    "PartitionCommand",
    "PartitioningOptions",
    "default_folder",
    "given",
]

Method = Literal[
    "best",
    "metis",
    "metis-ew",
    "mtkahypar",
    "metis-stream",
    "fennel",
    "ldg",
    "spring",
    "contiguous",
    "random",
    "libra",
    "hdrf",
    "dbh",
    "2ps-l",
]


@dataclass(frozen=True, kw_only=True)
class PartitioningOptions:
    """Options of loading a dataset and partitioning it."""

    method: Method = "best"
    """Partitioner. libra, hdrf, dbh and 2ps-l cut nodes, the others edges."""
    balance: str = ""
    """What parts have equally much of: nodes, edges, train, val, test, or the path of a .npy file
    with an integer for each node, with commas between; by default nodes,edges,train."""
    imbalance: float = 0.05
    """How far above its share a part may be."""
    part_weights: str = ""
    """Shares of the parts, with commas between: 2,1,1 gives the first as much as both others."""
    refine: bool = False
    """Lower the replication factor afterwards by local search (best does so anyway)."""
    machines: int = 1
    """Partition for so many machines first, then for the ranks on each."""
    partition_seed: int = 0
    """Of the partitioner."""
    method_options: str = ""
    """Further options of the method, such as passes=10,objective=halo."""
    directed: bool = False
    """Keep the direction of edges where the dataset has one (debian)."""
    root: str = ""
    """Folder of datasets; by default the environment variable GNN_DIST_DATA, then ./data."""

    def options(self) -> dict[str, Any]:
        """Return what was asked for, as options of `partition_graph`."""
        options: dict[str, Any] = {}
        if self.balance:
            options["balance"] = self.balance
        if self.imbalance != PartitioningOptions.imbalance:
            options["imbalance"] = self.imbalance
        if self.part_weights:
            options["part_weights"] = _numbers("part_weights", self.part_weights)
        if self.partition_seed:
            options["seed"] = self.partition_seed
        if self.refine:
            options["refine"] = True
        if self.machines != 1:
            options["machines"] = self.machines
        return options | _assignments(self.method_options)

    def column_versions(self) -> list[str]:
        """Return path, size and time of the files whose weights are balanced."""
        from gnn_dist.partitioners.balance import column_files

        balance = self.options().get("balance", "")
        files = column_files(balance) if isinstance(balance, str) and balance else ()
        return [_version(path) for path in files if path.is_file()]

    def write(
        self, dataset: str, num_parts: int, out: Path, root: str | None, overwrite: bool
    ) -> Meta:
        """Load, partition and write."""
        from gnn_dist.datasets import load_dataset
        from gnn_dist.partitioners import make_pipeline

        pipeline = make_pipeline(self.method, **self.options())
        graph = load_dataset(dataset, self.root or root or "data", directed=self.directed)
        print(f"partitioning {dataset} in {num_parts} parts: {out}", file=sys.stderr)
        partition = pipeline(graph, num_parts)
        for note in partition.notes:
            print(f"note: {note}", file=sys.stderr)
        return write_partition(graph, partition, out, overwrite=overwrite)


@dataclass(frozen=True, kw_only=True)
class PartitionCommand(PartitioningOptions):
    """Split a dataset's graph in parts and write a partition folder.

    Examples: gnn-dist partition cora --parts 4 --method metis --out parts/cora;
    gnn-dist partition edges.bin --parts 8 --method fennel --refine --memory-limit 8G
    """

    dataset: Positional[str] = ""
    """Name of a dataset, or path of your own graph (edges.csv, a folder, ...)."""
    parts: int
    """Number of parts."""
    out: str = ""
    """Partition folder; by default parts/<dataset>-<parts>-<method>-<options>."""
    overwrite: bool = False
    """Replace an existing partition folder."""
    memory_limit: str = ""
    """Memory, such as 8G, for a graph that does not fit in it: edges are then streamed from the
    file (or drawn, rmat:scale=25), sorted on disk, and partitioned by a streaming method."""
    symmetrize: bool = False
    """With --memory-limit: add the reverse of every edge, and drop repeats."""
    num_nodes: int = 0
    """With --memory-limit: N, where the files do not say; 0: the largest id, plus one."""
    id_dtype: Literal["auto", "int32", "int64"] = "auto"
    """With --memory-limit: of the ids in a .bin file; auto: int32, unless they look like int64,
    which is then asked about."""
    work: str = ""
    """With --memory-limit: folder for temporary files, by default beside the result."""

    def run(self, environment: Environment) -> int:
        """Write the folder and print its quality."""
        dataset = given(self.dataset or environment.default_dataset)
        out = Path(self.out) if self.out else default_folder(dataset, self.parts, self)
        if out.exists() and not self.overwrite:
            raise ShardFormatError(
                f"{out} exists: choose another --out, or replace it with --overwrite"
            )
        if self.memory_limit:
            meta = self.write_streamed(dataset, out)
        else:
            self._refuse_stream_options()
            meta = self.write(dataset, self.parts, out, environment.root, self.overwrite)
        print(quality_table(meta, str(out)))
        return 0

    def write_streamed(self, dataset: str, out: Path) -> Meta:
        """Partition a stream of edges in little memory."""
        from gnn_dist.datasets.synthetic_streams import open_stream
        from gnn_dist.out_of_core import StreamOptions, partition_stream
        from gnn_dist.partitioners import STREAMING, make_pipeline
        from gnn_dist.sizes import parse_size

        if self.method not in STREAMING:
            raise ConfigError(
                f"method {self.method!r} needs the graph in memory, and --memory-limit streams it: "
                f"take one of {', '.join(STREAMING)}"
            )
        limit = parse_size(self.memory_limit)
        pipeline = make_pipeline(self.method, **self.options())
        stream = open_stream(dataset, num_nodes=self.num_nodes or None, id_dtype=self.id_dtype)
        pipeline.check(stream, self.parts)  # hours before the sort is done
        options = StreamOptions(
            memory_limit=limit,
            symmetrize=self.symmetrize,
            work=Path(self.work) if self.work else None,
            overwrite=self.overwrite,
            partitioner_version="\n".join(self.column_versions()),
        )
        # No streaming method cuts nodes.
        algorithm = cast("Callable[[Graph, int], Partition]", pipeline)
        return partition_stream(stream, self.parts, algorithm, out, options=options)

    def _refuse_stream_options(self) -> None:
        for name in ("symmetrize", "num_nodes", "id_dtype", "work"):
            if getattr(self, name) != getattr(PartitionCommand, name):
                raise ConfigError(
                    f"--{name.replace('_', '-')} goes with --memory-limit: give one, such as 8G"
                )


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Write the edges of a random graph of any size to a file of integer pairs.

    Example: gnn-dist generate rmat:scale=25,degree=32 --out rmat25.bin
    """

    graph: Positional[str]
    """rmat:scale=...,degree=... or sbm:nodes=...,blocks=...,degree_in=...,degree_out=..."""
    out: str
    """File to write, .bin."""
    id_dtype: Literal["int32", "int64"] = "int32"
    """Of the ids."""

    def run(self, environment: Environment) -> int:
        """Write the file and say what it holds."""
        del environment
        from gnn_dist.datasets.edge_streams import write_edges
        from gnn_dist.datasets.synthetic_streams import open_stream

        stream = open_stream(self.graph)
        written = write_edges(stream, self.out, id_dtype=self.id_dtype)
        print(f"{self.out}: {stream.num_nodes:,} nodes, {written:,} edges")
        return 0


def given(dataset: str) -> str:
    """Return the name of a dataset.

    Raises:
        ConfigError: None was given.
    """
    if not dataset:
        raise ConfigError("a dataset must be named: see `gnn-dist datasets`, or give a path")
    return dataset


def default_folder(dataset: str, parts: int, options: PartitioningOptions) -> Path:
    """Return parts/<dataset>-<parts>-<method>-..., where every option that matters shows."""
    path = Path(dataset.partition(":")[0])
    words = [re.sub(r"[^\w.-]+", "_", path.stem if path.exists() else dataset.lower())]
    words += [str(parts), options.method]
    words += [re.sub(r"[^\w.-]+", "_", f"{k}={v}") for k, v in options.options().items()]
    if options.directed:
        words.append("directed")
    source = [options.root and os.path.abspath(options.root)]
    if path.exists():
        source += [dataset, *_file_versions(path)]
    source += options.column_versions()
    if any(source):
        words.append(hashlib.sha256("\n".join(source).encode()).hexdigest()[:8])
    return Path("parts") / "-".join(words)


def _file_versions(path: Path) -> list[str]:
    """Return path, size and time of the files of user data, so that edited data differ."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        files = sorted(path.parent.glob(glob.escape(path.stem) + "*"))
    return [_version(file) for file in files]


def _version(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}"


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{name} must be numbers with commas between, got {text!r}") from error


def _assignments(text: str) -> dict[str, Any]:
    """Return the values of `a=1,b=true,c=halo`: numbers and truth values, or else text."""
    values: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"method_options must be name=value with commas between, got {text!r}"
            )
        if value.lower() in ("true", "false"):
            values[name] = value.lower() == "true"
            continue
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            values[name] = value
    return values
