"""`--ranks N`: exit codes, signals, and nothing left behind. The ranks are small programs."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import gnn_dist
from gnn_dist.errors import ConfigError
from gnn_dist.launch.child import die_with_parent
from gnn_dist.launch.local import _exit_code, launch_ranks, threads_per_rank

ROOT = str(Path(gnn_dist.__file__).parent.parent)


def run_code(code, num_ranks=3, backend="gloo", grace_s=20.0, argv=()):
    return launch_ranks(
        argv, num_ranks, backend=backend, grace_s=grace_s, command=[sys.executable, "-c", code]
    )


def wait_for(condition, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def runs(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def _own_temp_folder(tmp_path, monkeypatch):
    """Every test proves that the launcher removes its folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


REPORT = """
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
text = " ".join([*(os.environ[n] for n in names), *sys.argv[1:]])
store = os.environ["GNN_DIST_STORE"]
assert os.path.isdir(os.path.dirname(store)) and not sys.stdin.read()
open(os.environ["OUT"] + "/" + os.environ["RANK"], "w").write(text)
"""


def test_ranks_get_their_environment_and_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run_code(REPORT, argv=["train", "x y"]) == 0
    threads = threads_per_rank(3)
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 3 3 {threads} train x y"


def test_a_chosen_number_of_threads_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert run_code(REPORT, 1) == 0
    assert (tmp_path / "0").read_text() == "0 0 1 1 7"


def test_cores_are_divided():
    assert threads_per_rank(1) == len(os.sched_getaffinity(0))
    assert threads_per_rank(10_000) == 1


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 1, 3], 1),
        ([3, 1], 3),
        ([1, 2], 2),  # rank 1 found the input wrong, rank 0 only heard of it
        ([-9, 1], 1),
        ([-15], 1),
    ],
)
def test_exit_codes(codes, expected):
    assert _exit_code(codes) == expected


@pytest.mark.parametrize("code", [1, 2, 7])
def test_a_failing_rank_decides_the_exit_code(code):
    program = f"import os, sys; sys.exit({code} if os.environ['RANK'] == '1' else 0)"
    assert run_code(program) == code


@pytest.mark.parametrize("num_ranks", [0, -1])
def test_no_ranks(num_ranks):
    with pytest.raises(ConfigError, match=f"--ranks must be at least 1, got {num_ranks}"):
        run_code("", num_ranks)


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="backend 'mpi' needs mpiexec"):
        launch_ranks([], 2, backend="mpi")


SLEEP = """
import os, sys, time
open(os.environ["OUT"] + "/pid-" + os.environ["RANK"], "w").write(str(os.getpid()))
if os.environ["RANK"] == "0" and "fail" in sys.argv:
    sys.exit(3)
time.sleep(60)
"""


def test_ranks_that_do_not_stop_are_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    started = time.monotonic()
    assert run_code(SLEEP, grace_s=0.5, argv=["fail"]) == 3
    assert 0.5 < time.monotonic() - started < 10


STUBBORN = SLEEP.replace(
    "import os", "import signal; signal.signal(15, lambda *a: None); import os"
)


def test_ranks_that_ignore_the_end_are_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("gnn_dist.launch.local.KILL_AFTER_S", 0.5)
    started = time.monotonic()
    assert run_code(STUBBORN, grace_s=0.5, argv=["fail"]) == 3
    assert time.monotonic() - started < 10


class Launcher:
    """A launcher in a process of its own, with the pids of its ranks."""

    def __init__(self, tmp_path, code, num_ranks=3, backend="gloo"):
        self.folder = tmp_path
        self.num_ranks = num_ranks
        line = (
            "import sys; from gnn_dist.launch.local import launch_ranks; sys.exit(launch_ranks("
            f"[], {num_ranks}, backend={backend!r}, command=[sys.executable, '-c', {code!r}]))"
        )
        self.tmp = tmp_path / "launcher-tmp"
        self.tmp.mkdir()
        env = {**os.environ, "OUT": str(tmp_path), "PYTHONPATH": ROOT, "TMPDIR": str(self.tmp)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", line], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        wait_for(lambda: len(self.pids()) == num_ranks, 30.0)

    def pids(self):
        texts = [path.read_text() for path in sorted(self.folder.glob("pid-*"))]
        return [int(text) for text in texts if text]

    def end(self):
        """Return the exit code, the output and whether anything is left."""
        output, _ = self.process.communicate(timeout=40)
        wait_for(lambda: not any(runs(pid) for pid in self.pids()), 5.0)
        return self.process.returncode, output.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_go_on_to_the_ranks(tmp_path, number):
    launcher = Launcher(tmp_path, SLEEP)
    launcher.process.send_signal(number)
    code, output = launcher.end()
    assert code == 1
    assert output.count("KeyboardInterrupt") == (3 if number == signal.SIGINT else 0)
    assert list(launcher.tmp.iterdir()) == []


CLEAN_END = SLEEP.replace(
    "import os", "import signal; signal.signal(15, lambda *a: sys.exit(0)); import os"
)


def test_ranks_may_end_cleanly_on_a_signal(tmp_path):
    launcher = Launcher(tmp_path, CLEAN_END)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.end() == (0, "")


def test_a_killed_launcher_leaves_no_orphans(tmp_path):
    launcher = Launcher(tmp_path, SLEEP)
    launcher.process.kill()
    code, output = launcher.end()
    assert (code, output) == (-9, "")


def test_a_second_signal_kills(tmp_path):
    ignoring = "import signal; signal.signal(2, lambda *a: None)\n" + SLEEP
    launcher = Launcher(tmp_path, ignoring)
    launcher.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert all(runs(pid) for pid in launcher.pids())
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.end() == (1, "")


WORLD = """
import os, sys, time
import torch
from gnn_dist.comm.world import World
from gnn_dist.errors import RankError

try:
    with World.from_env(BACKEND) as world:
        open(os.environ["OUT"] + f"/pid-{world.rank}", "w").write(str(os.getpid()))
        for _ in range(ROUNDS):
            total = torch.ones(1)
            world.transport.all_reduce(total).wait()
            time.sleep(0.02)
        os.write(1, f"{world.transport.backend} {int(total)}\\n".encode())
except RankError as error:
    print(f"rank {world.rank}: {error}", flush=True)
    sys.exit(1)
"""


def world_program(backend, rounds):
    return WORLD.replace("BACKEND", repr(backend)).replace("ROUNDS", str(rounds))


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_launched_ranks_form_a_world(tmp_path, backend):
    if backend == "mpi":
        pytest.importorskip("mpi4py")
    launcher = Launcher(tmp_path, world_program(backend, 3), backend=backend)
    assert launcher.end() == (0, f"{backend} 3\n" * 3)


def test_a_killed_rank_is_named_by_the_others(tmp_path):
    launcher = Launcher(tmp_path, world_program("gloo", 100_000))
    victim = launcher.pids()[1]
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code, output = launcher.end()
    assert time.monotonic() - killed < 15
    assert code == 1
    for rank in (0, 2):
        assert f"rank {rank}: rank 1 (pid {victim} on host" in output
    assert list(launcher.tmp.iterdir()) == []


def test_a_killed_mpi_launcher_leaves_no_orphans(tmp_path):
    pytest.importorskip("mpi4py")
    launcher = Launcher(tmp_path, world_program("mpi", 100_000), backend="mpi")
    launcher.process.kill()
    assert launcher.end()[0] == -9


def test_a_rank_whose_launcher_is_gone_does_not_start():
    line = [sys.executable, "-I", "-S", sys.modules[die_with_parent.__module__].__file__]
    done = subprocess.run([*line, "1", "9", "echo", "started"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_the_launcher_does_not_load_torch():
    code = "import sys, gnn_dist.launch.local; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


DIES_EARLY = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5)
"""


def test_a_rank_that_a_signal_ends_is_named_even_before_it_has_met_the_others(caplog):
    assert run_code(DIES_EARLY) == 1
    [record] = caplog.records
    assert "rank 1 (pid " in record.getMessage()
    assert "was ended by SIGKILL" in record.getMessage()


STOPPED = """
import os, signal, sys
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(3)
"""


def test_a_stopped_rank_is_not_waited_for_once_all_others_have_failed(monkeypatch):
    monkeypatch.setattr("gnn_dist.launch.local.LAST_RANK_S", 1.0)
    monkeypatch.setattr("gnn_dist.launch.local.KILL_AFTER_S", 0.5)
    start = time.monotonic()
    assert run_code(STOPPED, grace_s=60.0) == 3
    assert time.monotonic() - start < 15.0
