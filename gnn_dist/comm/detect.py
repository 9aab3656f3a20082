"""Which launcher started this process, as which rank. Pure: the environment is an argument."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnn_dist.errors import ConfigError

__all__ = ["LaunchInfo", "detect_launch", "expand_hostlist"]

Env = Mapping[str, str]

# The last values of Slurm's unsigned 32-bit step ids are no steps of tasks: the batch script,
# the external step, an interactive shell.
FIRST_SPECIAL_STEP = 0xFFFFFFF0
SINGLE_PORT_RANGE = 20_000
# They make MPI move messages by a thread of its own: MPICH, Intel MPI, Open MPI.
PROGRESSES = (
    "MPIR_CVAR_ASYNC_PROGRESS",
    "I_MPI_ASYNC_PROGRESS",
    "OMPI_MCA_btl_tcp_progress_thread",
)


@dataclass(frozen=True)
class LaunchInfo:
    """What a launcher tells a process.

    Attributes:
        launcher: `single`, `local` (our own `--ranks N`), `torchrun`, `openmpi`, `mvapich`,
            `hydra` (MPICH, Intel MPI), `pmix` or `slurm`.
        rank: This process's rank.
        world_size: How many ranks there are; 0 if only MPI knows.
        local_rank: The rank among those of this host; None if not told.
        local_world_size: The ranks on this host; None if not told.
        master_addr: The address of rank 0's host; None if not told.
        master_port: A port for the rendezvous on it; None if not told.
        store: Path of a file that serves as rendezvous, instead of address and port.
        agent_store: Whether the launcher itself serves the rendezvous at the port.
        threads_set: Whether the number of threads was chosen (OMP_NUM_THREADS).
        attempt: Differs each time that the same launch is restarted.
        mpi_progress: Whether MPI is to be polled while the program computes: GNN_DIST_MPI_PROGRESS
            says so by 1 or 0; else it is, unless MPI's own thread for that has been asked for.

    Example:
        >>> detect_launch({"PMI_RANK": "1", "PMI_SIZE": "4"}).launcher
        'hydra'
    """

    launcher: str = "single"
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    store: str | None = None
    agent_store: bool = False
    threads_set: bool = False
    attempt: str = "0"
    mpi_progress: bool = True

    def __post_init__(self) -> None:
        if self.world_size < 0 or not 0 <= self.rank < max(1, self.world_size or self.rank + 1):
            raise ConfigError(
                f"{self.launcher} says rank {self.rank} of {self.world_size} ranks, which cannot "
                "be: check the environment variables that start this process"
            )

    @property
    def is_mpi(self) -> bool:
        """Whether an MPI launcher started this process."""
        return self.launcher in ("openmpi", "mvapich", "hydra", "pmix")


def detect_launch(env: Env) -> LaunchInfo:
    """Find out from environment variables which launcher started this process.

    The most specific one wins: torchrun inside a Slurm step is torchrun; mpirun inside a Slurm
    job, whose own daemons are tasks of a step, is mpirun.

    Args:
        env: The environment, such as `os.environ`.

    Raises:
        ConfigError: A variable holds no whole number, or they contradict each other.
    """
    for detect in (_torchrun, _openmpi, _mvapich, _hydra, _slurm, _pmix):
        info = detect(env)
        if info is not None:
            threads_set = bool(env.get("OMP_NUM_THREADS"))
            return replace(info, threads_set=threads_set, mpi_progress=_mpi_progress(env))
    if "RANK" in env and "WORLD_SIZE" not in env:
        raise ConfigError("RANK is set but WORLD_SIZE is not: set both, or neither")
    return LaunchInfo(mpi_progress=_mpi_progress(env))


def _mpi_progress(env: Env) -> bool:
    told = env.get("GNN_DIST_MPI_PROGRESS", "")
    if told not in ("", "0", "1"):
        raise ConfigError(f"GNN_DIST_MPI_PROGRESS must be 0 or 1, got {told!r}")
    by_itself = any(env.get(name, "").lower() in ("1", "true", "yes", "on") for name in PROGRESSES)
    return told == "1" or (told == "" and not by_itself)


def _torchrun(env: Env) -> LaunchInfo | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    store = env.get("GNN_DIST_STORE")
    return LaunchInfo(
        "local" if store else "torchrun",
        _int(env, "RANK"),
        _int(env, "WORLD_SIZE"),
        local_rank=_optional(env, "LOCAL_RANK"),
        local_world_size=_optional(env, "LOCAL_WORLD_SIZE"),
        store=store,
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        **_master(env),
    )


def _openmpi(env: Env) -> LaunchInfo | None:
    if "OMPI_COMM_WORLD_RANK" not in env:
        return None
    return LaunchInfo(
        "openmpi",
        _int(env, "OMPI_COMM_WORLD_RANK"),
        _int(env, "OMPI_COMM_WORLD_SIZE"),
        local_rank=_optional(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=_optional(env, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        **_master(env),
    )


def _mvapich(env: Env) -> LaunchInfo | None:
    if "MV2_COMM_WORLD_RANK" not in env:
        return None
    return LaunchInfo(
        "mvapich",
        _int(env, "MV2_COMM_WORLD_RANK"),
        _int(env, "MV2_COMM_WORLD_SIZE"),
        local_rank=_optional(env, "MV2_COMM_WORLD_LOCAL_RANK"),
        local_world_size=_optional(env, "MV2_COMM_WORLD_LOCAL_SIZE"),
        **_master(env),
    )


def _hydra(env: Env) -> LaunchInfo | None:
    if "PMI_RANK" not in env or "PMI_SIZE" not in env:
        return None
    rank, size = _int(env, "PMI_RANK"), _int(env, "PMI_SIZE")
    # srun --mpi=pmi2 sets these too, equal to Slurm's own. Under mpirun inside a Slurm job the
    # Slurm variables are those of mpirun's daemons, one a host.
    if _in_step(env) and (rank, size) == (_int(env, "SLURM_PROCID"), _step_tasks(env)):
        return None
    return LaunchInfo(
        "hydra",
        rank,
        size,
        local_rank=_optional(env, "MPI_LOCALRANKID"),
        local_world_size=_optional(env, "MPI_LOCALNRANKS"),
        **_master(env),
    )


def _pmix(env: Env) -> LaunchInfo | None:
    if "PMIX_RANK" not in env or _in_step(env) or "SLURM_JOB_ID" in env:
        return None
    return LaunchInfo("pmix", _int(env, "PMIX_RANK"), 0, **_master(env))


def _slurm(env: Env) -> LaunchInfo | None:
    if not _in_step(env) or _step_tasks(env) < 2:
        return None
    job, step = _int(env, "SLURM_JOB_ID"), _int(env, _step_name(env))
    hosts = expand_hostlist(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", ""))
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
    counts = _expand_counts(tasks)
    node = _optional(env, "SLURM_NODEID") or 0
    # Concurrent steps of one job take different ports.
    master = {"master_port": SINGLE_PORT_RANGE + (job + step) % SINGLE_PORT_RANGE, **_master(env)}
    if "master_addr" not in master and hosts:
        # The names of a cluster simulated on one host need not resolve.
        master["master_addr"] = hosts[0] if len(hosts) > 1 else "127.0.0.1"
    return LaunchInfo(
        "slurm",
        _int(env, "SLURM_PROCID"),
        _step_tasks(env),
        local_rank=_optional(env, "SLURM_LOCALID"),
        local_world_size=counts[node] if node < len(counts) else None,
        attempt=f"{job}.{step}.{env.get('SLURM_RESTART_COUNT', '0')}",
        **master,
    )


def _step_name(env: Env) -> str:
    return "SLURM_STEP_ID" if "SLURM_STEP_ID" in env else "SLURM_STEPID"


def _in_step(env: Env) -> bool:
    """Return whether this process is a task of srun, not a batch script or an allocation shell."""
    name = _step_name(env)
    if name not in env or "SLURM_PROCID" not in env or "SLURM_JOB_ID" not in env:
        return False
    return _int(env, name) % 2**32 < FIRST_SPECIAL_STEP


def _step_tasks(env: Env) -> int:
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"):
        if name in env:
            return _int(env, name)
    return 1


def _master(env: Env) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if env.get("MASTER_ADDR"):
        found["master_addr"] = env["MASTER_ADDR"]
    if env.get("MASTER_PORT"):
        found["master_port"] = _int(env, "MASTER_PORT")
    return found


def _int(env: Env, name: str) -> int:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        raise ConfigError(
            f"the environment variable {name} must hold a whole number, got {env.get(name)!r}"
        ) from None


def _optional(env: Env, name: str) -> int | None:
    return _int(env, name) if env.get(name) else None


def _expand_counts(text: str) -> list[int]:
    """Return the numbers in Slurm's `4(x2),3`."""
    counts: list[int] = []
    for item in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if match is None:
            raise ConfigError(f"task counts must look like '4(x2),3', got {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hostlist(text: str) -> list[str]:
    """Return the host names in Slurm's short form.

    Raises:
        ConfigError: The brackets do not fit.

    Example:
        >>> expand_hostlist("n[01-03,7],gpu-a1")
        ['n01', 'n02', 'n03', 'n7', 'gpu-a1']
    """
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(items) != text:
        raise ConfigError(f"a host list must look like 'n[01-03,7],gpu-a1', got {text!r}")
    return [host for item in items for host in _expand_host(item, text)]


def _expand_host(item: str, text: str) -> list[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    inside, _, after = rest.partition("]")
    numbers: list[str] = []
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ConfigError(f"a host list must look like 'n[01-03,7],gpu-a1', got {text!r}")
        first, last = match[1], match[2] or match[1]
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return [before + number + end for number in numbers for end in _expand_host(after, text)]
