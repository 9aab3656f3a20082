"""What happened when, in the format that chrome://tracing and Perfetto read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MAIN", "Span", "Trace", "write_chrome_trace"]

MAIN = "main thread"


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes:
        name: What it was.
        start_s: When it began, by `time.perf_counter`.
        end_s: When it ended.
        track: Spans of one track are drawn in one line: a thread, or a channel.
    """

    name: str
    start_s: float
    end_s: float
    track: str = MAIN


@dataclass
class Trace:
    """Spans of one rank.

    Attributes:
        spans: In the order in which they ended.
    """

    spans: list[Span] = field(default_factory=list)

    def add(self, name: str, start_s: float, end_s: float, track: str = MAIN) -> None:
        """Record a span."""
        self.spans.append(Span(name, start_s, end_s, track))


def write_chrome_trace(path: Path, by_rank: Sequence[Sequence[Span]]) -> None:
    """Write the spans of all ranks to one JSON file, a process per rank and a line per track.

    Args:
        path: The file.
        by_rank: Spans of each rank, on clocks that agree (those of one machine do).
    """
    origin = min((span.start_s for spans in by_rank for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in enumerate(by_rank):
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        tracks = list(dict.fromkeys([MAIN, *sorted({span.track for span in spans})]))
        events += [_named("thread_name", rank, i, track) for i, track in enumerate(tracks)]
        events += [
            {
                "name": span.name,
                "ph": "X",
                "pid": rank,
                "tid": tracks.index(span.track),
                "ts": (span.start_s - origin) * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
            }
            for span in spans
        ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
