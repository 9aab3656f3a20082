"""How much of halo communication hides behind computing, over links of a given bandwidth?

    python scripts/benchmarks/network/main.py [--rate 1gbit] [--backend gloo --backend mpi]
    python scripts/benchmarks/network/main.py --graph coauthor_physics --policies blocking overlap
    python scripts/benchmarks/network/main.py --trace out.json --backend mpi
    python scripts/benchmarks/network/main.py --quick                  a small graph, to see it run

Each rank, of one thread, is alone on a host: a network namespace whose link passes so much and no
more, in each direction (Linux, root). Full-batch epochs of the same model under several policies
take turns, beside "compute alone" (halo rows are zeros, nothing is sent) and "communication alone"
(an epoch's exchanges with nothing in between). Times are of the slowest rank, bytes and messages of
all. The trace is of one epoch under the first policy, for chrome://tracing or Perfetto.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hosts import DEVICE, Hosts, why_not

import gnn_dist as gd

RANKS_FILE = Path(__file__).parent / "ranks.py"
SBM = "sbm:nodes={nodes},blocks=64,degree_in=16,degree_out=4,features=100"
COMPUTE, COMMUNICATION = "compute alone", "communication alone"
PORT = 29_500
LIMIT_S = 280.0  # of one backend on one graph
LEAST_SHARE = 0.1  # of communication, that could hide: below, the share of it says nothing


def main() -> None:
    """Run the benchmark."""
    options = parsed_options()
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="gnn-dist-net-") as folder:
        for graph in options.graph:
            parts, about = partitioned(graph, options, Path(folder))
            for rate in options.rate:
                with Hosts.made(options.ranks, None if rate == "none" else rate) as hosts:
                    for backend in options.backend:
                        found, trace = measured(hosts, backend, parts, options, Path(folder))
                        print_table(f"{about}; {backend} at {rate}", found)
                        if trace is not None:
                            print_trace(trace, found)


def parsed_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--rate", action="append", help="of each link, as tc writes it, or none [1gbit]")
    add("--backend", action="append", choices=["gloo", "mpi"], help="[gloo and mpi]")
    add("--policies", nargs="+", default=["overlap", "blocking"], help="the first is replayed")
    add("--graph", action="append", help="a dataset [a random graph, coauthor_physics]")
    add("--nodes", type=int, default=32_768, help="of the random graph")
    add("--method", default="metis", help="partitioner")
    add("--model", default="sage", choices=["sage", "gcn", "gat", "gin"])
    add("--hidden", type=int, default=256)
    add("--layers", type=int, default=3)
    add("--epochs", type=int, default=7, help="timed epochs of each policy")
    add("--trace", type=Path, help="file for a Chrome trace")
    add("--profile-skew", action="store_true", help="do not count waiting for ranks that are late")
    add("--quick", action="store_true", help="a small graph and one epoch")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.hidden, options.epochs = 2048, 16, 1
    options.rate = options.rate or ["1gbit"]
    options.backend = options.backend or ["gloo", "mpi"]
    options.graph = options.graph or default_graphs(options.quick)
    return options


def default_graphs(quick: bool) -> list[str]:
    """Return a random graph and, where its file is at hand, a real one."""
    real = [] if quick or not os.environ.get("GNN_DIST_DATA") else ["coauthor_physics"]
    return ["sbm", *real]


def partitioned(graph: str, options: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    """Partition a graph; return its folder and what it is in words."""
    name = SBM.format(nodes=options.nodes) if graph == "sbm" else graph
    data = gd.load_dataset(name, root=os.environ.get("GNN_DIST_DATA"), seed=0)
    partition = gd.partition_graph(data, options.ranks, options.method)
    parts = folder / f"parts-{len(list(folder.iterdir()))}"
    gd.write_partition(data, partition, parts)
    quality = json.loads((parts / "meta.json").read_text())["quality"]["replication_factor"]
    nodes, edges = data.num_nodes, data.num_edges
    shape = f"{options.layers}-layer {options.model}, {options.hidden} wide"
    return parts, f"{graph} (n = {nodes:,}, nnz = {edges:,}, RF {quality:.2f}), {shape}"


def measured(
    hosts: Hosts, backend: str, parts: Path, options: argparse.Namespace, folder: Path
) -> tuple[list[dict[str, Any]], str | None]:
    """Run all policies on one backend; return the results by rank, and the trace's file."""
    out = folder / "result.json"
    out.unlink(missing_ok=True)
    trace: str | None = None
    if options.trace is not None:
        trace = str(options.trace.absolute().with_stem(f"{options.trace.stem}-{backend}"))
    spec = {
        "backend": backend,
        "parts": str(parts),
        "policies": options.policies,
        "epochs": options.epochs,
        "threads": 1,
        "profile_skew": options.profile_skew,
        "out": str(out),
        "trace": trace,
        "model": {"model": options.model, "hidden": options.hidden, "layers": options.layers},
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    command = [sys.executable, str(RANKS_FILE), str(path)]
    started = over_mpi(hosts, command) if backend == "mpi" else over_torch(hosts, command)
    finish(started)
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found, trace


def environment(hosts: Hosts) -> dict[str, str]:
    """Return the environment of every rank."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": DEVICE,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # MPICH sees through namespaces and would use shared memory.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": DEVICE,
        "MPIR_CVAR_NOLOCAL": "1",
    }


def over_torch(hosts: Hosts, command: list[str]) -> list[subprocess.Popen[bytes]]:
    """Start a rank on every host."""
    ranks = {"WORLD_SIZE": str(hosts.num), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return [
        subprocess.Popen(
            [*hosts.enter(rank), *command],
            env={**environment(hosts), **ranks, "RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(hosts.num)
    ]


def over_mpi(hosts: Hosts, command: list[str]) -> list[subprocess.Popen[bytes]]:
    """Start MPI's launcher, whose processes go each to its own host before they begin."""
    launcher = shutil.which("mpirun")
    if launcher is None:
        raise SystemExit("no mpirun: pip install gnn-dist[mpi], or give --backend gloo")
    enter = " ".join(hosts.enter("$PMI_RANK"))
    words = [launcher, "-n", str(hosts.num), "sh", "-c", f'exec {enter} "$@"', "sh", *command]
    return [subprocess.Popen(words, env=environment(hosts), start_new_session=True)]


def finish(started: list[subprocess.Popen[bytes]]) -> None:
    """Wait for processes; if one fails, or time is up, end them all with their children."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started) or time.monotonic() > deadline:
                time.sleep(2.0)  # the others say why
                raise SystemExit("a rank failed, or took too long")
            time.sleep(0.1)
        if any(process.returncode for process in started):
            raise SystemExit("a rank failed")
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def print_table(title: str, by_rank: list[dict[str, Any]]) -> None:
    """Print what was measured as Markdown."""
    rows = by_rank[0]["rows"]
    print(f"\n### {title}\n")
    print(f"{len(by_rank)} ranks of one thread; rank 0: {rows['owned']:,} owned rows, ", end="")
    print(f"{rows['halo']:,} halo rows.\n")
    names = ("policy", "epoch s", "compute s", "halo wait s", "MB", "messages", "peak MB", "hidden")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    transfer, meanwhile = by_track(by_rank, COMMUNICATION, max), by_track(by_rank, COMPUTE, min)
    could = sum(min(seconds, meanwhile.get(track, 0.0)) for track, seconds in transfer.items())
    talk, first = sum(transfer.values()), next(iter(by_rank[0]))
    for name in by_rank[0]:
        if name in (COMMUNICATION, "rows"):
            continue
        sums = [sum(rank[name][key] for rank in by_rank) for key in ("bytes", "messages")]
        times = [worst(by_rank, name, key) for key in ("epoch_s", "compute_s", "halo_wait_s")]
        hidden = ""
        comparable = name != COMPUTE and could > LEAST_SHARE * talk
        if comparable and sums[0] == sum(rank[first]["bytes"] for rank in by_rank):
            compute = worst(by_rank, COMPUTE, "epoch_s")
            exposed = (times[0] - compute, worst(by_rank, name, "transfer_s"))
            hidden = ", ".join(f"{(talk - seconds) / could:.0%}" for seconds in exposed)
        cells = [name, *(f"{seconds:.3f}" for seconds in times), f"{sums[0] / 1e6:.1f}"]
        cells += [f"{sums[1]:.0f}", f"{worst(by_rank, name, 'peak_bytes') / 1e6:.0f}", hidden]
        print(f"| {' | '.join(cells)} |")
    print(f"| {COMMUNICATION} | {talk:.3f} | | | | | | |\n")
    print("| exchange | alone, s | computing meanwhile, s |\n|---|---|---|")
    for track, seconds in transfer.items():
        print(f"| {track} | {seconds:.3f} | {meanwhile.get(track, 0.0):.3f} |")
    print(
        f"\nOf each exchange the shorter of both could hide, {could:.3f} s in all. Hidden: the "
        "share of it that is in communication alone, but not in (epoch - compute alone); and not "
        f"in the halo wait{' of transfer' if by_rank[0][first]['late_s'] else ''}.",
        flush=True,
    )


def print_trace(path: str, by_rank: list[dict[str, Any]]) -> None:
    """Print what a trace shows."""
    early, every = (sum(rank["rows"]["early"][i] for rank in by_rank) for i in (0, 1))
    print(f"\nTrace in {path}: {early} of {every} exchanges were complete when they were ", end="")
    print("waited for.", flush=True)


def worst(by_rank: list[dict[str, Any]], name: str, key: str) -> float:
    """Return the largest value of any rank."""
    return max(float(rank[name][key]) for rank in by_rank)


def by_track(
    by_rank: list[dict[str, Any]], name: str, choose: Callable[[Iterable[float]], float]
) -> dict[str, float]:
    """Return for each layer and direction the largest or smallest seconds of any rank."""
    tracks: dict[str, float] = by_rank[0][name]["by_track"]
    return {track: choose(rank[name]["by_track"][track] for rank in by_rank) for track in tracks}


if __name__ == "__main__":
    main()
