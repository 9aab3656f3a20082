import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist import arrays
from gnn_dist.errors import GraphError


def test_csr_take_selects_rows_in_order():
    indptr = np.array([0, 2, 2, 5])
    taken, position = arrays.csr_take(indptr, np.array([2, 1, 0, 2]))
    assert taken.tolist() == [0, 3, 3, 5, 8]
    assert position.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]


def test_csr_take_of_nothing():
    taken, position = arrays.csr_take(np.array([0, 2]), np.zeros(0, np.int64))
    assert taken.tolist() == [0]
    assert position.tolist() == []


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_row_blocks_cover_all_rows_once(counts, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHECK_CHUNK", limit)
        blocks = list(arrays.row_blocks(np.array(counts, np.int64)))
    assert [row for block in blocks for row in range(len(counts))[block]] == list(
        range(len(counts))
    )
    # A block may overshoot by the row that crosses the limit.
    assert all(sum(counts[block]) < limit + 9 for block in blocks)


def test_chunks_cover_wide_and_empty_arrays(monkeypatch):
    monkeypatch.setattr(arrays, "CHECK_CHUNK", 6)
    assert [len(block) for block in arrays.chunks(np.zeros((7, 3)))] == [2, 2, 2, 1]
    assert [len(block) for block in arrays.chunks(np.zeros((3, 100)))] == [1, 1, 1]
    assert [len(block) for block in arrays.chunks(np.zeros((7, 0)))] == [6, 1]
    assert list(arrays.chunks(np.zeros(0))) == []


def test_checks_return_the_right_dtype_without_a_copy():
    index = np.array([0, 1], np.int32)
    assert arrays.as_index(index, 2, "ids") is index
    assert arrays.as_index(np.array([0, 1], np.uint8), 2**31, "ids").dtype == np.int64
    assert arrays.as_index(np.zeros(0), 0, "ids").dtype == np.int32  # an empty list is a float
    half = np.array([1.5], np.float16)
    assert arrays.as_float(half, "x") is half
    assert arrays.as_float(np.array([True]), "x").dtype == np.float32
    flag = np.array([True, False])
    assert arrays.as_mask(flag, 2, "mask") is flag
    assert arrays.as_mask([0.0, 1.0], 2, "mask").tolist() == [False, True]
    assert arrays.checked_indptr(np.array([0, 1], np.uint8), 1, "indptr").dtype == np.int64


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: arrays.checked_indptr(np.zeros(0, int), 0, "p"), "p must be a non-empty integer"),
        (lambda: arrays.checked_indptr(np.array([0.0]), 0, "p"), "of float64"),
        (lambda: arrays.checked_indptr(np.array([0, 2]), 3, "p"), r"entries \(3\), got 0..2"),
        (lambda: arrays.checked_indptr(np.array([1, 3]), 3, "p"), "got 1..3"),
        (lambda: arrays.checked_indptr(np.array([0, 3, 2, 3]), 3, "p"), "never fall, got 3, 2"),
        (lambda: arrays.as_index(np.array([[0]]), 1, "i"), r"integer vector, got shape \(1, 1\)"),
        (lambda: arrays.as_index(np.array([0.5]), 1, "i"), "i must be an integer vector"),
        (lambda: arrays.as_index(np.array([0, 3]), 3, "i"), r"i must lie in 0\.\.2, got 3"),
        (lambda: arrays.as_index(np.array([-1, 0]), 3, "i"), "got -1"),
        (lambda: arrays.as_float(np.array(["a"]), "x"), "x must hold numbers"),
        (lambda: arrays.as_float(np.array([[1.0], [np.nan]]), "x"), "got nan in row 1"),
        (lambda: arrays.as_float(np.array([np.inf]), "x"), "got inf in row 0"),
        (lambda: arrays.as_mask(np.array([1]), 2, "m"), r"\(num_nodes=2,\) .* got \(1,\)"),
        (lambda: arrays.as_mask(np.zeros((2, 1, 1)), 2, "m"), "got .2, 1, 1."),
        (lambda: arrays.as_bool(np.array([0, 2]), "m"), "booleans or 0 and 1"),
        (lambda: arrays.as_bool(np.array([np.nan]), "m"), "booleans or 0 and 1"),
    ],
)
def test_checks_refuse(check, message):
    with pytest.raises(GraphError, match=message):
        check()


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_check_ascending_looks_inside_rows_only(monkeypatch, limit):
    monkeypatch.setattr(arrays, "CHECK_CHUNK", limit)
    indptr = np.array([0, 2, 2, 5])
    arrays.check_ascending(indptr, np.array([3, 3, 0, 1, 1]))
    with pytest.raises(GraphError, match="got 0 after 2 in row 2: build the graph with"):
        arrays.check_ascending(indptr, np.array([3, 4, 1, 2, 0]))


def test_as_float_names_the_row_in_a_later_block(monkeypatch):
    monkeypatch.setattr(arrays, "CHECK_CHUNK", 4)
    values = np.zeros((5, 2))
    values[4, 1] = -np.inf
    with pytest.raises(GraphError, match="got -inf in row 4"):
        arrays.as_float(values, "x")


def test_blocks_of_a_csr_hold_no_more_than_asked():
    indptr = np.array([0, 0, 3, 4, 14, 14, 14, 15])
    for limit in (1, 2, 4, 5, 100):
        blocks = list(arrays.csr_blocks(indptr, limit))
        assert [r for b in blocks for r in range(b.start, b.stop)] == list(range(7))
        for b in blocks:
            rows, entries = b.stop - b.start, indptr[b.stop] - indptr[b.start]
            assert rows == 1 or (rows <= limit and entries <= limit)
    assert [b.stop for b in arrays.csr_blocks(indptr, 4)] == [3, 4, 7]
    assert list(arrays.csr_blocks(np.zeros(1, np.int64), 4)) == []
