"""Further attempts: progress forgives; a request that kills its workers is named and refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.cluster import Role
from headway.core.gateway import attempts
from headway.core.gateway.attempts import PROGRESS
from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import (
    Fail,
    GatewayAction,
    SchedulerConnected,
    Submit,
    WorkerBack,
    WorkerDetached,
)
from headway.core.gateway.settings import GatewaySettings
from headway.errors import Code
from headway.messages import Lost, Placed, TokenBatch, WorkerReached
from headway.request import Request, SamplingParams, StreamKey


class World:
    """A gateway, the attempts that it has submitted, and its refusals; virtual time."""

    def __init__(self) -> None:
        self.core = GatewayCore("g", "g:1", GatewaySettings(10_000, request_timeout=1e6))
        self.now = 0.0
        self.attempts: dict[str, Request] = {}
        self.failed: dict[str, Fail] = {}
        self.placed: dict[str, list[StreamKey]] = {}
        self.take(self.core.handle(SchedulerConnected(), now=0.0))

    def take(self, actions: Sequence[GatewayAction]) -> None:
        for action in actions:
            if isinstance(action, Request):
                self.attempts[action.request_id] = action
            elif isinstance(action, Fail):
                self.failed[action.request_id] = action

    def submit(self, *names: str) -> None:
        for name in names:
            request = Request(name, "m", (1, 2), SamplingParams(max_tokens=5000), self.now)
            self.take(self.core.handle(Submit(request), now=self.now))

    def wait(self, seconds: float = 6.0) -> None:
        """Attempts that are due are submitted; ``attempts`` holds the new ones alone."""
        self.attempts.clear()
        until = self.now + seconds
        while (at := self.core.next_wakeup) is not None and at <= until:
            self.take(self.core.wake(now=at))
        self.now = until

    def place(self, worker_id: str, *names: str) -> None:
        for name in names:
            placed = Placed(self.attempts[name].key, worker_id, 0, Role.UNIFIED)
            self.take(self.core.handle(placed, now=self.now))
            self.placed.setdefault(worker_id, []).append(placed.key)

    def generate(self, worker_id: str, name: str, count: int, levels_spent: int = 0) -> None:
        request = self.attempts[name]
        first = len(request.output_token_ids)
        batch = TokenBatch(
            worker_id,
            (request.stream_id,) * count,
            tuple(range(first, first + count)),
            (7,) * count,
            (None,) * count,
            {},
            levels_spent={0: levels_spent} if levels_spent else {},
        )
        self.take(self.core.handle(batch, now=self.now))

    def told(self, name: str, process_id: str = "") -> None:
        self.lose(name, process_id)
        self.wait()

    def lose(self, name: str, process_id: str) -> None:
        lost = Lost((self.attempts[name].key,), "its worker is gone", True, process_id)
        self.take(self.core.handle(lost, now=self.now))

    def confirm(self, process_id: str) -> None:
        """The scheduler has lost a process, with no attempt that still counts."""
        lost = Lost((StreamKey("g", 2**40),), "its worker is gone", True, process_id)
        self.take(self.core.handle(lost, now=self.now))

    def reach(self, worker_id: str, process_id: str) -> None:
        self.take(self.core.handle(WorkerReached(worker_id, process_id), now=self.now))

    def kill(self, worker_id: str) -> None:
        """The stream of a worker breaks, and the scheduler says what it had taken."""
        self.detach(worker_id)
        lost = Lost(tuple(self.placed.pop(worker_id, ())), f"worker {worker_id}: gone", died=True)
        self.take(self.core.handle(lost, now=self.now))
        self.wait()

    def detach(self, worker_id: str, process_id: str = "") -> None:
        self.take(self.core.handle(WorkerDetached(worker_id, process_id), now=self.now))


def test_a_request_alone_on_both_workers_that_died_is_refused_by_name() -> None:
    world = World()
    world.submit("poison")
    world.place("v", "poison")
    world.kill("v")
    world.place("w", "poison")
    world.kill("w")
    error = world.failed["poison"].error
    assert error.code is Code.INTERNAL
    assert "died 2 times" in error.message
    assert "worker w: gone" in error.message
    assert world.core.num_open == 0


def test_the_schedulers_word_counts_as_the_death_of_a_worker_and_its_other_words_do_not() -> None:
    world = World()
    world.submit("r")
    for died in (False, False, True, False, True):
        world.place("w", "r")
        lost = Lost((world.attempts["r"].key,), "worker w: gone", died)
        world.take(world.core.handle(lost, now=world.now))
        world.wait()
    assert "worker w: gone" in world.failed["r"].error.message


def test_a_worker_that_never_took_a_request_has_not_died_of_it() -> None:
    world = World()
    world.submit("r")
    world.place("v", "r")
    world.kill("v")
    for worker_id in ("w", "x", "y"):  # dead already when it was placed there
        world.place(worker_id, "r")
        world.detach(worker_id)
        key = world.placed.pop(worker_id)[0]
        lost = Lost((key,), f"worker {worker_id}: gone", died=False)
        world.take(world.core.handle(lost, now=world.now))
        world.wait()
        assert "r" in world.attempts
    assert not world.failed
    world.place("z", "r")
    world.kill("z")
    assert "died 2 times" in world.failed["r"].error.message


def test_without_the_schedulers_word_a_broken_stream_is_a_new_attempt_after_a_while() -> None:
    world = World()
    world.submit("r")
    for number in range(3):
        world.place(f"w{number}", "r")
        first = world.attempts["r"].stream_id
        world.detach(f"w{number}")
        world.wait()
        assert world.attempts["r"].stream_id != first
    assert not world.failed


def test_a_broken_stream_of_a_worker_that_sent_something_since_is_its_death() -> None:
    world = World()
    world.submit("r", "other")
    world.place("w", "other", "r")
    world.generate("w", "other", 1)
    before = world.attempts["r"].stream_id
    world.detach("w")
    world.wait(0.1)
    assert world.attempts["r"].stream_id != before  # at once


def test_among_others_the_one_that_dies_alone_at_its_third_death_is_the_cause() -> None:
    world = World()
    names = ("one", "poison", "two")
    world.submit(*names)
    for worker_id in ("v", "w"):
        world.place(worker_id, *names)
        world.kill(worker_id)
    assert not world.failed
    assert list(world.attempts) == ["one"]  # one at a time
    world.place("x", "one")
    world.generate("x", "one", PROGRESS)
    world.wait()
    assert list(world.attempts) == ["poison"]
    world.place("x", "poison")
    world.kill("x")
    assert list(world.failed) == ["poison"]
    assert "died 3 times" in world.failed["poison"].error.message
    assert sorted(world.attempts) == ["one", "two"]
    assert world.core.num_open == 2


def test_a_new_leader_is_told_which_worker_has_an_attempt() -> None:
    world = World()
    world.submit("one", "two")
    world.place("v", "one")
    world.take(world.core.handle(SchedulerConnected(), now=world.now))
    assert [world.attempts[name].placed_on for name in ("one", "two")] == [("v",), ()]
    world.kill("v")
    assert world.attempts["one"].placed_on == ()


def test_a_suspect_that_leaves_lets_the_next_one_run() -> None:
    world = World()
    world.submit("one", "two")
    for worker_id in ("v", "w"):
        world.place(worker_id, "one", "two")
        world.kill(worker_id)
    world.place("x", "one")
    world.generate("x", "one", 1)
    world.wait()
    assert not world.attempts
    world.take(world.core.handle(SchedulerConnected(), now=world.now))
    assert list(world.attempts) == ["one"]  # the other still waits for its turn
    world.generate("x", "one", PROGRESS)
    world.wait()
    assert list(world.attempts) == ["two"]


def test_a_request_that_makes_progress_outlives_any_number_of_workers() -> None:
    world = World()
    world.submit("long")
    for number in range(40):
        world.place(f"w{number}", "long")
        world.generate(f"w{number}", "long", PROGRESS)
        world.kill(f"w{number}")
    assert not world.failed
    assert len(world.attempts["long"].output_token_ids) == 40 * PROGRESS


def test_a_token_a_life_is_no_progress() -> None:
    world = World()
    world.submit("poison")
    for worker_id in ("v", "w"):  # a prefill worker's token, and the death of a decode worker
        world.place(worker_id, "poison")
        world.generate(worker_id, "poison", 1)
        world.kill(worker_id)
    assert list(world.failed) == ["poison"]


def test_a_broken_stream_and_the_schedulers_word_are_one_death() -> None:
    world = World()
    world.submit("r")
    world.place("w", "r")
    world.generate("w", "r", 1)
    world.detach("w")
    world.wait()
    world.place("w", "r")  # the scheduler has not noticed yet
    world.told("r")
    assert not world.failed
    world.place("w", "r")
    world.told("r")
    assert "died 2 times" in world.failed["r"].error.message


def test_a_worker_whose_process_opens_its_stream_again_has_not_died() -> None:
    world = World()
    world.submit("r")
    for number in range(6):
        world.place("w", "r")
        world.generate("w", "r", 1)
        world.kill("w")
        if number < 5:
            world.take(world.core.handle(WorkerBack("w"), now=world.now))
    assert not world.failed
    world.place("v", "r")
    world.kill("v")
    assert "died 2 times" in world.failed["r"].error.message


def test_a_worker_whose_process_the_scheduler_reaches_again_has_not_died() -> None:
    world = World()
    world.submit("r")
    for _ in range(5):
        world.place("w", "r")
        world.told("r", "first")
        world.reach("w", "first")
    assert not world.failed
    world.place("w", "r")
    world.told("r", "first")
    world.reach("w", "second")
    world.place("w", "r")
    world.told("r", "second")
    assert "died 2 times" in world.failed["r"].error.message


def test_a_process_that_lives_takes_no_death_of_an_earlier_one_back() -> None:
    world = World()
    world.submit("poison")
    world.place("w", "poison")
    world.told("poison", "first")
    world.place("w", "poison")
    world.generate("w", "poison", 1)
    world.take(world.core.handle(WorkerBack("w", "second"), now=world.now))
    world.detach("w", "second")
    world.confirm("second")
    world.wait()
    assert "died 2 times" in world.failed["poison"].error.message


def test_a_request_is_refused_for_deaths_that_the_scheduler_knows_of_alone() -> None:
    world = World()
    world.submit("r", "poison")
    for worker_id in ("v", "w"):
        for name in ("r", "poison"):
            world.place(f"{worker_id}-{name}", name)
            world.generate(f"{worker_id}-{name}", name, 1)
            world.detach(f"{worker_id}-{name}", f"{worker_id}-{name}")
        world.wait()
    assert not world.failed
    for process_id in ("v-r", "v-poison", "w-poison"):
        world.confirm(process_id)
        world.wait()
    assert list(world.failed) == ["poison"]


def test_a_process_dies_once() -> None:
    world = World()
    world.submit("r")
    for _ in range(5):
        world.place("w", "r")
        world.generate("w", "r", 1)
        world.detach("w", "first")
        world.confirm("first")
        world.wait()
    assert not world.failed


@pytest.mark.parametrize(("in_stream", "by_leader"), [("", "first"), ("first", ""), ("", "")])
def test_a_death_counts_once_where_one_side_does_not_name_its_process(
    in_stream: str, by_leader: str
) -> None:
    world = World()
    world.submit("r", "other")
    world.place("w", "r", "other")
    world.generate("w", "r", 1)
    world.generate("w", "other", 1)
    world.detach("w", in_stream)
    world.wait()
    world.place("w", "r")  # the scheduler has not noticed yet
    world.told("r", by_leader)
    world.place("v", "r")
    world.told("r", "second")
    assert not world.failed  # on the one worker it was not alone


def test_a_death_whose_process_the_scheduler_alone_names_is_taken_back_by_that_name() -> None:
    world = World()
    world.submit("r")
    world.place("w", "r")
    world.generate("w", "r", 1)
    world.detach("w", "")
    world.wait()
    world.place("w", "r")
    world.told("r", "first")
    world.reach("w", "first")
    world.place("v", "r")
    world.told("r", "second")
    assert not world.failed


def test_who_had_company_that_its_worker_may_have_taken_was_not_alone() -> None:
    world = World()
    world.submit("r", "other")
    tried: list[str] = []
    for worker_id in ("v", "w"):
        world.place(worker_id, "r")
        world.generate(worker_id, "r", 1)
        world.now += 0.1
        world.place(worker_id, "other")
        other = world.attempts["other"].key
        world.detach(worker_id, f"of {worker_id}")
        lost = Lost((other,), "its worker is gone", True, f"of {worker_id}", worker_id)
        world.take(world.core.handle(lost, now=world.now))
        world.wait()
        tried += world.attempts
    assert not world.failed
    assert tried[2:] == ["r"]  # now one at a time


def test_who_is_told_one_by_one_of_their_process_were_not_alone_on_it() -> None:
    world = World()
    world.submit("r", "other")
    for worker_id in ("v", "w"):
        world.place(worker_id, "r", "other")
        for name in ("r", "other"):  # as when the gateway asks again after it was away
            world.lose(name, f"of {worker_id}")
        world.wait()
    assert not world.failed
    assert list(world.attempts) == ["r"]


def test_a_request_that_moves_has_seen_the_death_of_the_worker_that_the_scheduler_names() -> None:
    for is_reached in (True, False):
        world = World()
        world.submit("r")
        key = world.attempts["r"].key
        world.take(world.core.handle(Placed(key, "v", 0, Role.UNIFIED, "w"), now=world.now))
        world.generate("w", "r", 1)  # the target's stream stays open
        lost = Lost((key,), "its worker is gone", True, "first", "v")
        world.take(world.core.handle(lost, now=world.now))
        world.wait()
        if is_reached:
            world.reach("v", "first")
        world.place("x", "r")
        world.told("r", "second")
        assert bool(world.failed) is not is_reached


def test_who_was_alone_waits_until_the_dead_can_be_reached_no_more() -> None:
    for is_reached in (True, False):
        world = World()
        world.submit("r", "other")
        world.place("v", "r")
        world.told("r", "first")
        world.place("w", "r")
        world.lose("r", "second")
        world.wait(1.0)
        assert not world.failed
        assert not world.attempts
        if is_reached:
            world.reach("w", "second")
        world.wait()
        assert bool(world.failed) is not is_reached
        assert ("r" in world.attempts) is is_reached


def test_who_was_alone_waits_for_the_schedulers_word_on_a_broken_stream() -> None:
    for is_told in (True, False):
        world = World()
        world.submit("r")
        for worker_id in ("v", "w"):
            world.place(worker_id, "r")
            world.generate(worker_id, "r", 1)
            world.detach(worker_id, f"of {worker_id}")
            world.wait(1.0)
            if is_told:
                world.confirm(f"of {worker_id}")
            assert ("r" in world.attempts) is (worker_id == "v")
        world.wait()
        assert bool(world.failed) is is_told


def test_a_process_that_was_lost_again_is_remembered_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "_MOST_DEATHS", 2)
    world = World()
    world.submit("r")
    world.place("v", "r")
    world.told("r", "first")
    for process_id in ("second", "first", "third"):
        world.attempts.clear()
        world.confirm(process_id)
    world.take(world.core.handle(SchedulerConnected(), now=world.now))
    world.reach("v", "first")
    world.place("w", "r")
    world.told("r", "fourth")
    assert not world.failed


def test_a_stream_that_breaks_after_its_process_was_reached_again_is_no_death() -> None:
    world = World()
    world.submit("r")
    world.place("w", "r")
    world.generate("w", "r", 1)
    world.told("r", "first")  # its stream is still open
    world.reach("w", "first")
    world.place("v", "r")
    world.detach("w")
    world.told("r")
    assert not world.failed


def test_a_worker_that_goes_on_sending_tokens_has_not_died() -> None:
    world = World()
    world.submit("r", "other")
    world.place("w", "other")
    other = dict(world.attempts)
    for _ in range(5):
        world.place("w", "r")
        world.told("r")
        world.attempts.update({"other": other["other"]})
        world.generate("w", "other", 1)
    assert not world.failed
    world.kill("w")
    assert not world.failed
    assert sorted(world.attempts) == ["other"]


def test_a_lost_request_that_is_placed_on_its_worker_again_has_seen_one_death() -> None:
    world = World()
    world.submit("r")
    world.place("w", "r")
    world.generate("w", "r", 1)
    world.told("r")  # by a leader that cannot reach the worker; the next leader can
    world.place("w", "r")
    world.kill("w")
    assert not world.failed
    world.place("v", "r")
    world.kill("v")
    assert "died 2 times" in world.failed["r"].error.message


def test_the_schedulers_word_counts_once_the_open_stream_has_broken_too() -> None:
    world = World()
    world.submit("poison")
    for worker_id in ("v", "w"):
        world.place(worker_id, "poison")
        world.generate(worker_id, "poison", 1)
        world.told("poison")
        assert not world.failed
        tried_again = dict(world.attempts)
        world.kill(worker_id)
        world.attempts.update(tried_again)
    assert "died 2 times" in world.failed["poison"].error.message
    assert world.core.num_open == 0


def test_a_later_attempt_begins_with_the_credits_that_earlier_ones_have_spent() -> None:
    world = World()
    world.submit("r")
    for worker_id, spent, known in (("v", 3, 3), ("w", 0, 3), ("x", 5, 5)):
        world.place(worker_id, "r")
        world.generate(worker_id, "r", PROGRESS, levels_spent=spent)
        world.kill(worker_id)
        assert world.attempts["r"].levels_spent == known
    assert len(world.attempts["r"].output_token_ids) == 3 * PROGRESS


def test_a_worker_that_was_never_named_spends_nothing() -> None:
    world = World()
    world.submit("r")
    world.place("v", "r")
    world.generate("v", "r", 2)
    batch = TokenBatch(
        "stranger", (world.attempts["r"].stream_id,), (2,), (7,), (None,), {}, levels_spent={0: 64}
    )
    world.take(world.core.handle(batch, now=world.now))
    world.kill("v")
    assert world.attempts["r"].levels_spent == 0
