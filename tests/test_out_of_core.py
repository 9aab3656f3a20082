"""The pipeline: what it writes is what the graph in memory gives, byte for byte."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.arrays import csr_take
from gnn_dist.edge_stream import EdgeStream, GraphOnDisk, stream_of
from gnn_dist.errors import ConfigError, PartitionError, ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, graph_from_edges
from gnn_dist.out_of_core import StreamOptions, make_plan, partition_stream, plan
from gnn_dist.out_of_core.progress import ProgressBars
from gnn_dist.partition import Partition, measure_quality
from gnn_dist.shard import writer
from gnn_dist.shard.format import read_meta, remove_leftovers, write_partition
from gnn_dist.shard.locks import locked
from gnn_dist.sizes import parse_size

QUIET = StreamOptions(quiet=True)


@dataclass(frozen=True)
class Given:
    """Returns an assignment that is known."""

    assignment: tuple

    def __call__(self, graph, num_parts):
        assert isinstance(graph, GraphOnDisk)
        return Partition(np.array(self.assignment, np.int32), num_parts, method="given")


def files(folder):
    found = {p.relative_to(folder): p for p in Path(folder).rglob("*") if p.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items()}


def expected_arrays(graph, partition, part):
    """What a part holds, from the definition."""
    start, stop = partition.book.node_ptr[part : part + 2]
    node_id = partition.order[start:stop]
    indptr, edge = csr_take(graph.indptr, node_id)
    source = partition.global_id[graph.indices[edge]]
    remote = (source < start) | (source >= stop)
    halo = np.unique(source[remote])
    local = np.where(remote, stop - start + np.searchsorted(halo, source), source - start)
    arrays = {"indptr": indptr, "indices": local, "halo": halo, "node_id": node_id}
    arrays |= {n: getattr(graph, n)[node_id] for n in ("y", *MASK_NAMES) if has(graph, n)}
    arrays |= {n: getattr(graph, n)[edge] for n in EDGE_NAMES if has(graph, n)}
    if isinstance(graph.x, CSRFeatures):
        taken = graph.x.take(node_id)
        arrays |= {"x_indptr": taken.indptr, "x_indices": taken.indices}
        return arrays | ({} if taken.data is None else {"x_data": taken.data})
    return arrays if graph.x is None else arrays | {"x": graph.x[node_id]}


def has(graph, name):
    return getattr(graph, name) is not None


def check_folder(folder, graph, partition):
    meta = read_meta(folder)
    for part in range(partition.num_parts):
        arrays = expected_arrays(graph, partition, part)
        assert set(arrays) == set(meta.arrays_of(part))
        for name, values in arrays.items():
            written = np.load(folder / meta.arrays_of(part)[name].file)
            assert np.array_equal(written, values), (part, name)
    found = {name: value for name, value in meta.quality.items() if name != "label_entropy"}
    assert found == json.loads(json.dumps(measure_quality(graph, partition).to_dict()))


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("num_parts", [1, 3, 4])
@pytest.mark.parametrize(("mark_bytes", "block"), [(1 << 30, 1 << 22), (0, 1 << 22), (12, 3)])
def test_a_folder_holds_what_the_format_says(
    tmp_path, monkeypatch, name, num_parts, mark_bytes, block
):
    monkeypatch.setattr(writer, "BLOCK_ENTRIES", block)
    graph, partition = awkward_case(name, num_parts)[1:]
    write_partition(graph, partition, tmp_path / "p", mark_bytes=mark_bytes)
    check_folder(tmp_path / "p", graph, partition)


@pytest.mark.parametrize("data", [None, np.arange(40, dtype=np.float64)])
def test_sparse_features_and_edge_data(tmp_path, monkeypatch, data):
    monkeypatch.setattr(writer, "BLOCK_ENTRIES", 5)
    graph, partition = awkward_case("edge-weighted", 3)[1:]
    indptr = np.sort(np.random.default_rng(0).integers(0, 41, 23))
    indptr[[0, -1]] = 0, 40
    x = CSRFeatures(indptr, np.arange(40) % 9, data, 9)
    attr = np.random.default_rng(1).random((graph.num_edges, 3))
    graph = graph.replace(x=x, edge_attr=attr, edge_type=np.arange(graph.num_edges) % 4)
    write_partition(graph, partition, tmp_path / "p", mark_bytes=0)
    check_folder(tmp_path / "p", graph, partition)


@pytest.mark.parametrize("name", [n for n in AWKWARD if n != "edge-weighted"])
def test_a_stream_gives_the_same_folder(tmp_path, name):
    graph, partition = awkward_case(name, 3)[1:]
    partition = Partition(partition.assignment, 3)
    plain = graph.replace(**dict.fromkeys(EDGE_NAMES))
    write_partition(plain, partition, tmp_path / "memory")
    algorithm = Given(tuple(partition.assignment.tolist()))
    partition_stream(stream_of(plain), 3, algorithm, tmp_path / "disk", options=QUIET)
    assert files(tmp_path / "disk") == files(tmp_path / "memory")
    assert sorted(os.listdir(tmp_path)) == ["disk", "memory"]


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 60).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(*[st.integers(0, max(0, n - 1))] * 2), max_size=90 if n else 0),
            st.lists(st.integers(0, 3), min_size=n, max_size=n),
        )
    ),
    st.booleans(),
)
def test_any_stream(tmp_path_factory, case, symmetrize):
    num_nodes, pairs, assignment = case
    folder = tmp_path_factory.mktemp("any")
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    stream = EdgeStream(lambda size: iter([(src, dst)]), num_nodes, len(src), name="g")
    options = StreamOptions(quiet=True, symmetrize=symmetrize)
    partition_stream(stream, 4, Given(tuple(assignment)), folder / "disk", options=options)
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=symmetrize, name="g")
    partition = Partition(np.array(assignment, np.int32), 4)
    write_partition(graph, partition, folder / "memory")
    assert files(folder / "disk") == files(folder / "memory")


def test_refinement_comes_after_the_partitioner(tmp_path):
    graph = awkward_case("star", 2).graph
    calls = []

    def refine(held, partition):
        calls.append((held.num_edges, partition.sizes.tolist()))
        return Partition(1 - partition.assignment, 2, method="refined")

    algorithm = Given((0,) * 25)
    meta = partition_stream(
        stream_of(graph), 2, algorithm, tmp_path / "p", refine=refine, options=QUIET
    )
    assert calls == [(graph.num_edges, [25, 0])]
    assert meta.node_ptr == (0, 0, 25)
    assert meta.partitioner["method"] == "refined"


KILL = """
import os, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_out_of_core import Given
from awkward import awkward_case
from gnn_dist.edge_stream import stream_of
from gnn_dist.out_of_core import StreamOptions, partition_stream, pipeline, progress

class Killer(progress.ProgressBars):
    def __call__(self, stage, done, total):
        print(stage, flush=True)
        if stage == {stage!r}:
            os.kill(os.getpid(), 9)

pipeline.ProgressBars = Killer
graph, partition = awkward_case("random partition", 3)[1:]
algorithm = Given(tuple(partition.assignment.tolist()))
partition_stream(stream_of(graph), 3, algorithm, {out!r}, options=StreamOptions(quiet=True))
"""


SLOW = [pytest.param(stage, marks=pytest.mark.slow) for stage in ("scatter", "mark")]


@pytest.mark.parametrize("stage", ["sort", "write", *SLOW])
def test_a_killed_run_is_resumed(tmp_path, stage):
    out, tests = tmp_path / "parts", str(Path(__file__).parent)
    run = [sys.executable, "-c", KILL.format(tests=tests, stage=stage, out=str(out))]
    killed = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    assert not out.exists()
    again = [sys.executable, "-c", KILL.format(tests=tests, stage="none", out=str(out))]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, check=True)
    stages = ["scatter", "sort", "mark", "write"]
    # What was finished before is not done again; both stages of writing are one.
    assert done.stdout.split() == stages[min(stages.index(stage), 2) :]
    graph, partition = awkward_case("random partition", 3)[1:]
    write_partition(graph, Partition(partition.assignment, 3), tmp_path / "memory")
    assert files(out) == files(tmp_path / "memory")
    assert sorted(os.listdir(tmp_path)) == ["memory", "parts"]


def test_a_finished_partition_is_used_again(tmp_path, monkeypatch):
    graph = awkward_case("random partition", 2).graph
    calls = []

    @dataclass(frozen=True)
    class Counted:
        seed: int = 0

        def __call__(self, held, num_parts):
            calls.append(self.seed)
            return Partition(np.arange(30) % 2, 2, options={"seed": self.seed}, notes=("n",))

    def fail(*args, **kwargs):
        raise ShardFormatError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("gnn_dist.out_of_core.pipeline.write_partition", fail)
        for seed in (1, 1, 2):
            with pytest.raises(ShardFormatError, match="disk full"):
                partition_stream(stream_of(graph), 2, Counted(seed), tmp_path / "p", options=QUIET)
    assert calls == [1, 2]
    meta = partition_stream(stream_of(graph), 2, Counted(2), tmp_path / "p", options=QUIET)
    assert calls == [1, 2]
    assert meta.partitioner == {"method": "given", "options": {"seed": 2}, "notes": ["n"]}


def test_an_assignment_of_other_parts_is_not_used_again(tmp_path, monkeypatch):
    graph = awkward_case("random partition", 2).graph
    calls = []

    @dataclass(frozen=True)
    class Recorded:
        def __call__(self, held, num_parts):
            calls.append(num_parts)
            return Partition(np.arange(30) % 2, num_parts)

    def fail(*args, **kwargs):
        raise ShardFormatError("disk full")

    monkeypatch.setattr("gnn_dist.out_of_core.pipeline.write_partition", fail)
    for num_parts in (2, 2, 3):
        with pytest.raises(ShardFormatError, match="disk full"):
            partition_stream(stream_of(graph), num_parts, Recorded(), tmp_path / "p", options=QUIET)
    assert calls == [2, 3]


def test_an_assignment_of_the_edges_alone_is_not_that_of_the_symmetric_graph(tmp_path, monkeypatch):
    edges = np.array([0, 0, 2, 2]), np.array([1, 1, 3, 3])  # as many edges either way
    stream = EdgeStream(lambda size: iter([edges]), 4, 4)
    calls = []

    @dataclass(frozen=True)
    class Recorded:
        def __call__(self, held, num_parts):
            calls.append(held.is_symmetric)
            return Partition(np.arange(4) % 2, 2)

    def fail(*args, **kwargs):
        raise ShardFormatError("disk full")

    monkeypatch.setattr("gnn_dist.out_of_core.pipeline.write_partition", fail)
    for symmetrize in (False, True):
        options = StreamOptions(quiet=True, symmetrize=symmetrize)
        with pytest.raises(ShardFormatError, match="disk full"):
            partition_stream(stream, 2, Recorded(), tmp_path / "p", options=options)
    assert calls == [False, True]


def test_the_assignment_of_a_function_is_made_anew(tmp_path, monkeypatch):
    graph = awkward_case("star", 2).graph
    calls = []

    def half(held, num_parts):
        calls.append(num_parts)
        return Partition(np.arange(25) % 2, 2)

    def fail(*args, **kwargs):
        raise ShardFormatError("disk full")

    monkeypatch.setattr("gnn_dist.out_of_core.pipeline.write_partition", fail)
    for _ in range(2):
        with pytest.raises(ShardFormatError, match="disk full"):
            partition_stream(stream_of(graph), 2, half, tmp_path / "p", options=QUIET)
    assert calls == [2, 2]


@pytest.mark.parametrize(
    ("text", "size"), [("8G", 8 << 30), ("300 mib", 300 << 20), ("17", 17), ("1.5KB", 1536)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "8X", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="a size must be"):
        parse_size(text)


def test_what_is_no_partition_is_refused(tmp_path):
    graph = awkward_case("star", 2).graph
    with pytest.raises(PartitionError, match="25 nodes to 3 parts, got 2 nodes"):
        partition_stream(stream_of(graph), 3, Given((0, 1)), tmp_path / "p", options=QUIET)


def test_an_existing_folder_is_not_replaced_unasked(tmp_path):
    graph, partition = awkward_case("star", 2)[1:]
    write_partition(graph, partition, tmp_path / "p")
    algorithm = Given(tuple(partition.assignment.tolist()))
    with pytest.raises(ShardFormatError, match="--overwrite"):
        partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=QUIET)
    options = StreamOptions(quiet=True, overwrite=True)
    partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=options)


def test_a_plan_keeps_to_the_limit_or_says_what_is_needed(tmp_path):
    stream = EdgeStream(lambda size: iter(()), 1 << 25, 1 << 30, name="large")
    plan = make_plan(stream, 8, tmp_path / "p", memory_limit=4 << 30)
    assert plan.memory_bytes <= 4 << 30
    assert plan.work_bytes >= 12 << 30
    assert "GiB" in str(plan)
    with pytest.raises(ConfigError, match=r"at least (\S+) GiB.*got --memory-limit 1.00") as caught:
        make_plan(stream, 8, tmp_path / "p", memory_limit=1 << 30)
    needed = float(str(caught.value).split("at least ")[1].split()[0]) + 0.01
    make_plan(stream, 8, tmp_path / "p", memory_limit=int(needed * 2**30))
    vast = EdgeStream(lambda size: iter(()), 1 << 30, 1 << 50)
    with pytest.raises(ConfigError, match="of disk under"):
        make_plan(vast, 8, tmp_path / "p")


def test_room_is_looked_for_where_it_is_needed(tmp_path, monkeypatch):
    stream = EdgeStream(lambda size: iter(()), 1 << 20, 1 << 24)
    work, out = tmp_path / "disk/work", tmp_path / "p"
    work.mkdir(parents=True)
    needed = make_plan(stream, 2, out).work_bytes
    devices = {}
    real = os.stat

    def stat(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        number = devices.get(str(path), found.st_dev)
        return SimpleNamespace(st_dev=number, st_mode=found.st_mode, st_blocks=found.st_blocks)

    room = {str(work): needed, str(tmp_path): 1 << 40}
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda p: SimpleNamespace(free=room[str(p)]))
    monkeypatch.setattr(Path, "stat", lambda self, **kwargs: stat(self, **kwargs))
    devices[str(work)] = -1
    make_plan(stream, 2, out, work=work)
    room[str(work)] -= 1 << 20
    with pytest.raises(ConfigError, match=r"disk under .*work, got .*choose another --work"):
        make_plan(stream, 2, out, work=work)
    (work / "spill.bin").write_bytes(bytes(1 << 20))  # what is there is not needed again
    make_plan(stream, 2, out, work=work)
    room[str(tmp_path)] = 1 << 20
    with pytest.raises(ConfigError, match="choose another --out"):
        make_plan(stream, 2, out, work=work)


@pytest.mark.parametrize("file", ["spill.bin", "table.npy", "indptr.npy", "indices.bin"])
def test_a_full_disk_is_one_sentence_and_work_goes_on(tmp_path, file):
    graph, partition = awkward_case("random partition", 2)[1:]
    algorithm = Given(tuple(partition.assignment.tolist()))
    work = tmp_path / "work"
    options = StreamOptions(quiet=True, work=work)
    work.mkdir()
    (work / "gnn-dist-work").touch()
    (work / file).symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"with the work folder .*work: .*No space left"):
        partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=options)
    (work / file).unlink()
    partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=options)
    check_folder(tmp_path / "p", graph, partition)


def test_no_page_of_a_new_file_is_mapped(tmp_path, monkeypatch):
    """Where the disk is full, touching such a page ends the process by a signal."""

    open_memmap = np.lib.format.open_memmap

    def reading(*args, **kwargs):
        assert kwargs.get("mode") == "r"
        return open_memmap(*args, **kwargs)

    monkeypatch.setattr(np.lib.format, "open_memmap", reading)
    graph, partition = awkward_case("random partition", 2)[1:]
    algorithm = Given(tuple(partition.assignment.tolist()))
    partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=QUIET)


@pytest.mark.parametrize("work", ["file", "file/work"])
def test_a_work_folder_that_cannot_be_made_is_named(tmp_path, work):
    (tmp_path / "file").touch()
    options = StreamOptions(quiet=True, work=tmp_path / work)
    stream = stream_of(awkward_case("star", 2).graph)
    with pytest.raises(ConfigError, match=f"work folder .*{work}"):
        partition_stream(stream, 2, Given((0,) * 25), tmp_path / "p", options=options)


def test_two_processes_do_not_share_a_work_folder(tmp_path):
    graph = awkward_case("star", 2).graph
    algorithm = Given((0, 1) * 12 + (0,))
    folder = tmp_path / ".p.work"
    folder.mkdir()
    with locked(folder), pytest.raises(ConfigError, match="another process is at work in"):
        partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=QUIET)
    partition_stream(stream_of(graph), 2, algorithm, tmp_path / "p", options=QUIET)


def test_what_another_process_is_writing_is_no_leftover(tmp_path, monkeypatch):
    graph, partition = awkward_case("star", 2)[1:]
    (tmp_path / ".p.0123abcd.tmp").mkdir()
    parts = writer.write_parts

    def while_writing(*args, **kwargs):
        remove_leftovers(tmp_path / "p")
        return parts(*args, **kwargs)

    monkeypatch.setattr("gnn_dist.shard.format.write_parts", while_writing)
    write_partition(graph, partition, tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_bars_show_each_stage(capsys):
    with ProgressBars(shown=True) as bars:
        for stage in ("sort", "write", "write"):
            bars(stage, 5, 10)
            bars(stage, 10, 10)
    shown = capsys.readouterr().err
    assert "sort" in shown
    assert "write" in shown
    assert "10.0/10.0" in shown


MEMORY = """
import resource, sys, threading, time
from pathlib import Path
import numpy as np
from gnn_dist.datasets.edge_streams import open_edge_stream
from gnn_dist.ops.synthetic import RecursiveMatrixEdges
from gnn_dist.edge_stream import EdgeStream
from gnn_dist.out_of_core import StreamOptions, partition_stream
from gnn_dist.partition import Partition

peak = 0
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(x.split()[1]) for x in lines if x.startswith(("RssAnon", "RssShmem")))
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.005)

edges = RecursiveMatrixEdges(16, 1 << 25)
stream = EdgeStream(edges.read, 1 << 16, edges.num_edges)
threading.Thread(target=watch, daemon=True).start()
limit = int(sys.argv[2])
partition_stream(
    stream, 4, lambda g, p: Partition(np.arange(g.num_nodes) % p, p), sys.argv[1],
    options=StreamOptions(memory_limit=limit, quiet=True),
)
print(peak)
"""


@pytest.mark.slow
def test_memory_stays_within_the_limit(tmp_path):
    """The edges alone would take 256 MiB, and sorting them in memory four times that."""
    limit = 730 << 20
    run = [sys.executable, "-c", MEMORY, str(tmp_path / "p"), str(limit)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= limit
