import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnn_dist.partition
from gnn_dist.errors import PartitionError
from gnn_dist.partition import Partition, PartitionBook


def test_doctests():
    assert doctest.testmod(gnn_dist.partition).failed == 0


def test_ids_of_a_partition():
    partition = Partition(np.array([2, 0, 2, 0, 0]), num_parts=4)
    assert partition.assignment.dtype == np.int32
    assert partition.sizes.tolist() == [3, 0, 2, 0]
    assert partition.order.tolist() == [1, 3, 4, 0, 2]
    assert partition.global_id.tolist() == [3, 0, 4, 1, 2]
    assert partition.book.node_ptr.tolist() == [0, 3, 3, 5, 5]
    assert (partition.method, partition.options, partition.notes) == ("given", {}, ())


def test_partition_of_no_nodes():
    partition = Partition(np.zeros(0), num_parts=2)
    assert partition.sizes.tolist() == [0, 0]
    assert partition.book.num_nodes == 0
    assert partition.order.tolist() == []


def test_a_right_assignment_is_not_copied():
    assignment = np.array([0, 1], np.int32)
    assert Partition(assignment, 2).assignment is assignment


@given(st.integers(1, 5).flatmap(lambda p: st.tuples(st.just(p), st.lists(st.integers(0, p - 1)))))
def test_global_ids_are_a_permutation_grouped_by_part(case):
    num_parts, parts = case
    partition = Partition(np.array(parts, np.int64), num_parts)
    count = np.arange(len(parts))
    assert partition.order[partition.global_id].tolist() == count.tolist()
    assert partition.global_id[partition.order].tolist() == count.tolist()
    assert partition.book.part_of(partition.global_id).tolist() == parts


@pytest.mark.parametrize(
    ("assignment", "num_parts", "message"),
    [
        ([0, 1], 0, "num_parts must be at least 1, got 0"),
        ([[0, 1]], 2, r"integer vector, got shape \(1, 2\)"),
        ([0.0, 1.0], 2, "of float64"),
        ([0, 2], 2, r"parts must lie in 0\.\.1, got 2 for node 1"),
        ([0, 1, -1], 2, "got -1 for node 2"),
    ],
)
def test_bad_assignments_are_refused(assignment, num_parts, message):
    with pytest.raises(PartitionError, match=message):
        Partition(np.array(assignment), num_parts)


def test_part_of_skips_empty_parts():
    book = PartitionBook(np.array([0, 0, 2, 2, 5]))
    assert (book.num_parts, book.num_nodes) == (4, 5)
    assert book.part_of(np.arange(5)).tolist() == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("node_ptr", [[0], [1, 2], [0, 3, 2], [[0, 1]]])
def test_bad_books_are_refused(node_ptr):
    with pytest.raises(PartitionError, match="node_ptr must rise from 0"):
        PartitionBook(np.array(node_ptr))


@pytest.mark.parametrize(
    ("world_size", "parts", "rank_ptr"),
    [
        (1, [range(4)], [0, 10]),
        (2, [range(2), range(2, 4)], [0, 4, 10]),
        (3, [range(1), range(1, 2), range(2, 4)], [0, 3, 4, 10]),
        (4, [range(1), range(1, 2), range(2, 3), range(3, 4)], [0, 3, 4, 4, 10]),
    ],
)
def test_ranks_load_consecutive_parts(world_size, parts, rank_ptr):
    book = PartitionBook(np.array([0, 3, 4, 4, 10]))
    assert [book.parts_of_rank(rank, world_size) for rank in range(world_size)] == parts
    assert book.rank_ptr(world_size).tolist() == rank_ptr


@given(st.integers(1, 20), st.data())
def test_every_part_has_one_rank_and_every_rank_a_part(num_parts, data):
    world_size = data.draw(st.integers(1, num_parts))
    book = PartitionBook(np.arange(num_parts + 1))
    loaded = [book.parts_of_rank(rank, world_size) for rank in range(world_size)]
    assert [part for parts in loaded for part in parts] == list(range(num_parts))
    assert max(map(len, loaded)) - min(map(len, loaded)) <= 1


def test_more_ranks_than_parts_are_refused():
    book = PartitionBook(np.array([0, 3, 4]))
    with pytest.raises(PartitionError, match=r"got 3 ranks for 2 parts: .* --parts 3"):
        book.parts_of_rank(0, 3)
    with pytest.raises(PartitionError, match="got 3 ranks"):
        book.rank_ptr(3)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_that_do_not_exist_are_refused(rank, world_size):
    with pytest.raises(PartitionError, match=f"got {rank}"):
        PartitionBook(np.array([0, 3, 4])).parts_of_rank(rank, world_size)
