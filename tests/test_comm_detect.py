"""Which launcher started a process, from fake environments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.comm.detect import LaunchInfo, detect_launch, expand_hostlist
from gnn_dist.errors import ConfigError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "OMP_NUM_THREADS": "1",
}
SRUN = {
    "SLURM_JOB_ID": "45678",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "99",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "n[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "45678",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "n[01-02]",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"}


def test_nothing_is_one_rank():
    assert detect_launch({}) == LaunchInfo("single", 0, 1)


def test_torchrun():
    assert detect_launch(TORCHRUN) == LaunchInfo(
        "torchrun",
        3,
        4,
        local_rank=1,
        local_world_size=2,
        master_addr="n1",
        master_port=29500,
        agent_store=True,
        threads_set=True,
        attempt="2",
    )


def test_our_own_launcher_needs_no_port():
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GNN_DIST_STORE": "/tmp/x/store"}
    info = detect_launch(env)
    assert (info.launcher, info.store, info.master_port) == ("local", "/tmp/x/store", None)
    assert not info.is_mpi


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "PMIX_RANK": "2",
            },
            "openmpi",
        ),
        (HYDRA, "hydra"),
        ({"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "3"}, "mvapich"),
    ],
)
def test_mpi_launchers(env, launcher):
    info = detect_launch(env)
    assert (info.launcher, info.rank, info.world_size, info.is_mpi) == (launcher, 2, 3, True)
    assert info.local_rank == {"openmpi": 0, "hydra": 2, "mvapich": None}[launcher]


def test_pmix_alone_does_not_know_the_size():
    info = detect_launch({"PMIX_RANK": "2"})
    assert (info.launcher, info.rank, info.world_size) == ("pmix", 2, 0)


def test_srun():
    info = detect_launch(SRUN)
    assert info == LaunchInfo(
        "slurm",
        5,
        7,
        local_rank=1,
        local_world_size=3,
        master_addr="n01",
        master_port=20000 + 45678 % 20000,
        attempt="45678.0.0",
    )


def test_srun_with_pmi2_is_slurm():
    assert detect_launch({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "7"}).launcher == "slurm"


def test_mpirun_inside_a_slurm_job_is_mpirun():
    """Hydra starts one daemon a node with srun; the ranks inherit the daemon's variables."""
    daemon = {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    info = detect_launch({**daemon, "PMI_RANK": "2", "PMI_SIZE": "3"})
    assert (info.launcher, info.rank, info.world_size) == ("hydra", 2, 3)


def test_torchrun_inside_srun_is_torchrun():
    assert detect_launch({**SRUN, **TORCHRUN}).launcher == "torchrun"


def test_a_batch_script_is_one_rank():
    assert detect_launch(BATCH_SCRIPT).launcher == "single"
    # As a step of its own number: 0xfffffffb as unsigned, and as signed.
    for step in ("4294967291", "-5"):
        assert detect_launch({**BATCH_SCRIPT, "SLURM_STEP_ID": step}).launcher == "single"


def test_an_interactive_shell_is_one_rank():
    shell = {**SRUN, "SLURM_STEP_ID": "4294967290"}
    assert detect_launch(shell) == LaunchInfo()
    salloc = {k: v for k, v in BATCH_SCRIPT.items() if k not in ("SLURM_PROCID", "SLURM_LOCALID")}
    assert detect_launch(salloc) == LaunchInfo()


def test_a_step_of_one_task_is_one_rank():
    env = {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert detect_launch(env) == LaunchInfo()


def test_concurrent_steps_take_different_ports():
    ports = {detect_launch({**SRUN, "SLURM_STEP_ID": str(s)}).master_port for s in range(5)}
    assert len(ports) == 5


def test_a_restarted_job_is_another_attempt():
    assert detect_launch({**SRUN, "SLURM_RESTART_COUNT": "1"}).attempt == "45678.0.1"


def test_the_user_chooses_address_and_port():
    info = detect_launch({**SRUN, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "1234"})
    assert (info.master_addr, info.master_port) == ("10.0.0.7", 1234)


def test_one_slurm_node_meets_on_the_loopback_device():
    env = {**SRUN, "SLURM_STEP_NODELIST": "n01", "SLURM_STEP_TASKS_PER_NODE": "7"}
    assert detect_launch({**env, "SLURM_NODEID": "0"}).master_addr == "127.0.0.1"


def test_old_slurm_names():
    env = {k: v for k, v in SRUN.items() if not k.startswith("SLURM_STEP")}
    env |= {"SLURM_STEPID": "2", "SLURM_NPROCS": "6", "SLURM_JOB_NODELIST": "a,b"}
    del env["SLURM_NTASKS"]
    info = detect_launch({**env, "SLURM_TASKS_PER_NODE": "3(x2)"})
    assert (info.world_size, info.local_world_size, info.master_addr) == (6, 3, "a")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK must hold a whole number, got 'x'"),
        ({**TORCHRUN, "MASTER_PORT": "auto"}, "MASTER_PORT must hold a whole number, got 'auto'"),
        ({**TORCHRUN, "RANK": "4"}, "torchrun says rank 4 of 4 ranks, which cannot be"),
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"}, r"must look like '4\(x2\),3', got 'many'"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE must hold a whole number, got None"),
    ],
)
def test_contradictions_are_named(env, message):
    with pytest.raises(ConfigError, match=message):
        detect_launch(env)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[01-03,7],gpu-a1", ["n01", "n02", "n03", "n7", "gpu-a1"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]c[1-2]-ib", ["r1c1-ib", "r1c2-ib", "r2c1-ib", "r2c2-ib"]),
        ("a,b[3],c-4.x", ["a", "b3", "c-4.x"]),
    ],
)
def test_host_lists(text, hosts):
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[1", "n1]", "n[]", "n[1-x]", "a,,b", "n[1,]"])
def test_broken_host_lists_are_refused(text):
    with pytest.raises(ConfigError, match="a host list must look like"):
        expand_hostlist(text)


@given(first=st.integers(0, 2000), count=st.integers(1, 50), width=st.integers(1, 5))
def test_host_ranges_expand_to_every_number(first, count, width):
    numbers = [str(n).zfill(width) for n in range(first, first + count)]
    assert expand_hostlist(f"n[{numbers[0]}-{numbers[-1]}]") == [f"n{n}" for n in numbers]
