"""How much of the feature traffic does the cache take away, and how much could the best one?

    python scripts/benchmarks/minibatch/cache.py [--scale 20] [--ranks 4] [--share 0.1] [--work DIR]

Each rank may keep a share of the other ranks' rows: those that the analytic model says its batches
need most, chosen before the first batch. Then an epoch is logged, and what the best choice of that
size would have saved is computed from the log. Prints Markdown.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks

FANOUTS = ((15, 10, 5), (10, 10), (5, 5))


def main() -> None:
    """Partition, then start the ranks; or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.1, help="of other ranks' rows, to be kept")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--method", default="fennel")
    parser.add_argument("--work", type=Path, help="folder to keep the partition in")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_a_rank(options)
        return
    work = options.work or Path(tempfile.mkdtemp())
    folder = work / f"rmat{options.scale}-{options.method}-{options.ranks}"
    if not folder.exists():
        graph = gd.load_dataset(f"rmat:scale={options.scale},degree=16,features=8", seed=0)
        parts = gd.partition_graph(graph, options.ranks, options.method)
        gd.write_partition(graph, parts, folder)
    words = [*sys.argv[1:], "--work", str(work), "--as-rank"]
    sys.exit(launch_ranks(words, options.ranks, backend="gloo", command=[sys.executable, __file__]))


def be_a_rank(options: argparse.Namespace) -> None:
    """Collective. Measure every fan-out."""
    folder = options.work / f"rmat{options.scale}-{options.method}-{options.ranks}"
    with gd.World.from_env() as world:
        shard = gd.load_shard(folder, world, verify=False)
        # As many seeds as the batches hold, the same for any partition.
        seeds = shard.node_id % (shard.meta.num_nodes // (1024 * options.batches)) == 0
        if world.is_main:
            print("| fan-out | rank | hit rate | expected | of what the best cache removes |")
            print("|---|---|---|---|---|", flush=True)
        for fanout in FANOUTS:
            rows = world.transport.all_gather_object(measure(shard, world, fanout, seeds, options))
            for rank, (measured, expected, best) in enumerate(rows):
                if world.is_main:
                    words = ", ".join(map(str, fanout))
                    rates = f"{measured:.3f} | {expected:.3f} | {measured / best:.3f}"
                    print(f"| {words} | {rank} | {rates} |", flush=True)


def measure(
    shard: gd.Shard,
    world: gd.World,
    fanout: tuple[int, ...],
    seeds: torch.Tensor,
    options: argparse.Namespace,
) -> tuple[float, float, float]:
    """Collective. Return the hit rate, what was expected, and the best that was possible."""
    num_remote = shard.meta.num_nodes - shard.num_owned
    num_kept = int(options.share * num_remote)
    loader = gd.NodeLoader(
        shard,
        world,
        fanout,
        batch_size=1024,
        input_nodes=seeds,
        sums=False,
        shares=False,
        ahead=0,
        cache_bytes=num_kept * (4 * shard.x.size(1) + 8),
    )
    store, uses = loader._store, torch.zeros(shard.meta.num_nodes, dtype=torch.int64)
    locate = store.locate

    def logged(nodes: list[torch.Tensor]) -> object:
        for ids in nodes:
            uses.index_add_(0, ids, torch.ones_like(ids))
        return locate(nodes)

    store.locate = logged  # type: ignore[method-assign, assignment]
    for _ in loader:
        pass
    uses[store._first : store._end] = 0
    best = float(uses.topk(num_kept).values.sum() / uses.sum())
    return loader.counts.hit_rate, loader.expected_hit_rate, best


if __name__ == "__main__":
    main()
