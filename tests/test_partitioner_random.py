import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import measure_quality
from gnn_dist.partitioners import RandomHash
from gnn_dist.partitioners.random_hash import _hash


def nodes(count):
    return graph_from_edges([], [], num_nodes=count)


def assign(count, num_parts, seed=0):
    return RandomHash(seed)(nodes(count), num_parts).assignment


def test_the_same_on_every_machine():
    # A change of these means that old partition folders can no longer be made again.
    assert assign(12, 3).tolist() == [2, 1, 0, 2, 0, 1, 0, 2, 0, 2, 1, 1]
    assert assign(12, 3, seed=1).tolist() == [2, 0, 1, 2, 0, 2, 1, 0, 0, 2, 1, 1]


@given(st.integers(1, 200), st.data())
def test_sizes_differ_by_one_at_most(count, data):
    num_parts = data.draw(st.integers(1, count))
    sizes = RandomHash()(nodes(count), num_parts).sizes
    assert sizes.max() - sizes.min() <= 1


def test_seeds_differ_and_are_independent():
    first, second = assign(4000, 2, seed=0), assign(4000, 2, seed=1)
    assert 0.45 < np.mean(first == second) < 0.55


def test_neighbouring_ids_and_low_bits_do_not_matter():
    parts = assign(8000, 4)
    for stride in (1, 2, 4, 8):
        shares = np.bincount(parts[::stride], minlength=4) / len(parts[::stride])
        assert np.abs(shares - 0.25).max() < 0.04
    assert 0.22 < np.mean(parts[1:] == parts[:-1]) < 0.28


def test_the_hash_permutes():
    low = np.arange(50_000, dtype=np.uint64)
    values = np.concatenate([low, low + np.uint64(2**63)])
    assert len(np.unique(_hash(values, 3))) == len(values)


def test_the_hash_is_splitmix64():
    # First outputs of the published generator, whose state starts at the mixed seed.
    mask = 2**64 - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    state, expected = mix(5), []
    for _ in range(4):
        state = (state + 0x9E3779B97F4A7C15) & mask
        expected.append(mix(state))
    assert _hash(np.arange(4, dtype=np.uint64), 5).tolist() == expected


@pytest.mark.parametrize("num_parts", [2, 4])
def test_the_cut_of_a_random_partition_is_the_expected_one(num_parts):
    count = 2000
    graph = graph_from_edges(np.arange(count), np.roll(np.arange(count), -1))
    cut = measure_quality(graph, RandomHash()(graph, num_parts)).edge_cut_fraction
    assert abs(cut - (1 - 1 / num_parts)) < 0.04
