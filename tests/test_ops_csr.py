import itertools

import pytest
import torch

from gnn_dist.ops.csr import CSR

# rows: 0 <- 2; 1 <- none; 2 <- 0, 0, 1, 2
CASE = CSR(torch.tensor([0, 1, 1, 5]), torch.tensor([2, 0, 0, 1, 2], dtype=torch.int32), 3)
EMPTY = CSR(torch.tensor([0, 0, 0]), torch.tensor([], dtype=torch.int32), 4)


def dense(csr, values=None):
    out = torch.zeros(csr.num_rows, csr.num_cols)
    values = torch.ones(csr.nnz) if values is None else values
    return out.index_put_((csr.rows, csr.indices.long()), values, accumulate=True)


def test_sizes_and_rows():
    assert (CASE.num_rows, CASE.num_cols, CASE.nnz) == (3, 3, 5)
    assert CASE.rows.tolist() == [0, 2, 2, 2, 2]
    assert CASE.counts.tolist() == [1, 0, 4]
    assert (EMPTY.num_rows, EMPTY.num_cols, EMPTY.nnz) == (2, 4, 0)
    assert EMPTY.rows.tolist() == []


def test_transpose_keeps_the_order_of_copies():
    transposed, position = CASE.transpose
    assert transposed.indptr.tolist() == [0, 2, 3, 5]
    assert transposed.indices.tolist() == [2, 2, 2, 0, 2]
    assert position.tolist() == [1, 2, 3, 0, 4]
    values = torch.arange(1.0, 6.0)
    assert torch.equal(dense(transposed, values[position]), dense(CASE, values).T)
    assert EMPTY.transpose.csr.indptr.tolist() == [0, 0, 0, 0, 0]


def test_copy_number_counts_repeats_from_zero():
    assert CASE.copy_number.tolist() == [0, 0, 1, 0, 0]
    assert EMPTY.copy_number.tolist() == []
    # The same column in neighbouring rows is no repeat.
    apart = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 1], dtype=torch.int32), 2)
    assert apart.copy_number.tolist() == [0, 0]


def test_select():
    kept, position = CASE.select(torch.tensor([True, False, True, False, True]))
    assert kept.indptr.tolist() == [0, 1, 1, 3]
    assert kept.indices.tolist() == [2, 0, 2]
    assert position.tolist() == [0, 2, 4]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_split_columns_puts_every_entry_on_one_side(at):
    low, high = CASE.split_columns(at)
    values = torch.arange(1.0, 6.0)
    both = torch.cat([dense(side.csr, side.take(values)) for side in (low, high)], 1)
    assert (low.csr.num_cols, high.csr.num_cols) == (at, 3 - at)
    assert torch.equal(both, dense(CASE, values))
    assert CASE.split_columns(at)[0].csr is low.csr  # computed once
    assert (low.csr is CASE) == (at == 3)  # nothing is copied where nothing is cut off


def test_column_blocks_hold_every_entry_once():
    values = torch.arange(1.0, 6.0)

    def check(blocks, ends, *, positions):
        assert [(begin, end) for begin, end, _ in blocks] == list(itertools.pairwise(ends))
        assert sum(block.csr.nnz for _, _, block in blocks) == CASE.nnz
        if positions:
            whole = torch.cat([dense(block.csr, block.take(values)) for *_, block in blocks], 1)
            assert torch.equal(whole, dense(CASE, values))

    csr = CSR(CASE.indptr, CASE.indices, CASE.num_cols)
    first = csr.column_blocks([2], positions=False)
    check(first, [0, 2, 3], positions=False)
    assert first[0][2].position is None
    assert csr.column_blocks([2, 3], positions=False) is first
    # Other bounds and positions come in addition, so that entries are held once.
    check(csr.column_blocks([1], positions=False), [0, 1, 2, 3], positions=False)
    check(csr.column_blocks([2], positions=True), [0, 1, 2, 3], positions=True)
    assert csr.column_blocks([1, 2], positions=False)[0][2].position is not None


def test_with_self_loops_has_each_loop_once_and_last():
    looped, position = CASE.self_loop_origin
    assert CASE.with_self_loops is looped
    assert looped.indptr.tolist() == [0, 2, 3, 7]
    assert looped.indices.tolist() == [2, 0, 1, 0, 0, 1, 2]
    assert position.tolist() == [0, -1, -1, 1, 2, 3, -1]
    assert EMPTY.with_self_loops.indices.tolist() == [0, 1]
