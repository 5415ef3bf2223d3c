"""Queues of streams: what is gathered, when they end, who is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from headway.errors import Code, HeadwayError, invalid
from services.runtime.stream import Outbox, Served, redial


async def test_messages_are_gathered_up_to_a_weight() -> None:
    outbox: Outbox[int] = Outbox(most=5, weigh=lambda number: number)
    for number in (4, 4, 4):
        outbox.put(number)
    assert await outbox.gathered() == [4, 4]
    assert await outbox.gathered() == [4]


async def test_lanes_take_turns_and_keep_their_order() -> None:
    outbox: Outbox[str] = Outbox(max_queued=7, most=3, lane=lambda said: said[0])
    for said in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        assert outbox.put(said)
    assert await outbox.gathered() == ["a1", "b1", "c1"]
    assert outbox.put("c2")
    assert await outbox.gathered() == ["a2", "b2", "c2"]
    assert await outbox.gathered() == ["a3", "a4"]
    assert all(outbox.put("b") for _ in range(7))
    assert not outbox.put("a")


async def test_an_error_is_told_after_what_is_queued() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put(1)
    outbox.end(HeadwayError(Code.CANCELLED, "the end"))
    outbox.put(2)  # too late
    assert await outbox.gathered() == [1]
    with pytest.raises(HeadwayError, match="the end"):
        await outbox.gathered()


async def test_an_outbox_that_has_ended_gives_nothing() -> None:
    outbox: Outbox[int] = Outbox()
    waiting = asyncio.create_task(outbox.gathered())
    await asyncio.sleep(0)
    outbox.end()
    assert await waiting == []


async def test_one_message_too_many_cuts_the_peer_off() -> None:
    outbox: Outbox[int] = Outbox(max_queued=2)
    assert [outbox.put(number) for number in range(4)] == [True, True, False, True]
    with pytest.raises(HeadwayError, match="2 messages are unread"):
        await outbox.overflow()
    with pytest.raises(HeadwayError, match="2 messages are unread"):
        await outbox.gathered()


async def _talk(*words: str) -> AsyncIterator[str]:
    for word in words:
        yield word


async def test_a_served_stream_ends_once_with_the_peers_nonsense() -> None:
    heard: list[str] = []
    ends: list[bool] = []

    def take(word: str) -> None:
        if word == "nonsense":
            raise invalid("word", word, "sense")
        heard.append(word)

    stream: Served[int] = Served(8, on_end=lambda: ends.append(True))
    stream.send(7)
    served = stream.serve(_talk("hello", "nonsense", "more"), take)
    assert await anext(served) == [7]
    with pytest.raises(HeadwayError, match="it must be sense"):
        await anext(served)
    assert (heard, ends) == (["hello"], [True])


async def test_a_replaced_streams_messages_come_too_late() -> None:
    heard: list[str] = []
    stream: Served[int] = Served(8)
    stream.end(HeadwayError(Code.CANCELLED, "a newer stream"))
    with pytest.raises(HeadwayError, match="a newer stream"):
        await anext(stream.serve(_talk("late"), heard.append))
    await asyncio.sleep(0)
    assert heard == []


async def test_a_handlers_bug_ends_the_stream_and_says_so() -> None:
    ends: list[bool] = []

    def take(word: str) -> None:
        raise ZeroDivisionError

    stream: Served[int] = Served(8, on_end=lambda: ends.append(True))
    with pytest.raises(HeadwayError, match="could not be handled") as caught:
        await anext(stream.serve(_talk("hello"), take))
    assert caught.value.code is Code.INTERNAL
    assert ends == [True]


async def _cut_off() -> AsyncIterator[str]:
    yield "hello"
    raise grpc.aio.UsageError("RPC already finished.")  # what a server that has stopped raises


async def test_a_call_that_its_server_has_ended_is_no_handlers_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    served: Served[str] = Served(8)
    received: list[str] = []
    assert [gathered async for gathered in served.serve(_cut_off(), received.append)] == []
    assert received == ["hello"]
    assert "stream_handler_failed" not in capsys.readouterr().out


async def test_a_write_that_never_ends_is_cancelled_when_the_queue_overflows() -> None:
    ends: list[bool] = []
    stream: Served[int] = Served(1, on_end=lambda: ends.append(True))

    async def write() -> None:
        async for _ in stream.serve(_silent(), lambda word: None):
            await asyncio.sleep(3600)  # the peer does not read

    writing = asyncio.create_task(write())
    stream.send(1)
    await asyncio.sleep(0.01)
    assert [stream.send(2), stream.send(3)] == [True, False]
    await asyncio.wait((writing,), timeout=10)
    assert writing.cancelled()
    assert ends == [True]


async def _silent() -> AsyncIterator[str]:
    await asyncio.sleep(3600)
    yield ""


async def test_attempts_that_end_at_once_are_made_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    attempts: list[int] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise EOFError

    async def attempt() -> None:
        attempts.append(len(pauses))

    monkeypatch.setattr("services.runtime.stream.asyncio.sleep", pause)
    with pytest.raises(EOFError):
        await redial(attempt, shortest=0.1, longest=2.0)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert attempts == [0, 1, 2, 3, 4, 5]
