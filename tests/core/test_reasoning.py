"""Where reasoning ends and the answer begins, told from the tokens alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.reasoning import LEAD, Markers
from headway.core.worker.lifecycle import Stage
from headway.core.worker.sequence import Sequence
from headway.core.worker.settings import WorkerSettings
from headway.core.worker.state import WorkerState
from headway.forward_pass import Sampled
from headway.request import Phase
from tests.fakes.worker_core import make_request, make_worker

START, END = 8, 9
MARKERS = Markers((END,), (START,))
text = st.lists(st.integers(1, 7), max_size=12)


def drawn(output: list[int], prompt: tuple[int, ...] = (1, 2)) -> Sequence:
    """One request that reasons, after its worker has drawn these one by one."""
    settings = WorkerSettings(end_of_reasoning=(END,), start_of_reasoning=(START,))
    state = WorkerState(make_worker().core.info, (0,), settings)
    request = make_request(1, max_tokens=100)
    object.__setattr__(request, "reasons", True)
    object.__setattr__(request, "prompt_token_ids", prompt)
    sequence = state.sequence(request, 0, Stage.RUNNING)
    state.units[0].add(sequence)
    for token_id in output:
        state.drew(sequence, Sampled(sequence.key, token_id), now=0.0, step=0.0)
    return sequence


def test_the_answer_begins_behind_the_end_of_the_reasoning() -> None:
    assert MARKERS.answer_start((1,), [START, 3, END, 4]) == 3
    assert drawn([START, 3, END, 4]).reader.answer_start == 3


def test_a_model_that_does_not_begin_to_think_answers() -> None:
    sequence = drawn([3] * (LEAD + 1))
    assert sequence.phase is Phase.ANSWERING
    assert sequence.reader.answer_start == 0


def test_a_few_tokens_may_come_before_the_thoughts() -> None:
    assert drawn([3] * LEAD + [START, 4, 4]).phase is Phase.REASONING
    assert drawn([3] * LEAD).phase is Phase.REASONING  # it may yet begin


def test_thoughts_that_the_template_has_opened_need_no_opening() -> None:
    assert drawn([3] * 20, prompt=(1, 2, START, 3)).phase is Phase.REASONING
    assert drawn([3] * 20, prompt=(1, START, 3, END, 5)).phase is Phase.ANSWERING


def test_thoughts_of_an_earlier_turn_open_nothing() -> None:
    prompt = (START, *[2] * 30)
    assert drawn([3] * 20, prompt=prompt).phase is Phase.ANSWERING


def test_where_the_start_is_not_known_all_is_reasoning_until_its_end() -> None:
    assert Markers((END,)).answer_start((1,), [3] * 50) is None
    assert Markers((END,)).answer_start((1,), [3] * 50 + [END]) == 51


def test_without_an_end_nothing_reasons() -> None:
    assert Markers().answer_start((1,), [3]) == 0


def test_the_end_that_comes_at_once_is_the_end() -> None:
    assert drawn([END, 3, 3, 3, 3, 3, 3]).reader.answer_start == 1


def test_an_answer_that_comes_in_the_reasonings_place_is_told_to_the_scheduler_once() -> None:
    sequence = drawn([3] * 9)
    assert sequence.num_phase_tokens == 9
    assert not sequence.opens_answer


@given(st.lists(st.sampled_from([1, 2, START, END]), max_size=14), text)
def test_token_by_token_and_all_at_once_are_the_same(output: list[int], prompt: list[int]) -> None:
    sequence = drawn(output, tuple(prompt) or (1,))
    assert sequence.reader.answer_start == MARKERS.answer_start(tuple(prompt) or (1,), output)


@given(text, st.integers(2, 3))
def test_markers_of_several_tokens_are_found_whole(output: list[int], length: int) -> None:
    markers = Markers((END,) * length, (START,) * length)
    thoughts = [*[START] * length, *output]
    assert markers.answer_start((1,), thoughts) is None
    assert markers.answer_start((1,), [*thoughts, *[END] * length]) == len(thoughts) + length


@pytest.mark.parametrize("start", [(), (START,)])
def test_nothing_is_decided_before_the_first_tokens(start: tuple[int, ...]) -> None:
    assert Markers((END,), start).answer_start((1,), []) is None


@given(
    text, text, st.integers(0, 9), st.booleans(), st.sampled_from([(END,), (END, 7), (END, END)])
)
def test_a_budget_ends_the_reasoning_once_and_in_time(
    before: list[int], drawn_else: list[int], budget: int, is_open: bool, end: tuple[int, ...]
) -> None:
    """However an output grows, it holds at most the budget between its markers."""
    markers = Markers(end, () if is_open else (START,))
    output = [] if is_open else [*before[:LEAD], START]
    begun = len(output)
    for token in (*drawn_else, *[6] * 20):
        forced = markers.forced(output, budget)
        output.append(token if forced is None else forced)
    ended = next(n for n in range(len(output)) if tuple(output[n : n + len(end)]) == end)
    assert ended - begun <= budget
    assert markers.forced(output, budget) is None


def test_a_budget_forces_nothing_where_nothing_reasons() -> None:
    assert MARKERS.forced([1] * 5, 5) is None
    assert MARKERS.forced([], 0) is None
    assert MARKERS.forced([START, 1, END], 2) is None
    assert Markers().forced([1, 2], 2) is None
