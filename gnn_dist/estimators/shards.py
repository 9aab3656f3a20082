"""From what an estimator is given to a shard: a partition folder, or a graph to be partitioned."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.graph import Graph
from gnn_dist.halo.load import load_shard
from gnn_dist.interop import graph_from_pyg
from gnn_dist.partitioners import partition_graph
from gnn_dist.shard.format import write_partition
from gnn_dist.shard.shard import Shard

__all__ = ["shard_of"]


def shard_of(parts: Any, num_parts: int, world: World, *, regression: bool) -> Shard:  # noqa: ANN401
    """Collective. Return this rank's shard.

    Args:
        parts: A partition folder; or a `Graph` or a `torch_geometric.data.Data`, equal on all
            ranks, which rank 0 partitions into a temporary folder that all ranks must see.
        num_parts: Parts to make of a graph; 0 for one for each rank.
        world: The ranks.
        regression: Whether labels of a PyG graph are numbers to predict.

    Raises:
        ConfigError: `parts` is nothing of these.
    """
    if isinstance(parts, str | Path):
        return load_shard(parts, world)
    graph = _as_graph(parts, regression)
    with _partitioned(graph, num_parts or world.world_size, world) as folder:
        shard = load_shard(folder, world, verify=False)
        world.transport.barrier()  # all have read before rank 0 deletes it
    return shard


def _as_graph(parts: Any, regression: bool) -> Graph:  # noqa: ANN401
    if isinstance(parts, Graph):
        return parts
    if hasattr(parts, "edge_index"):
        return graph_from_pyg(parts, regression=regression)
    raise ConfigError(
        "parts must be a partition folder, a Graph or a torch_geometric Data, got "
        f"{type(parts).__name__}"
    )


@contextmanager
def _partitioned(graph: Graph, num_parts: int, world: World) -> Iterator[str]:
    """Collective. Have rank 0 write the partition of a graph, for as long as this lasts."""
    base = ""
    try:
        with world.everywhere("partitioning the graph"):
            if world.is_main:
                base = tempfile.mkdtemp(prefix="gnn-dist-parts-")
                method = "best" if num_parts > 1 else "contiguous"
                partition = partition_graph(graph, num_parts, method)
                write_partition(graph, partition, Path(base) / "parts")
        yield world.transport.all_gather_object(f"{base}/parts")[0]
    finally:
        if base:
            shutil.rmtree(base, ignore_errors=True)
