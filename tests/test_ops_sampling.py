import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import sampling as reference
from gnn_dist.ops.reference.words import row_keys, words
from gnn_dist.ops.sampling import BlockSampler, hop_keys, relabel, row_order, sample_neighbors

KEY = DrawKey(seed=1, step=2, site=3)
# Either side of each representation of the set of picks: one word, 64 words, a tree.
AWKWARD_DEGREES = [0, 1, 2, 5, 0, 16, 63, 64, 65, 200, 4095, 4096, 4097, 9000, 0]


def structure(degrees, num_cols=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    num_cols = len(degrees) if num_cols is None else num_cols
    nnz = int(indptr[-1])
    indices = torch.randint(max(num_cols, 1), (nnz,), generator=generator, dtype=torch.int32)
    return CSR(indptr, indices, num_cols)


def star(degree):
    """One row with an entry for each column."""
    return CSR(torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32), degree)


def make_weight(csr, dtype, zeros=0.3):
    generator = torch.Generator().manual_seed(1)
    value = torch.rand(csr.nnz, dtype=dtype, generator=generator)
    return value * (torch.rand(csr.nnz, generator=generator) >= zeros)


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def assert_same_for_any_threads(function, expected):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            assert_same(function(), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("weight_dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 10, 64, 700, 5000])
def test_operator_equals_its_reference(fanout, replace, weight_dtype):
    csr = structure(AWKWARD_DEGREES)
    # More rows than one task takes, but where that would be slow.
    num_rows = 30 if fanout > 64 or weight_dtype is not None else 300
    rows = torch.randint(csr.num_rows, (num_rows,), generator=torch.Generator().manual_seed(2))
    weight = None if weight_dtype is None else make_weight(csr, weight_dtype)
    ids = rows * 10**12 - 7
    arguments = (csr.indptr, csr.indices, rows, ids, fanout, replace, KEY.value, weight)
    expected = reference.sample_neighbors(*arguments)
    assert_same_for_any_threads(lambda: kernels.sample_neighbors(*arguments), expected)


@given(st.integers(0, 80), st.integers(-1, 90), st.booleans(), st.integers(-(2**63), 2**63 - 1))
def test_any_row_equals_the_reference(degree, fanout, replace, key):
    csr, zero = star(degree), torch.tensor([0])
    arguments = (csr.indptr, csr.indices, zero, zero, fanout, replace, key, None)
    assert_same(kernels.sample_neighbors(*arguments), reference.sample_neighbors(*arguments))


def test_draws_are_fixed():
    # A change of these numbers breaks the resumption of old runs.
    drawn = {
        degree: sample_neighbors(
            star(degree), torch.tensor([0]), row_ids=torch.tensor([7]), fanout=4, key=KEY
        ).position.tolist()
        for degree in (6, 100, 10**6)
    }
    assert drawn == {
        6: [0, 1, 4, 5],
        100: [1, 17, 39, 82],
        10**6: [20194, 177412, 409022, 837067],
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("degree", [30, 3000, 10000])
def test_without_replacement_draws_distinct_ascending_entries(degree, weighted):
    csr = structure([degree] * 50)
    weight = make_weight(csr, torch.float32) if weighted else None
    drawn = sample_neighbors(
        csr, torch.arange(50), row_ids=torch.arange(50), fanout=20, key=KEY, weight=weight
    )
    assert drawn.indptr.diff().tolist() == (
        [20] * 50
        if degree > 30 or not weighted
        else [min(20, int((weight[30 * i : 30 * i + 30] > 0).sum())) for i in range(50)]
    )
    assert (drawn.position.diff() > 0).all()  # rows ascend too
    assert torch.equal(drawn.columns, csr.indices[drawn.position])
    assert torch.equal(drawn.position // degree, torch.repeat_interleave(drawn.indptr.diff()))
    if weighted:
        assert (weight[drawn.position] > 0).all()


def test_a_row_with_no_more_entries_than_asked_for_gives_all():
    csr = structure([3, 0, 5])
    for fanout in (-1, 5, 6, 10**9):
        drawn = sample_neighbors(
            csr, torch.tensor([2, 1, 0, 2]), row_ids=torch.zeros(4).long(), fanout=fanout, key=KEY
        )
        assert drawn.indptr.tolist() == [0, 5, 5, 8, 13]
        assert drawn.position.tolist() == [3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]


def test_with_replacement_always_draws_the_fanout():
    csr = structure([3, 0, 5])
    weight = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    rows = torch.arange(3)
    for w, counts in ((None, [100, 0, 100]), (weight, [100, 0, 0])):
        drawn = sample_neighbors(
            csr, rows, row_ids=rows, fanout=100, key=KEY, replace=True, weight=w
        )
        assert drawn.indptr.diff().tolist() == counts
    assert drawn.position.tolist() == [1] * 100


def test_draws_follow_the_original_id_not_the_place():
    csr = structure([200] * 20)
    ids = torch.arange(20) + 500
    whole = sample_neighbors(csr, torch.arange(20), row_ids=ids, fanout=9, key=KEY)
    # Another rank holds some of the rows, in another order.
    held = torch.tensor([17, 3, 8])
    part = CSR(
        torch.tensor([0, 200, 400, 600]),
        torch.cat([csr.indices[200 * i : 200 * i + 200] for i in held]),
        20,
    )
    drawn = sample_neighbors(part, torch.arange(3), row_ids=ids[held], fanout=9, key=KEY)
    assert torch.equal(drawn.columns.view(3, 9), whole.columns.view(20, 9)[held])
    other = DrawKey(1, 3, 3)
    again = sample_neighbors(csr, torch.arange(20), row_ids=ids, fanout=9, key=other)
    assert not torch.equal(again.position, whole.position)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [12, 100, 5000])
def test_entries_are_equally_likely(degree, replace):
    # Pearson's statistic has mean degree - 1 and standard deviation sqrt(2 degree) at most.
    num = 4000
    ids = torch.arange(num)
    drawn = sample_neighbors(
        star(degree), torch.zeros(num).long(), row_ids=ids, fanout=5, key=KEY, replace=replace
    )
    counts = torch.bincount(drawn.columns, minlength=degree).double()
    expected = 5 * num / degree
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - degree) < 6 * math.sqrt(2 * degree)


def test_weighted_chances():
    weight = torch.tensor([1.0, 0.0, 2.0, 5.0])
    num = 20000
    rows, ids = torch.zeros(num).long(), torch.arange(num)

    def draw(fanout, replace):
        return sample_neighbors(
            star(4), rows, row_ids=ids, fanout=fanout, key=KEY, replace=replace, weight=weight
        )

    chance = weight / weight.sum()
    for fanout, replace in ((1, False), (1, True), (3, True)):
        share = torch.bincount(draw(fanout, replace).columns, minlength=4) / (fanout * num)
        assert ((share - chance).abs() < 0.015).all()
    # Two without replacement: the second is drawn in proportion among what the first left.
    pairs = Counter(map(tuple, draw(2, False).columns.view(-1, 2).tolist()))
    for a, b in ((0, 2), (0, 3), (2, 3)):
        p, q = float(chance[a]), float(chance[b])
        assert abs(pairs[a, b] / num - (p * q / (1 - p) + q * p / (1 - q))) < 0.015


def test_extreme_weights():
    # 1 / weight overflows for the first, the total rounds the others away.
    weight = torch.tensor([5e-324, 1e300, 1e-300], dtype=torch.float64)
    arguments = (torch.tensor([0, 3]), torch.arange(3, dtype=torch.int32))
    row = torch.tensor([0])
    for fanout, replace in ((1, False), (2, False), (3, False), (9, True)):
        call = (*arguments, row, row, fanout, replace, KEY.value, weight)
        drawn = kernels.sample_neighbors(*call)
        assert_same(drawn, reference.sample_neighbors(*call))
        assert 1 in drawn[2].tolist()


def test_exponential_is_a_logarithm():
    word = words(row_keys(0, torch.arange(1000)), 10).flatten()
    word = torch.cat([word, torch.tensor([0, -1, 1 << 63 - 1, -(2**63), 0x6A09E667F3BCC908])])
    u = (((word >> 12) & (2**52 - 1)).double() + 0.5) / 2**52
    torch.testing.assert_close(reference.exponential(word), -u.log(), rtol=1e-15, atol=0)


def test_rows_may_lie_apart():
    csr, apart = structure([30] * 8), torch.arange(16)[::2]
    weight = torch.rand(csr.nnz, 2)[:, 0]
    drawn = sample_neighbors(csr, apart // 2, row_ids=apart, fanout=3, key=KEY, weight=weight)
    rows = torch.arange(8)
    assert_same(
        drawn,
        sample_neighbors(
            csr, rows, row_ids=rows * 2, fanout=3, key=KEY, weight=weight.contiguous()
        ),
    )


def test_hubs_and_large_fanouts():
    csr = star(10**6)
    zero = torch.tensor([0])
    for fanout in (3, 5000, 10**6 - 1):
        drawn = sample_neighbors(csr, zero, row_ids=zero, fanout=fanout, key=KEY).position
        assert drawn.numel() == fanout
        assert (drawn.diff() > 0).all()


@pytest.mark.parametrize(
    ("change", "error", "words_of_it"),
    [
        ({"rows": torch.tensor([3])}, IndexError, "rows must lie"),
        ({"rows": torch.tensor([-1])}, IndexError, "rows must lie"),
        ({"rows": torch.tensor([[0]])}, ValueError, "one-dimensional"),
        ({"row_ids": torch.tensor([0, 1])}, ValueError, "row_ids must have one element per row"),
        ({"rows": torch.tensor([0.0])}, ValueError, "rows must be"),
        ({"fanout": -2}, ValueError, "fan-outs"),
        ({"fanout": 2**31}, ValueError, "fan-outs"),
        ({"weight": torch.tensor([1.0])}, ValueError, "one element per entry"),
        ({"weight": torch.tensor([1.0, -1.0, 1.0])}, ValueError, "not negative"),
        ({"weight": torch.tensor([1.0, torch.nan, 1.0])}, ValueError, "not negative"),
        ({"weight": torch.tensor([1.0, torch.inf, 1.0])}, ValueError, "finite"),
        ({"weight": torch.tensor([1, 1, 1])}, ValueError, "weight must be"),
        ({"indptr": torch.tensor([0, 4, 2, 3])}, IndexError, "indptr must not fall"),
        ({"indptr": torch.tensor([0, -1, 2, 3])}, IndexError, "indptr must not fall"),
        ({"indptr": torch.tensor([0, 1, 2, 4])}, IndexError, "indptr must run"),
    ],
)
def test_bad_input_is_refused(change, error, words_of_it):
    good = {
        "indptr": torch.tensor([0, 3, 3, 3]),
        "indices": torch.tensor([0, 1, 2], dtype=torch.int32),
        "rows": torch.tensor([0]),
        "row_ids": torch.tensor([0]),
        "fanout": 2,
        "replace": False,
        "key": 0,
        "weight": None,
    }
    kernels.sample_neighbors(**good)
    with pytest.raises(error, match=words_of_it):
        kernels.sample_neighbors(**good | change)


def test_weights_too_large_to_add():
    weight = torch.full((3,), 1e308, dtype=torch.float64)
    zero = torch.tensor([0])
    for function in (kernels.sample_neighbors, reference.sample_neighbors):
        with pytest.raises(ValueError, match="too large"):
            function(torch.tensor([0, 3]), torch.arange(3).int(), zero, zero, 2, True, 0, weight)


@given(
    st.lists(st.integers(-3, 6), max_size=8, unique=True),
    st.lists(st.integers(-5, 9), max_size=30),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from([1, 2**27]),
)
def test_relabel_numbers_in_order_of_first_appearance(dst, columns, dtype, spread):
    ids, local = relabel(
        torch.tensor(dst, dtype=torch.int64) * spread,
        torch.tensor(columns, dtype=dtype) * spread,
    )
    expected = list(dict.fromkeys([*dst, *columns]))
    assert ids.tolist() == [i * spread for i in expected]
    assert local.dtype == torch.int32
    assert local.tolist() == [expected.index(c) for c in columns]


def test_relabel_equals_its_reference_and_refuses_repetition():
    generator = torch.Generator().manual_seed(0)
    dst = torch.randperm(5000, generator=generator)[:700] << 40
    columns = torch.randint(5000, (20000,), generator=generator) << 40
    assert_same(kernels.relabel(dst, columns), reference.relabel(dst, columns))
    for function in (kernels.relabel, reference.relabel):
        with pytest.raises(ValueError, match="must not repeat"):
            function(torch.tensor([1, 2, 1]), columns)
    with pytest.raises(ValueError, match="columns must be"):
        kernels.relabel(dst, columns.float())


GRAPH = structure([3, 0, 70, 12, 5, 1, 0, 300, 9, 2] * 20, seed=3)
SEEDS = [
    torch.tensor([7, 2, 190]),
    torch.tensor([], dtype=torch.int64),
    torch.arange(200),
    torch.tensor([1]),
]
KEYS = hop_keys(0, steps=[4, 5, 6, 7], sites=[0, 1, 2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_blocks_equal_the_reference(replace, weighted):
    weight = make_weight(GRAPH, torch.float32) if weighted else None
    ids = torch.arange(200).flip(0) << 33
    sampler = BlockSampler(GRAPH, [4, -1, 2], replace, ids, weight)
    flat = torch.cat(SEEDS)
    expected = reference.sample_blocks(
        torch.zeros(1, 200),
        1,
        GRAPH.indptr,
        GRAPH.indices,
        flat,
        torch.tensor([0, 3, 3, 203, 204]),
        [4, -1, 2],
        KEYS,
        replace,
        ids,
        weight,
    )
    # Nor does it matter what an earlier call left in memory.
    assert_same_for_any_threads(lambda: sampler.sample(SEEDS, KEYS).tensors, expected)


def test_blocks_are_what_layers_expect():
    sampled = BlockSampler(GRAPH, [4, 3]).sample(SEEDS, KEYS[:, :2])
    assert len(sampled) == 4
    for batch, seeds in enumerate(SEEDS):
        last, first = sampled.blocks(batch)
        assert torch.equal(first.n_id[: first.csr.num_rows], seeds)
        assert torch.equal(last.n_id[: last.csr.num_rows], first.n_id)
        assert torch.equal(last.n_id, sampled.n_id(batch))
        for block, fanout in ((first, 4), (last, 3)):
            csr, n_id, e_id = block
            dst = n_id[: csr.num_rows]
            assert csr.num_cols == n_id.numel() == n_id.unique().numel()
            assert torch.equal(csr.counts, GRAPH.counts[dst].clamp(max=fanout))
            assert torch.equal(n_id[csr.indices.long()], GRAPH.indices[e_id].long())
            assert torch.equal(dst[csr.rows], GRAPH.rows[e_id])
    with pytest.raises(IndexError, match="batch must lie"):
        sampled.blocks(4)


def test_a_batch_does_not_depend_on_the_others():
    sampler = BlockSampler(GRAPH, [4, 3, 2])
    together = sampler.sample(SEEDS, KEYS)
    for batch, seeds in enumerate(SEEDS):
        alone = sampler.sample([seeds], KEYS[batch : batch + 1])
        assert_same(alone.tensors, together.tensors[10 * batch : 10 * batch + 10])


def test_hops_draw_for_a_node_anew():
    sampled = BlockSampler(GRAPH, [4, 4]).sample([torch.tensor([7])], KEYS[:1, :2])
    last, first = sampled.blocks(0)
    assert last.e_id[:4].tolist() != first.e_id.tolist()


def test_no_batches_and_no_hops_and_no_nodes():
    assert len(BlockSampler(GRAPH, [4]).sample([], KEYS[:0, :1])) == 0
    only_seeds = BlockSampler(GRAPH, []).sample(SEEDS[:1], KEYS[:1, :0])
    assert only_seeds.blocks(0) == []
    assert torch.equal(only_seeds.n_id(0), SEEDS[0])
    nothing = BlockSampler(structure([]), [2]).sample(SEEDS[1:2], KEYS[:1, :1])
    assert nothing.n_id(0).numel() == 0


def test_threads_of_python_may_share_a_sampler():
    sampler = BlockSampler(GRAPH, [4, 3, 2])
    expected = sampler.sample(SEEDS, KEYS).tensors
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: sampler.sample(SEEDS, KEYS).tensors, range(80)))
    for tensors in results:
        assert_same(tensors, expected)


def test_stamps_begin_again_before_they_run_out():
    sampler = BlockSampler(GRAPH, [4, 3, 2])
    expected = sampler.sample(SEEDS, KEYS).tensors
    [numbers] = sampler._free
    numbers.next_stamp = 2**31 - 4
    assert_same(sampler.sample(SEEDS, KEYS).tensors, expected)
    assert numbers.next_stamp == 5


BAD_INDEX = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 2], dtype=torch.int32), 2)


@pytest.mark.parametrize(
    ("sampler", "seeds", "keys", "error", "words_of_it"),
    [
        (
            BlockSampler(GRAPH, [2]),
            [[0], [5, 3, 5]],
            KEYS[:2, :1],
            ValueError,
            "node 5 is repeated",
        ),
        (BlockSampler(GRAPH, [2]), [[0], [200]], KEYS[:2, :1], IndexError, "seeds must lie"),
        (BlockSampler(GRAPH, [2]), [[-1]], KEYS[:1, :1], IndexError, "got -1"),
        (BlockSampler(GRAPH, [2]), [[0]], KEYS[:1], ValueError, "keys must be"),
        (BlockSampler(GRAPH, [-2]), [[0]], KEYS[:1, :1], ValueError, "fan-outs"),
        (BlockSampler(BAD_INDEX, [1, 1]), [[0]], KEYS[:1, :2], IndexError, "got 2"),
        (BlockSampler(GRAPH, [1], ids=SEEDS[0]), [[0]], KEYS[:1, :1], ValueError, "ids must have"),
        (
            BlockSampler(GRAPH, [1], weight=-torch.ones(GRAPH.nnz)),
            [[0]],
            KEYS[:1, :1],
            ValueError,
            "not negative",
        ),
    ],
)
def test_bad_blocks_are_refused(sampler, seeds, keys, error, words_of_it):
    with pytest.raises(error, match=words_of_it):
        sampler.sample([torch.tensor(s) for s in seeds], keys)
    # The sampler still works.
    good = BlockSampler(sampler.csr, [1], ids=None)
    good._free.extend(sampler._free)
    assert_same(
        good.sample([torch.tensor([0])], KEYS[:1, :1]).tensors,
        BlockSampler(sampler.csr, [1]).sample([torch.tensor([0])], KEYS[:1, :1]).tensors,
    )


@pytest.mark.parametrize(
    ("change", "words_of_it"),
    [
        ({"seed_ptr": torch.tensor([], dtype=torch.int64)}, "seed_ptr"),
        ({"seed_ptr": torch.tensor([0, 2, 1, 3])}, "must not fall"),
        ({"seed_ptr": torch.tensor([0, 1])}, "must run from 0 to 3"),
        ({"maps": torch.zeros(1, 3, dtype=torch.int64)}, "maps must be"),
        ({"maps": torch.zeros(0, 200, dtype=torch.int64)}, "maps must be"),
        ({"maps": torch.zeros(1, 200)}, "maps must be"),
        ({"first_stamp": 0}, "stamps"),
        ({"first_stamp": 2**31 - 1}, "stamps"),
    ],
)
def test_bad_operator_arguments_are_refused(change, words_of_it):
    good = {
        "maps": torch.zeros(1, 200, dtype=torch.int64),
        "first_stamp": 1,
        "indptr": GRAPH.indptr,
        "indices": GRAPH.indices,
        "seeds": SEEDS[0],
        "seed_ptr": torch.tensor([0, 3]),
        "fanouts": [2],
        "keys": KEYS[:1, :1],
    }
    kernels.sample_blocks(**good)
    with pytest.raises(ValueError, match=words_of_it):
        kernels.sample_blocks(**good | change)


def test_operators_are_registered_well():
    csr = structure([3, 0, 70])
    rows = torch.arange(3)
    maps, keys = torch.zeros(1, 3, dtype=torch.int64), KEYS[:1, :2].contiguous()
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.gnn_dist.sample_neighbors.default,
        (csr.indptr, csr.indices, rows, rows, 2, False, 0, None),
        test_utils=checks,
    )
    torch.library.opcheck(
        torch.ops.gnn_dist.relabel.default, (rows, csr.indices), test_utils=checks
    )
    torch.library.opcheck(
        torch.ops.gnn_dist.sample_blocks.default,
        (maps, 1, csr.indptr, csr.indices, rows[:2], torch.tensor([0, 2]), [2, 2], keys),
        test_utils=checks,
    )


def test_entries_of_a_row_by_the_keys_of_their_columns():
    csr = CSR(torch.tensor([0, 3, 3, 5]), torch.tensor([2, 0, 2, 1, 0], dtype=torch.int32), 3)
    assert row_order(csr, torch.tensor([5, 9, 1])).tolist() == [0, 2, 1, 4, 3]
    with pytest.raises(IndexError, match="indices must lie in"):
        row_order(csr, torch.tensor([5, 9]))


def test_row_order_equals_its_reference():
    csr = structure(AWKWARD_DEGREES, num_cols=50)
    for keys in (torch.arange(50), torch.arange(50) % 3, -torch.arange(50)):
        expected = reference.row_order(csr.indptr, csr.indices, keys)
        assert torch.equal(row_order(csr, keys), expected)
    empty = CSR(torch.tensor([0]), torch.empty(0, dtype=torch.int32), 0)
    assert row_order(empty, torch.empty(0, dtype=torch.int64)).numel() == 0
