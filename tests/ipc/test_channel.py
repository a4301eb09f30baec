"""Messages between processes: nothing is lost, nothing blocks, and what cannot be read is an error."""

import os
import socket
import threading
import time

import pytest

from guided_plugin.errors import PipelineError
from guided_plugin.ipc import channel as channel_module
from guided_plugin.ipc.channel import Channel, ChannelClosedError


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
    for message in messages:
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


@pytest.mark.parametrize("frame", [b"\xff" * 8, (3).to_bytes(8, "little") + b"abc"])
def test_nonsense_on_a_channel_is_an_error(frame):
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.send(frame)
    with pytest.raises(PipelineError, match="channel between processes"):
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
