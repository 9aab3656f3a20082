"""One partition: made in this process, and what it costs."""

import ctypes
import gc
import os
import time
from typing import Any

import graphs
import memory
import numpy as np
import peers
import torch  # noqa: F401 - loaded before a process of its own is forked for each row
from methods import BALANCE, PEER, UNBALANCED

import gnn_dist as gd
from gnn_dist.edge_partition import EdgePartition, measure_edge_quality
from gnn_dist.partition import Partition, measure_quality
from gnn_dist.partitioners.balance import make_balance
from gnn_dist.partitioners.vertex_cut import edge_limit

LOOK_S = 0.01  # how often memory is looked at


def partition(graph: gd.Graph, method: str, parts: int, balance: str) -> Partition | EdgePartition:
    """Return the partition of a method, `+refine` where it says so, or of a peer."""
    if method.startswith(PEER):
        assignment = peers.PEERS[method.removeprefix(PEER)](graph, parts)
        return Partition(np.asarray(assignment, np.int32), parts)
    name, _, refined = method.partition("+")
    options = {} if name in UNBALANCED else {"balance": balance}
    return gd.partition_graph(graph, parts, name, refine=bool(refined), **options)


def measure(
    name: str, method: str, parts: int, balance: str, folders: graphs.Folders
) -> dict[str, Any]:
    """Return a row: what was made, its quality, seconds, and MiB beside the graph.

    Libraries and child processes are tried on a ring first, so that loading them is no part of
    what is measured. The graph itself is in memory and not counted.
    """
    ring = np.arange(64)
    small = graphs.with_masks(gd.graph_from_edges(ring, (ring + 1) % 64, symmetrize=True))
    partition(small, method, 2, balance)
    graph = graphs.load(name, folders)
    graph.is_symmetric  # noqa: B018 - cached now
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    watch = memory.Watch(os.getpid(), memory.RESIDENT, LOOK_S)
    before = watch.peak
    watch.start()
    start = time.perf_counter()
    made = partition(graph, method, parts, balance)
    seconds = time.perf_counter() - start
    watch.stop()
    quality = _edge_cut(graph, made) if isinstance(made, Partition) else _vertex_cut(graph, made)
    key = {"graph": name, "method": method, "parts": parts, "balance_option": balance}
    cost = {"seconds": seconds, "mib": (watch.peak - before) // 2**20, "notes": list(made.notes)}
    return key | quality | cost


def _edge_cut(graph: gd.Graph, made: Partition) -> dict[str, Any]:
    quality = measure_quality(graph, made)
    limits = make_balance(graph, made.num_parts, BALANCE, 0.05)
    return {
        "rf": quality.replication_factor,
        "cut": quality.edge_cut_fraction,
        "balance": quality.balance,
        "within_limits": limits.is_met(made.assignment),
        "excess": limits.excess(made.assignment),
    }


def _vertex_cut(graph: gd.Graph, made: EdgePartition) -> dict[str, Any]:
    quality = measure_edge_quality(graph, made)
    limit = edge_limit(graph.num_edges, made.num_parts, 0.05)
    most = max(quality.num_edges)
    return {
        "rf": quality.replication_factor,
        "cut": quality.split_fraction,
        "balance": {name: quality.balance[name] for name in ("nodes", "edges", "train")},
        "within_limits": most <= limit,
        "excess": max(0.0, most / limit - 1),
    }
