"""An epoch over a graph that does not fit into memory: local SGD, a part at a time.

    python scripts/benchmarks/larger_than_memory/main.py --work DIR [--limit 2G] [--scale 22]

Draws 2^scale * degree edges, seeded features and labels; partitions them, then trains one epoch,
both under the limit. The limit is a control group's (version 1 or 2, so root is needed) and counts
everything, the system's pages of files too, which it may drop. What is there already is used again.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gnn_dist.sizes import parse_size, size_text

ROWS_AT_ONCE = 1 << 18
CLASSES = 16
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def main() -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder on a disk")
    parser.add_argument("--limit", default="2G")
    parser.add_argument("--scale", type=int, default=22, help="2^scale nodes")
    parser.add_argument("--degree", type=int, default=24, help="edges a node")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8192)
    options = parser.parse_args()
    data, parts = options.work / "graph", options.work / f"parts-{options.parts}"
    data.mkdir(parents=True, exist_ok=True)
    size = f"rmat:scale={options.scale},degree={options.degree}"
    limit = parse_size(options.limit)
    print("| stage | s | own GiB | with files' pages, GiB |\n|---|---|---|---|", flush=True)
    if not (data / "edges.bin").exists():
        command("generate", size, "--out", data / "edges.bin", limit=limit)
    draw_rows(data, 1 << options.scale, options.features)
    if not (parts / "meta.json").exists():
        words = ("--parts", options.parts, "--method", "fennel", "--balance", "nodes,edges,train")
        words += ("--imbalance", "0.1", "--memory-limit", size_text(limit * 3 // 4), "--out", parts)
        command("partition", data, *words, limit=limit)
    run = options.work / "run"
    words = ("--mode", "minibatch", "--sync", "local", "--spill", options.work, "--epochs", 1)
    words += ("--eval-every", 0, "--num-neighbors", "10,10", "--batch-size", options.batch_size)
    words += ("--no-verify", "--no-tensorboard", "--out", run / time.strftime("%H%M%S"))
    command("train", parts, *words, limit=limit)
    last = max(run.iterdir(), key=lambda path: path.stat().st_mtime)
    row = json.loads((last / "metrics.jsonl").read_text().splitlines()[-1])
    meta = json.loads((parts / "meta.json").read_text())
    print(f"\n{meta['num_nodes']:,} nodes, {meta['num_edges']:,} edges, limit {options.limit}")
    print(f"epoch {row['epoch_s']:.1f} s, loss {row['loss']:.4f}, of a guess {np.log(CLASSES):.4f}")


def draw_rows(folder: Path, num_nodes: int, width: int) -> None:
    """Write features that tell something of the labels, labels, and a tenth to train on."""
    if (folder / "train_mask.npy").exists():
        return
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, num_nodes)
    centres = rng.normal(size=(CLASSES, width)).astype(np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (num_nodes, width))
    for begin in range(0, num_nodes, ROWS_AT_ONCE):
        labels = y[begin : begin + ROWS_AT_ONCE]
        noise = rng.normal(size=(len(labels), width)).astype(np.float32)
        x[begin : begin + ROWS_AT_ONCE] = centres[labels] + 3.0 * noise
    x.flush()
    np.save(folder / "y.npy", y)
    np.save(folder / "train_mask.npy", rng.random(num_nodes) < 0.1)


def command(name: str, *words: object, limit: int) -> None:
    """Run a command of gnn-dist under the limit, and print a row."""
    start = time.perf_counter()
    with control_group(limit) as group:
        process = subprocess.Popen(
            [sys.executable, "-m", "gnn_dist", name, *map(str, words)],
            preexec_fn=lambda: group.join(os.getpid()),
            stdout=subprocess.DEVNULL,
        )
        watch = threading.Thread(target=group.watch, args=(process,))
        watch.start()
        code = process.wait()
        watch.join()
        if code != 0:
            sys.exit(f"{name} ended with code {code} under {size_text(limit)}")
        seconds = time.perf_counter() - start
        own, every = (value / 2**30 for value in (group.own, group.peak()))
        print(f"| {name} | {seconds:.0f} | {own:.2f} | {every:.2f} |", flush=True)


class Group:
    """A control group with a limit of memory.

    Attributes:
        own: The most memory that was no file's, in bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self.own = folder, 0
        self._is_v1 = folder.parent == V1
        folder.mkdir()
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (folder / name).write_text(str(limit))
        if not self._is_v1:
            (folder / "memory.swap.max").write_text("0")

    def join(self, pid: int) -> None:
        """Put a process into the group."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Look ten times a second, until the process ends."""
        name = "rss " if self._is_v1 else "anon "
        while process.poll() is None:
            lines = (self._folder / "memory.stat").read_text().splitlines()
            [value] = [line.split()[1] for line in lines if line.startswith(name)]
            self.own = max(self.own, int(value))
            time.sleep(0.1)

    def peak(self) -> int:
        """Return the most bytes that were counted, of files too."""
        name = "memory.max_usage_in_bytes" if self._is_v1 else "memory.peak"
        path = self._folder / name
        return int(path.read_text()) if path.exists() else 0

    def close(self) -> None:
        """Remove the group."""
        self._folder.rmdir()


@contextmanager
def control_group(limit: int) -> Iterator[Group]:
    """Make a control group for the time of a body."""
    root = V1 if V1.is_dir() else V2
    try:
        group = Group(root / f"gnn-dist-{os.getpid()}", limit)
    except OSError as error:
        sys.exit(f"a control group cannot be made below {root} ({error}): this needs root")
    try:
        yield group
    finally:
        group.close()


if __name__ == "__main__":
    main()
