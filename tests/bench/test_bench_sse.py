"""Events are the same however their bytes are cut; odd streams are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serve.sse import BadStreamError, Delta, EventSplitter, Stream, read_delta

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12)


@given(st.lists(texts.filter(bool), max_size=8), st.data(), st.sampled_from(["\n", "\r\n"]))
def test_events_do_not_depend_on_where_the_bytes_are_cut(
    contents: list[str], data: st.DataObject, newline: str
) -> None:
    raw = "".join(f"data: {text}{newline}{newline}" for text in contents).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    splitter, found = EventSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += splitter.feed(raw[start:end])
    assert found == [text.encode() for text in contents]


def test_comments_and_other_fields_are_passed_over() -> None:
    raw = b": ping\n\nevent: x\nid: 1\ndata: a\ndata:b\n\nretry: 3\n\n"
    assert EventSplitter().feed(raw) == [b"a\nb"]


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        ({"choices": [{"delta": {"content": "a"}}]}, Delta("a")),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, Delta("", "a")),
        ({"choices": [{"delta": {"reasoning": "a", "content": None}}]}, Delta("", "a")),
        ({"choices": [{"text": "a", "finish_reason": "stop"}]}, Delta("a", "", "stop")),
        (
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
            Delta("", "", None, 1, 2),
        ),
    ],
)
def test_a_delta_is_read_from_chats_and_completions(event: dict[str, Any], delta: Delta) -> None:
    assert read_delta(json.dumps(event).encode()) == delta


@pytest.mark.parametrize("data", [b"no json", b"[]", b"3", b'{"choices": [4]}', b'{"choices": 5}'])
def test_what_is_none_of_openais_events_is_refused(data: bytes) -> None:
    with pytest.raises(BadStreamError):
        read_delta(data)


def test_an_error_event_says_its_message() -> None:
    with pytest.raises(BadStreamError, match="error event: worker lost"):
        read_delta(b'{"error": {"message": "worker lost"}}')


def feed(*deltas: dict[str, str]) -> Stream:
    stream = Stream()
    for at, delta in enumerate(deltas, start=1):
        stream.take(json.dumps({"choices": [{"delta": delta}]}).encode(), float(at))
    return stream


def test_tokens_without_text_count_where_every_event_tells_its_usage() -> None:
    stream = Stream()
    for at, num_tokens, text in ((1.0, 1, "a"), (2.0, 2, ""), (4.0, 4, "ä"), (5.0, 5, "b")):
        event = {"choices": [{"text": text}], "usage": {"completion_tokens": num_tokens}}
        stream.take(json.dumps(event).encode(), at)
    assert stream.token_times == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert stream.completion_tokens == 5


def test_reasoning_counts_for_the_first_token_and_not_for_the_first_answer() -> None:
    stream = feed(
        {"role": "assistant"}, {"reasoning_content": "hm"}, {"content": "\n"}, {"content": "4"}
    )
    assert stream.token_times == [2.0, 3.0, 4.0]
    assert (stream.first_answer_at, stream.answer) == (4.0, "4")


def test_reasoning_that_the_server_left_in_the_text_is_no_answer() -> None:
    stream = feed(
        {"content": "<think>"}, {"content": "hm</thi"}, {"content": "nk> "}, {"content": "4"}
    )
    assert (stream.first_answer_at, stream.answer) == (4.0, "4")


def test_reasoning_that_never_ends_has_no_answer() -> None:
    stream = feed({"content": "<think>"}, {"content": "hm"})
    assert (stream.first_answer_at, stream.answer) == (None, "")
