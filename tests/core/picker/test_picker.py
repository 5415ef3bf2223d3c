"""The picker's core: endpoints that are asked for, and what becomes of requests."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import inf

import pytest

from headway.blocks import block_names, waypoint_names
from headway.core.picker.core import AT_ONCE, BEST_GUESS, GATEWAY_ID
from headway.core.picker.endpoint import EndpointLedger
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    EndpointUnlisted,
    Ends,
    KvChanged,
    Pick,
    PickAskedAtOnce,
    PickerSettings,
    Refuse,
    Responded,
    Scraped,
    Silence,
    Stepped,
    StoredBlocks,
    WhyRefused,
)
from headway.core.picker.kv_chains import KvChains
from headway.core.scheduler.settings import SchedulerSettings
from headway.policies.packing.flow_control import FlowControl
from headway.request import Request, SamplingParams, StreamKey
from headway.service_class import Standing, shipped_classes
from tests.fakes.picker_core import CHUNK, SCHEDULER, Gateway

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def test_a_request_gets_an_idle_endpoint_at_once_and_the_others_as_fallbacks() -> None:
    gateway = Gateway(A, B, C)
    pick = gateway.pick(gateway.ask())
    assert sorted(pick.endpoints) == [A, B, C]


def test_fallbacks_come_in_the_order_of_what_endpoints_owe() -> None:
    gateway = Gateway(A, B, C, settings=PickerSettings(first_pass=10.0))
    first = gateway.pick(gateway.ask(400)).endpoints[0]
    second = gateway.pick(gateway.ask(200)).endpoints[0]
    third = gateway.pick(gateway.ask(10))
    assert third.endpoints[1:] == (second, first)


def test_no_more_fallbacks_are_named_than_asked_for() -> None:
    gateway = Gateway(A, B, C, settings=PickerSettings(num_fallbacks=0))
    assert len(gateway.pick(gateway.ask()).endpoints) == 1


def test_without_an_endpoint_a_request_is_refused_as_none_is_ready() -> None:
    gateway = Gateway()
    assert gateway.refusal(gateway.ask()).reason is WhyRefused.NONE_READY


def test_an_endpoint_takes_requests_only_after_its_first_scrape() -> None:
    gateway = Gateway()
    gateway.handle(EndpointListed(EndpointInfo(A, "m", CHUNK)))
    assert gateway.refusal(gateway.ask()).reason is WhyRefused.NONE_READY
    gateway.scraped(A)
    assert gateway.pick(gateway.ask()).endpoints == (A,)


def test_requests_beyond_a_pass_wait_in_the_window_until_prompts_are_through() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=60.0))
    first, second = gateway.ask(CHUNK), gateway.ask(CHUNK)
    assert first in gateway.answers
    assert second not in gateway.answers
    gateway.pass_time(1.1)
    assert gateway.pick(second).rule != BEST_GUESS


def test_no_prompt_wakes_the_core_at_its_end_while_nobody_waits() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=60.0))
    gateway.ask(CHUNK)
    assert (gateway.core.next_wakeup or inf) > gateway.now + 60.0
    gateway.now += 1.1  # and yet it is known to be through at the next question
    assert gateway.pick(gateway.ask(CHUNK)).rule != BEST_GUESS


@pytest.mark.parametrize(
    ("past", "seconds"),
    [
        (EndpointMetrics(), 5e-5),  # an assumption
        (EndpointMetrics(computed_tokens=1e6, prefill_seconds=20.0), 2e-5),
        (EndpointMetrics(computed_tokens=3100, prefill_seconds=0.2, num_prompts=100), 5e-5),
        (Silence.NO_METRICS, 5e-6),  # nobody will tell: as fast as may be
    ],
)
def test_the_first_scrape_tells_what_a_prompt_token_takes(
    past: EndpointMetrics | Silence, seconds: float
) -> None:
    gateway = Gateway(settings=PickerSettings(first_pass=5e-6 * CHUNK))
    gateway.handle(EndpointListed(EndpointInfo(A, "m", CHUNK)))
    gateway.scraped(A, past)
    assert gateway.endpoints()[0].seconds_per_token == pytest.approx(seconds)


def test_the_end_of_a_response_says_that_its_prompt_is_through() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1e4, longest_hold=1e6))
    first, second = gateway.ask(CHUNK), gateway.ask(CHUNK)
    gateway.end(first)
    assert second in gateway.answers


def test_a_step_of_kv_events_ends_the_prompts_that_it_has_computed() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1e4, longest_hold=1e6))
    gateway.ask(CHUNK)
    second = gateway.ask(CHUNK)
    assert second not in gateway.answers
    stored = StoredBlocks(tuple(range(62)), None, array("I", range(992)), 16)
    gateway.handle(KvChanged(A, (stored,)))
    assert second in gateway.answers
    assert gateway.endpoints()[0].ends is Ends.INFERRED


def test_a_prompt_that_fills_no_block_is_through_when_the_clock_says_so() -> None:
    for num_tokens, seconds in ((8, 8.0), (24, 48.0)):  # an event may tell of 24: they fill one
        gateway = Gateway(A, settings=PickerSettings(first_pass=float(CHUNK), longest_hold=1e6))
        gateway.handle(KvChanged(A, (StoredBlocks((1,), None, range(16), 16),)))
        gateway.ask(num_tokens)
        gateway.pass_time(seconds - 2.1)
        assert gateway.endpoints()[0].owed_tokens > 0
        gateway.pass_time(2.2)
        assert gateway.endpoints()[0].owed_tokens == 0


def test_a_prompt_of_which_a_scrape_says_that_it_waits_is_not_through() -> None:
    ledger = EndpointLedger(EndpointInfo(A, "m", CHUNK), first_pass=1.0)
    request = Request("r", "m", range(CHUNK), SamplingParams(max_tokens=5), 0.0, stream_id=1)
    ledger.take(request, CHUNK, 7, now=0.0)
    ledger.scraped(EndpointMetrics(num_waiting=1), 1.1, now=1.1)  # the clock was too fast
    assert ledger.progress(now=1.1) is None
    through = ledger.progress(now=2.2)
    assert through is not None
    assert through.dispatch_ids == (7,)


def _step(prefill_tokens: int, running: int = 1, waiting: int = 0, free: int = 500) -> Stepped:
    return Stepped(A, 0.5, prefill_tokens, running, waiting, free, 1000, 16)


def test_a_reported_step_ends_the_prompts_whose_last_token_it_has_computed() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=600.0))
    gateway.handle(_step(0))
    gateway.ask(CHUNK + 600)
    waits = gateway.ask(CHUNK)
    gateway.pass_time(1.1)  # the clock alone would have ended a pass
    assert waits not in gateway.answers
    gateway.handle(_step(CHUNK))
    assert gateway.endpoints()[0].owed_tokens == 600 + CHUNK
    assert gateway.pick(waits).endpoints == (A,)
    gateway.handle(_step(599))
    assert gateway.endpoints()[0].owed_tokens == CHUNK + 1
    assert gateway.endpoints()[0].ends is Ends.EXACT


def test_the_clock_has_the_word_soon_after_a_step_that_was_unusually_long() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=600.0))
    gateway.handle(replace(_step(0), seconds=600.0))
    gateway.ask(CHUNK)
    gateway.pass_time(8.0)
    assert gateway.endpoints()[0].owed_tokens == 0


def test_a_step_without_prompt_tokens_and_without_a_queue_ends_cached_prompts() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0))
    gateway.handle(_step(0))
    gateway.ask(800)
    gateway.handle(_step(0, running=0))  # the request has not come yet
    assert gateway.endpoints()[0].owed_tokens == 800
    gateway.handle(_step(0, running=0, waiting=1))
    assert gateway.endpoints()[0].owed_tokens == 800
    gateway.handle(_step(0))
    assert gateway.endpoints()[0].owed_tokens == 0


def test_a_prompt_waits_for_the_blocks_that_a_step_reports() -> None:
    gateway = Gateway(A, settings=PickerSettings(longest_hold=600.0))
    gateway.handle(_step(0, free=5))
    waits = gateway.ask(CHUNK)
    assert waits not in gateway.answers
    gateway.handle(_step(0, free=500))
    assert gateway.pick(waits).endpoints == (A,)


def test_where_steps_are_reported_no_longer_kv_events_and_the_clock_count() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0))
    gateway.handle(_step(0))
    gateway.ask(CHUNK)
    gateway.pass_time(2.9)
    assert gateway.endpoints()[0].owed_tokens == CHUNK
    gateway.pass_time(0.2)  # twice a pass, and twice the last step
    assert gateway.endpoints()[0].owed_tokens == 0
    assert gateway.endpoints()[0].ends is Ends.GUESSED


def test_lost_reports_of_steps_leave_what_was_lost_to_the_clock() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0))
    gateway.handle(_step(0))
    gateway.ask(CHUNK)
    gateway.now += 0.5
    gateway.handle(replace(_step(100), is_complete=False))
    assert gateway.endpoints()[0].owed_tokens == CHUNK - 500 - 100
    assert gateway.endpoints()[0].ends is Ends.EXACT


def test_lost_kv_events_leave_the_clock() -> None:
    gateway = Gateway(A)
    gateway.handle(KvChanged(A, (StoredBlocks((1,), None, range(16), 16),)))
    gateway.handle(KvChanged(A, is_complete=False))
    assert gateway.endpoints()[0].ends is Ends.GUESSED


def test_a_request_that_has_waited_its_time_goes_to_the_best_guess() -> None:
    gateway = Gateway(A, B, settings=PickerSettings(first_pass=1e4, longest_hold=2.0))
    gateway.ask(CHUNK), gateway.ask(CHUNK)
    third = gateway.ask(CHUNK)
    gateway.pass_time(1.9)
    assert third not in gateway.answers
    gateway.pass_time(0.2)
    assert gateway.pick(third).rule == BEST_GUESS


def test_a_window_without_room_sheds_with_a_hint_when_to_come_again() -> None:
    scheduler = SchedulerSettings(dispatch="sbs-warm", max_waiting=1, prefix_hits=True)
    settings = PickerSettings(first_pass=1e4, longest_hold=1e6)
    gateway = Gateway(A, scheduler=scheduler, settings=settings)
    gateway.ask(CHUNK), gateway.ask(CHUNK)
    refusal = gateway.refusal(gateway.ask(CHUNK))
    assert refusal.reason is WhyRefused.SHED
    assert refusal.retry_after >= 1.0


def test_that_hint_counts_the_tokens_of_prompts_that_take_longer_than_a_scrape() -> None:
    scheduler = replace(SCHEDULER, max_waiting=1)
    settings = PickerSettings(first_pass=4.0, longest_hold=1e6)
    gateway = Gateway(A, scheduler=scheduler, settings=settings)
    for _ in range(5):  # a prompt of four seconds each minute
        number = gateway.ask(CHUNK)
        for _ in range(6):
            gateway.pass_time(0.7)
            gateway.scraped(A)
        gateway.end(number)
        gateway.pass_time(60.0)
    gateway.ask(CHUNK), gateway.ask(3 * CHUNK)
    assert gateway.refusal(gateway.ask(CHUNK)).retry_after == pytest.approx(12.0)


def test_requests_that_have_waited_too_many_cycles_make_flow_control_shed() -> None:
    scheduler = SchedulerSettings(
        dispatch="sbs-warm", flow_control=FlowControl(1), prefix_hits=True
    )
    settings = PickerSettings(first_pass=1.0, longest_hold=1e6)
    gateway = Gateway(A, scheduler=scheduler, settings=settings)
    for _ in range(20):
        gateway.ask(CHUNK)
    gateway.pass_time(10.0)
    assert gateway.refusal(gateway.ask(CHUNK)).reason is WhyRefused.SHED


@pytest.mark.parametrize("dispatch", ["sbs-warm", "sbs", "llm-d", "session-hash"])
def test_a_subset_hint_names_the_only_endpoints_that_may_serve(dispatch: str) -> None:
    scheduler = SchedulerSettings(dispatch=dispatch, prefix_hits=True)
    gateway = Gateway(A, B, C, scheduler=scheduler)
    for _ in range(5):
        pick = gateway.pick(gateway.ask(among=(B,)))
        assert pick.endpoints == (B,)
        assert pick.rule != BEST_GUESS


def test_a_request_with_a_subset_waits_for_its_own_endpoints_and_holds_up_nobody() -> None:
    gateway = Gateway(A, B, settings=PickerSettings(first_pass=1e4, longest_hold=1e6))
    first = gateway.ask(CHUNK, among=(B,))
    second = gateway.ask(CHUNK, among=(B,))
    third = gateway.ask(CHUNK)
    assert gateway.pick(first).endpoints == (B,)
    assert second not in gateway.answers
    assert gateway.pick(third).endpoints[0] == A


@pytest.mark.parametrize("among", [(), ("10.9.9.9:1",)])
def test_a_subset_without_a_ready_endpoint_is_refused(among: tuple[str, ...]) -> None:
    gateway = Gateway(A, B)
    assert gateway.refusal(gateway.ask(among=among)).reason is WhyRefused.NONE_READY


def test_a_request_without_a_prompt_is_answered_at_once() -> None:
    gateway = Gateway(A)
    gateway.handle(PickAskedAtOnce(StreamKey(GATEWAY_ID, 77)))
    assert gateway.pick(77) == Pick(StreamKey(GATEWAY_ID, 77), (A,), AT_ONCE)


def test_a_request_too_long_for_every_endpoint_goes_to_one_that_says_so_itself() -> None:
    gateway = Gateway()
    gateway.handle(EndpointListed(EndpointInfo(A, "m", CHUNK, max_model_len=50)))
    gateway.scraped(A)
    assert gateway.pick(gateway.ask(100)).rule == BEST_GUESS


def test_a_turn_of_a_conversation_returns_to_the_endpoint_that_has_its_beginning() -> None:
    gateway = Gateway(A, B, C)
    first = gateway.ask(token_ids=array("I", range(800)))
    gateway.pass_time(1.0)
    gateway.end(first)
    for _ in range(3):
        gateway.ask(50)
    again = gateway.ask(token_ids=array("I", range(900)))
    assert gateway.pick(again).endpoints[0] == gateway.pick(first).endpoints[0]


def test_kv_events_name_the_endpoint_that_has_a_beginning_which_nobody_sent_it() -> None:
    gateway = Gateway(A, B, C)
    tokens = array("I", range(800))
    gateway.handle(KvChanged(B, (StoredBlocks(tuple(range(50)), None, tokens, 16),)))
    assert gateway.pick(gateway.ask(token_ids=tokens)).endpoints[0] == B


@pytest.mark.parametrize("silence", [Silence.TIMEOUT, Silence.REFUSED])
def test_what_events_tell_of_an_endpoint_that_is_left_out_counts_once_it_is_back(
    silence: Silence,
) -> None:
    gateway = Gateway(A, B, C)
    tokens = array("I", range(800))
    gateway.now += 10.0
    gateway.scraped(B, silence)
    gateway.handle(KvChanged(B, (StoredBlocks(tuple(range(50)), None, tokens, 16),)))
    gateway.scraped(B)
    assert gateway.pick(gateway.ask(token_ids=tokens)).endpoints[0] == B


@pytest.mark.parametrize("forgets", ["removed", "cleared", "missed"])
def test_beginnings_that_an_endpoint_has_dropped_are_forgotten(forgets: str) -> None:
    gateway = Gateway(A, B)
    tokens = array("I", range(800))
    gateway.handle(KvChanged(B, (StoredBlocks(tuple(range(50)), None, tokens, 16),)))
    if forgets == "cleared":
        gateway.handle(KvChanged(B, is_cleared=True))
    elif forgets == "missed":
        gateway.handle(KvChanged(B, is_complete=False))
    else:
        gateway.handle(KvChanged(B, removed=tuple(range(50))))
    assert gateway.pick(gateway.ask(token_ids=tokens)).rule != "own-unit"
    assert gateway.pick(1).endpoints[0] == A


def test_an_endpoint_that_refuses_connections_gets_nothing_until_it_answers_again() -> None:
    gateway = Gateway(A, B)
    gateway.scraped(A, Silence.REFUSED)
    for _ in range(4):
        assert gateway.pick(gateway.ask()).endpoints == (B,)
    gateway.scraped(A)
    named = {gateway.pick(gateway.ask(900)).endpoints[0] for _ in range(2)}
    assert A in named


def test_a_request_that_failed_takes_its_endpoint_out_before_the_next_scrape() -> None:
    gateway = Gateway(A, B)
    number = gateway.ask()
    failed = gateway.pick(number).endpoints[0]
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number), failed=True))
    assert failed not in gateway.pick(gateway.ask()).endpoints


def test_a_fallback_that_served_says_that_the_first_has_failed() -> None:
    gateway = Gateway(A, B)
    number = gateway.ask()
    first, second = gateway.pick(number).endpoints
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number), served=second))
    loads = {each.address: each.num_requests for each in gateway.endpoints()}
    assert loads == {first: 0, second: 1}
    assert gateway.pick(gateway.ask()).endpoints == (second,)


def test_a_frozen_endpoint_is_left_out_while_another_answers() -> None:
    gateway = Gateway(A, B)
    gateway.pass_time(1.0)
    gateway.scraped(A, Silence.TIMEOUT)
    for _ in range(4):
        assert gateway.pick(gateway.ask()).endpoints == (B,)


def test_silent_endpoints_are_better_than_none_and_are_not_waited_for() -> None:
    gateway = Gateway(A)
    gateway.pass_time(1.0)
    gateway.scraped(A, Silence.TIMEOUT)
    assert gateway.pick(gateway.ask()) == Pick(StreamKey(GATEWAY_ID, 1), (A,), BEST_GUESS)


def test_an_endpoint_whose_metrics_are_silent_stays_while_it_answers_requests() -> None:
    gateway = Gateway(A, B)
    number = gateway.ask()
    first = gateway.pick(number).endpoints[0]
    begun_at = gateway.now
    gateway.pass_time(0.5)
    gateway.handle(Responded(StreamKey(GATEWAY_ID, number)))
    gateway.handle(Scraped(first, Silence.TIMEOUT, begun_at))
    assert first in gateway.pick(gateway.ask()).endpoints


def test_an_endpoint_without_metrics_is_up_and_its_passes_are_guessed() -> None:
    gateway = Gateway()
    gateway.handle(EndpointListed(EndpointInfo(A, "m", CHUNK)))
    gateway.scraped(A, Silence.NO_METRICS)
    assert gateway.pick(gateway.ask()).endpoints == (A,)
    assert gateway.endpoints()[0].ends is Ends.GUESSED


def test_an_endpoint_that_nobody_scrapes_rests_after_a_failure_longer_each_time() -> None:
    gateway = Gateway()
    gateway.handle(EndpointListed(EndpointInfo(A, "m", CHUNK, has_metrics=False)))
    for rest in (1.0, 2.0, 4.0):
        number = gateway.ask()
        assert gateway.pick(number).rule != BEST_GUESS
        gateway.handle(Responded(StreamKey(GATEWAY_ID, number), failed=True))
        gateway.pass_time(rest * 0.9)
        assert gateway.refusal(gateway.ask()).reason is WhyRefused.NONE_READY
        gateway.pass_time(rest * 0.2)
        gateway.end(number)


def test_requests_that_wait_are_refused_when_the_last_endpoint_dies() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1e4, longest_hold=1e6))
    gateway.ask(CHUNK)
    second = gateway.ask(CHUNK)
    gateway.scraped(A, Silence.REFUSED)
    assert gateway.refusal(second).reason is WhyRefused.NONE_READY


def test_an_endpoint_that_is_no_longer_listed_gets_no_more() -> None:
    gateway = Gateway(A, B)
    gateway.handle(EndpointUnlisted(A))
    assert gateway.pick(gateway.ask()).endpoints == (B,)


def test_a_request_whose_client_leaves_while_it_waits_is_never_answered() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=60.0))
    gateway.ask(CHUNK)
    second = gateway.ask(CHUNK)
    gateway.end(second)
    gateway.pass_time(5.0)
    assert second not in gateway.answers
    assert gateway.core.num_waiting == 0


def test_what_others_send_an_endpoint_counts_by_its_metrics() -> None:
    gateway = Gateway(A, B)
    gateway.scraped(A, EndpointMetrics(num_running=30, num_waiting=10))
    assert all(gateway.pick(gateway.ask(400)).endpoints[0] == B for _ in range(2))


def test_blocks_in_use_by_the_metrics_keep_prompts_away() -> None:
    gateway = Gateway(A, B)
    for address, usage in ((A, 1.0), (B, 0.0)):
        gateway.scraped(address, EndpointMetrics(kv_usage=usage, num_blocks=1000))
    assert all(gateway.pick(gateway.ask(300)).endpoints[0] == B for _ in range(3))


def test_names_from_kv_events_are_those_of_the_prompt_whatever_the_block_size() -> None:
    tokens = array("I", range(3000))
    for size in (16, 48, 128):
        hashes = tuple(block_names(tokens, size))
        chains = KvChains()
        found: list[object] = []
        for at in range(0, len(hashes), 7):  # in steps, as prompts come in chunks
            part = hashes[at : at + 7]
            token_ids = tokens[at * size : (at + len(part)) * size]
            parent = hashes[at - 1] if at else None
            found += [name for name, _ in chains.store(StoredBlocks(part, parent, token_ids, size))]
        expected = waypoint_names(tokens[: len(hashes) * size + 1])
        assert tuple(found) == expected
        assert tuple(chains.remove(hashes)) == expected


def test_blocks_behind_an_unknown_parent_have_no_names() -> None:
    assert KvChains().store(StoredBlocks((1,), 99, range(64), 64)) == []


# --- classes and tenants ------------------------------------------------------------------

_CLASSES = shipped_classes().by_name


def _standing(name: str = "", tenant: str = "") -> Standing:
    return Standing(tenant=tenant, service=_CLASSES[name] if name else None)


def _full(*names: str, max_waiting: int = 2, tenant: str = "") -> tuple[Gateway, list[int]]:
    """A gateway whose endpoint is busy, and requests of these classes that wait."""
    scheduler = replace(SCHEDULER, max_waiting=max_waiting)
    settings = PickerSettings(first_pass=1e4, longest_hold=60.0)
    gateway = Gateway(A, scheduler=scheduler, settings=settings)
    gateway.ask(CHUNK, standing=_standing("", tenant))
    waiting = [gateway.ask(CHUNK, standing=_standing(name, tenant)) for name in names]
    assert not any(number in gateway.answers for number in waiting)
    return gateway, waiting


def test_a_full_window_sheds_the_lowest_class_first() -> None:
    gateway, (batch, agent) = _full("batch", "agent")
    first = gateway.ask(CHUNK, standing=_standing("interactive"))
    assert gateway.refusal(batch).reason is WhyRefused.SHED
    assert gateway.refusal(batch).retry_after >= 1.0
    second = gateway.ask(CHUNK, standing=_standing("interactive"))
    assert gateway.refusal(agent).reason is WhyRefused.SHED
    third = gateway.ask(CHUNK, standing=_standing("interactive"))
    assert gateway.refusal(third).reason is WhyRefused.SHED
    assert gateway.core.num_waiting == 2
    assert not {first, second} & gateway.answers.keys()


def test_of_one_class_the_newest_is_shed() -> None:
    gateway, (older, newer) = _full("batch", "batch")
    gateway.ask(CHUNK, standing=_standing())
    assert list(gateway.answers) == [1, newer]
    assert older not in gateway.answers


def test_an_equal_class_sheds_nobody() -> None:
    gateway, _ = _full("batch", "batch")
    last = gateway.ask(CHUNK, standing=_standing("batch"))
    assert gateway.refusal(last).reason is WhyRefused.SHED
    assert gateway.core.num_waiting == 2


def test_nobody_is_shed_for_a_tenant_that_has_too_many() -> None:
    gateway, _ = _full(*["interactive"] * 4, max_waiting=5, tenant="t")
    other = gateway.ask(CHUNK, standing=_standing("batch", "other"))
    last = gateway.ask(CHUNK, standing=_standing("interactive", "t"))
    assert gateway.refusal(last).reason is WhyRefused.SHED
    assert other not in gateway.answers


def test_a_class_that_waits_for_all_others_closes_the_door_to_none_of_them() -> None:
    scheduler = replace(SCHEDULER, flow_control=FlowControl(1))
    settings = PickerSettings(first_pass=1.0, longest_hold=1e6)
    gateway = Gateway(A, scheduler=scheduler, settings=settings)
    waiting = [gateway.ask(CHUNK, standing=_standing("batch")) for _ in range(12)]
    gateway.pass_time(6.0)
    urgent = gateway.ask(CHUNK, standing=_standing("interactive"))
    shed = [number for number in waiting if isinstance(gateway.answers.get(number), Refuse)]
    assert shed
    assert not isinstance(gateway.answers.get(urgent), Refuse)


def test_who_yields_is_shed_when_its_time_is_over_and_others_are_not() -> None:
    gateway, (batch, agent) = _full("batch", "agent")
    gateway.pass_time(61.0)
    assert gateway.refusal(batch).reason is WhyRefused.SHED
    assert gateway.pick(agent).rule == BEST_GUESS


def test_tenants_pay_for_what_their_requests_have_drawn() -> None:
    ledger = EndpointLedger(EndpointInfo(A, "m", CHUNK), 0.01)
    request = Request("r", "m", range(10), SamplingParams(max_tokens=500), 0.0, stream_id=1)
    ledger.scraped(EndpointMetrics(num_running=2, output_tokens=1000), 0.0, now=0.0)
    ledger.take(request, 10, 1, now=0.0)
    ledger.progress(now=1.0)
    ledger.scraped(EndpointMetrics(num_running=2, output_tokens=1400), 2.0, now=2.0)
    finished = ledger.end(request.key, now=3.0)
    assert finished is not None
    assert finished.num_output_tokens == 300  # 100 a second while two ran, from 0 s on


def test_a_tenant_with_long_answers_waits_for_one_with_short_ones() -> None:
    gateway = Gateway(A, settings=PickerSettings(first_pass=1.0, longest_hold=1e6))
    num_output = 0
    for _ in range(2):  # one tenant's requests run for ten seconds, the other's end at once
        for tenant, seconds in (("long", 10.0), ("short", 0.0)):
            number = gateway.ask(CHUNK, standing=_standing("", tenant), max_tokens=5000)
            gateway.pass_time(1.0)
            for _ in range(int(seconds)):
                gateway.pass_time(1.0)
                num_output += 300
                gateway.scraped(A, EndpointMetrics(num_running=1, output_tokens=num_output))
            gateway.end(number)
    gateway.ask(CHUNK)
    waiting = {
        tenant: gateway.ask(CHUNK, standing=_standing("", tenant)) for tenant in ("long", "short")
    }
    gateway.pass_time(1.01)
    assert waiting["short"] in gateway.answers
    assert waiting["long"] not in gateway.answers
