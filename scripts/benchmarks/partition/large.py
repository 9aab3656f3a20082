"""Graphs larger than memory: time, and memory of all processes together, under a memory cgroup.

    python scripts/benchmarks/partition/large.py --work DIR --graph rmat25 --method fennel

The edges are written to a file first. The partition is then made by `gnn-dist partition` in a
memory cgroup of 10 GiB (version 1 or 2; needs root, and says so where it cannot be made), while
anonymous and shared memory of the process and its children are added up ten times a second. Page
cache is not counted, but the cgroup limits it too.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import memory

GRAPHS = {
    # 2^30 directed edges among 2^25 nodes.
    "rmat25": ("rmat:scale=25,degree=32", 1 << 25),
    # 2^28 directed edges: 16 neighbours inside the block and 4 outside, ids shuffled.
    "sbm28": ("sbm:nodes=13421772,blocks=64,degree_in=16,degree_out=4", 13_421_772),
    "rmat20": ("rmat:scale=20,degree=32", 1 << 20),
}


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path | None]:
    """Yield a new memory cgroup's list of processes, or None where none can be made."""
    for root, name, procs in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "tasks"),
        ("/sys/fs/cgroup", "memory.max", "cgroup.procs"),
    ):
        group = Path(root) / f"gnn-dist-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        try:
            yield group / procs
        finally:
            time.sleep(0.5)
            group.rmdir()
        return
    print("no memory cgroup can be made here: needs root", file=sys.stderr)
    yield None


def main() -> None:
    """Run one case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--graph", choices=GRAPHS, required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--refine", action="store_true")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--imbalance", type=float, default=0.1)
    parser.add_argument("--limit", type=int, default=10 << 30)
    parser.add_argument("--option", action="append", default=[])
    args = parser.parse_args()
    word, num_nodes = GRAPHS[args.graph]
    edges = args.work / f"{args.graph}.bin"
    command = [sys.executable, "-m", "gnn_dist"]
    if not edges.exists():
        subprocess.run([*command, "generate", word, "--out", str(edges)], check=True)
    out = args.work / f"{args.graph}-{args.method}{'-refined' if args.refine else ''}"
    command += ["partition", str(edges), "--parts", str(args.parts), "--method", args.method]
    command += ["--num-nodes", str(num_nodes), "--memory-limit", str(args.limit), "--overwrite"]
    command += ["--out", str(out), *(["--refine"] if args.refine else [])]
    if args.method != "random":
        command += ["--balance", "nodes,edges", "--imbalance", str(args.imbalance)]
    if args.option:
        command += ["--method-options", ",".join(args.option)]
    with memory_cgroup(args.limit) as procs:

        def enter() -> None:
            if procs is not None:
                procs.write_text(str(os.getpid()))

        start = time.perf_counter()
        with subprocess.Popen(command, preexec_fn=enter) as process:
            watch = memory.Watch(process.pid, memory.ANONYMOUS_AND_SHARED, 0.1)
            watch.start()
            code = process.wait()
            watch.stop()
        seconds = time.perf_counter() - start
    if code:
        sys.exit(f"the command ended with {code}")
    quality = json.loads((out / "meta.json").read_text())["quality"]
    balance = " / ".join(f"{v:.3f}" for v in quality["balance"].values())
    print("| graph | method | RF | nodes / edges | seconds | anonymous + shared GiB |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {args.graph} | {out.name.removeprefix(args.graph + '-')} | "
        f"{quality['replication_factor']:.3f} | {balance} | {seconds:.0f} | "
        f"{watch.peak / 2**30:.2f} |"
    )


if __name__ == "__main__":
    main()
