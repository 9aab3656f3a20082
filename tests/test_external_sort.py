"""The external sort: the graph in memory, whatever the memory and wherever it was interrupted."""

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.edge_stream import EdgeStream, stream_of
from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.graph import graph_from_edges
from gnn_dist.out_of_core.ahead import ahead
from gnn_dist.out_of_core.external_sort import external_sort, open_sorted
from gnn_dist.out_of_core.stages import Stages


def stream_from(src, dst, num_nodes, **more):
    src, dst = np.array(src, np.int64), np.array(dst, np.int64)

    def read(size):
        for start in range(0, len(src), 7):
            yield src[start : start + 7], dst[start : start + 7]

    return EdgeStream(read, num_nodes, len(src), **more)


def check_same(made, graph):
    assert np.array_equal(made.indptr, graph.indptr)
    assert np.array_equal(made.indices, graph.indices)
    assert made.indptr.dtype == graph.indptr.dtype
    assert made.indices.dtype == graph.indices.dtype
    assert made.is_symmetric == graph.replace(edge_weight=None).is_symmetric


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("memory_bytes", [16, 300, 1 << 20])
def test_a_graph_stays_as_it_is(tmp_path, name, memory_bytes):
    graph = awkward_case(name).graph
    made, found = external_sort(stream_of(graph), tmp_path / "w", memory_bytes=memory_bytes)
    check_same(made, graph)
    src, dst = graph.edges()
    assert found.num_self_loops == int((src == dst).sum())
    assert made.x is graph.x
    assert made.num_classes == graph.num_classes


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 1500).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80),
        )
    ),
    st.booleans(),
    st.sampled_from([1, 200, 1000, 1 << 20]),
)
def test_any_edges(tmp_path_factory, case, symmetrize, memory_bytes):
    num_nodes, pairs = case
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    folder = tmp_path_factory.mktemp("sort") / "w"
    stream = stream_from(src, dst, num_nodes)
    made, found = external_sort(stream, folder, symmetrize=symmetrize, memory_bytes=memory_bytes)
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=symmetrize)
    check_same(made, graph)
    assert found.num_edges == graph.num_edges


def test_a_hub_is_cut_off_from_its_bucket(tmp_path):
    rng = np.random.default_rng(0)
    src = rng.integers(0, 5000, 60_000)
    dst = np.where(rng.random(60_000) < 0.9, 4, rng.integers(0, 5000, 60_000))
    stream = stream_from(src, dst, 5000)
    made, _ = external_sort(stream, tmp_path / "w", memory_bytes=16 * 1000)
    check_same(made, graph_from_edges(src, dst, num_nodes=5000))


def test_a_row_beyond_memory_is_refused(tmp_path):
    size = 70_000
    stream = EdgeStream(
        lambda chunk: iter([(np.zeros(size, np.int32), np.ones(size, np.int32))]), 2, size
    )
    with pytest.raises(ConfigError, match="node 1 of stream has 70000 in-edges"):
        external_sort(stream, tmp_path / "w", memory_bytes=1000)


def test_too_many_nodes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"at most 2\^36"):
        external_sort(EdgeStream(lambda size: iter(()), 2**36 + 1, 0), tmp_path / "w")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("stage", ["scatter", "sort"])
@pytest.mark.parametrize("after", [0, 1])
def test_an_interrupted_sort_is_resumed(tmp_path, stage, after):
    graph = awkward_case("random partition").graph
    passes, seen = [], []

    def read(size):
        passes.append(size)
        return stream_of(graph).read(3)

    def kill(name, done, total):
        seen.append(name)
        if name == stage and seen.count(name) > after:
            raise Killed

    stream = EdgeStream(read, graph.num_nodes, graph.num_edges)
    with pytest.raises(Killed):
        external_sort(stream, tmp_path / "w", memory_bytes=200, progress=kill)
    made, _ = external_sort(stream, tmp_path / "w", memory_bytes=200)
    check_same(made, graph)
    # What was scattered is not read again.
    assert len(passes) == (2 if stage == "scatter" else 1)
    made, found = external_sort(stream, tmp_path / "w")
    check_same(made, graph)
    check_same(open_sorted(stream, tmp_path / "w", found), graph)
    assert len(passes) == (2 if stage == "scatter" else 1)


def test_work_on_other_data_is_not_continued(tmp_path):
    first = stream_from([0, 1], [1, 2], 3, version="1")
    external_sort(first, tmp_path / "w")
    second = stream_from([2, 1], [1, 0], 3, version="2")
    made, _ = external_sort(second, tmp_path / "w")
    check_same(made, graph_from_edges([2, 1], [1, 0], num_nodes=3))
    third = stream_from([0, 0], [1, 0], 3, version="2")
    made, _ = external_sort(third, tmp_path / "w", resume=False)
    check_same(made, graph_from_edges([0, 0], [1, 0], num_nodes=3))


def test_an_interrupted_sort_of_other_data_spoils_nothing(tmp_path):
    src, dst = [0, 1, 2, 0], [1, 2, 3, 3]
    stream = stream_from(src, dst, 4)

    def kill(name, done, total):
        if name == "sort":
            raise Killed

    external_sort(stream, tmp_path / "w")
    with pytest.raises(Killed):  # when all files are written, before the stamp is
        external_sort(stream, tmp_path / "w", symmetrize=True, progress=kill)
    made, _ = external_sort(stream, tmp_path / "w")
    check_same(made, graph_from_edges(src, dst, num_nodes=4))


def test_a_damaged_stamp_counts_as_none(tmp_path):
    stream = stream_from([0, 1], [1, 2], 3)
    external_sort(stream, tmp_path / "w")
    (tmp_path / "w" / "sort.json").write_text('{"task": ')
    (tmp_path / "w" / "scatter.json").write_text("[]")
    made, _ = external_sort(stream, tmp_path / "w")
    check_same(made, graph_from_edges([0, 1], [1, 2], num_nodes=3))


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(ConfigError, match="must be new, empty or left by"):
        Stages.opened(tmp_path, resume=False)
    assert (tmp_path / "precious.txt").read_text() == "x"


def test_a_bad_edge_stops_the_sort(tmp_path):
    with pytest.raises(GraphError, match=r"edge 9 \(0 -> 3\)"):
        external_sort(stream_from([0] * 10, [1] * 9 + [3], 3), tmp_path / "w")


def test_reading_ahead_keeps_order_and_errors():
    def items():
        yield from range(1, 4)
        raise KeyError("mine")

    seen = []

    with pytest.raises(KeyError, match="mine"):
        seen.extend(ahead(items()))
    assert seen == [1, 2, 3]
    started = ahead(iter(range(1, 100)))
    assert next(started) == 1
    started.close()
