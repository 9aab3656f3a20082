"""Fused attention against plain PyTorch, and its differentiable faces."""

import kernel_cases
import pytest
import torch
from kernel_cases import DTYPES, instruction_set, instruction_sets, threads

from gnn_dist.ops.attention import (
    AttentionDropout,
    dot_aggregate,
    gat_aggregate,
    gatv2_aggregate,
)
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey, edge_ids, keep_mask
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import dot_attention as dot_reference
from gnn_dist.ops.reference import gat as gat_reference
from gnn_dist.ops.reference import gatv2 as gatv2_reference
from gnn_dist.ops.softmax import edge_softmax

pytestmark = pytest.mark.kernels

KEY = DrawKey(1, 2, 3)
FORMS = [(8, 16), (4, 8), (1, 47), (3, 47), (2, 1), (5, 3), (20, 4), (1, 130), (8, 32), (2, 64)]


def structure(num_rows, num_cols, hub):
    """Return an awkward structure whose copies of entries stand side by side."""
    csr = kernel_cases.structure(num_rows, num_cols, hub=hub)
    order = torch.argsort(csr.rows * num_cols + csr.indices)
    return CSR(csr.indptr, csr.indices[order], num_cols)


CASE = structure(30, 40, hub=9000)
TOLERANCE = {
    torch.float32: 2e-4,
    torch.float64: 1e-11,
    torch.bfloat16: 3e-2,
    torch.float16: 5e-3,
}
KINDS = ("gat", "gatv2", "dot_attention")


def wide(dtype):
    return torch.promote_types(dtype, torch.float32)


def dropout(csr, p):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randperm(10 * csr.num_cols, generator=generator)[: csr.num_cols]
    return AttentionDropout(p, KEY, ids, ids.flip(0)[: csr.num_rows])


def rows_of(number, heads, width, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(number, heads * width, generator=generator, dtype=torch.float64)
    return drawn.to(dtype)


def inputs(kind, csr, form, dtype, compute=None):
    """Return the operator's arguments between the structure and the dropout.

    They are of a dtype, or of another one with values that this one has.
    """
    compute = compute or dtype
    x = [rows_of(csr.num_cols, *form, dtype, seed).to(compute) for seed in range(2)]
    own = rows_of(csr.num_rows, *form, dtype, 2).to(compute)
    scale = max(form[1], 1) ** -0.5  # scores of about one
    att = [rows_of(form[0], 1, form[1], wide(dtype), seed).mul(scale) for seed in (3, 4)]
    att = [vector.to(wide(compute)) for vector in att]
    return {
        "gat": (x[0], *att, 0.2),
        "gatv2": (x[0], own, att[0], 0.2),
        "dot_attention": (own, *x, form[0], scale),
    }[kind]


def forward_and_backward(kind, library, csr, form, args, drops=()):
    """Return the output and all gradients, by one operator after the other."""
    both, other = (csr.indptr, csr.indices), csr.transpose.csr
    made = getattr(library, kind)(*both, *args, *drops)
    out = made[0]
    # Every second row of a larger matrix.
    grad = rows_of(2 * csr.num_rows, *form, out.dtype, 6)[::2]
    kept = (*made[1:], grad) if kind == "gat" else (made[1], out, grad)
    grads = getattr(library, f"{kind}_grad")(
        *both, other.indptr, other.indices, *args[:3], *kept, *args[3:], *drops
    )
    return [out, *grads]


def reference_of(kind):
    return {"gat": gat_reference, "gatv2": gatv2_reference, "dot_attention": dot_reference}[kind]


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_equals_the_reference(name, kind, dtype):
    for number, form in enumerate(FORMS):
        drops = dropout(CASE, 0.4).arguments if number % 2 else ()
        args = inputs(kind, CASE, form, dtype)
        with instruction_set(name):
            ours = forward_and_backward(kind, kernels, CASE, form, args, drops)
        # In float64: a hub's sums would make the reference the less exact one.
        exact = inputs(kind, CASE, form, dtype, torch.float64)
        theirs = forward_and_backward(kind, reference_of(kind), CASE, form, exact, drops)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype in (dtype, wide(dtype))
            assert one.shape == other.shape
            error = (one.double() - other).abs().max() / other.abs().max()
            assert error <= TOLERANCE[dtype], (form, error)


def plain(kind, csr, args, drops):
    """Return the attention's output by differentiable PyTorch, coefficient by coefficient."""
    rows, columns = csr.rows, csr.indices.long()
    if kind == "gat":
        x, att_src, att_dst, slope = args
        heads = att_src.size(0)
        value = x.view(x.size(0), heads, -1)
        score = (value * att_src).sum(2)[columns]
        score = score + (value[: csr.num_rows] * att_dst).sum(2)[rows]
        score = torch.nn.functional.leaky_relu(score, slope)
    elif kind == "gatv2":
        x, own, att, slope = args
        heads = att.size(0)
        value = x.view(x.size(0), heads, -1)
        z = value[columns] + own.view(own.size(0), heads, -1)[rows]
        score = (torch.nn.functional.leaky_relu(z, slope) * att).sum(2)
    else:
        query, key, x, heads, scale = args
        value = x.view(x.size(0), heads, -1)
        ends = query.view(-1, heads, value.size(2))[rows], key.view_as(value)[columns]
        score = (ends[0] * ends[1]).sum(2) * scale
    alpha = edge_softmax(csr, score)
    if drops is not None:
        ids = edge_ids(drops.src_id[columns], drops.dst_id[rows], csr.copy_number)
        alpha = alpha * keep_mask(drops.key, ids, heads, drops.p) / (1.0 - drops.p)
    out = torch.zeros(csr.num_rows, *value.shape[1:], dtype=x.dtype)
    return out.index_add(0, rows, alpha[:, :, None] * value[columns]).flatten(1)


def face(kind, csr, args, drops, symmetric=False):
    more = {"dropout": drops, "symmetric": symmetric}
    if kind == "dot_attention":
        *rows, heads, scale = args
        return dot_aggregate(csr, *rows, heads=heads, scale=scale, **more)
    function = gat_aggregate if kind == "gat" else gatv2_aggregate
    return function(csr, *args[:3], negative_slope=args[3], **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("form", [(8, 16), (3, 5), (1, 1)])
def test_faces_have_the_gradients_of_plain_pytorch(kind, p, form):
    csr = structure(12, 20, hub=50)
    drops = dropout(csr, p) if p else None
    grads = []
    for function in (face, plain):
        args = inputs(kind, csr, form, torch.float64)
        leaves = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor)]
        out = function(kind, csr, args, drops)
        scale = torch.linspace(-1.0, 2.0, out.numel(), dtype=torch.float64).view_as(out)
        grads.append([out.detach(), *torch.autograd.grad((out * scale).sum(), leaves)])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_gradients_are_those_of_differences(kind, p):
    csr = structure(6, 8, hub=12)
    drops = dropout(csr, p) if p else None
    args = inputs(kind, csr, (2, 3), torch.float64)
    leaves = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor)]
    rest = args[len(leaves) :]
    assert torch.autograd.gradcheck(lambda *a: face(kind, csr, (*a, *rest), drops), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 2, 7, 8, 33])
def test_masks_are_those_of_keep_mask(kind, heads):
    # Entry e reads a value of its own, so that the output shows which coefficients are left.
    counts = torch.tensor([3, 0, 4, 1])
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    indices = torch.tensor([2, 5, 5, 0, 1, 1, 1, 7], dtype=torch.int32)
    csr = CSR(indptr, indices, 8)
    drops = dropout(csr, 0.5)
    zeros = torch.zeros(8, heads * 8, dtype=torch.float64)
    value = torch.eye(8, dtype=torch.float64).repeat(1, heads)
    nothing = torch.zeros(heads, 8, dtype=torch.float64)
    if kind == "gat":
        out = gat_aggregate(csr, value, nothing, nothing, dropout=drops)
    elif kind == "gatv2":
        out = gatv2_aggregate(csr, value, zeros[:4], nothing, dropout=drops)
    else:
        out = dot_aggregate(csr, zeros[:4], zeros, value, heads=heads, scale=1.0, dropout=drops)
    ids = edge_ids(drops.src_id[indices.long()], drops.dst_id[csr.rows], csr.copy_number)
    weight = keep_mask(KEY, ids, heads, 0.5).double() * 2.0 / counts[csr.rows, None]
    expected = torch.zeros(4, 8, heads, dtype=torch.float64)
    expected.index_put_((csr.rows, indices.long()), weight, accumulate=True)
    torch.testing.assert_close(out.view(4, heads, 8).transpose(1, 2), expected)
    assert len(weight.unique()) > 1


def test_copies_are_counted_across_the_pieces_of_a_hub():
    csr = CSR(torch.tensor([0, 20_000]), torch.zeros(20_000, dtype=torch.int32), 1)
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(2, 1, dtype=torch.float64)
    drops = dropout(csr, 0.3)
    out = gat_aggregate(csr, x, zeros, zeros, dropout=drops)
    ends = (ids.expand(20_000) for ids in (drops.src_id, drops.dst_id))
    ids = edge_ids(*ends, torch.arange(20_000))
    expected = keep_mask(KEY, ids, 2, 0.3).double().mean(0) / 0.7
    torch.testing.assert_close(out.flatten(), expected)
    out.sum().backward()
    torch.testing.assert_close(x.grad.flatten(), expected)


def test_dropping_everything_leaves_zeros():
    csr = structure(6, 8, hub=12)
    x = rows_of(8, 2, 3, torch.float64).requires_grad_()
    att = rows_of(2, 1, 3, torch.float64)
    out = gat_aggregate(csr, x, att, att, dropout=dropout(csr, 1.0))
    out.sum().backward()
    assert not out.any()
    assert not x.grad.any()


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_bit_equal_for_any_number_of_threads(kind):
    csr = structure(400, 500, hub=30_000)
    drops = dropout(csr, 0.5).arguments if kind != "gatv2" else ()
    args = inputs(kind, csr, (4, 5), torch.float32)
    results = []
    for number in (1, 2, 4):
        with threads(number):
            results.append(forward_and_backward(kind, kernels, csr, (4, 5), args, drops))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", instruction_sets())
def test_a_gradient_may_be_written_over_its_rows(name):
    csr = structure(400, 500, hub=30_000)
    other = csr.transpose.csr
    structures = (csr.indptr, csr.indices, other.indptr, other.indices)
    for form in FORMS[:4]:
        x, *rest = inputs("gat", csr, form, torch.float32)
        wider = torch.full((500, x.size(1) + 3), 7.0)
        rows = wider[:, : x.size(1)].copy_(x)
        drops = dropout(csr, 0.4).arguments
        with instruction_set(name):
            out, *kept = kernels.gat(*structures[:2], x, *rest, *drops)
            before = (*rest[:2], *kept, out, rest[2], *drops)
            expected = kernels.gat_grad(*structures, x, *before)
            made = kernels.gat_grad_over(*structures, rows, *before)
        for one, two in zip((rows, *made), expected, strict=True):
            assert torch.equal(one, two)
        assert (wider[:, x.size(1) :] == 7.0).all()
    with pytest.raises(ValueError, match="rows that do not overlap"):
        kernels.gat_grad_over(*structures, x[:1].expand(500, -1), *before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_symmetric_structure_is_its_own_transpose(kind):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randint(0, 3, (9, 9), generator=generator)
    dense = dense + dense.t()
    rows, columns = dense.nonzero(as_tuple=True)
    times = dense[rows, columns]
    indices = columns.repeat_interleave(times).int()
    csr = CSR(torch.cat([times.new_zeros(1), dense.sum(1).cumsum(0)]), indices, 9)
    drops = AttentionDropout(0.4, KEY, torch.arange(9), torch.arange(9))
    grads = []
    for symmetric in (False, True):
        args = inputs(kind, csr, (2, 3), torch.float64)
        leaves = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor)]
        out = face(kind, csr, args, drops, symmetric)
        grads.append(torch.autograd.grad(out.square().sum(), leaves))
        assert ("transpose" in csr.__dict__) == (not symmetric)
        csr.__dict__.pop("transpose", None)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "cols", "form"), [(0, 0, (2, 3)), (4, 5, (2, 0)), (4, 5, (2, 3))])
def test_nothing_to_attend_to(kind, rows, cols, form):
    csr = CSR(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), cols)
    args = inputs(kind, csr, form, torch.float64)
    leaves = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor)]
    out = face(kind, csr, args, None)
    assert out.shape == (rows, form[0] * form[1])
    assert not out.any()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert not grad.any()


def test_what_is_not_finite_stays_visible():
    csr = CSR(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 2], dtype=torch.int32), 3)
    query = torch.ones(2, 1)
    value = torch.tensor([[1.0], [2.0], [3.0]])

    def attend(*keys):
        key = torch.tensor(keys).view(3, 1)
        return dot_aggregate(csr, query, key, value, heads=1, scale=1.0).flatten().tolist()

    inf, nan = float("inf"), float("nan")
    assert attend(-inf, 0.0, 0.0) == [2.0, 2.5]
    for keys in ((nan, 0.0, 0.0), (inf, 0.0, 0.0), (-inf, -inf, 0.0)):
        first, second = attend(*keys)
        assert first != first  # NaN
        assert second == (2.5 if keys[1] == 0.0 else 3.0)
    # Large scores do not overflow.
    assert attend(1e4, 0.0, 1e4) == [1.0, 3.0]


def test_rows_need_not_be_contiguous():
    csr = structure(12, 20, hub=50)
    x = rows_of(20, 2, 6, torch.float64)
    att = rows_of(2, 1, 3, torch.float64)
    for view in (x[:, :6], x[:, ::2], x.t().contiguous().t()[:, :6]):
        torch.testing.assert_close(
            gat_aggregate(csr, view, att, att), gat_aggregate(csr, view.clone(), att, att)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_bad_arguments_are_refused(kind):
    csr = structure(12, 20, hub=50)
    args = inputs(kind, csr, (2, 3), torch.float32)
    operator, both = getattr(kernels, kind), (csr.indptr, csr.indices)
    bad = csr.indices.clone()
    for index in (20, -1):
        bad[7] = index
        with pytest.raises(IndexError, match=r"indices must lie in \[0, 20\)"):
            operator(csr.indptr, bad, *args)
    with pytest.raises(IndexError, match="indptr must run from 0"):
        operator(csr.indptr + 1, csr.indices, *args)
    with pytest.raises(IndexError, match="must not fall"):
        operator(csr.indptr.clone().index_fill_(0, torch.tensor([3]), 99), csr.indices, *args)
    with pytest.raises(ValueError, match="must be"):
        operator(*both, args[0], args[1].double(), *args[2:])
    with pytest.raises(ValueError, match="two dimensions"):
        operator(*both, args[0].flatten(), *args[1:])
    with pytest.raises(ValueError, match="dropout needs src_id and dst_id"):
        operator(*both, *args, 1, 5, 1.0)
    ids = torch.arange(7)
    with pytest.raises(ValueError, match="must have 20 and 12 elements"):
        operator(*both, *args, 1, 5, 1.0, ids, ids)


def test_bad_shapes_are_refused():
    csr = structure(12, 20, hub=50)
    both = (csr.indptr, csr.indices)
    x, att = rows_of(20, 2, 3, torch.float32), rows_of(2, 1, 3, torch.float32)
    with pytest.raises(ValueError, match="at least 12 rows, got 11"):
        kernels.gat(*both, x[:11], att, att, 0.2)
    with pytest.raises(ValueError, match="the heads must divide"):
        kernels.dot_attention(*both, x[:12], x, x, 4, 1.0)
    with pytest.raises(ValueError, match="the heads must divide"):
        kernels.dot_attention(*both, x[:12], x, x, 0, 1.0)
    with pytest.raises(ValueError, match=r"key must be of shape \(20, 6\)"):
        kernels.dot_attention(*both, x[:12], x[:19], x, 2, 1.0)
    out, score, state = kernels.gat(*both, x, att, att, 0.2)
    with pytest.raises(ValueError, match="the transposed structure must have 20 rows"):
        kernels.gat_grad(*both, *both, x, att, att, score, state, out, 0.2)
    other = csr.transpose.csr
    with pytest.raises(ValueError, match="state must be contiguous"):
        kernels.gat_grad(
            *both, other.indptr, other.indices, x, att, att, score, state[:3], out, 0.2
        )


@pytest.mark.parametrize("kind", KINDS)
def test_operators_trace(kind):
    csr = structure(6, 8, hub=12)
    args = inputs(kind, csr, (3, 5), torch.float32)
    utilities = ("test_schema", "test_faketensor")
    both, other = (csr.indptr, csr.indices), csr.transpose.csr
    torch.library.opcheck(getattr(kernels, kind).default, (*both, *args), test_utils=utilities)
    made = getattr(kernels, kind)(*both, *args)
    kept = made[1:] if kind == "gat" else (made[1], made[0])
    grad_args = (*both, other.indptr, other.indices, *args[:3], *kept, made[0], *args[3:])
    operators = [f"{kind}_grad"] + ["gat_grad_over"] * (kind == "gat")
    for name in operators:
        operator = getattr(kernels, name).default
        torch.library.opcheck(operator, grad_args, test_utils=utilities)
