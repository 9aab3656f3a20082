"""One contract for all transports: the same bodies run over gloo and, under mpirun, over MPI."""

import itertools

import pytest
import torch

from gnn_dist.comm.control import Control
from gnn_dist.comm.local_transport import LocalTransport
from gnn_dist.comm.messages import ByteExchange, as_bytes
from gnn_dist.comm.transport import DONE, MAX_CHANNEL
from gnn_dist.errors import CommError
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def counts_uneven(source, dest):
    return (3 * source + 5 * dest) % 4


def counts_empty(source, dest):
    return 0


def counts_one_way(source, dest):
    return 2 if source < dest else 0


def counts_own_only(source, dest):
    return 3 if source == dest else 0


def counts_first_silent(source, dest):
    return 0 if 0 in (source, dest) else 4


COUNTS = [
    counts_uneven,
    counts_empty,
    counts_one_way,
    counts_own_only,
    counts_first_silent,
]


def rows_of(source, dest, count, shape, dtype, salt=0):
    """Rows that name where they come from and go to."""
    number = 1 + source * 31 + dest * 7 + salt
    total = torch.arange(torch.Size((count, *shape)).numel()).reshape(count, *shape)
    values = (total + number) % 100
    return values % 2 == 0 if dtype == torch.bool else values.to(dtype)


def start(world, counts, shape, dtype, channel):
    """Start an exchange; return its handle, what it receives, and what it should."""
    ranks = range(world.world_size)
    outgoing = [rows_of(world.rank, q, counts(world.rank, q), shape, dtype, channel) for q in ranks]
    expected = [rows_of(q, world.rank, counts(q, world.rank), shape, dtype, channel) for q in ranks]
    send_ptr = [0, *itertools.accumulate(len(x) for x in outgoing)]
    recv_ptr = [0, *itertools.accumulate(len(x) for x in expected)]
    received = torch.zeros(recv_ptr[-1], *shape, dtype=dtype)
    handle = world.transport.exchange(torch.cat(outgoing), send_ptr, received, recv_ptr, channel)
    return handle, received, torch.cat(expected)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a), as_bytes(b))


def exchange_all(world, shape, dtypes):
    wrong = []
    for counts, dtype in itertools.product(COUNTS, dtypes):
        handle, received, expected = start(world, counts, shape, dtype, 0)
        handle.wait()
        handle.wait()  # again: returns at once
        if not handle.done() or not same(received, expected):
            wrong.append((counts.__name__, dtype))
    return wrong


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_exchange_moves_the_right_rows(world_size, shape):
    assert run_ranks(exchange_all, world_size, shape, [torch.float32]) == [[]] * world_size


def test_exchange_moves_every_dtype():
    assert run_ranks(exchange_all, 3, (3,), DTYPES) == [[]] * 3


def many_channels(world, order):
    channels = [0, 1, 2, 3, 17, MAX_CHANNEL]
    flights = [start(world, counts_uneven, (3,), torch.float64, c) for c in channels]
    if order == "reverse":
        flights.reverse()
    # Nothing orders the ranks among each other either.
    elif order == "differs":
        flights = flights[world.rank :] + flights[: world.rank]
    for handle, _, _ in flights:
        handle.wait()
    return all(same(received, expected) for _, received, expected in flights)


@pytest.mark.parametrize("order", ["posted", "reverse", "differs"])
def test_channels_are_independent(order):
    assert run_ranks(many_channels, 3, order) == [True] * 3


def channels_started_in_different_orders(world):
    first, second = (1, 2) if world.rank == 0 else (2, 1)
    flights = [start(world, counts_uneven, (2,), torch.float32, c) for c in (first, second)]
    for handle, _, _ in flights:
        handle.wait()
    return all(same(received, expected) for _, received, expected in flights)


def test_channels_may_be_started_in_different_orders():
    assert run_ranks(channels_started_in_different_orders, 2) == [True] * 2


def same_channel_twice(world):
    flights = [start(world, counts_uneven, (n,), torch.float32, 4) for n in (2, 5)]
    for handle, _, _ in reversed(flights):
        handle.wait()
    return all(same(received, expected) for _, received, expected in flights)


def test_one_channel_keeps_the_order_of_starting():
    assert run_ranks(same_channel_twice, 3) == [True] * 3


def in_small_pieces(world):
    world.transport.max_message_bytes = 64
    sub = world.transport.split(0)
    wrong = exchange_all(world, (37,), [torch.float32, torch.int8])
    total = torch.arange(100, dtype=torch.float64)
    sub.all_reduce(total).wait()
    data = torch.arange(50) if world.rank == 1 else torch.zeros(50, dtype=torch.int64)
    sub.broadcast(data, root=1)
    return (
        wrong,
        sub.max_message_bytes,
        torch.equal(total, 3.0 * torch.arange(100)),
        torch.equal(data, torch.arange(50)),
    )


def test_large_messages_are_split():
    assert run_ranks(in_small_pieces, 3) == [([], 64, True, True)] * 3


def test_pieces_cover_every_byte_once():
    data = torch.arange(20, dtype=torch.uint8)
    exchange = ByteExchange(data, [0, 9, 9, 20], data, [0, 9, 9, 20], rank=0)
    pieces = [(peer, piece.tolist()) for peer, piece in exchange.sends(4)]
    assert pieces == [(2, [9, 10, 11, 12]), (2, [13, 14, 15, 16]), (2, [17, 18, 19])]
    assert [peer for peer, _ in exchange.receives(100)] == [2]


def keep_others_rows(world):
    """Rows outside the offsets stay as they are; offsets need not begin at 0."""
    peer = 1 - world.rank
    send = torch.arange(6.0) + 10 * world.rank
    recv = torch.full((6,), -1.0)
    ptr = [1, 1, 3] if world.rank == 0 else [1, 3, 3]
    world.transport.exchange(send, ptr, recv, [p + 2 for p in ptr], 0).wait()
    return recv.tolist() == [-1, -1, -1, 10 * peer + 1, 10 * peer + 2, -1]


def test_other_rows_stay():
    assert run_ranks(keep_others_rows, 2) == [True] * 2


def poll_until_done(world):
    handle, received, expected = start(world, counts_uneven, (4,), torch.float32, 0)
    polls = 0
    while not handle.done():
        polls += 1
    handle.wait()
    return same(received, expected)


def test_done_becomes_true_without_waiting():
    assert run_ranks(poll_until_done, 3) == [True] * 3


def drop_handles(world):
    """A handle that nobody keeps must keep its buffers."""
    received = []
    for channel in range(20):
        handle, recv, expected = start(world, counts_uneven, (1000,), torch.float32, channel)
        received.append((recv, expected))
        del handle
    world.transport.barrier()
    for handle in list(world.transport.in_flight):
        handle.wait()
    return all(same(a, b) for a, b in received)


def test_dropped_handles_keep_their_buffers():
    assert run_ranks(drop_handles, 2) == [True] * 2


def reduce_all(world):
    wrong = []
    for dtype in DTYPES:
        if dtype == torch.bool:
            continue
        for op, expected in (("sum", 6), ("max", 3), ("min", 1)):
            if dtype.is_complex and op != "sum":
                continue
            tensor = torch.full((2, 3), world.rank + 1).to(dtype)
            handle = world.transport.all_reduce(tensor, op)
            handle.wait()
            if not (tensor.to(torch.complex64) == expected).all():
                wrong.append((dtype, op, tensor))
    return wrong


def test_all_reduce_combines_every_dtype():
    assert run_ranks(reduce_all, 3) == [[]] * 3


def reduce_booleans(world):
    results = []
    for op in ("sum", "max", "min"):
        flags = torch.tensor([True, world.rank == 1, False])
        world.transport.all_reduce(flags, op).wait()
        results.append(flags.tolist())
    return results


def test_all_reduce_of_booleans_is_or_and_and():
    or_, and_ = [True, True, False], [True, False, False]
    assert run_ranks(reduce_booleans, 3) == [[or_, or_, and_]] * 3


def reduce_awkward(world):
    scalar, empty = torch.tensor(2.0), torch.zeros(0, 4)
    handles = [world.transport.all_reduce(t) for t in (scalar, empty)]
    for handle in reversed(handles):
        handle.wait()
    weights = torch.ones(3, requires_grad=True)
    world.transport.all_reduce(weights).wait()
    return scalar.item(), empty.shape, weights.tolist(), weights.requires_grad


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_reduce_of_scalars_empty_tensors_and_parameters(world_size):
    n = world_size
    expected = (2.0 * n, torch.Size((0, 4)), [float(n)] * 3, True)
    assert run_ranks(reduce_awkward, n) == [expected] * n


def broadcast_from(world, root):
    tensors = []
    for dtype in (torch.bool, torch.bfloat16, torch.int16):
        tensor = torch.full((2, 2), float(world.rank)).to(dtype)
        world.transport.broadcast(tensor, root)
        tensors.append(tensor.float().tolist())
    nothing = torch.zeros(0)
    world.transport.broadcast(nothing, root)
    return tensors


def test_broadcast_takes_the_roots_values():
    assert run_ranks(broadcast_from, 3, 1) == [[[[1.0, 1.0]] * 2] * 3] * 3


def gather_objects(world):
    return world.transport.all_gather_object({"rank": world.rank, "text": "x" * world.rank * 999})


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_objects_are_gathered_by_rank(world_size):
    expected = [{"rank": r, "text": "x" * r * 999} for r in range(world_size)]
    assert run_ranks(gather_objects, world_size) == [expected] * world_size


def split_in_groups(world):
    """Two groups exchange at the same time as their parent."""
    flight = start(world, counts_uneven, (2,), torch.float32, 3)
    group = world.split(world.rank % 2)
    inner = start(group, counts_uneven, (2,), torch.float64, 3)
    total = torch.tensor([world.rank])
    group.transport.all_reduce(total).wait()
    for handle, received, expected in (flight, inner):
        handle.wait()
        if not same(received, expected):
            return "wrong rows"
    alone = group.split(group.rank)
    alone.transport.barrier()
    group.close()
    again = world.split(world.rank % 2)
    again.transport.barrier()
    return group.rank, group.world_size, group.transport.world_ranks, int(total), alone.world_size


def groups_of(world_size):
    """Return what `split_in_groups` returns on each rank."""
    members = [tuple(r for r in range(world_size) if r % 2 == c) for c in (0, 1)]
    return [
        (r // 2, len(members[r % 2]), members[r % 2], sum(members[r % 2]), 1)
        for r in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [3, 4])
def test_groups_are_independent(world_size):
    assert run_ranks(split_in_groups, world_size) == groups_of(world_size)


def refuse(world, case):
    """A wrong argument is refused on the rank that has it, before anything is sent."""
    rows = torch.zeros(4, 2)
    ptr = [0, 0, 4] if world.rank == 0 else [0, 4, 4]
    wrong = {
        "strided": lambda t: t.exchange(torch.zeros(2, 4).t(), ptr, rows, ptr, 0),
        "sparse": lambda t: t.exchange(rows.to_sparse(), ptr, rows, ptr, 0),
        "dtype": lambda t: t.exchange(rows.double(), ptr, rows, ptr, 0),
        "width": lambda t: t.exchange(torch.zeros(4, 3), ptr, rows, ptr, 0),
        "short_ptr": lambda t: t.exchange(rows, ptr[:2], rows, ptr, 0),
        "long_ptr": lambda t: t.exchange(rows, [0, 0, 5], rows, ptr, 0),
        "falling_ptr": lambda t: t.exchange(rows, [0, 3, 2], rows, ptr, 0),
        "own": lambda t: (
            t.exchange(rows, [0, 2, 2], rows, [0, 1, 2], 0)
            if world.rank == 0
            else t.exchange(rows, [0, 0, 2], rows, [0, 0, 1], 0)
        ),
        "scalar": lambda t: t.exchange(torch.tensor(1.0), ptr, rows, ptr, 0),
        "channel": lambda t: t.exchange(rows, ptr, rows, ptr, -1),
        "op": lambda t: t.all_reduce(rows, "product"),
        "complex": lambda t: t.all_reduce(rows.to(torch.complex64), "max"),
        "reduce_strided": lambda t: t.all_reduce(torch.zeros(2, 4).t()),
        "root": lambda t: t.broadcast(rows, 2),
    }
    try:
        wrong[case](world.transport)
    except CommError as error:
        message = str(error)
    else:
        return "accepted"
    world.transport.exchange(rows, ptr, rows.clone(), ptr, 0).wait()  # the world still works
    return message


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("strided", r"send must be contiguous, got shape \(4, 2\)"),
        ("sparse", "send must be contiguous"),
        ("dtype", "equal dtypes"),
        ("width", "trailing shapes"),
        ("short_ptr", "send_ptr must have world_size"),
        ("long_ptr", r"send_ptr must rise within 0..4 \(the rows\), got \[0, 0, 5\]"),
        ("falling_ptr", "send_ptr must rise"),
        ("own", "rows to itself"),
        ("scalar", "got a scalar"),
        ("channel", r"channel must lie in 0..32000, got -1"),
        ("op", "op must be one of sum, max, min, got 'product'"),
        ("complex", "complex numbers have no max"),
        ("reduce_strided", "tensor must be contiguous"),
        ("root", "root must lie in 0..1, got 2"),
    ],
)
def test_wrong_arguments_are_refused(case, message):
    import re

    for result in run_ranks(refuse, 2, case):
        assert re.search(message, result), result


def test_a_single_rank_needs_no_library():
    transport = LocalTransport(Control(0))
    rows = torch.arange(6).reshape(3, 2)
    received = torch.zeros(3, 2, dtype=torch.int64)
    assert transport.exchange(rows, [0, 3], received, [0, 3], 0) is DONE
    assert torch.equal(received, rows)
    assert transport.all_reduce(rows) is DONE
    assert transport.all_gather_object("x") == ["x"]
    assert transport.split(5).world_ranks == (0,)


def test_a_tensor_of_another_device_is_refused():
    transport = LocalTransport(Control(0))
    with pytest.raises(CommError, match="tensor must lie on cpu for backend local, got meta"):
        transport.all_reduce(torch.zeros(2, device="meta"))


def exchange_huge(world, num_bytes):
    peer = 1 - world.rank
    send = torch.full((num_bytes if world.rank == 0 else 0,), 7, dtype=torch.uint8)
    recv = torch.zeros(num_bytes if world.rank == 1 else 0, dtype=torch.uint8)
    send[-1:], send[: len(send) // 2 : 1 << 20] = 9, 8
    send_ptr, recv_ptr = ([0] * (peer + 1) + [len(x)] * (2 - peer) for x in (send, recv))
    world.transport.exchange(send, send_ptr, recv, recv_ptr, 0).wait()
    if world.rank == 0:
        return True
    eights = recv[: num_bytes // 2 : 1 << 20]
    return bool(
        recv[-1] == 9
        and (eights == 8).all()
        and int((recv == 7).sum()) == num_bytes - len(eights) - 1
    )


@pytest.mark.slow
def test_a_message_above_two_gib():
    assert run_ranks(exchange_huge, 2, 2**31 + 4097, timeout_s=120.0) == [True, True]


def test_a_lone_element_of_any_stride_has_bytes():
    column = torch.arange(6).view(3, 2)[1:2, 1]
    assert column.is_contiguous()
    assert column.stride() == (2,)
    assert as_bytes(column).tolist() == [3, 0, 0, 0, 0, 0, 0, 0]


def test_messages_are_cut_alike_at_both_ends():
    mib = 1 << 20
    for size, expected in [
        (0, []),
        (100, [100]),
        (mib + 1, [mib // 4] * 4 + [1]),  # small pieces would gain nothing
        (64 * mib, [mib] * 64),
        (200 * mib, [2 * mib] * 100),  # no larger than allowed
    ]:
        data, nothing = torch.empty(size, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
        sends = ByteExchange(data, [0, 0, size], nothing, [0, 0, 0], 0).sends(2 * mib, 64)
        receives = ByteExchange(nothing, [0, 0, 0], data, [0, size, size], 1).receives(2 * mib, 64)
        assert [len(piece) for _, piece in sends] == expected
        assert [len(piece) for _, piece in receives] == expected
