"""The control channel alone: hubs and ends in one process, plain sockets where it must be rude."""

import json
import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.comm.control import Control
from gnn_dist.comm.control_server import (
    MAX_LINE,
    TICK_S,
    Blame,
    ControlServer,
    encode,
    host_identity,
    is_silent,
    split,
)
from gnn_dist.errors import CommError, ConfigError, RankError

TOKEN = "secret"


class Hub:
    """A hub and its ends, all in this process."""

    def __init__(self, world_size, silence_s=15.0):
        self.server = ControlServer(
            "127.0.0.1", world_size=world_size, token=TOKEN, silence_s=silence_s
        )
        self.ends = [self.join(rank) for rank in range(world_size)]

    def join(self, rank, token=TOKEN):
        address = ("127.0.0.1", self.server.port)
        server = self.server if rank == 0 else None
        return Control.connect(rank, address, token=token, server=server, timeout_s=5.0)

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=5.0)

    def close(self):
        # All at once, as in a run: an end that failed waits a little for the others.
        closing = [threading.Thread(target=end.close) for end in self.ends]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


@pytest.fixture
def hub():
    made = Hub(3)
    yield made
    made.close()


def wait_for(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def failures_of(hub):
    wait_for(lambda: all(end.failed.is_set() for end in hub.ends))
    return {(str(end.failure), end.failure.rank) for end in hub.ends}


def test_nothing_is_wrong_at_first(hub):
    for end in hub.ends:
        end.check()
        assert end.failure is None


def test_abort_reaches_every_rank_before_it_returns(hub):
    hub.ends[1].abort(ConfigError("bad option"))
    wait_for(lambda: all(end.failed.is_set() for end in hub.ends), 1.0)
    assert failures_of(hub) == {("rank 1 failed: bad option", 1)}
    with pytest.raises(RankError, match="rank 1 failed: bad option") as caught:
        hub.ends[2].check()
    assert caught.value.rank == 1


def test_abort_names_the_class_of_foreign_errors(hub):
    hub.ends[2].abort(KeyError("x"))
    assert failures_of(hub) == {("rank 2 failed: KeyError: 'x'", 2)}


def test_the_first_cause_wins(hub):
    hub.ends[1].abort("first")
    hub.ends[2].abort("second")
    assert failures_of(hub) == {("rank 1 failed: first", 1)}


def test_an_end_without_bye_is_a_death(hub):
    hub.ends[2]._sock.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: hub.ends[0].failed.is_set())
    text = str(hub.ends[0].failure)
    assert text.startswith(f"rank 2 (pid {os.getpid()} on host ")
    assert text.endswith("ended without notice (killed or crashed)")


def test_bye_is_no_death(hub):
    hub.ends[2].close()
    hub.ends[1].close()
    time.sleep(0.3)
    assert hub.ends[0].failure is None


def test_the_hubs_death_is_rank_0s(hub):
    hub.server._selector.unregister(hub.server._listener)
    hub.server._tell_all = lambda message: None  # no goodbye
    hub.server.stop()
    wait_for(lambda: hub.ends[1].failed.is_set())
    assert hub.ends[1].failure.rank == 0
    assert "rank 0 (pid" in str(hub.ends[1].failure)


def test_callbacks_run_once_unless_removed(hub):
    calls = []
    hub.ends[0].on_failure(lambda: calls.append("kept"))
    hub.ends[0].on_failure(lambda: 1 / 0)  # a broken one does not keep the others from running
    hub.ends[0].on_failure(lambda: calls.append("after"))
    remove = hub.ends[0].on_failure(lambda: calls.append("removed"))
    remove()
    remove()
    hub.ends[1].abort("stop")
    wait_for(lambda: len(calls) == 2)
    assert calls == ["kept", "after"]


@pytest.mark.parametrize(
    "hello",
    [
        b'{"kind": "hello", "rank": 1, "token": "wrong", "pid": 1, "host": "h"}\n',
        b'{"kind": "hello", "rank": 7, "token": "secret", "pid": 1, "host": "h"}\n',
        b'{"kind": "hello", "rank": 1, "token": "secret", "pid": 1, "host": "h"}\n',  # twice
        b'{"kind": "hello", "rank": "x", "token": "secret"}\n',
        b'{"kind": "abort", "message": "x"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1, 2]\n",
        b"\xff\xfe\n",
        b"x" * (MAX_LINE + 10),
    ],
)
def test_strangers_are_turned_away(hub, hello):
    with hub.raw() as stranger:
        stranger.settimeout(5.0)
        try:
            stranger.sendall(hello)
            answer = stranger.recv(100)
        except ConnectionError:
            answer = b""
        assert answer == b""
    time.sleep(0.05)
    assert all(end.failure is None for end in hub.ends)
    hub.ends[1].abort("the hub still works")
    assert failures_of(hub) == {("rank 1 failed: the hub still works", 1)}


def test_a_senseless_message_of_a_rank_is_its_failure(hub):
    hub.ends[1]._send({"kind": "blame"})
    assert {rank for _, rank in failures_of(hub)} == {1}


def blame(end, *, peers, reason=2.0, doing="all_reduce"):
    return end.explain("the cause", doing, peers=peers, waited_s=reason)


def test_blame_finds_the_rank_that_does_not_wait(hub):
    hub.ends[1].progress("epoch 3")
    with hub.ends[0].waiting("all_reduce"), hub.ends[2].waiting("all_reduce"):
        error = blame(hub.ends[0], peers=[1, 2])
    assert isinstance(error, RankError)
    assert error.rank == 1
    assert "is late, it is busy with: epoch 3; rank 0 waited 2.0 s in all_reduce" in str(error)
    assert failures_of(hub) == {(str(error), 1)}


def test_what_a_thread_ahead_waits_for_counts_while_the_rank_needs_it():
    control = Control(0)

    def ahead(begun, end):
        with control.aside(), control.waiting("exchange"):
            begun.set()
            end.wait()

    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=ahead, args=(begun, end))
    thread.start()
    begun.wait()
    assert control._blocked_in is None  # the rank itself is busy
    with control.needing_aside():
        assert control._blocked_in == "exchange"
    with control.waiting("all_reduce"):
        assert control._blocked_in == "all_reduce"
    end.set()
    thread.join()
    with control.needing_aside():
        assert control._blocked_in is None  # its own thread is busy, so the rank is


def test_blame_prefers_those_waited_for(hub):
    with hub.ends[0].waiting("exchange"):
        assert blame(hub.ends[0], peers=[2]).rank == 2


def test_blame_goes_through_a_waiting_rank(hub):
    """Rank 0 waits for rank 1, which waits for rank 2."""
    with hub.ends[0].waiting("exchange"), hub.ends[1].waiting("exchange"):
        assert blame(hub.ends[0], peers=[1]).rank == 2


def test_blame_shows_a_mismatch(hub):
    with (
        hub.ends[0].waiting("exchange"),
        hub.ends[1].waiting("all_reduce"),
        hub.ends[2].waiting("broadcast"),
    ):
        error = blame(hub.ends[0], peers=[1, 2], doing="exchange")
    assert error.rank == -1
    assert "rank 1 in all_reduce; rank 2 in broadcast" in str(error)


def test_time_in_which_the_hub_stood_still_is_none_to_answer_in(hub):
    """As if the machine had stopped between the question and the answers."""
    long_ago = time.monotonic() - 100.0
    hub.server._blame = Blame(0, "exchange", (1, 2), "waited", asked=long_ago)
    time.sleep(2 * TICK_S)
    assert all(end.failure is None for end in hub.ends)
    assert {rank for _, rank in failures_of(hub)} == {1}


def test_a_lost_connection_waits_for_the_verdict(hub):
    threading.Timer(0.2, lambda: hub.ends[2].abort("the real cause")).start()
    error = hub.ends[0].explain("reset", "all_reduce", peers=[1, 2], waited_s=None)
    assert str(error) == "rank 2 failed: the real cause"


def test_a_rank_alone_fails_by_itself():
    control = Control(0)
    control.progress("x")
    control.check()
    error = control.explain("broken", "copy", peers=[], waited_s=None)
    assert type(error) is CommError
    assert str(error) == "rank 0 failed in copy: broken"
    control.abort("done for")
    with pytest.raises(RankError, match="rank 0 failed: done for"):
        control.check()
    control.close()
    control.close()


def test_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CommError, match=f"rank 3 cannot reach .* 127.0.0.1:{port}"):
        Control.connect(3, ("127.0.0.1", port), token=TOKEN, timeout_s=1.0)


def test_a_rank_that_joins_after_a_failure_hears_of_it():
    server = ControlServer("127.0.0.1", world_size=2, token=TOKEN)
    address = ("127.0.0.1", server.port)
    first = Control.connect(1, address, token=TOKEN)
    first.abort("too early")
    late = Control.connect(0, address, token=TOKEN, server=server)
    wait_for(lambda: late.failed.is_set())
    assert str(late.failure) == "rank 1 failed: too early"
    first.close()
    late.close()


def test_a_rank_that_never_joins_is_named():
    server = ControlServer("127.0.0.1", world_size=3, token=TOKEN, join_s=0.3)
    address = ("127.0.0.1", server.port)
    ends = [Control.connect(r, address, token=TOKEN) for r in (0, 2)]
    wait_for(lambda: all(end.failed.is_set() for end in ends))
    assert str(ends[0].failure) == "rank 1 did not join the control channel in 0 s"
    server.stop()
    for end in ends:
        end.close()


def test_silence():
    me = os.getpid()
    assert not is_silent(5.0, 15.0, me, same_host=True)
    assert not is_silent(500.0, 15.0, me, same_host=True)  # alive, so busy
    assert not is_silent(50.0, 15.0, me, same_host=False)
    assert is_silent(61.0, 15.0, me, same_host=False)
    assert is_silent(61.0, 15.0, 2**30, same_host=True)  # no such process to look at


def test_one_host_has_one_identity():
    assert host_identity() == host_identity()
    assert host_identity().partition("|")[0] == socket.gethostname()


JSON = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20) | st.none())


@given(messages=st.lists(JSON, max_size=5), cut=st.integers(0, 300))
def test_messages_survive_any_cut(messages, cut):
    data = b"".join(encode(message) for message in messages)
    buffer = bytearray(data[:cut])
    found = split(buffer)
    buffer += data[cut:]
    assert found + split(buffer) == messages
    assert buffer == b""


def test_long_texts_are_cut():
    line = encode({"kind": "abort", "message": "é" * 100_000})
    assert len(line) < MAX_LINE
    assert len(json.loads(line)["message"]) == 8000
