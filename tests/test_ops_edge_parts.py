"""Operators that assign edges to parts: equal to their references, for any chunks and threads."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.ops.edge_parts import (
    EdgeAssigner,
    choose_roots,
    clone_table,
    count_ends,
    homes_of,
)
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import edge_parts as reference

pytestmark = pytest.mark.kernels

# Around the widths of words of bits.
PARTS = (1, 2, 3, 16, 63, 64, 65, 130, 1024)


def stream(seed, num_nodes=25, num_edges=90, dtype=torch.int32):
    """Edges with hubs, repeats and self-loops; the last nodes may be without any."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, num_edges, generator=generator) ** 2 * num_nodes
    return ends.long().to(dtype)


class State:
    """What the operators change, and their other arguments."""

    def __init__(self, ends, num_nodes, num_parts, room=0):
        self.src, self.dst = ends
        self.degree = torch.zeros(num_nodes, dtype=torch.int32)
        reference.count_ends(self.degree, self.src, self.dst)
        self.parts = torch.full_like(self.src, -7, dtype=torch.int32)
        self.clones = clone_table(num_nodes, num_parts)
        self.loads = torch.zeros(num_parts, dtype=torch.int64)
        self.limit = -(-len(self.src) // num_parts) + room

    @property
    def changed(self):
        return [self.parts, self.clones, self.loads]

    @property
    def arguments(self):
        return (*self.changed, self.src, self.dst, self.degree)


def run(ops, name, state, key=0, first=0, balance_weight=1.1):
    """Call an operator by name and return everything that it changed."""
    if name == "libra":
        ops.libra_edges(*state.arguments, state.limit, key, first)
    elif name == "hdrf":
        ops.hdrf_edges(*state.arguments, balance_weight, state.limit, key, first)
    elif name == "dbh":
        ends = state.src, state.dst
        num_parts = len(state.loads)
        ops.dbh_edges(state.parts, *ends, state.degree, num_parts, key)
        ops.mark_clones(state.clones, state.parts, *ends, num_parts)
    elif name == "2ps-l":
        cluster = torch.arange(len(state.degree)) // 4
        volume = torch.zeros_like(cluster).index_add_(0, cluster, state.degree.long())[cluster]
        homes = homes_of((cluster % len(state.loads)).int(), volume, state.degree)
        ends = state.src, state.dst
        for rest in (False, True):
            ops.two_phase_edges(*state.changed, *ends, homes, state.limit, rest, key, first)
    return state.changed


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_parts", PARTS)
@pytest.mark.parametrize("name", ["libra", "hdrf", "dbh", "2ps-l"])
def test_operators_equal_their_references(name, num_parts, dtype):
    for seed, room in ((0, 0), (1, 1), (2, 9)):
        ends = stream(seed, num_edges=90 if num_parts < 100 else 200, dtype=dtype)
        found, expected = (State(ends, 25, num_parts, room) for _ in range(2))
        first = 2**40 * seed
        assert_same(
            run(kernels, name, found, -((seed + 5) ** 20), first),
            run(reference, name, expected, -((seed + 5) ** 20), first),
        )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(0, 30),
    st.sampled_from([1, 2, 5, 70]),
    st.integers(-(2**63), 2**63 - 1),
)
@pytest.mark.parametrize("name", ["libra", "hdrf", "2ps-l"])
def test_any_stream_equals_its_reference(name, seed, num_nodes, num_edges, num_parts, key):
    ends = stream(seed, num_nodes, num_edges)
    found, expected = (State(ends, num_nodes, num_parts, seed % 3) for _ in range(2))
    assert_same(run(kernels, name, found, key), run(reference, name, expected, key))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_parts", PARTS)
def test_roots_equal_their_reference(num_parts, masked):
    state = State(stream(3, num_nodes=60), 80, num_parts)  # twenty nodes without edges
    run(kernels, "dbh", state)
    train = torch.arange(80) % 3 == 0 if masked else None
    tables = [state.clones.clone() for _ in range(2)]
    roots = [
        ops.choose_roots(table, train, num_parts, 3, 11)
        for ops, table in zip((kernels, reference), tables, strict=True)
    ]
    assert_same([roots[0], tables[0]], [roots[1], tables[1]])


@pytest.mark.parametrize("num_parts", [3, 64, 200])
@pytest.mark.parametrize("name", ["libra", "hdrf", "dbh", "2ps-l"])
def test_nothing_depends_on_threads(name, num_parts, by_threads):
    ends = stream(4, 500, 200_000)
    results = by_threads(lambda: run(kernels, name, State(ends, 500, num_parts)))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


@pytest.mark.parametrize("name", ["libra", "hdrf"])
def test_nothing_depends_on_chunks(name):
    ends = stream(5, 40, 300)
    degree = torch.zeros(40, dtype=torch.int32)
    count_ends(degree, *ends)
    whole, cut = (EdgeAssigner.empty(degree, num_parts=7, limit=44, seed=3) for _ in range(2))

    def assign(assigner, src, dst, first):
        if name == "libra":
            return assigner.libra(src, dst, first=first)
        return assigner.hdrf(src, dst, balance_weight=1.1, first=first)

    at_once = assign(whole, *ends, 0)
    bounds = [0, 1, 1, 50, 299, 300]
    pieces = [assign(cut, *ends[:, a:b], a) for a, b in pairwise(bounds)]
    assert torch.equal(torch.cat(pieces), at_once)
    assert torch.equal(whole.clones, cut.clones)


def test_libra_by_hand():
    # a-b: nothing known, part s; c-d: the other part; then a-b's part knows a, c-d's knows d.
    # a has degree 2 and d degree 3, so d is the one to get a clone, unless its part is full.
    src, dst = torch.tensor([0, 2, 0, 3]), torch.tensor([1, 3, 3, 4])
    degree = torch.tensor([2, 1, 1, 3, 1], dtype=torch.int32)
    assigner = EdgeAssigner.empty(degree, num_parts=2, limit=4)
    parts = assigner.libra(src, dst, first=0).tolist()
    first, other = parts[0], 1 - parts[0]
    assert parts == [first, other, first, other]  # the last: of d's two parts the less loaded
    full = EdgeAssigner.empty(degree, num_parts=2, limit=2)
    assert sorted(full.libra(src, dst, first=0).bincount().tolist()) == [2, 2]


def test_a_hub_is_what_hdrf_splits():
    # A star's leaves have one clone each and its hub one a part, at perfect balance.
    src, dst = torch.zeros(40, dtype=torch.int64), torch.arange(1, 41)
    degree = torch.tensor([40] + [1] * 40, dtype=torch.int32)
    assigner = EdgeAssigner.empty(degree, num_parts=4, limit=40)
    parts = assigner.hdrf(src, dst, balance_weight=3.0, first=0)
    assert parts.bincount().tolist() == [10] * 4
    assert assigner.clones[:, 0].tolist() == [15, *(1 << p for p in parts.tolist())]


def test_degrees_do_not_overflow():
    degree = torch.tensor([2**31 - 2, 5], dtype=torch.int32)
    for ops in (kernels, reference):
        counts = degree.clone()
        ops.count_ends(counts, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
        assert counts.tolist() == [2**31 - 1, 8]


def test_roots_balance_what_can_be_balanced():
    # All nodes have clones in both parts: roots, training roots and other clones come out even.
    clones = torch.full((40, 1), 3)
    train = torch.arange(40) < 10
    root = choose_roots(clones, train, num_parts=2, seed=0)
    assert root.bincount().tolist() == [20, 20]
    assert root[train].bincount().tolist() == [5, 5]
    # Thirty nodes have no choice; the others make up for it, but for what roots hear from clones.
    clones = torch.tensor([[1]] * 30 + [[3]] * 30)
    root = choose_roots(clones, None, num_parts=2, seed=0)
    assert root.bincount().tolist() == [33, 27]


def test_a_million_nodes_without_edges_are_dealt_out():
    clones = clone_table(10**6, 3)
    root = choose_roots(clones, None, num_parts=3, seed=0)
    assert sorted(root.bincount().tolist()) == [333333, 333333, 333334]
    assert torch.equal(clones[:, 0], 1 << root.long())


GOOD = {
    "parts": torch.zeros(2, dtype=torch.int32),
    "clones": torch.zeros(3, 1, dtype=torch.int64),
    "loads": torch.zeros(2, dtype=torch.int64),
    "src": torch.tensor([0, 1]),
    "dst": torch.tensor([1, 2]),
    "degree": torch.ones(3, dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("change", "error", "words_of_it"),
    [
        ({"src": torch.tensor([0, 3])}, IndexError, r"must lie in \[0, 3\)"),
        ({"dst": torch.tensor([-1, 0])}, IndexError, r"must lie in \[0, 3\)"),
        ({"src": torch.tensor([0])}, ValueError, "equally long"),
        ({"src": torch.tensor([0.0, 1.0])}, ValueError, "src must be"),
        ({"src": torch.tensor([[0, 1]])}, ValueError, "src must be one-dimensional"),
        ({"dst": torch.tensor([0, 1], dtype=torch.int32)}, ValueError, "dst must be"),
        ({"parts": torch.zeros(3, dtype=torch.int32)}, ValueError, "one element per edge"),
        ({"parts": torch.zeros(2)}, ValueError, "parts must be"),
        ({"clones": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, "clones must be"),
        ({"clones": torch.zeros(3, 1)}, ValueError, "clones must be"),
        ({"degree": torch.ones(2, dtype=torch.int32)}, ValueError, "one element per node"),
        ({"loads": torch.zeros(0, dtype=torch.int64)}, ValueError, "num_parts must lie"),
        ({"loads": torch.tensor([9, 9])}, ValueError, "leave room for 2 edges, 0 fit"),
        ({"loads": torch.tensor([-1, 0])}, ValueError, "loads must lie"),
    ],
)
def test_bad_arguments_are_refused(change, error, words_of_it):
    arguments = {name: value.clone() for name, value in (GOOD | change).items()}
    before = [arguments[name].clone() for name in ("parts", "clones", "loads")]
    without_degree = {name: value for name, value in arguments.items() if name != "degree"}
    calls = [
        lambda: kernels.libra_edges(**arguments, limit=2, key=0, first=0),
        lambda: kernels.hdrf_edges(**arguments, balance_weight=1.0, limit=2, key=0, first=0),
        lambda: kernels.two_phase_edges(
            **without_degree | {"parts": arguments["parts"] - 1},
            homes=homes_of(torch.zeros(3).int(), torch.ones(3).long(), GOOD["degree"]),
            limit=2,
            rest=True,
            key=0,
            first=0,
        ),
    ]
    for call in calls[:2] if "degree" in change else calls:
        with pytest.raises(error, match=words_of_it):
            call()
    assert_same([arguments[name] for name in ("parts", "clones", "loads")], before)


def test_other_bad_arguments_are_refused():
    edges, degree = (GOOD["src"], GOOD["dst"]), GOOD["degree"]
    parts, clones = GOOD["parts"].clone(), GOOD["clones"].clone()
    arguments = {name: value.clone() for name, value in GOOD.items()}
    with pytest.raises(ValueError, match="balance_weight"):
        kernels.hdrf_edges(**arguments, balance_weight=float("nan"), limit=2, key=0, first=0)
    with pytest.raises(IndexError, match="parts must lie"):
        kernels.mark_clones(clones, parts + 2, *edges, 2)
    for num_parts in (0, 2**15 + 1):
        with pytest.raises(ValueError, match="num_parts must lie"):
            kernels.dbh_edges(parts, *edges, degree, num_parts, 0)
    with pytest.raises(IndexError, match="node 1 has others"):
        kernels.choose_roots(torch.tensor([[1], [4], [0]]), None, 2, 1, 0)
    with pytest.raises(ValueError, match="train must have"):
        kernels.choose_roots(clones, torch.ones(2, dtype=torch.bool), 2, 1, 0)
    with pytest.raises(ValueError, match="sweeps"):
        kernels.choose_roots(clones, None, 2, 0, 0)
    loads = GOOD["loads"].clone()
    for bad in (2, -1):
        homes = homes_of(torch.tensor([0, bad, 1]).int(), torch.ones(3).long(), degree)
        for rest in (False, True):
            with pytest.raises(IndexError, match="home must lie"):
                kernels.two_phase_edges(parts - 1, clones, loads, *edges, homes, 2, rest, 0, 0)
    for wrong in (homes[:2], homes[:, :1], homes.T, homes.double()):
        with pytest.raises(ValueError, match="homes must be"):
            kernels.two_phase_edges(parts - 1, clones, loads, *edges, wrong, 2, True, 0, 0)


def test_operators_are_registered_well():
    state = State(stream(0), 25, 3)
    loads, extra = state.arguments, (state.limit, 0, 0)
    homes = homes_of(torch.zeros(25).int(), torch.ones(25).long(), state.degree)
    ends = state.src, state.dst
    cases = {
        "count_ends": (state.degree, *ends),
        "mark_clones": (state.clones, state.parts.clamp(min=0), *ends, 3),
        "dbh_edges": (state.parts, *ends, state.degree, 3, 0),
        "libra_edges": (*loads, *extra),
        "hdrf_edges": (*loads, 1.1, *extra),
        "two_phase_edges": (*state.changed, *ends, homes, state.limit, False, 0, 0),
        "choose_roots": (state.clones, None, 3, 2, 0),
    }
    for name, arguments in cases.items():
        torch.library.opcheck(
            getattr(torch.ops.gnn_dist, name).default,
            arguments,
            test_utils=("test_schema", "test_faketensor"),
        )


def test_draws_are_fixed():
    # A change of these numbers gives every old partition another name for the same options.
    ends = stream(6, 20, 12)
    found = {
        name: run(kernels, name, State(ends, 20, 3), 7)[0].tolist() for name in ("libra", "dbh")
    }
    assert found == {
        "libra": [0, 0, 2, 1, 1, 1, 2, 0, 2, 0, 2, 1],
        "dbh": [2, 0, 1, 1, 1, 1, 2, 0, 0, 0, 0, 2],
    }
