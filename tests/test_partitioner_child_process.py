"""The child process in which METIS runs: how it starts, fails, and ends with its parent."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partitioners import child_process, metis, partition_graph


@pytest.fixture
def ring():
    return graph_from_edges(np.arange(9), (np.arange(9) + 1) % 9)


def with_worker(monkeypatch, tmp_path, code):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys, signal, json\nfolder = sys.argv[1]\n" + code)
    monkeypatch.setattr(child_process, "WORKER", worker)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "died of signal 11, Segmentation fault: try another seed",
        ),
        ("print('free(): corrupted'); os.abort()", r"died of signal 6, Aborted"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed, most likely because memory ran out"),
        (
            "raise RuntimeError('Caught an unknown exception!')",
            r"failed with exit code 1 \(RuntimeError: Caught an unknown exception!\): try another",
        ),
        ("sys.exit('no such luck')", r"failed with exit code 1 \(no such luck\)"),
    ],
)
def test_a_child_that_fails_is_an_error_with_advice(monkeypatch, tmp_path, code, message, ring):
    with_worker(monkeypatch, tmp_path, code)
    with pytest.raises(PartitionError, match=r"METIS on 9 nodes in 2 parts " + message):
        partition_graph(ring, 2, "metis")


@pytest.mark.parametrize(
    ("parts", "cut", "message"),
    [
        ([0] * 9, -4947, r"returned no partition \(9 entries in 0\.\.0, cut -4947\)"),
        ([0] * 8 + [2], 3, r"9 entries in 0\.\.2"),
        ([-1] * 9, 3, r"in -1\.\.0"),
        ([0] * 5, 3, "5 entries"),
    ],
)
def test_a_result_that_is_no_partition_is_refused(monkeypatch, tmp_path, parts, cut, message, ring):
    code = (
        f"import numpy\nnumpy.save(folder + '/parts.npy', numpy.array({parts}))\n"
        f"json.dump({{'cut': {cut}, 'folded': False}}, open(folder + '/result.json', 'w'))"
    )
    with_worker(monkeypatch, tmp_path, code)
    with pytest.raises(PartitionError, match=message):
        partition_graph(ring, 2, "metis")


@pytest.mark.parametrize("method", ["metis", "metis-ew", "metis-stream", "mtkahypar"])
def test_no_room_for_temporary_files_is_an_error_with_advice(monkeypatch, tmp_path, ring, method):
    if method == "mtkahypar":
        pytest.importorskip("mtkahypar")
    monkeypatch.setattr(metis.tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(PartitionError, match=r"set TMPDIR to a folder with room"):
        partition_graph(ring, 2, method)


def test_nothing_is_left_behind(monkeypatch, tmp_path, ring):
    monkeypatch.setattr(metis.tempfile, "tempdir", str(tmp_path))
    partition_graph(ring, 2, "metis")
    assert list(tmp_path.iterdir()) == []


def test_warnings_turned_into_errors_do_not_reach_the_child(monkeypatch, tmp_path, ring):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    with_worker(monkeypatch, tmp_path, "import warnings; warnings.warn('old'); sys.exit('alive')")
    with pytest.raises(PartitionError, match=r"\(alive\)"):
        partition_graph(ring, 2, "metis")


def test_the_worker_s_folder_is_not_on_the_child_s_path(monkeypatch, tmp_path, ring):
    with_worker(monkeypatch, tmp_path, "sys.exit(str(os.path.dirname(__file__) in sys.path))")
    with pytest.raises(PartitionError, match=r"\(False\)"):
        partition_graph(ring, 2, "metis")


def test_a_small_stack_is_raised_and_core_files_are_off():
    resource = pytest.importorskip("resource")
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    code = (
        "import resource as r, runpy\n"
        f"r.setrlimit(r.RLIMIT_STACK, (256 * 1024, {hard}))\n"
        f"runpy.run_path({str(child_process.WORKER)!r})['set_limits']()\n"
        f"assert r.getrlimit(r.RLIMIT_STACK) == ({hard}, {hard})\n"
        "assert r.getrlimit(r.RLIMIT_CORE) == (0, 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux's parent death signal")
def test_the_child_ends_with_its_parent(tmp_path):
    # A parent that starts a child which arranges for its end as the worker does, then sleeps.
    worker = child_process.WORKER
    child = (
        f"import sys, time, importlib.util as u\n"
        f"spec = u.spec_from_file_location('worker', {str(worker)!r})\n"
        "worker = u.module_from_spec(spec); spec.loader.exec_module(worker)\n"
        "worker.end_with(int(sys.argv[1])); worker.set_limits()\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())],\n"
        "                         stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    child_pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for _ in range(100):
        if not is_running(child_pid):
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent by 5 s")


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_orphan_refuses_to_start(tmp_path):
    result = subprocess.run(
        [sys.executable, "-P", str(child_process.WORKER), str(tmp_path), "-1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "the parent process has ended" in result.stderr


def test_the_worker_imports_little(tmp_path):
    # Two triangles, 0 1 2 and 3 4 5, joined by 2 - 3.
    vectors = {
        "indptr": [0, 2, 4, 7, 10, 12, 14],
        "indices": [1, 2, 0, 2, 0, 1, 3, 2, 4, 5, 3, 5, 3, 4],
        "node_weight": [1] * 6,
    }
    for name, values in vectors.items():
        with (tmp_path / f"{name}.int64").open("wb") as file:
            child_process.write_integers(file, np.array(values, np.int32))
    problem = {"tool": "metis", "num_constraints": 1, "targets": [0.5, 0.5], "imbalance": [0.05]}
    problem.update(recursive=True, options={"seed": 0})
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    code = (
        "import os, runpy, sys\n"
        f"sys.argv = ['worker', {str(tmp_path)!r}, str(os.getppid())]\n"
        f"runpy.run_path({str(child_process.WORKER)!r}, run_name='__main__')\n"
        "sys.exit(bool({'torch', 'scipy', 'gnn_dist'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
    parts = np.load(tmp_path / "parts.npy")
    assert parts.dtype == np.int32
    assert parts.tolist() in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    assert json.loads((tmp_path / "result.json").read_text()) == {"cut": 1, "folded": False}
