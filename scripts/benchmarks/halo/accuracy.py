"""What do halo policies cost in accuracy? Paired with exact training, seed by seed, on real graphs.

    python scripts/benchmarks/halo/accuracy.py --root DATA [--seeds 10] [--ranks 2]
        [--graphs cora ...] [--policies delayed ...] [--method best] [--out runs/halo-accuracy]

For every graph and seed the same model is trained under `overlap`, which is exact, and under each
policy, from the same initial parameters and with the same dropout masks. What is compared is the
test metric at the best validation epoch; the interval is Student's for the mean of the differences.
Evaluation is exact under every policy. The table is printed as Markdown.

A run that is complete is not run again: start the same command once more to go on, or to see the
table. Graphs are in four parts; with fewer ranks than parts a rank holds several, and what lies
between them is exact.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks

PARTS = 4
EXACT = "overlap"
POLICIES = [
    "local",
    "delayed",
    "pipelined",
    "pipelined:smooth=0.5",
    "ssp",
    "sampled:p=0.1",
    "quantized:bits=8",
    "quantized:bits=4",
    "quantized:bits=2",
    "quantized:bits=1",
    "bf16",
    "delayed+bf16",
    "pipelined+sampled:p=0.1",
]
# Student's 97.5% quantile by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True)
class Case:
    """One graph and how it is trained on."""

    dataset: str
    model: str
    hidden: int = 64
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    epochs: int = 100

    def config(self, policy: str, seed: int, out: Path) -> gd.TrainConfig:
        """Return the options of a run."""
        names = ("model", "hidden", "lr", "weight_decay", "dropout", "epochs")
        options = {name: getattr(self, name) for name in names}
        return gd.TrainConfig(
            **options, halo=policy, seed=seed, out=str(out), tensorboard=False, eval_every=2
        )


CASES = [
    Case("cora", "gcn"),
    Case("citeseer", "sage"),
    Case("amazon-photo", "sage", lr=0.003),
    Case("facebook-pages", "sage", lr=0.005),
]


@dataclass(frozen=True)
class Job:
    """One run: a policy and a seed."""

    policy: str
    seed: int
    out: str

    @property
    def is_done(self) -> bool:
        """Whether the run is complete."""
        return (Path(self.out) / "summary.json").exists()


def as_rank(words: list[str]) -> None:
    """Be one rank: train every job of a list."""
    dataset, folder, epochs, jobs = words
    [case] = [case for case in CASES if case.dataset == dataset]
    with gd.World.from_env("gloo") as world:
        shard = gd.load_shard(folder, world)
        for entry in json.loads(Path(jobs).read_text()):
            job = Job(**entry)
            config = case.config(job.policy, job.seed, Path(job.out))
            if int(epochs):
                config = gd.TrainConfig(**{**config.to_dict(), "epochs": int(epochs)})
            gd.Trainer(config, shard, world).fit()
            if world.is_main:
                print(dataset, job.policy, job.seed, flush=True)


def run_case(case: Case, jobs: list[Job], options: argparse.Namespace) -> None:
    """Train what is not trained yet, all of it in one start of the ranks."""
    left = [job for job in jobs if not job.is_done]
    if not left:
        return
    for job in left:
        shutil.rmtree(job.out, ignore_errors=True)  # of a run that was interrupted
    with tempfile.TemporaryDirectory() as work:
        graph = gd.load_dataset(case.dataset, options.root)
        partition = gd.partition_graph(graph, PARTS, options.method)
        gd.write_partition(graph, partition, Path(work) / "parts")
        (Path(work) / "jobs.json").write_text(json.dumps([vars(job) for job in left]))
        words = [case.dataset, f"{work}/parts", str(options.epochs), f"{work}/jobs.json"]
        command = [sys.executable, __file__, "--as-rank"]
        if launch_ranks(words, options.ranks, backend="gloo", command=command):
            sys.exit(f"{case.dataset}: the ranks failed")


def read_job(job: Job) -> tuple[float, float]:
    """Return the test metric at the best validation epoch, and bytes of an epoch, without setup."""
    folder = Path(job.out)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    later = [row["halo_bytes"] for row in rows[len(rows) // 2 :]]
    summary = json.loads((folder / "summary.json").read_text())
    return summary["test_metric_at_best"], float(np.mean(later))


def interval(values: np.ndarray) -> str:
    """Return the 95% interval of a mean."""
    if len(values) < 2:
        return "one seed"
    spread = STUDENT.get(len(values) - 1, 2.2) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean() - spread:+.4f} .. {values.mean() + spread:+.4f}"


def table(jobs: dict[str, dict[str, list[Job]]]) -> str:
    """Return the Markdown table, of jobs by graph and policy."""
    lines = [
        "| graph | policy | test metric | policy - exact, same seed | 95% interval "
        "| bytes an epoch, exact = 1 |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, by_policy in jobs.items():
        exact, exact_bytes = np.array([read_job(job) for job in by_policy[EXACT]]).T
        for policy, runs in by_policy.items():
            metric, sent = np.array([read_job(job) for job in runs]).T
            difference = metric - exact
            spread = metric.std(ddof=1) if len(metric) > 1 else 0.0
            apart = f"{difference.mean():+.4f} | {interval(difference)}"
            lines.append(
                f"| {dataset} | `{policy}` | {metric.mean():.4f} ± {spread:.4f} "
                f"| {'exact | ' if policy == EXACT else apart} "
                f"| {sent.mean() / exact_bytes.mean():.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Train all cases and print the table."""
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--root", required=True, help="folder of datasets")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=0, help="instead of each case's own number")
    parser.add_argument("--method", default="best", help="of partitioning; random is the worst")
    parser.add_argument("--graphs", nargs="*", default=[case.dataset for case in CASES])
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--out", default="runs/halo-accuracy")
    options = parser.parse_args()
    jobs: dict[str, dict[str, list[Job]]] = {}
    for case in CASES:
        if case.dataset not in options.graphs:
            continue
        place = Path(options.out) / case.dataset
        jobs[case.dataset] = {
            policy: [Job(policy, seed, str(place / policy / str(seed))) for seed in seeds]
            for seeds in [range(options.seeds)]
            for policy in [EXACT, *options.policies]
        }
        run_case(case, [job for runs in jobs[case.dataset].values() for job in runs], options)
    print(table(jobs))


if __name__ == "__main__":
    main()
