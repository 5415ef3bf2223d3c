"""``chats-first`` and ``slo-deadline``: the baselines that an operator would try first."""

from __future__ import annotations

from math import inf

import pytest

from headway.errors import HeadwayError
from headway.policies.batching.chats_first import ChatsFirst
from headway.policies.batching.slo_deadline import SloDeadline, SloDeadlineParams
from headway.request import Phase
from tests.fakes.candidates import Queued, served


def test_decode_goes_before_prefill_and_chats_before_reasoning() -> None:
    found = served(
        ChatsFirst(),
        [
            Queued(1, 0.0),
            Queued(2, 1.0, reasons=True, decoding=True),
            Queued(3, 2.0, decoding=True),
            Queued(4, 0.0, reasons=True),
        ],
    )
    assert found == [3, 2, 1, 4]


def test_a_deadline_is_the_limit_of_the_class_until_the_answer_begins() -> None:
    chat = Queued(1, 0.0, opens_answer=True)
    reasoning = Queued(2, 0.0, reasons=True, num_output_tokens=10, phase=Phase.REASONING)
    earlier = Queued(3, -5.0, reasons=True, num_output_tokens=200, phase=Phase.REASONING)
    # Due at 1 s, at 2 + 0.5 s, and at -5 + 2 + 10 s.
    assert served(SloDeadline(), [earlier, reasoning, chat]) == [1, 2, 3]


def test_an_answering_token_is_due_when_its_reader_has_read_the_others() -> None:
    supplied = Queued(1, 0.0, phase=Phase.ANSWERING, in_hand_until=50.0)
    behind = Queued(2, 9.0, phase=Phase.ANSWERING, in_hand_until=10.0)
    unread = Queued(3, 0.0, phase=Phase.ANSWERING, in_hand_until=-inf, is_read=False)
    assert served(SloDeadline(), [supplied, behind, unread]) == [3, 2, 1]


def test_a_limit_out_of_range_is_refused() -> None:
    with pytest.raises(HeadwayError, match="ttft"):
        SloDeadlineParams(ttft=-1.0)
