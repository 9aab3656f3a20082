"""The network benchmark runs, on links as fast as they should be, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "scripts/benchmarks/network"
ROOT = Path(__file__).parents[1]
NETNS = Path("/run/netns")
sys.path.insert(0, str(FOLDER))

from hosts import Hosts, why_not  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}"),
]


def start(*options):
    return subprocess.Popen(
        [sys.executable, str(FOLDER / "main.py"), "--quick", "--backend", "gloo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def namespaces_of(process):
    return list(NETNS.glob(f"gnn-dist-net-{process.pid}-*"))


def test_a_quick_run_prints_a_table_and_writes_a_trace(tmp_path):
    trace = tmp_path / "trace.json"
    process = start("--trace", str(trace), "--policies", "overlap", "blocking", "sampled:p=0.5")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in out.splitlines()]
    by_name = {row[0]: row for row in rows if len(row) == 8}
    names = ["overlap", "blocking", "sampled:p=0.5", "compute alone", "communication alone"]
    assert [name for name in by_name if name in names] == names
    megabytes = {name: float(by_name[name][4]) for name in names[:3]}
    assert megabytes["overlap"] == megabytes["blocking"] > megabytes["sampled:p=0.5"] > 0
    assert float(by_name["compute alone"][3]) < 0.01  # nothing is waited for
    assert all(float(by_name[name][1]) > 0 for name in names)
    events = json.loads((tmp_path / "trace-gloo.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {"compute", "halo_wait", "exchange"} <= {event["name"] for event in events}
    assert not namespaces_of(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number):
    process = start()
    deadline = time.monotonic() + 100.0
    while not namespaces_of(process) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(2.0)  # by now ranks have been started
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not namespaces_of(process)


def test_links_have_their_bandwidth():
    program = (
        "import socket, sys, time\n"
        "server = sys.argv[1] == 'serve'\n"
        "if server:\n"
        "    listener = socket.create_server(('10.79.0.2', 5001))\n"
        "    print('ready', flush=True)\n"
        "    peer, _ = listener.accept()\n"
        "    start, count = time.perf_counter(), 0\n"
        "    while piece := peer.recv(1 << 20): count += len(piece)\n"
        "    print(count / (time.perf_counter() - start))\n"
        "else:\n"
        "    with socket.create_connection(('10.79.0.2', 5001)) as peer:\n"
        "        peer.sendall(bytes(20_000_000))\n"
    )
    with Hosts.made(2, "100mbit") as hosts:
        words = [sys.executable, "-c", program]
        with subprocess.Popen(
            [*hosts.enter(1), *words, "serve"], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout.readline() == "ready\n"
            before = hosts.sent_bytes(0)
            subprocess.run([*hosts.enter(0), *words, "send"], check=True, timeout=60)
            rate = float(server.stdout.readline())
        assert hosts.sent_bytes(0) - before > 20_000_000
    assert 0.6 * 12.5e6 < rate < 1.1 * 12.5e6
