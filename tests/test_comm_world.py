"""Worlds: how they begin, agree on errors, and end."""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import gnn_dist
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.comm.joining import agreed_backend, fair_threads
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GraphError, RankError, ShardFormatError
from gnn_dist.testing import RanksFailed, run_ranks


def test_a_single_world():
    with World.single() as world:
        assert (world.rank, world.world_size, world.local_rank) == (0, 1, 0)
        assert world.is_main
        assert world.device == torch.device("cpu")
        assert world.split(3).world_size == 1
        world.raise_everywhere(None, "nothing")
        with pytest.raises(KeyError), world.everywhere("something"):
            raise KeyError("x")
        text = "World(rank=0, world_size=1, backend='local', device='cpu')"
        assert repr(world) == text
    world.close()


def test_the_package_offers_it():
    assert gnn_dist.World is World


def test_a_launch_of_one_rank_needs_no_meeting_point():
    info = LaunchInfo("torchrun", 0, 1, master_addr="nowhere.invalid", master_port=1)
    with World.from_launch(info, "gloo") as world:
        assert world.transport.backend == "local"


@pytest.mark.parametrize(
    ("backend", "info", "message"),
    [
        ("glo", LaunchInfo(), "got 'glo': did you mean 'gloo'"),
        ("MPI", LaunchInfo(), "got 'MPI': did you mean 'mpi'"),
        ("mpi", LaunchInfo("torchrun", 0, 2), "mpirun or srun started, not torchrun"),
    ],
)
def test_a_backend_that_cannot_work_is_refused(backend, info, message):
    with pytest.raises(ConfigError, match=message):
        World.from_launch(info, backend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here nccl can be used")
def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="backend 'nccl' needs a CUDA device"):
        World.from_launch(LaunchInfo(), "nccl")


def describe(world):
    return world.is_main, world.local_rank, world.device.type, world.transport.backend != "local"


@pytest.mark.mpi
def test_every_rank_knows_its_place():
    assert run_ranks(describe, 3) == [(r == 0, r, "cpu", True) for r in range(3)]


def raise_on(world, messages):
    """Each rank fails with its message, if it has one; tell what it then raises."""
    text = messages[world.rank]
    error = None if text is None else GraphError(text)
    try:
        world.raise_everywhere(error, "testing")
    except GraphError as raised:
        return str(raised), raised is error
    return None


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([None, None, None], [None, None, None]),
        ([None, "bad", None], [("rank 1: bad", False), ("bad", True), ("rank 1: bad", False)]),
        (["a", None, "c"], [("a", True), ("rank 0: a\nrank 2: c", False), ("c", True)]),
        (["same", "same", "same"], [("same", True)] * 3),
    ],
)
def test_errors_are_raised_everywhere(messages, expected):
    assert run_ranks(raise_on, 3, messages) == expected


def agree_on(world, kind):
    try:
        with world.everywhere("loading the shard"):
            if world.rank == 1:
                raise {"shard": ShardFormatError, "key": KeyError, "rank": RankError}[kind]("k")
    except Exception as error:
        caught = type(error).__name__, str(error)
    else:
        caught = None
    if kind != "rank":
        world.transport.barrier()  # the world goes on
    return caught


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("kind", "own", "others"),
    [
        ("shard", ("ShardFormatError", "k"), ("ShardFormatError", "rank 1: k")),
        (
            "key",
            ("KeyError", "'k'"),
            ("RankError", "rank 1 failed while loading the shard: KeyError: 'k'"),
        ),
    ],
)
def test_a_body_that_fails_on_one_rank(kind, own, others):
    assert run_ranks(agree_on, 3, kind) == [others, own, others]


def agree_in_groups(world):
    group = world.split(world.rank % 2)
    try:
        group.raise_everywhere(GraphError("x") if world.rank == 3 else None, "testing")
    except GraphError as error:
        return str(error)
    return None


def test_a_group_names_ranks_of_the_whole_world():
    assert run_ranks(agree_in_groups, 4) == [None, "rank 3: x", None, "x"]


def leave_with_agreed_error(world):
    gather = world.transport.all_gather_object

    def gather_slowly(obj):
        gathered = gather(obj)
        time.sleep(0.5 * world.rank)
        world.control.check()  # those who left already have not called this a failure
        return gathered

    world.transport.all_gather_object = gather_slowly
    world.raise_everywhere(GraphError("bad") if world.rank == 1 else None, "testing")


@pytest.mark.mpi
def test_an_agreed_error_keeps_its_class_on_the_way_out():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(leave_with_agreed_error, 3)
    kinds = {f.rank: (f.kind, f.message) for f in caught.value.failures}
    others = ("GraphError", "rank 1: bad")
    assert kinds == {0: others, 1: ("GraphError", "bad"), 2: others}


def close_in_odd_ways(world):
    world.transport.barrier()
    group = world.split(0)
    group.close()
    group.close()
    world.close()
    world.close()
    del group
    gc.collect()
    return True


@pytest.mark.mpi
def test_closing_twice_is_harmless():
    assert run_ranks(close_in_odd_ways, 3) == [True] * 3


def use_transport_of_a_dropped_group(world):
    transport = world.split(0).transport
    gc.collect()
    transport.barrier()
    return transport.world_size


@pytest.mark.mpi
def test_a_transport_outlives_its_world():
    assert run_ranks(use_transport_of_a_dropped_group, 2) == [2, 2]


@pytest.mark.parametrize(
    ("cores", "threads"),
    [
        ([[0, 1, 2, 3]] * 2, 2),  # both may use all
        ([[0, 1], [2, 3]], 2),  # bound to cores of their own
        ([[0], [0]], 1),  # more ranks than cores
        ([[0, 1, 2], [2]], 2),  # 1 + 1 + 1/2
        ([[], []], 1),  # unknown
    ],
)
def test_ranks_divide_the_cores(cores, threads):
    hellos = [{"host": "a", "cores": c} for c in cores]
    hellos.append({"host": "b", "cores": cores[0]})
    assert fair_threads(0, hellos) == threads


@pytest.mark.parametrize(
    ("asked", "gpus", "agreed"),
    [
        ("gloo", [("a", "g0"), ("a", "g1")], "gloo"),
        ("mpi", [("a", None)], "mpi"),
        ("auto", [("a", "g0"), ("a", "g1")], "nccl"),
        ("auto", [("a", "g0"), ("b", "g0")], "nccl"),
        ("auto", [("a", "g0"), ("a", "g0")], "gloo"),
        ("auto", [("a", "g0"), ("a", None)], "gloo"),
        ("nccl", [("a", "g0"), ("a", "g1")], "nccl"),
    ],
)
def test_the_backend_fits_all_gpus(asked, gpus, agreed):
    assert agreed_backend(asked, gpus) == agreed


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([("a", "g"), ("a", "g")], "share one"),
        ([("a", "g"), ("a", None)], r"ranks \[1\] have none"),
    ],
)
def test_nccl_needs_a_gpu_for_every_rank(gpus, why):
    with pytest.raises(ConfigError, match=why):
        agreed_backend("nccl", gpus)


PROGRAM = """
import os, sys, time
import torch
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, RankError

what = sys.argv[1]
world = World.from_env("gloo", timeout_s=20.0)
try:
    world.transport.barrier()
    if what == "unclosed":
        sys.exit(0)
    if what == "unhandled" and world.rank == 1:
        raise ConfigError("broken option")
    if what == "within":
        with world:
            if world.rank == 1:
                raise ConfigError("broken option")
            time.sleep(0.2)
            world.transport.barrier()
    time.sleep(0.2)
    world.transport.barrier()
except RankError as error:
    print(f"<{error}>", flush=True)
    sys.exit(5)
"""


def start_program(tmp_path, what, world_size=2):
    (tmp_path / "program.py").write_text(PROGRAM)
    root = os.path.dirname(os.path.dirname(gnn_dist.__file__))
    processes = []
    for rank in range(world_size):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "GNN_DIST_STORE": str(tmp_path / "store"),
            "PYTHONPATH": root,
            "OMP_NUM_THREADS": "1",
        }
        line = [sys.executable, str(tmp_path / "program.py"), what]
        processes.append(
            subprocess.Popen(
                line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    results = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        results.append((process.returncode, out, err))
    return results


def test_a_world_that_nobody_closes_ends_cleanly(tmp_path):
    for code, out, err in start_program(tmp_path, "unclosed"):
        assert (code, out, err) == (0, "", "")


@pytest.mark.parametrize("what", ["unhandled", "within"])
def test_an_error_of_a_program_reaches_the_others(tmp_path, what):
    (code0, out0, _), (code1, _, err1) = start_program(tmp_path, what)
    assert code1 == 1
    assert "broken option" in err1
    assert code0 == 5
    assert out0 == "<rank 1 failed: broken option>\n"


def interrupted(world):
    """Ctrl-C while blocked in a wait that is woken by another rank's end."""
    if world.rank == 1:
        signal.raise_signal(signal.SIGINT)
    world.transport.barrier()


def test_ctrl_c_on_one_rank_stops_all():
    started = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        run_ranks(interrupted, 2)
    assert {f.rank: f.kind for f in caught.value.failures} == {
        0: "RankError",
        1: "KeyboardInterrupt",
    }
    assert time.monotonic() - started < 15
