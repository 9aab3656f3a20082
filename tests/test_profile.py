"""Counts by layer and direction, and traces that a browser can draw."""

import json

from gnn_dist.profile.meter import GRAD_SYNC, HALO_WAIT, Meter
from gnn_dist.profile.trace import MAIN, Span, Trace, write_chrome_trace


def test_counts_are_by_layer_and_direction_and_totals_are_their_sums():
    meter = Meter()
    meter.sent((0, "forward"), 100, 2)
    meter.sent((1, "reverse"), 10, 1)
    meter.sent((1, "reverse"), 10, 1)
    with meter.waiting((1, "reverse")), meter.late((1, "reverse")):
        pass
    assert (meter.halo_bytes, meter.halo_messages) == (120, 4)
    there, back = meter.halo[0, "forward"], meter.halo[1, "reverse"]
    assert (there.exchanges, back.exchanges, back.bytes, there.wait_s) == (1, 2, 20, 0.0)
    assert 0.0 < back.late_s <= back.wait_s <= meter.seconds(HALO_WAIT)
    meter.reset()
    assert (meter.halo_bytes, meter.seconds(HALO_WAIT), len(meter.halo)) == (0, 0.0, 0)


def test_phases_are_spans_of_the_main_thread():
    meter = Meter()
    with meter.timed(GRAD_SYNC):
        pass
    meter.trace = Trace()
    with meter.timed(GRAD_SYNC):
        pass
    with meter.waiting((0, "forward")):
        pass
    assert [(span.name, span.track) for span in meter.trace.spans] == [
        (GRAD_SYNC, MAIN),
        (HALO_WAIT, MAIN),
    ]
    assert all(span.start_s <= span.end_s for span in meter.trace.spans)


def test_a_chrome_trace_has_a_process_a_rank_and_a_line_a_track(tmp_path):
    path = tmp_path / "trace.json"
    exchange = Span("exchange", 10.5, 11.0, "layer 0 forward")
    write_chrome_trace(
        path, [[Span("compute", 10.0, 12.0), exchange], [Span("compute", 11.0, 12.5)]]
    )
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 0): MAIN, (0, 1): "layer 0 forward", (1, 0): MAIN}
    spans = [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [(0, 0, 0.0, 2e6), (0, 1, 0.5e6, 0.5e6), (1, 0, 1e6, 1.5e6)]


def test_nothing_happened(tmp_path):
    write_chrome_trace(tmp_path / "trace.json", [[]])
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
