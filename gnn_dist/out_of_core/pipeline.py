"""From a stream of edges to a partition folder, with memory for the nodes but not for the edges.

    sort       external_sort.py    CSR on disk
    partition  the algorithm       assignment.npy
    write      shard/writer.py     part folders

Each stage leaves a stamp in the work folder, so that a run that was interrupted continues at the
stage it was in.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnn_dist.edge_stream import EdgeStream, GraphOnDisk
from gnn_dist.errors import ConfigError, PartitionError
from gnn_dist.graph import Graph
from gnn_dist.out_of_core.external_sort import external_sort
from gnn_dist.out_of_core.plan import make_plan
from gnn_dist.out_of_core.progress import ProgressBars
from gnn_dist.out_of_core.stages import Stages
from gnn_dist.partition import Partition
from gnn_dist.shard.format import Meta, check_target, remove_leftovers, write_partition
from gnn_dist.shard.locks import locked

__all__ = ["Refine", "StreamOptions", "partition_stream"]

Refine = Callable[[Graph, Partition], Partition]

ASSIGNMENT = "assignment.npy"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a stream is partitioned.

    Attributes:
        memory_limit: Bytes that the process may take, the partitioner's own apart; None: no limit.
        symmetrize: Add the reverse of every edge and drop repeats.
        work: The work folder, by default beside the result; deleted at the end.
        resume: Continue an interrupted run; else begin anew.
        overwrite: Replace an existing partition folder.
        quiet: Show no progress.
        partitioner_version: Differs where what the partitioner reads beside the graph does (a file
            of weights), so that an assignment made of other weights is not used again.
    """

    memory_limit: int | None = None
    symmetrize: bool = False
    work: Path | None = None
    resume: bool = True
    overwrite: bool = False
    quiet: bool = False
    partitioner_version: str = ""


def partition_stream(
    stream: EdgeStream,
    num_parts: int,
    partitioner: Callable[[Graph, int], Partition],
    out: str | Path,
    *,
    refine: Refine | None = None,
    options: StreamOptions | None = None,
) -> Meta:
    """Partition a stream of edges and write a partition folder.

    The folder is the same, byte for byte, as `write_partition` makes of the graph in memory.
    Memory: 24 bytes a node, N / 4 for each part written at a time, fixed buffers, and what the
    partitioner takes. Disk: 12 to 16 bytes an edge in the work folder.

    Args:
        stream: The edges, and node data if there are any.
        num_parts: P.
        partitioner: Called with the graph, whose arrays are mapped files. Whether an assignment
            that an earlier run left is of the same partitioner is told by its `repr`, which for a
            dataclass names all options; that of a function is never used again.
        out: The partition folder to make.
        refine: Improves the partition, told apart as the partitioner is.
        options: Limits, and what to do about earlier runs.

    Returns:
        What was written to `meta.json`.

    Raises:
        ConfigError: The limit or the disk does not suffice, or the work folder is something else,
            in use by another process, or cannot be written.
        GraphError: The stream yields what are no edges of its nodes.
        PartitionError: The partitioner returned no partition of the graph.
        ShardFormatError: `out` exists and may not be replaced, or cannot be written.
    """
    out, options = Path(out), options or StreamOptions()
    check_target(out, options.overwrite)
    folder = options.work or out.with_name(f".{out.name}.work")
    plan = make_plan(
        stream,
        num_parts,
        out,
        memory_limit=options.memory_limit,
        symmetrize=options.symmetrize,
        work=folder,
    )
    log.info("%s: %s", stream.name, plan)
    with _claimed(folder, stream.name), ProgressBars(shown=not options.quiet) as bars:
        graph, _ = external_sort(
            stream,
            folder,
            symmetrize=options.symmetrize,
            memory_bytes=plan.sort_bytes,
            resume=options.resume,
            progress=bars,
        )
        version = f"{stream.version} {options.symmetrize} {options.partitioner_version}"
        partition = _partition(graph, num_parts, (partitioner, refine), folder, version)
        remove_leftovers(out)
        meta = write_partition(
            graph,
            partition,
            out,
            overwrite=options.overwrite,
            progress=bars,
            mark_bytes=plan.mark_bytes,
        )
        Stages(folder).remove()
    return meta


@contextmanager
def _claimed(folder: Path, name: str) -> Iterator[None]:
    """Keep other processes out of the work folder, and say in a sentence what fails in it.

    Raises:
        ConfigError: Another process is at work there, or a file cannot be read or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder) as free:
            if not free:
                raise ConfigError(
                    f"another process is at work in {folder}: wait for it, or choose another --work"
                )
            yield
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be partitioned with the work folder {folder}: {error}; when that is "
            "mended, the same command goes on where it was"
        ) from error


def _partition(
    graph: GraphOnDisk,
    num_parts: int,
    algorithm: tuple[Callable[[Graph, int], Partition], Refine | None],
    folder: Path,
    version: str,
) -> Partition:
    """Call the partitioner, or read what an earlier run left of it."""
    stages, (partitioner, refine) = Stages(folder), algorithm
    task: dict[str, Any] = {
        "graph": [graph.name, version, graph.num_nodes, graph.num_edges],
        "num_parts": num_parts,
        "algorithm": repr(algorithm),
    }
    # A function has no name that another process could tell it by.
    left = None if " at 0x" in task["algorithm"] else stages.done("partition", task)
    if left is not None:
        return Partition(np.load(folder / ASSIGNMENT), num_parts, **_as_record(left))
    stages.begin("partition")
    partition = partitioner(graph, num_parts)
    if refine is not None:
        partition = refine(graph, partition)
    if partition.num_parts != num_parts or len(partition.assignment) != graph.num_nodes:
        raise PartitionError(
            f"the partitioner must assign {graph.num_nodes} nodes to {num_parts} parts, got "
            f"{len(partition.assignment)} nodes and {partition.num_parts} parts"
        )
    np.save(folder / ASSIGNMENT, partition.assignment)
    record = {n: getattr(partition, n) for n in ("method", "options", "notes")}
    stages.finish("partition", task, record, (ASSIGNMENT,))
    return partition


def _as_record(left: dict[str, Any]) -> dict[str, Any]:
    return {**left, "notes": tuple(left["notes"])}
