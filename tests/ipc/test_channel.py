"""Messages between processes: nothing is lost, nothing blocks, and what cannot be read
is an error. Of a process that may be broken plain data comes in, and nothing runs."""

import dataclasses
import os
import pickle
import resource
import socket
import threading
import time

import pytest

from guided_plugin.compiling import helper_process
from guided_plugin.compiling.helper_process import Answer, from_helper
from guided_plugin.errors import ERRORS, CompileLimitError, GuidedError, PipelineError
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc import channel as channel_module
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission
from guided_plugin.worker import messages
from guided_plugin.worker.messages import (
    Ends,
    Hello,
    Outcome,
    Ready,
    Synced,
    Verdict,
    from_worker,
)

ERROR = CompileLimitError("took long", where="x", hint="y", request_id="r")
SPEC = OutputSpec.regex("a", start_after=[1, 2], stop_token_ids=[3])
FROM_WORKER = [
    *(Ready(), Synced(1)),
    *(
        Verdict(3, Admission("b", ("r",))),
        Outcome(7, ERROR, 12),
        Outcome(7, "why"),
        Ends("é\ud800", True),
    ),
]
FROM_HELPER = [
    helper_process.Ready(),
    Answer(None),
    Answer(ERROR, True),
    *(
        Answer(Prepared(SPEC, "b", payload, reason="r"))
        for payload in (None, "text" * 9999, b"\x00\xff" * 9999)
    ),
]


@pytest.fixture
def ends():
    ends = [Channel(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


def soon():
    return time.monotonic() + 0.05


def test_a_channel_keeps_what_the_other_side_does_not_take(ends):
    ours, theirs = ends
    messages = [os.urandom(size) for size in (0, 1, 10, 100_000, 5_000_000)]
    ours.send(messages[0], later=True)
    assert ours.pending
    assert theirs.receive() == []
    for message in messages[1:]:
        ours.send(message)
    assert ours.pending
    assert not ours.drain(soon())
    received = []
    while len(received) < len(messages):
        received += theirs.receive()
        ours.flush()
    assert received == messages
    assert not ours.pending
    assert ours.drain(soon())
    assert theirs.receive() == []
    ours.send("last words")
    ours.close()
    assert theirs.receive() == ["last words"]
    with pytest.raises(ChannelClosedError):
        theirs.receive()
    theirs.send("to a closed end")
    assert not theirs.pending
    assert not theirs.drain(soon())


SYSTEM = b"cos\nsystem\n(S'true'\ntR."


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\xff" * 8, "channel between processes"),
        ((3).to_bytes(8, "little") + b"abc", "channel between processes"),
        (
            len(SYSTEM).to_bytes(8, "little") + SYSTEM,
            "cannot read a message.*is not part of a message",
        ),
    ],
)
def test_nonsense_on_a_channel_is_an_error(frame, says):
    raw, end = socket.socketpair()
    channel = Channel(end, from_worker)
    raw.send(frame)
    with pytest.raises(PipelineError, match=says):
        channel.receive()
    raw.close()
    channel.close()


def test_wait_ends_with_a_message_the_deadline_or_the_other_side(ends):
    ours, theirs = ends
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        ours.wait(soon())
    assert time.monotonic() - start < 5
    theirs.sock.send(b"\x05")  # a part of a length
    with pytest.raises(TimeoutError):
        ours.wait(soon())
    theirs.sock.send(b"\0" * 7 + b"\x80\x05K\x01.")
    theirs.send("two")
    assert ours.wait() == [1, "two"]
    closing = threading.Timer(0.05, theirs.close)
    closing.start()
    with pytest.raises(ChannelClosedError):
        ours.wait()
    closing.join()


def test_a_message_that_cannot_be_sent_leaves_the_channel_as_it_was(ends, monkeypatch):
    ours, theirs = ends
    monkeypatch.setattr(channel_module, "MAX_BYTES", 1000)
    with pytest.raises(PipelineError, match="too long to send"):
        ours.send(b"x" * 1001)
    with pytest.raises(Exception, match="pickle"):
        ours.send(lambda: None)
    ours.send(b"x" * 900)
    assert theirs.receive() == [b"x" * 900]


def test_no_more_is_read_than_one_message_may_have(monkeypatch):
    """A process that floods the channel fills no memory."""
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.setblocking(False)
    monkeypatch.setattr(channel_module, "MAX_BYTES", 1000)
    monkeypatch.setattr(channel_module, "_CHUNK", 100)
    sent = raw.send(((1 << 40).to_bytes(8, "little")) * 10_000)
    with pytest.raises(PipelineError, match=f"announced a message of {1 << 40} bytes"):
        channel.receive()
    left = len(end.recv(sent))
    assert sent - left <= 1000 + 8 + 100
    raw.close()
    channel.close()


def same(one, other):
    if isinstance(one, GuidedError):
        return type(one) is type(other) and vars(one) == vars(other)
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return one == other


@pytest.mark.parametrize(
    "message", [*FROM_WORKER, *FROM_HELPER], ids=lambda one: type(one).__name__
)
def test_every_message_arrives_as_it_was_sent(message):
    decode = from_worker if message in FROM_WORKER else from_helper
    assert same(decode(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)), message)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_arrives(kind):
    class Own(kind):
        """Of a plugin: the other side may not have it."""

    for made in (kind, Own):
        sent = Outcome(1, made("what", where="w", hint="h"), 2)
        arrived = from_worker(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL))
        assert type(arrived.error) is kind
        assert str(arrived.error) == "w: what (h)"


def test_what_a_worker_may_send_is_what_the_decoder_knows():
    said = [
        kind
        for kind in vars(messages).values()
        if (getattr(kind, "__doc__", "") or "").startswith("Worker")
    ]
    assert {type(message) for message in FROM_WORKER} == set(said)


class Runs:
    """Its pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_no_code_runs(tmp_path):
    mark = tmp_path / "ran"
    hello = Hello(None, b"", 0, 0, 0)  # only engines say this
    evil = [
        *(
            Runs(os.mkdir, str(mark)),
            Verdict(1, Runs(os.mkdir, str(mark))),
            Runs(eval, "1"),
            hello,
        ),
        *(
            Runs(getattr, ERROR, "what"),
            Runs(open, str(mark), "w"),
            os.system,
            {"a": 1},
            [type],
            10**5000,
        ),
    ]
    for message in evil:
        for data in (pickle.dumps(message, protocol) for protocol in (2, 4, 5)):
            for decode in (from_worker, from_helper):
                with pytest.raises(pickle.UnpicklingError):
                    decode(data)
    for data in (
        SYSTEM,
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02Pid\n.",
        b"\x82\x01.",
    ):
        with pytest.raises(pickle.UnpicklingError):
            from_worker(data)
    assert not mark.exists()


def test_memory_is_in_proportion():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in (
        b"\x80\x05Nr\xff\xff\xff\x0f.",  # what is remembered under a high number
        b"\x80\x05" + b"]" * 5_000_000 + b".",
        b"\x80\x05\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
    ):
        with pytest.raises(Exception, match=r"part|truncated|expected|bytes"):
            from_worker(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_a_message_has_a_bounded_number_of_parts(monkeypatch):
    data = pickle.dumps(Outcome(1, ERROR, [*range(200)]), 5)
    assert from_worker(data).serial == 1
    monkeypatch.setattr(channel_module, "MAX_PARTS", 100)
    with pytest.raises(pickle.UnpicklingError, match="more than 100 parts"):
        from_worker(data)
