"""Partitioning graphs that do not fit in memory: sort on disk, partition, write, resume."""

from gnn_dist.out_of_core.external_sort import external_sort
from gnn_dist.out_of_core.pipeline import StreamOptions, partition_stream
from gnn_dist.out_of_core.plan import Plan, make_plan

__all__ = ["Plan", "StreamOptions", "external_sort", "make_plan", "partition_stream"]
