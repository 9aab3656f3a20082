"""Full-batch epochs over a graph of a billion entries on one small machine: memory and seconds.

    python scripts/benchmarks/billion/main.py --work DIR                  # 2^29 undirected edges
    python scripts/benchmarks/billion/main.py --work DIR --scale 20       # a 32nd of it
    python scripts/benchmarks/billion/main.py --work DIR --scale 20 --halo overlap+bf16

The graph is drawn, sorted on disk and partitioned within a limit of memory; a folder that is there
already is used again. Then the ranks train a 2-layer GraphSAGE (mean) on seeded features and
labels. Each rank looks ten times a second at its own memory: anonymous and shared (`own`), and with
the pages of files that happen to be mapped (`all`), which the system may drop.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.launch.local import launch_ranks
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.shard.shard import Shard
from gnn_dist.train.full_batch import FullBatch, TrainingSet
from gnn_dist.train.task import NodeTask

ROWS_AT_ONCE = 1 << 18
TRAIN_SHARE = 0.1
LABEL_SITE, TRAIN_SITE = 1000, 1001


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder on a disk")
    parser.add_argument("--scale", type=int, default=25, help="2^scale nodes")
    parser.add_argument("--degree", type=int, default=16, help="undirected edges a node")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--method", default="fennel")
    parser.add_argument("--refine", action="store_true", help="the partition, which takes longer")
    parser.add_argument("--memory-limit", default="8G", help="of partitioning")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--halo", default="remat:buffer=256M+bf16")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


class Watch(threading.Thread):
    """The most memory that this process has had since it was last asked."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._own = self._all = 0

    def run(self) -> None:
        """Look ten times a second."""
        while True:
            self._look()
            time.sleep(0.1)

    def _look(self) -> None:
        kib = {
            name: int(value.split()[0])
            for name, _, value in (
                line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()
            )
            if name in ("RssAnon", "RssShmem", "VmRSS")
        }
        self._own = max(self._own, (kib["RssAnon"] + kib["RssShmem"]) << 10)
        self._all = max(self._all, kib["VmRSS"] << 10)

    def peaks(self) -> tuple[int, int]:
        """Return bytes of own memory and of all, and begin anew."""
        self._look()
        peaks = self._own, self._all
        self._own = self._all = 0
        return peaks


class Phases:
    """Collective. Seconds and memory of one phase after the other, over all ranks.

    Args:
        world: The ranks; the first prints.
    """

    def __init__(self, world: World) -> None:
        self._world, self._watch = world, Watch()
        self._watch.start()
        if world.rank == 0:
            print("| phase | s | waiting for halo, s | own GiB, ranks together | all GiB |")
            print("|---|---|---|---|---|", flush=True)

    @contextmanager
    def __call__(self, name: str) -> Iterator[list[float]]:
        """Collective. Measure what is done inside; seconds of waiting may be put into the list."""
        start, waited = time.perf_counter(), list[float]()
        yield waited
        seconds = time.perf_counter() - start
        rows = self._world.transport.all_gather_object((seconds, sum(waited), self._watch.peaks()))
        if self._world.rank == 0:
            own, every = (sum(peaks[i] for *_, peaks in rows) / 2**30 for i in (0, 1))
            wait = max(row[1] for row in rows)
            longest = max(row[0] for row in rows)
            print(f"| {name} | {longest:.1f} | {wait:.1f} | {own:.2f} | {every:.2f} |", flush=True)


def features_of(ids: Tensor, width: int) -> Tensor:
    """Return bfloat16 (n, width), uniform in [-1, 1) and drawn by original id."""
    out = torch.empty(len(ids), width, dtype=torch.bfloat16)
    for begin in range(0, len(ids), ROWS_AT_ONCE):
        some = ids[begin : begin + ROWS_AT_ONCE]
        for column in range(width):
            values = uniform_by_id(DrawKey(0, 0, column), some)
            out[begin : begin + ROWS_AT_ONCE, column] = 2.0 * values - 1.0
    return out


def task_of(shard: Shard, classes: int, world: World) -> NodeTask:
    """Collective. Return seeded labels, and a tenth of the nodes to train on."""
    ids = shard.node_id
    y = (uniform_by_id(DrawKey(0, 0, LABEL_SITE), ids) * classes).long().clamp_(max=classes - 1)
    train = uniform_by_id(DrawKey(0, 0, TRAIN_SITE), ids) < TRAIN_SHARE
    count = train.sum().view(1)
    world.transport.all_reduce(count).wait()
    return NodeTask(y, {"train": train}, int(count), classes)


def train(options: argparse.Namespace, folder: Path) -> None:
    """Collective. Load, then train some epochs."""
    with World.from_env() as world:
        phase = Phases(world)
        with phase("load, plan"):
            shard = load_shard(folder, world, verify=False, spill=options.work)
        with phase("features, labels"):
            shard = shard.replace(features=features_of(shard.node_id, options.features))
            task = task_of(shard, options.classes, world)
        torch.manual_seed(0)
        shape = ModelShape(options.features, options.hidden, options.classes, layers=2)
        model = build_model("sage", shape, world.transport)
        halo = HaloPolicy.parse(options.halo)
        run = FullBatch(model, shard, world, training=TrainingSet(shard, task), halo=halo, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reports, held = [], 0
        for epoch in range(options.epochs):
            what = " (cuts the structure, aggregates the features)" if epoch == 0 else ""
            with phase(f"epoch {epoch + 1}{what}") as waited:
                reports.append(run.step(optimizer, epoch))
                waited.append(reports[-1].halo_wait_s)
            held = max(held, run.meter.peak_held_bytes)
        mine = (shard.num_owned, shard.num_halo, shard.num_edges, held, reports[-1].halo_bytes)
        rows = world.transport.all_gather_object(mine)
        if world.rank == 0:
            losses = ", ".join(f"{report.loss:.4f}" for report in reports)
            print(f"\nloss: {losses}; {options.halo}")
            for rank, (owned, halo_rows, edges, most, sent) in enumerate(rows):
                print(
                    f"rank {rank}: {owned:,} nodes, {halo_rows:,} halo, {edges:,} entries; "
                    f"halo buffers at most {most / 2**20:.0f} MiB, sent {sent / 2**20:.0f} MiB "
                    "in the last epoch"
                )


def partition(options: argparse.Namespace) -> Path:
    """Return the partition folder, made where it is not there."""
    name = f"rmat{options.scale}-{options.degree}-{options.parts}-{options.method}"
    folder: Path = options.work / (name + "-refined" if options.refine else name)
    if (folder / "meta.json").exists():
        return folder
    options.work.mkdir(parents=True, exist_ok=True)
    graph = f"rmat:scale={options.scale},degree={options.degree},symmetric=true"
    command = [sys.executable, "-m", "gnn_dist", "partition", graph, "--parts", str(options.parts)]
    command += ["--method", options.method, "--out", str(folder)]
    command += ["--memory-limit", options.memory_limit]
    command += ["--refine"] if options.refine else []
    if options.method != "random":
        command += ["--balance", "nodes,edges", "--imbalance", "0.1"]
    start = time.perf_counter()
    subprocess.run(command, check=True)
    quality = json.loads((folder / "meta.json").read_text())["quality"]
    print(
        f"partitioned in {time.perf_counter() - start:.0f} s: replication factor "
        f"{quality['replication_factor']:.3f}, balance {quality['balance']}\n"
    )
    return folder


def main() -> None:
    """Partition, then start the ranks; or be one of them."""
    options = arguments()
    if options.as_rank:
        train(options, partition(options))
        return
    partition(options)
    words = [*sys.argv[1:], "--as-rank"]
    command = [sys.executable, __file__]
    sys.exit(launch_ranks(words, options.ranks, backend="gloo", command=command))


if __name__ == "__main__":
    main()
