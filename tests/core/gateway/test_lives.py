"""Lives of requests as the gateway's core keeps them."""

from __future__ import annotations

from dataclasses import replace

from headway.cluster import Role
from headway.core.gateway.lives import Lives
from headway.life.moments import MomentKind
from headway.messages import Lost, Placed
from headway.request import FinishReason
from tests.fakes.gateway_core import SETTINGS, gateway, opened, resubmitted, tokens


def test_an_answer_whose_text_is_made_behind_its_end_begins_with_that() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core)
    core.handle(tokens(request.key.stream_id, 0, [7], end=FinishReason.STOP), now=2.0)
    life = core.lives.finish("r", "stop", 2.1, first_answer_at=2.1)
    assert life is not None
    assert (life.instants.first_answer, life.instants.end) == (2_000_000, 2_000_000)


def test_a_life_that_was_written_down_is_the_same_in_the_next_process() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core)
    core.handle(tokens(request.key.stream_id, 0, [7], end=FinishReason.STOP), now=2.0)
    life = core.lives.finish("r", "stop", 2.1, first_answer_at=1.900001, num_reasoning=1)
    assert life is not None
    following = Lives(1)
    following.restore([replace(life, request_id="older"), life])
    assert following.find("r", 9.0) == life
    assert following.find("older", 9.0) is None


def test_each_attempt_has_the_way_of_its_messages_apart_from_its_wait() -> None:
    core = gateway(replace(SETTINGS, num_lives=4))
    request = opened(core, on="")
    for _ in range(2):
        for _ in range(2):  # told again, it is the same choice
            placed = Placed(request.key, "w", 0, Role.UNIFIED, waited_us=1000)
            core.handle(placed, now=1.0)
        core.handle(Lost((request.key,), "gone"), now=2.0)
        request = resubmitted(core, now=5.0, on="")
    life = core.lives.find("r", 9.0)
    assert life is not None
    assert len(life.find(MomentKind.CHOSEN)) == 2
