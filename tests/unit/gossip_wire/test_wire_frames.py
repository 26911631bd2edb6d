from __future__ import annotations

import tracemalloc

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from gossip.wire.codec import EmptyFrame, FrameTooLarge
from gossip.wire.frames import (
    FrameReader,
    FrameTimeout,
    StreamEnded,
    StreamIdle,
    read_frame,
    write_frame,
)


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def test_frames_arrive_whole_and_in_order(clock):
    ours, theirs = memory_stream_pair()
    reader = FrameReader(theirs)
    await write_frame(ours, b"one", 1)
    await write_frame(ours, b"x" * 65_536, 1)
    assert await reader.read(timeout=1, idle=1) == b"one"
    assert await reader.read(timeout=1, idle=1) == b"x" * 65_536


async def test_a_frame_in_single_bytes_arrives(clock):
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            for byte in b"\x00\x00\x00\x03abc":
                await ours.send_all(bytes([byte]))
                await trio.sleep(0.1)

        nursery.start_soon(trickle)
        assert await read_frame(theirs, 100, 5) == b"abc"


async def test_a_giant_header_is_refused_without_a_byte_of_its_body(clock):
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"\xff\xff\xff\xff" + b"x" * 100)
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge):
            await read_frame(theirs, 65_536, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert await theirs.receive_some(200) == b"x" * 100


async def test_an_empty_frame_is_refused(clock):
    ours, theirs = memory_stream_pair()
    await ours.send_all(bytes(4))
    with pytest.raises(EmptyFrame):
        await read_frame(theirs, 100, 1)


async def test_silence_ends_at_the_idle_deadline(clock):
    _, theirs = memory_stream_pair()
    began = trio.current_time()
    with pytest.raises(StreamIdle):
        await FrameReader(theirs).read(timeout=1, idle=30)
    assert trio.current_time() - began == pytest.approx(30)


async def test_a_trickle_ends_at_the_deadline_of_its_first_byte(clock):
    ours, theirs = memory_stream_pair()

    async def trickle() -> None:
        await ours.send_all(b"\x00\x00\x10\x00")
        while True:
            await trio.sleep(1)
            await ours.send_all(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(FrameTimeout):
            await FrameReader(theirs).read(timeout=10, idle=30)
        assert trio.current_time() - began == pytest.approx(10)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_read_loses_nothing(clock):
    ours, theirs = memory_stream_pair()
    reader = FrameReader(theirs)
    await ours.send_all(b"\x00\x00\x00\x06abc")
    with trio.move_on_after(1) as scope:
        await reader.read(timeout=10, idle=10)
    assert scope.cancelled_caught
    await ours.send_all(b"def")
    assert await reader.read(timeout=10, idle=10) == b"abcdef"


async def test_cancelled_reads_do_not_stretch_the_deadline(clock):
    ours, theirs = memory_stream_pair()
    reader = FrameReader(theirs)
    await ours.send_all(b"\x00\x00\x00\x06abc")
    with trio.move_on_after(9):
        await reader.read(timeout=10, idle=10)
    began = trio.current_time()
    with pytest.raises(FrameTimeout):
        await reader.read(timeout=10, idle=10)
    assert trio.current_time() - began == pytest.approx(1)


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", b"\x00\x00\x00\x06abc"])
async def test_an_end_of_stream_is_told(clock, sent):
    ours, theirs = memory_stream_pair()
    if sent:
        await ours.send_all(sent)
    await ours.aclose()
    with pytest.raises(StreamEnded):
        await read_frame(theirs, 100, 1)


async def test_write_refuses_what_the_peer_would(clock):
    ours, _ = memory_stream_pair()
    with pytest.raises(FrameTooLarge):
        await write_frame(ours, b"x" * 101, 1, max_bytes=100)
    with pytest.raises(EmptyFrame):
        await write_frame(ours, b"", 1)


async def test_write_to_a_peer_that_does_not_read_ends_at_the_deadline(clock):
    ours, _ = trio.testing.lockstep_stream_pair()
    with pytest.raises(FrameTimeout):
        await write_frame(ours, b"x", 3)


async def test_write_to_a_closed_stream_is_told(clock):
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    with pytest.raises(StreamEnded):
        await write_frame(ours, b"x", 1)
