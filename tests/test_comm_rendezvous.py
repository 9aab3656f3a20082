"""How ranks find each other, and what they say when they do not."""

import os
import re
import socket
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

import gnn_dist
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.comm.mpi_transport import check_library, import_mpi, mpi_library
from gnn_dist.comm.rendezvous import (
    address_for,
    bindable,
    gather_with_store,
    gpu_of,
    introduce,
    open_store,
)
from gnn_dist.errors import CommError, ConfigError

ROOT = os.path.dirname(os.path.dirname(gnn_dist.__file__))


def in_threads(world_size, work):
    """Run work(rank) in a thread for each rank; return the results by rank."""
    results = [None] * world_size

    def run(rank):
        results[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_gathering_over_a_store():
    store = HashStore()

    def work(rank):
        gather = gather_with_store(store, rank, 3, 10.0)
        return gather("a", {"rank": rank}), gather("b", {"square": rank**2})

    expected = [{"rank": r} for r in range(3)], [{"square": r**2} for r in range(3)]
    assert in_threads(3, work) == [expected] * 3


def test_missing_ranks_are_named():
    store = HashStore()
    gather_with_store(store, 2, 4, 10.0)
    store.set("hello/2", "{}")
    gather = gather_with_store(store, 0, 4, 0.2)
    with pytest.raises(CommError, match="only 2 of 4 ranks came within 0 s; missing: ranks 1, 3"):
        gather("hello", {})


def test_ranks_introduce_themselves():
    store = HashStore()
    hellos = in_threads(2, lambda r: introduce(gather_with_store(store, r, 2, 10.0), f"gpu-{r}"))[0]
    assert [hello["gpu"] for hello in hellos] == ["gpu-0", "gpu-1"]
    assert hellos[0]["cores"] == sorted(os.sched_getaffinity(0))


def test_worlds_of_one_process_do_not_read_each_others_values(tmp_path):
    info = LaunchInfo("local", 0, 1, store=str(tmp_path / "store"))
    first = open_store(info, 5.0)
    first.set("x", "old")
    assert not open_store(info, 5.0).check(["x"])


def test_attempts_are_apart(tmp_path):
    stores = [
        open_store(LaunchInfo("local", 0, 1, store=str(tmp_path / "s"), attempt=a), 5.0)
        for a in "01"
    ]
    stores[0].set("x", "old")
    assert isinstance(stores[1], PrefixStore)
    assert not stores[1].check(["x"])


def test_a_busy_port_is_an_input_error():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        info = LaunchInfo("torchrun", 0, 2, master_addr="127.0.0.1", master_port=port)
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            open_store(info, 5.0)
    assert "MASTER_PORT" in str(caught.value)


def test_no_rank_0():
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
    info = LaunchInfo("slurm", 1, 2, master_addr="127.0.0.1", master_port=port)
    with pytest.raises(CommError, match=f"rank 1 found no rank 0 at 127.0.0.1:{port} within 1 s"):
        open_store(info, 1.0)


def test_a_name_that_does_not_resolve(monkeypatch):
    monkeypatch.setattr("gnn_dist.comm.rendezvous.RESOLVE_PAUSE_S", 0.01)
    info = LaunchInfo("slurm", 1, 2, master_addr="n1.invalid", master_port=20001)
    with pytest.raises(ConfigError, match=r"'n1.invalid', as slurm says, .* set MASTER_ADDR"):
        open_store(info, 1.0)


@pytest.mark.parametrize(
    ("known", "missing"),
    [({"master_port": 1}, "MASTER_ADDR"), ({"master_addr": "x"}, "MASTER_PORT")],
)
def test_no_meeting_point(known, missing):
    with pytest.raises(ConfigError, match=f"told no meeting point: set {missing}"):
        open_store(LaunchInfo("slurm", 0, 2, **known), 1.0)


def test_the_address_that_all_use():
    assert address_for(["a|1|x", "a|1|x"], "10.1.1.1") == "127.0.0.1"
    assert address_for(["a|1|x", "b|1|x"], "10.1.1.1") == "10.1.1.1"
    assert address_for(["a|1|x", "127.0.0.2|1|x"], None) == "127.0.0.1"
    assert address_for(["a|1|x", "no.such.host.invalid|1|x"], None) == socket.gethostname()


def test_what_to_listen_on():
    assert bindable("127.0.0.1") == "127.0.0.1"
    assert bindable("192.0.2.1") == "0.0.0.0"  # an address of nobody here
    assert bindable("localhost") == "0.0.0.0"  # a name that others resolve differently


@pytest.mark.parametrize(
    ("count", "local_rank", "local_size", "index"),
    [(0, 0, 1, None), (4, 2, 4, 2), (1, 3, 4, 0), (2, 1, 4, None), (1, 0, 1, 0)],
)
def test_which_gpu(monkeypatch, count, local_rank, local_size, index):
    class Properties:
        uuid = "GPU-1"

    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda i: Properties)
    found = gpu_of(local_rank, local_size)
    assert (None if found is None else found[0].index) == index


MAPS = """\
7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libmpi_cxx.so.40
7f01-7f02 r-xp 00000000 08:01 13 /opt/site mpi/lib/libmpi.so.40.30
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r-xp 00000000 08:01 14 /usr/lib/libc.so.6
"""


def test_the_loaded_mpi_library():
    assert mpi_library(MAPS) == "/opt/site mpi/lib/libmpi.so.40.30"
    assert mpi_library("x r 0 0 1 /opt/lib/libmpich.so.12") == "/opt/lib/libmpich.so.12"
    assert mpi_library("") == ""


def test_a_library_of_another_launcher_is_explained():
    with pytest.raises(CommError, match="openmpi started 4 ranks but MPI sees 1: mpi4py has load"):
        check_library("openmpi", 4, 1)
    check_library("openmpi", 4, 4)
    check_library("pmix", 0, 4)


def test_the_wheels_library_on_a_cluster_is_a_warning(monkeypatch, caplog):
    library = f"{sys.prefix}/lib/libmpi.so.12"
    monkeypatch.setattr("gnn_dist.comm.mpi_transport.mpi_library", lambda maps: library)
    check_library("hydra", 2, 2, parent=f"{sys.prefix}/bin/mpirun")
    assert caplog.text == ""
    check_library("hydra", 2, 2, parent="/usr/bin/mpirun")
    assert f"library of a Python wheel ({library})" in caplog.text
    caplog.clear()
    check_library("slurm", 2, 2, warn=False)
    assert caplog.text == ""
    check_library("slurm", 2, 2)
    assert "load the cluster's MPI module" in caplog.text


def test_mpi_without_mpi4py_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=re.escape("pip install gnn-dist[mpi]")):
        import_mpi()


REUSE = """
import os, torch, torch.distributed as dist
from gnn_dist.comm.world import World

dist.init_process_group("gloo")
for _ in range(2):
    with World.from_env() as world:
        total = torch.ones(1)
        world.transport.all_reduce(total).wait()
        assert total.item() == 2, total
        world.split(0).transport.barrier()
dist.barrier()
assert dist.is_initialized()
dist.destroy_process_group()
for _ in range(2):
    with World.from_env("gloo") as world:
        world.transport.barrier()
        assert dist.is_initialized()
    assert not dist.is_initialized()
os.write(1, f"rank {world.rank} of {world.world_size} fine\\n".encode())  # in one piece
"""

TOGETHER = """
import os, torch
from gnn_dist.comm.world import World

with World.from_env(%r) as world:
    total = torch.ones(1)
    world.transport.all_reduce(total).wait()
    line = f"rank {world.rank} of {world.world_size} {world.transport.backend} {int(total)}"
    os.write(1, f"{line} {torch.get_num_threads()}\\n".encode())  # in one piece
"""


def run_program(tmp_path, text, launcher):
    (tmp_path / "program.py").write_text(text)
    names = ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMP_NUM_THREADS")
    env = {k: v for k, v in os.environ.items() if k not in names}
    return subprocess.run(
        [*launcher, str(tmp_path / "program.py")],
        env={**env, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=120,
    )


def torchrun(num_ranks):
    line = "-m torch.distributed.run --standalone --nproc-per-node"
    return [sys.executable, *line.split(), str(num_ranks)]


def test_torchrun_and_a_process_group_that_exists(tmp_path):
    done = run_program(tmp_path, REUSE, torchrun(2))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 of 2 fine", "rank 1 of 2 fine"]


@pytest.mark.parametrize("backend", ["auto", "mpi", "gloo"])
def test_mpirun(tmp_path, backend):
    pytest.importorskip("mpi4py")
    mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if not os.path.exists(mpirun):
        pytest.skip("no mpirun beside this Python")
    done = run_program(tmp_path, TOGETHER % backend, [mpirun, "-n", "3", sys.executable])
    assert done.returncode == 0, done.stderr
    used = "gloo" if backend == "gloo" else "mpi"
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    expected = [f"rank {r} of 3 {used} 3 {threads}" for r in range(3)]
    assert sorted(done.stdout.split("\n")) == ["", *expected]
    assert done.stderr == ""


def test_no_group_is_left_behind():
    assert not dist.is_initialized()
