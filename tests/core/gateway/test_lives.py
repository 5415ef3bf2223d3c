"""Lives of requests as the gateway's core keeps them."""

from __future__ import annotations

from dataclasses import replace

from headway.core.gateway.lives import Lives
from headway.request import FinishReason
from tests.fakes.gateway_core import SETTINGS, gateway, opened, tokens


def test_an_answer_whose_text_is_made_behind_its_end_begins_with_that() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core)
    core.handle(tokens(request.key.stream_id, 0, [7], end=FinishReason.STOP), now=2.0)
    life = core.lives.shown("r", "stop", 2.1, first_answer_at=2.1)
    assert life is not None
    assert (life.instants.first_answer, life.instants.end) == (2_000_000, 2_000_000)


def test_a_life_that_was_written_down_is_the_same_in_the_next_process() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core)
    core.handle(tokens(request.key.stream_id, 0, [7], end=FinishReason.STOP), now=2.0)
    life = core.lives.shown("r", "stop", 2.1, first_answer_at=1.900001, num_reasoning=1)
    assert life is not None
    following = Lives(1)
    following.restore([replace(life, request_id="older"), life])
    assert following.find("r", 9.0) == life
    assert following.find("older", 9.0) is None
