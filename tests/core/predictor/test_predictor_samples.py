"""What a predictor learns from: states are kept until their request's length is known."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core.predictor.samples import RequestEnded, SampleBuffer, SeenStates
from headway.forward_pass import HiddenStates
from headway.request import FinishReason, StreamKey


def key(number: int) -> StreamKey:
    return StreamKey("g", number)


def seen(*rows: tuple[int, int, float]) -> SeenStates:
    """(stream, tokens generated, the state's one value) each."""
    values = np.array([[value] for *_, value in rows], dtype=np.float16)
    return SeenStates(
        HiddenStates(tuple(key(n) for n, *_ in rows), values), tuple(at for _, at, _ in rows)
    )


def ended(number: int, total: int, reason: FinishReason = FinishReason.STOP) -> RequestEnded:
    return RequestEnded(key(number), total, reason)


def test_a_state_is_a_sample_once_its_request_has_ended() -> None:
    buffer = SampleBuffer()
    buffer.see(seen((1, 1, 0.5), (2, 1, 0.25)))
    buffer.see(seen((1, 21, 0.75)))
    assert buffer.samples() is None
    buffer.end(ended(1, 30))
    samples = buffer.samples()
    assert samples is not None
    assert samples.hidden.tolist() == [[0.5], [0.75]]
    assert samples.remaining.tolist() == [29.0, 9.0]
    assert samples.owners.tolist() == [0, 0]


@pytest.mark.parametrize(
    "reason", [FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.ERROR]
)
def test_a_request_that_was_cut_short_teaches_nothing(reason: FinishReason) -> None:
    buffer = SampleBuffer()
    buffer.see(seen((1, 1, 0.5)))
    buffer.end(ended(1, 30, reason))
    assert buffer.samples() is None


def test_a_state_that_is_no_number_is_left_out() -> None:
    buffer = SampleBuffer()
    buffer.see(seen((1, 1, float("nan")), (1, 21, 0.5)))
    buffer.end(ended(1, 30))
    samples = buffer.samples()
    assert samples is not None
    assert samples.remaining.tolist() == [9.0]


def test_samples_bear_the_tokens_of_prompt_and_output() -> None:
    buffer = SampleBuffer()
    asked = seen((1, 1, 0.5), (2, 21, 0.25))
    buffer.see(SeenStates(asked.hidden, asked.num_output_tokens, (7, 8)))
    buffer.end(ended(2, 30))
    samples = buffer.samples()
    assert samples is not None
    assert samples.counts is not None
    assert samples.counts.tolist() == [[8, 21]]
    assert samples.remaining.tolist() == [9]


def test_an_end_of_an_unknown_request_is_ignored() -> None:
    buffer = SampleBuffer()
    buffer.end(ended(7, 30))
    assert buffer.num_ended == 0


def test_the_oldest_make_room() -> None:
    buffer = SampleBuffer(num_running=2, num_ended=2)
    for number in (1, 2, 3):
        buffer.see(seen((number, 1, number / 4)))
    buffer.end(ended(1, 9))  # it was pushed out
    for number in (2, 3):
        buffer.end(ended(number, 9))
    buffer.see(seen((4, 1, 1.0)))
    buffer.end(ended(4, 9))
    samples = buffer.samples()
    assert samples is not None
    assert samples.hidden.tolist() == [[0.75], [1.0]]
    assert buffer.num_ended == 3


def test_states_of_one_request_that_never_ends_are_thinned_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.core.predictor.samples.MOST_ROWS", 4)
    buffer = SampleBuffer()
    for count in range(7):
        buffer.see(seen((1, count, 0.5)))
    buffer.end(ended(1, 10))
    samples = buffer.samples()
    assert samples is not None
    assert samples.remaining.tolist() == [10, 6, 4]


def test_states_beyond_the_memory_for_them_make_room_from_the_first_that_ended() -> None:
    buffer = SampleBuffer(most_bytes=3 * seen((1, 0, 0.5)).hidden.values.nbytes)
    for number in (1, 2):
        buffer.see(seen((number, 0, 0.5)))
        buffer.end(ended(number, 10 * number))
    for number in (3, 4, 5, 6):
        buffer.see(seen((number, 0, 0.5)))
    assert buffer.samples() is None
    for number in (3, 4, 5, 6):
        buffer.end(ended(number, 10 * number))
    samples = buffer.samples()
    assert samples is not None
    assert samples.remaining.tolist() == [40, 50, 60]
