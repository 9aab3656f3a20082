"""Distributed training of graph neural networks on one large graph.

Names are imported on first use, so that `import gnn_dist` stays cheap: torch is loaded only by
what needs it.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Block": "gnn_dist.halo.block",
    "Callback": "gnn_dist.train.callbacks",
    "DistNodeClassifier": "gnn_dist.estimators.nodes",
    "DistNodeRegressor": "gnn_dist.estimators.nodes",
    "DotProduct": "gnn_dist.nn.link",
    "EdgePartition": "gnn_dist.edge_partition",
    "Graph": "gnn_dist.graph",
    "LayerMemory": "gnn_dist.train.layerwise",
    "LinkEvaluation": "gnn_dist.train.link",
    "LinkLoader": "gnn_dist.sampling.link_loader",
    "LinkMLP": "gnn_dist.nn.link",
    "LinkModel": "gnn_dist.nn.link",
    "LinkSteps": "gnn_dist.train.link",
    "NegativeSampling": "gnn_dist.sampling.negatives",
    "NodeEmbedding": "gnn_dist.nn.embedding",
    "NodeLoader": "gnn_dist.sampling.loader",
    "Partition": "gnn_dist.partition",
    "RowAdagrad": "gnn_dist.nn.row_optim",
    "RowAdam": "gnn_dist.nn.row_optim",
    "Shard": "gnn_dist.shard.shard",
    "TrainConfig": "gnn_dist.train.config",
    "Trainer": "gnn_dist.train.trainer",
    "World": "gnn_dist.comm.world",
    "aggregate": "gnn_dist.halo.aggregate",
    "dgl_graph": "gnn_dist.parallel.dgl_graph",
    "edge_loss": "gnn_dist.train.link",
    "graph_from_dgl": "gnn_dist.interop",
    "graph_from_edges": "gnn_dist.graph",
    "graph_from_pyg": "gnn_dist.interop",
    "graph_to_pyg": "gnn_dist.interop",
    "link_loss": "gnn_dist.train.link",
    "link_metrics": "gnn_dist.train.link_metrics",
    "infer": "gnn_dist.train.layerwise",
    "load_dataset": "gnn_dist.datasets",
    "load_shard": "gnn_dist.halo.load",
    "make_task": "gnn_dist.train.task",
    "mean_over_ranks": "gnn_dist.halo.collectives",
    "node_loss": "gnn_dist.train.task",
    "node_rows": "gnn_dist.train.link",
    "parallelize": "gnn_dist.parallel.parallelize",
    "partition_graph": "gnn_dist.partitioners",
    "split_edges": "gnn_dist.sampling.supervision",
    "write_partition": "gnn_dist.shard.format",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    if name not in _HOME:
        raise AttributeError(f"module 'gnn_dist' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
