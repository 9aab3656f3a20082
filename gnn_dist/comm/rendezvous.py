"""How the ranks of one launch find each other, before any transport exists.

Every way of being started comes down to one thing: a `Gather`, which shows each rank a small JSON
value of every other. From there on all launches are alike: hosts are compared, the control channel
is joined, the backend is agreed on.
"""

import ipaddress
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

# torch.distributed offers these names but does not declare them as exported.
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from gnn_dist.comm.control import Control
from gnn_dist.comm.control_server import ControlServer, host_identity
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.comm.torch_transport import MARGIN_S, GlooTransport, NcclTransport, TorchTransport
from gnn_dist.errors import CommError, ConfigError

__all__ = [
    "Gather",
    "gather_with_store",
    "gpu_of",
    "host_store",
    "introduce",
    "join_control",
    "make_torch_transport",
    "open_store",
]

Value: TypeAlias = dict[str, Any]
# Collective. (what, this rank's value) -> every rank's value, by rank.
Gather: TypeAlias = Callable[[str, Value], list[Value]]

MAX_SLEEP_S = 0.05
RESOLVE_TRIES, RESOLVE_PAUSE_S = 3, 1.0  # a name server may need a moment when a job begins


def open_store(info: LaunchInfo, timeout_s: float) -> Store:
    """Open the store that the launcher told of, below a name of this attempt.

    The name keeps a restarted launch from reading the addresses of the dead one.

    Raises:
        ConfigError: Address or port are not told, or the port is in use.
        CommError: Rank 0 does not answer.
    """
    if info.store is not None:
        store: Store = FileStore(info.store, info.world_size)
    else:
        store = _tcp_store(info, timeout_s)
    store.set_timeout(timedelta(seconds=timeout_s))
    store = PrefixStore(f"gnn-dist/{info.attempt}", store)
    # Several worlds may follow each other in one process; all ranks open the same number of them.
    count = store.add(f"opened/{info.rank}", 1)
    return PrefixStore(str(count), store)


def _tcp_store(info: LaunchInfo, timeout_s: float) -> TCPStore:
    address, port = info.master_addr, info.master_port
    if address is None or port is None:
        missing = "MASTER_ADDR" if address is None else "MASTER_PORT"
        raise ConfigError(
            f"{info.launcher} started {info.world_size} ranks but told no meeting point: set "
            f"{missing} ({'the host of rank 0' if address is None else 'a free port on it'})"
        )
    _check_resolves(address, info.launcher)
    serves = info.rank == 0 and not info.agent_store
    timeout = timedelta(seconds=timeout_s)
    try:
        return TCPStore(
            address, port, info.world_size, serves, timeout=timeout, wait_for_workers=False
        )
    except RuntimeError as error:  # DistNetworkError and DistStoreError are kinds of it
        if serves and "EADDRINUSE" in str(error):
            raise ConfigError(
                f"port {port} on {address} is in use, perhaps by another run: set MASTER_PORT to "
                "a free port (torchrun: --master-port), or let --ranks N start the ranks, which "
                "needs none"
            ) from error
        raise CommError(
            f"rank {info.rank} found no rank 0 at {address}:{port} within {timeout_s:.0f} s: "
            f"check that rank 0 was started and that MASTER_ADDR is its host ({_first(error)})"
        ) from error


def _check_resolves(address: str, launcher: str) -> None:
    for attempt in range(RESOLVE_TRIES):
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            if attempt + 1 == RESOLVE_TRIES:
                raise ConfigError(
                    f"the host of rank 0 is {address!r}, as {launcher} says, but that name does "
                    f"not resolve on {socket.gethostname()} ({error}): set MASTER_ADDR to an "
                    "address of it that all ranks reach"
                ) from error
            time.sleep(RESOLVE_PAUSE_S)
        else:
            return


def host_store(rank: int, hosts: Sequence[str], gather: Gather, timeout_s: float) -> Store:
    """Collective. Make a store on rank 0 at a free port, and open it on all ranks."""
    timeout = timedelta(seconds=timeout_s)
    store = None
    told: Value = {}
    if rank == 0:
        address = address_for(hosts, None)
        store = TCPStore(address, 0, len(hosts), True, timeout=timeout, wait_for_workers=False)
        told = {"address": address, "port": store.port}
    told = gather("store", told)[0]
    if store is None:
        store = TCPStore(told["address"], told["port"], len(hosts), False, timeout=timeout)
    return store


def gather_with_store(store: Store, rank: int, world_size: int, timeout_s: float) -> Gather:
    """Return a `Gather` over a store.

    It raises a CommError that names the missing ranks when not all have come in time.
    """

    def gather(what: str, value: Value) -> list[Value]:
        store.set(f"{what}/{rank}", json.dumps(value))
        missing = list(range(world_size))
        started, sleep_s = time.monotonic(), 0.001
        while missing:
            # In order: while the first is missing, nobody asks for the others.
            while missing and store.check([f"{what}/{missing[0]}"]):
                del missing[0]
            if missing and time.monotonic() - started > timeout_s:
                missing = [r for r in missing if not store.check([f"{what}/{r}"])]
                raise CommError(
                    f"only {world_size - len(missing)} of {world_size} ranks came within "
                    f"{timeout_s:.0f} s; missing: {_names(missing)}. Check that they were "
                    "started and have not failed (their own output says why)"
                )
            if missing:
                time.sleep(sleep_s)
                sleep_s = min(MAX_SLEEP_S, 2 * sleep_s)
        return [json.loads(store.get(f"{what}/{r}")) for r in range(world_size)]

    return gather


def introduce(gather: Gather, gpu: str | None) -> list[Value]:
    """Collective. Return what every rank is: host, pid, usable cores, GPU.

    Args:
        gather: How ranks hear of each other.
        gpu: Identity of the GPU that this rank would use, or None.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return gather("hello", {"host": host_identity(), "cores": cores, "gpu": gpu})


def gpu_of(local_rank: int, local_world_size: int) -> tuple[torch.device, str] | None:
    """Return the CUDA device of a local rank and its identity; None if there is none for it.

    A launcher may show each rank all GPUs of the host, or only the rank's own.
    """
    count = torch.cuda.device_count()
    if count == 0 or (1 < count < local_world_size):
        return None
    index = local_rank if count >= local_world_size else 0
    return torch.device("cuda", index), str(torch.cuda.get_device_properties(index).uuid)


def join_control(
    rank: int,
    hosts: Sequence[str],
    gather: Gather,
    *,
    master_addr: str | None = None,
    silence_s: float = 15.0,
    timeout_s: float = 60.0,
) -> Control:
    """Collective. Start the control channel beside rank 0 and join it.

    Args:
        rank: This rank.
        hosts: The `host_identity` of every rank.
        gather: How ranks hear of each other.
        master_addr: The address of rank 0 that the launcher told, if any.
        silence_s: Seconds without a sign of life after which a rank counts as gone.
        timeout_s: How long to try to reach rank 0.
    """
    told: Value = {}
    server = None
    if rank == 0:
        address = address_for(hosts, master_addr)
        token = secrets.token_hex(16)
        server = ControlServer(
            bindable(address),
            world_size=len(hosts),
            token=token,
            silence_s=silence_s,
            join_s=timeout_s,
        )
        told = {"address": address, "port": server.port, "token": token}
    told = gather("control", told)[0]
    return Control.connect(
        rank,
        (told["address"], told["port"]),
        token=told["token"],
        server=server,
        silence_s=silence_s,
        timeout_s=timeout_s,
    )


def address_for(hosts: Sequence[str], master_addr: str | None) -> str:
    """Return the address by which all ranks reach this host, on which rank 0 runs."""
    others = [host for host in hosts if host != hosts[0]]
    if not others:
        return "127.0.0.1"
    if master_addr is not None:
        return master_addr
    # Connecting a datagram socket sends nothing; it only chooses the interface.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((others[0].partition("|")[0], 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def bindable(address: str) -> str:
    """Return what to listen on so that others reach this host by `address`.

    It is the address itself if this host has it. Where it is a name that means the loopback
    device here and something else elsewhere, or a translated address, it is all interfaces.
    """
    try:
        number = socket.gethostbyname(address)
        with socket.create_server((number, 0)):
            pass
    except OSError:
        return "0.0.0.0"
    loopback = ipaddress.ip_address(number).is_loopback
    return "0.0.0.0" if loopback and not address.startswith("127.") else number


def make_torch_transport(
    backend: str,
    store: Store,
    *,
    control: Control,
    world_size: int,
    timeout_s: float,
) -> tuple[TorchTransport, bool]:
    """Collective. Return a transport of all ranks, and whether it initialised torch.distributed.

    A default process group that exists already is left alone: the transport then has its own.
    """
    kind = NcclTransport if backend == "nccl" else GlooTransport
    world_ranks = tuple(range(world_size))
    store = PrefixStore("torch", store)
    owner = not dist.is_initialized()
    timeout = timedelta(seconds=timeout_s + MARGIN_S)
    try:
        if owner:
            dist.init_process_group(
                backend, store=store, rank=control.rank, world_size=world_size, timeout=timeout
            )
            group: Any = dist.group.WORLD
        else:
            group = kind.new_group("world", store, control.rank, world_size, timeout)
    except RuntimeError as error:
        cause = control.explain(error, f"setting up {backend}", peers=world_ranks, waited_s=None)
        raise cause from error
    transport = kind(group, store, control=control, world_ranks=world_ranks, timeout_s=timeout_s)
    transport.barrier()  # a rank that is done early must not leave while others still connect
    return transport, owner


def _names(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:16])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' ...' if len(ranks) > 16 else ''}"


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]
