"""A rank that dies in the middle of training: the others stop and name it, and the run resumes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gnn_dist as gd

ROOT = Path(__file__).parents[1]
RANKS = 4
OPTIONS = ["--no-tensorboard", "--hidden", "16", "--precision", "fp64", "--checkpoint-every", "5"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "gnn_dist", "train", *map(str, words), *OPTIONS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def descendants(pid):
    """Return the pids below a process."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(c) for child in children for c in (child, *descendants(int(child)))]


def pid_of_rank(launcher, rank):
    for pid in descendants(launcher.pid):
        if f"RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            return pid
    raise LookupError(f"no process of rank {rank} below {launcher.pid}")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_epoch(run, epoch, launcher):
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and launcher.poll() is None:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and metrics.read_text().count("\n") > epoch:
            return
        time.sleep(0.02)
    out, err = launcher.communicate()
    pytest.fail(f"epoch {epoch} was not reached: {out}\n{err}")


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def parts(tmp_path):
    graph = gd.load_dataset("sbm:nodes=2000,blocks=4,features=8")
    gd.write_partition(graph, gd.partition_graph(graph, RANKS, "random"), tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_rank_is_named_nothing_is_left_and_the_run_resumes(victim, parts, tmp_path):
    run = tmp_path / "run"
    launcher = start(parts, "--ranks", RANKS, "--epochs", 100_000, "--out", run)
    wait_for_epoch(run, 12, launcher)
    pids = descendants(launcher.pid)
    os.kill(pid_of_rank(launcher, victim), signal.SIGKILL)
    killed = time.monotonic()
    _, err = launcher.communicate(timeout=30.0)
    assert time.monotonic() - killed < 30.0
    assert launcher.returncode == 1, err
    for rank in set(range(RANKS)) - {victim}:
        # Every rank that is left says which one it was.
        said = [line for line in err.splitlines() if line.startswith(f"gnn-dist: rank {rank}: ")]
        assert len(said) == 1, err
        assert f"rank {victim} " in said[0]
    assert "Traceback" not in err
    assert not [pid for pid in pids if alive(pid)]
    done = len(losses(run))
    resumed = start("--resume", run, "--ranks", 2, "--epochs", done + 5)
    _, err = resumed.communicate(timeout=60.0)
    assert resumed.returncode == 0, err
    whole = start(parts, "--ranks", 1, "--epochs", done + 5, "--out", tmp_path / "whole")
    _, err = whole.communicate(timeout=60.0)
    assert whole.returncode == 0, err
    np.testing.assert_allclose(losses(run), losses(tmp_path / "whole"), rtol=1e-9)
