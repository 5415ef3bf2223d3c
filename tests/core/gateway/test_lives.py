"""Lives of requests as the gateway's core keeps them."""

from __future__ import annotations

from dataclasses import replace

from headway.request import FinishReason
from tests.fakes.gateway_core import SETTINGS, gateway, opened, tokens


def test_an_answer_whose_text_is_made_behind_its_end_begins_with_that() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core)
    core.handle(tokens(request.key.stream_id, 0, [7], end=FinishReason.STOP), now=2.0)
    life = core.lives.shown("r", "stop", 2.1, first_answer_at=2.1)
    assert life is not None
    assert (life.instants.first_answer, life.instants.end) == (2_000_000, 2_000_000)
