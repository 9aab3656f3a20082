"""From a launch to a world: the ranks meet, join the control channel and agree on a backend."""

import functools
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gnn_dist.comm.control import Control
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.comm.mpi_transport import MpiTransport, check_library
from gnn_dist.comm.rendezvous import (
    Gather,
    gather_with_store,
    gpu_of,
    host_store,
    introduce,
    join_control,
    make_torch_transport,
    open_store,
)
from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError

__all__ = ["agreed_backend", "fair_threads", "join"]


def join(
    info: LaunchInfo,
    backend: str,
    *,
    timeout_s: float,
    silence_s: float,
    device: torch.device | None,
) -> dict[str, Any]:
    """Collective. Let the ranks of a launch find each other and agree on how to talk.

    Returns:
        The arguments of `World`.

    Raises:
        ConfigError: The backend cannot be used here, or the port is in use.
        CommError: The ranks do not find each other.
    """
    meeting = _meet(info, backend, timeout_s)
    local_rank, local_size = info.local_rank or 0, info.local_world_size or 1
    gpu = gpu_of(local_rank, local_size) if backend in ("auto", "nccl") else None
    hellos = introduce(meeting.gather, gpu and gpu[1])
    hosts = [hello["host"] for hello in hellos]
    rank = meeting.rank
    if info.local_rank is None:
        local_rank = hosts[:rank].count(hosts[rank])
    control = join_control(
        rank,
        hosts,
        meeting.gather,
        # torchrun's store need not be on the host of rank 0.
        master_addr=None if info.agent_store else info.master_addr,
        silence_s=silence_s,
        timeout_s=timeout_s,
    )
    try:
        if not info.threads_set:
            torch.set_num_threads(fair_threads(rank, hellos))
        backend = agreed_backend(backend, [(hello["host"], hello["gpu"]) for hello in hellos])
        if device is None and backend == "nccl" and gpu is not None:
            device = gpu[0]
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)
        transport, owner = _transport(meeting, backend, control, hosts, timeout_s)
    except BaseException as error:
        control.abort(error)
        control.close()
        raise
    return {
        "transport": transport,
        "control": control,
        "local_rank": local_rank,
        "device": device,
        "owns_torch": owner,
    }


def _transport(
    meeting: "_Meeting", backend: str, control: Control, hosts: list[str], timeout_s: float
) -> tuple[Transport, bool]:
    """Collective. Return the transport of all ranks, and whether torch.distributed is ours."""
    if backend == "mpi" and meeting.mpi is not None:
        meeting.mpi.control = control
        return meeting.mpi, False
    store = meeting.store or host_store(meeting.rank, hosts, meeting.gather, timeout_s)
    if meeting.mpi is not None:
        meeting.mpi.close()
    return make_torch_transport(
        backend, store, control=control, world_size=len(hosts), timeout_s=timeout_s
    )


@dataclass(frozen=True)
class _Meeting:
    """Where the ranks of a launch first hear of each other."""

    rank: int
    gather: Gather
    store: Store | None = None
    mpi: MpiTransport | None = None


def _meet(info: LaunchInfo, backend: str, timeout_s: float) -> _Meeting:
    """Collective. Meet over torch.distributed if it is in use, else MPI, else a store."""
    if backend != "mpi" and dist.is_initialized():
        return _Meeting(dist.get_rank(), _gather_with_torch)
    no_address = info.master_addr is None or info.master_port is None
    if backend == "mpi" or info.world_size == 0 or (info.is_mpi and no_address):
        transport = MpiTransport.of_world(
            Control(info.rank), timeout_s=timeout_s, progress=info.mpi_progress
        )
        check_library(
            info.launcher,
            info.world_size,
            transport.world_size,
            parent=_parent_program(),
            warn=transport.rank == 0,
        )
        over_mpi = functools.partial(_gather_with_transport, transport)
        return _Meeting(transport.rank, over_mpi, mpi=transport)
    store = open_store(info, timeout_s)
    gather = gather_with_store(store, info.rank, info.world_size, timeout_s)
    return _Meeting(info.rank, gather, store=store)


def _gather_with_torch(what: str, value: dict[str, Any]) -> list[dict[str, Any]]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def _gather_with_transport(
    transport: Transport, what: str, value: dict[str, Any]
) -> list[dict[str, Any]]:
    return transport.all_gather_object(value)


def _parent_program() -> str:
    try:
        return os.readlink(f"/proc/{os.getppid()}/exe")
    except OSError:
        return ""


def fair_threads(rank: int, hellos: list[dict[str, Any]]) -> int:
    """Return this rank's share of the cores that it may use, at least 1.

    Ranks that are bound to cores of their own have these; ranks that share cores divide them.
    """
    own = set(hellos[rank]["cores"])
    local = [set(hello["cores"]) for hello in hellos if hello["host"] == hellos[rank]["host"]]
    return max(1, int(sum(1 / sum(core in cores for cores in local) for core in own) + 1e-6))


def agreed_backend(backend: str, gpus: list[tuple[str, str | None]]) -> str:
    """Return the backend that fits the GPUs of all ranks.

    Args:
        backend: What was asked for.
        gpus: For each rank its host and the identity of its GPU, or None.

    Raises:
        ConfigError: nccl was asked for, but a rank has no GPU of its own.
    """
    if backend not in ("auto", "nccl"):
        return backend
    without = [r for r, (_, gpu) in enumerate(gpus) if gpu is None]
    shared = len(set(gpus)) < len(gpus)
    if backend == "auto":
        return "gloo" if without or shared else "nccl"
    if without or shared:
        why = f"ranks {without} have none" if without else "some ranks share one"
        raise ConfigError(
            f"backend 'nccl' needs a GPU of its own for every rank, but {why}: start fewer ranks "
            "per host, or use --backend gloo"
        )
    return backend
