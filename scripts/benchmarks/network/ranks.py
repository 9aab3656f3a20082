"""What one rank of the network benchmark does; `main.py` starts it on its host.

    python ranks.py SPEC.json

All policies train in one process each rank, an epoch of one after an epoch of the other, and among
them two that tell what could be gained: "compute alone", whose halo rows are zeros that nobody
sends, and "communication alone", the exchanges of an epoch of the first policy, one after the
other, with nothing in between. Rank 0 writes the results of all ranks.
"""

import copy
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gnn_dist as gd
from gnn_dist.comm.transport import DONE, Handle, Transport
from gnn_dist.comm.world import World
from gnn_dist.halo.courier import DIRECTIONS
from gnn_dist.profile.meter import HALO_WAIT
from gnn_dist.profile.trace import Span, Trace, write_chrome_trace
from gnn_dist.shard.shard import Shard

COMPUTE, COMMUNICATION = "compute alone", "communication alone"
WARM_UP = 8  # as many epochs are not counted: caches fill, and stale policies begin exactly


class Wrapped:
    """A transport that does something else about exchanges and passes the rest on."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Silent(Wrapped):
    """Sends nothing; every row that would have come is zero."""

    def exchange(
        self,
        send: Tensor,
        send_ptr: Sequence[int],
        recv: Tensor,
        recv_ptr: Sequence[int],
        channel: int,
    ) -> Handle:
        """Return at once."""
        recv.zero_()
        return DONE


class Noting(Wrapped):
    """Notes exchanges, so that they can be made again."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.noted: list[tuple[Tensor, Sequence[int], Tensor, Sequence[int], int]] = []

    def exchange(
        self,
        send: Tensor,
        send_ptr: Sequence[int],
        recv: Tensor,
        recv_ptr: Sequence[int],
        channel: int,
    ) -> Handle:
        """Note an exchange and start it."""
        buffers = torch.zeros_like(send), torch.zeros_like(recv)
        self.noted.append((buffers[0], send_ptr, buffers[1], recv_ptr, channel))
        return self._inner.exchange(send, send_ptr, recv, recv_ptr, channel)

    def replay(self) -> dict[str, float]:
        """Collective. Make the noted exchanges one after the other; return seconds by track."""
        seconds: dict[str, float] = {}
        for exchange in self.noted:
            start = time.perf_counter()
            self._inner.exchange(*exchange).wait()
            layer, direction = divmod(exchange[-1], len(DIRECTIONS))
            track = f"layer {layer} {DIRECTIONS[direction]}"
            seconds[track] = seconds.get(track, 0.0) + time.perf_counter() - start
        return seconds


@dataclass
class Variant:
    """One way of training, and what was measured of it.

    Attributes:
        step: Runs an epoch.
        rows: Results of its epochs.
    """

    step: Callable[[], dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)


def main() -> None:
    """Measure and let rank 0 write."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(spec["threads"])
    with World.from_env(spec["backend"], timeout_s=120.0) as world:
        shard = gd.load_shard(spec["parts"], world)
        variants = made_variants(shard, world, spec)
        for turn in range(WARM_UP + spec["epochs"]):
            for variant in variants.values():
                world.transport.barrier()
                row = variant.step()
                if turn >= WARM_UP:
                    variant.rows.append(row)
        mine = {name: medians(variant.rows) for name, variant in variants.items()}
        mine["rows"] = {"owned": shard.num_owned, "halo": shard.num_halo}
        if spec["trace"]:
            step = trainer_step(shard, world, spec["policies"][0], spec, Trace())
            mine["rows"]["early"] = write_trace(step, world, Path(spec["trace"]))
        everyone = world.transport.all_gather_object(mine)
        if world.is_main:
            Path(spec["out"]).write_text(json.dumps(everyone))


def made_variants(shard: Shard, world: World, spec: dict[str, Any]) -> dict[str, Variant]:
    """Collective. Return what takes turns, by name."""
    variants = {
        policy: Variant(trainer_step(shard, world, policy, spec)) for policy in spec["policies"]
    }
    first, noting = spec["policies"][0], Noting(world.transport)
    silent = with_transport(world, Silent(world.transport))
    variants[COMPUTE] = Variant(trainer_step(shard, silent, first, spec))
    listened = trainer_step(shard, with_transport(world, noting), first, spec)
    listened()  # its first epoch also exchanges what is made once
    noting.noted.clear()
    listened()
    variants[COMMUNICATION] = Variant(lambda: {"by_track": noting.replay()})
    return variants


def with_transport(world: World, transport: Transport | Wrapped) -> World:
    """Return the same world over another transport."""
    other = copy.copy(world)
    other.transport = transport  # type: ignore[assignment]
    return other


def trainer_step(
    shard: Shard, world: World, policy: str, spec: dict[str, Any], trace: Trace | None = None
) -> Callable[[], dict[str, Any]]:
    """Return a function that runs an epoch under a policy and returns what it measured."""
    config = gd.TrainConfig(halo=policy, tensorboard=False, **spec["model"])
    trainer = gd.Trainer(config, shard, world)
    meter, epoch = trainer.steps.meter, itertools.count()
    meter.separates_skew = spec["profile_skew"] and not isinstance(world.transport, Wrapped)

    def step() -> dict[str, Any]:
        spans = trace or Trace()
        spans.spans.clear()
        # Only so that the time between posting and waiting is known, which is cheap.
        meter.trace = spans if trace is not None or isinstance(world.transport, Silent) else None
        reset_peak_memory()
        start = time.perf_counter()
        report = trainer.steps.step(trainer.optimizer, next(epoch))
        spans.add("epoch", start, time.perf_counter())
        late_s = sum(count.late_s for count in report.halo.values())
        return {
            "epoch_s": report.epoch_s,
            "compute_s": report.compute_s,
            "halo_wait_s": report.halo_wait_s,
            "late_s": late_s,
            "transfer_s": report.halo_wait_s - late_s,
            "bytes": report.halo_bytes,
            "messages": report.halo_messages,
            "peak_bytes": peak_memory(),
            "by_track": between(spans.spans),
            "spans": list(spans.spans),
        }

    return step


def between(spans: Sequence[Span]) -> dict[str, float]:
    """Return by track the seconds from posting an exchange to waiting for it."""
    seconds: dict[str, float] = {}
    for wait, exchange in waits_and_exchanges(spans):
        passed = wait.start_s - exchange.start_s
        seconds[exchange.track] = seconds.get(exchange.track, 0.0) + passed
    return seconds


def waits_and_exchanges(spans: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield each exchange with the waiting for it, which is recorded just before."""
    for wait, exchange in itertools.pairwise(spans):
        if (wait.name, exchange.name) == (HALO_WAIT, "exchange"):
            yield wait, exchange


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each number."""
    found: dict[str, Any] = {
        name: statistics.median(row[name] for row in rows)
        for name, value in rows[0].items()
        if isinstance(value, int | float)
    }
    found["by_track"] = {
        track: statistics.median(row["by_track"][track] for row in rows)
        for track in rows[0]["by_track"]
    }
    return found


def reset_peak_memory() -> None:
    """Let the largest resident memory be counted from now on (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Return the largest resident memory since then, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def write_trace(step: Callable[[], dict[str, Any]], world: World, path: Path) -> tuple[int, int]:
    """Collective. Write what an epoch did on all ranks as a Chrome trace.

    Returns:
        This rank's exchanges that were complete before they were waited for, and all of them.
    """
    for _ in range(WARM_UP + 1):
        world.transport.barrier()
        spans = step()["spans"]
    everyone = world.transport.all_gather_object(with_compute(spans))
    if world.is_main:
        write_chrome_trace(path, everyone)
    pairs = list(waits_and_exchanges(spans))
    return sum(exchange.end_s <= wait.start_s for wait, exchange in pairs), len(pairs)


def with_compute(spans: list[Span]) -> list[Span]:
    """Return spans and, as one more kind, what is left of the epoch between those of waiting."""
    epoch = next(span for span in spans if span.name == "epoch")
    found, at = [], epoch.start_s
    waits = sorted((s for s in spans if s.track == epoch.track and s is not epoch), key=_start)
    for span in [*waits, Span("end", epoch.end_s, epoch.end_s)]:
        found.append(Span("compute", at, span.start_s))
        at = span.end_s
    return [*(span for span in spans if span is not epoch), *found]


def _start(span: Span) -> float:
    return span.start_s


if __name__ == "__main__":
    main()
