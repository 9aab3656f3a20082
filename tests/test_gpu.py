"""The same code on CUDA devices: one against the CPU, two against one through NCCL."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case
from test_equivalence import VARIANTS, by_original_id, one_step

from gnn_dist.comm.world import World
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def assert_equal(many, one):
    for a, b in zip(many, one, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize(("model", "aggr"), VARIANTS)
def test_a_gpu_computes_what_the_cpu_computes(model, aggr, name, tmp_path):
    graph = awkward_case(name, 1).graph
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "parts")
    on_cpu, on_gpu = (
        by_original_id([one_step(World.single(device), tmp_path / "parts", model, aggr, "overlap")])
        for device in ("cpu", "cuda")
    )
    assert_equal(on_gpu, on_cpu)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize(("model", "aggr"), VARIANTS)
def test_ranks_on_nccl_compute_what_one_process_computes(model, aggr, name, tmp_path):
    _, graph, partition = awkward_case(name, 2)
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "one")
    write_partition(graph, partition, tmp_path / "two")
    one = by_original_id([one_step(World.single(), tmp_path / "one", model, aggr, "blocking")])
    for halo in ("blocking", "overlap"):
        two = run_ranks(one_step, 2, tmp_path / "two", model, aggr, halo, backend="nccl")
        assert_equal(by_original_id(two), one)
