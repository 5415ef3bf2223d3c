"""What a client reads: reasoning apart from the answer, cut at stop strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.reasoning import Markers
from services.gateway.output_text import OutputText, Piece, StopScanner
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import FORMATS, ToolReader
from tests.fakes.tiny_model import ASSISTANT, END_THINK, THINK, USER, byte_tokenizer

CODEC = TextCodec(byte_tokenizer())


def output(
    *stops: str, min_tokens: int = 0, split: bool = True, inside: bool = False
) -> OutputText:
    markers = CODEC.markers if split else None
    return OutputText(CODEC.detokeniser(), stops, min_tokens, markers, in_reasoning=inside)


def channels(*stops: str) -> OutputText:
    form = FORMATS["openai"]
    return OutputText(CODEC.detokeniser(form.markers), stops, tools=ToolReader(form))


def read(text: OutputText, written: str) -> list[Piece]:
    """Every piece that is not empty, until the stop; then the rest."""
    pieces = []
    for token_id in CODEC.encode(written, add_special_tokens=False):
        pieces.append(text.push(token_id))
        if text.stopped:
            break
    return [p for p in [*pieces, text.finish()] if p.answer or p.reasoning]


def joined(pieces: list[Piece]) -> Piece:
    return Piece("".join(p.reasoning for p in pieces), "".join(p.answer for p in pieces))


def test_reasoning_is_kept_apart_without_its_markers_and_the_newlines_around_them() -> None:
    text = output()
    whole = joined(read(text, "<think>\n7 + 8\n\nis 15\n</think>\n\n15\n"))
    assert whole == Piece("7 + 8\n\nis 15", "15\n")


def test_newlines_before_the_first_marker_are_not_shown() -> None:
    assert joined(read(output(), "\n\n<think>a</think>b")) == Piece("a", "b")


def test_text_of_a_model_that_does_not_reason_is_all_answer() -> None:
    assert joined(read(output(), "\n15\n\n")) == Piece("", "\n15\n\n")


def test_reasoning_that_the_prompt_began_is_reasoning_from_the_first_token() -> None:
    assert joined(read(output(inside=True), "\n7\n</think>\n8")) == Piece("7", "8")


def test_reasoning_tokens_are_counted_with_their_markers() -> None:
    text = output()
    read(text, "<think>abc</think>de")
    assert (text.num_reasoning_tokens, text.num_tokens) == (5, 7)


def test_without_splitting_everything_is_text_as_the_tokenizer_has_it() -> None:
    assert joined(read(output(split=False), "<think>\na</think>b")) == Piece(
        "", "<think>\na</think>b"
    )


def test_a_marker_in_half_a_character_does_not_swallow_it() -> None:
    text = output()
    pieces = [text.push(i) for i in (0xF0, 0x9F, THINK, 97, END_THINK)]
    assert joined(pieces) == Piece("a", "\ufffd")


def test_a_stop_string_is_looked_for_in_the_answer_alone() -> None:
    text = output("7")
    assert joined(read(text, "<think>17</think>the 7th")) == Piece("17", "the ")
    assert text.stopped


SAID = (
    "<|channel|>analysis<|message|>A stop? No.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f<|message|>{"a": "stop"}<|call|><|start|>assistant'
    "<|channel|>final<|message|>Now st"
)


@pytest.mark.parametrize(
    ("rest", "shown", "stopped"),
    [("op and more<|return|>", "Now ", True), ("ay.<|return|>", "Now stay.", False)],
)
def test_of_channels_a_stop_string_is_looked_for_in_what_is_said(
    rest: str, shown: str, stopped: bool
) -> None:
    text = channels("stop")
    pieces = read(text, SAID + rest)
    assert joined(pieces) == Piece("A stop? No.", shown)
    assert (text.stopped, text.num_calls) == (stopped, 1)


def test_what_may_begin_a_stop_string_is_shown_at_the_end_of_channels() -> None:
    text = channels("stop")
    assert joined(read(text, SAID)).answer == "Now st"
    text = channels("plain stop")
    assert joined(read(text, "a plain stop.")).answer == "a "


def test_a_stop_string_over_several_tokens_is_never_shown_in_part() -> None:
    text = output("END")
    assert [p.answer for p in read(text, "xEN END y")] == ["x", "EN "]
    assert text.stopped


def test_what_only_began_a_stop_string_is_shown_at_the_end() -> None:
    text = output("END")
    assert joined(read(text, "x EN")) == Piece("", "x EN")
    assert not text.stopped


def test_the_first_of_several_stop_strings_counts() -> None:
    assert joined(read(output("cd", "bcde", "abx"), "abcde")) == Piece("", "ab")


def test_no_stop_string_is_looked_for_before_min_tokens() -> None:
    assert joined(read(output("a", min_tokens=3), "aaba")) == Piece("", "aab")


def test_newlines_held_back_for_a_marker_can_be_a_stop_string() -> None:
    assert joined(read(output("\n\n"), "a\n\nb")) == Piece("", "a")


def test_the_prompts_end_says_whether_reasoning_has_begun() -> None:
    markers = Markers(start=(THINK,), end=(END_THINK,))
    assert markers.is_open([USER, 97, ASSISTANT, THINK, 10])
    assert not markers.is_open([ASSISTANT, THINK, 10, END_THINK, 10])
    assert not markers.is_open([THINK, *([97] * 20)])
    assert not markers.is_open([])


def test_markers_in_the_clients_own_text_are_not_the_templates() -> None:
    markers = Markers(start=(THINK,), end=(END_THINK,))
    assert markers.is_closed([ASSISTANT, THINK, END_THINK, 10], {ASSISTANT})
    assert not markers.is_closed([THINK, END_THINK, 97, ASSISTANT], {ASSISTANT})
    assert not markers.is_open([END_THINK, THINK, 97, ASSISTANT], {ASSISTANT})


def test_newlines_without_end_are_not_held_back_for_ever() -> None:
    text = output()
    pieces = read(text, "a" + 3000 * "\n")
    assert len(pieces) > 1000
    assert joined(pieces).answer == "a" + 3000 * "\n"


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_a_scanner_shows_all_before_the_first_stop_string_however_text_arrives(
    text: str, stops: list[str], step: int
) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.push(text[i : i + step]) for i in range(0, len(text), step))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert shown + scanner.flush() == text
        return
    assert scanner.stop
    assert any(text[len(shown) :].startswith(stop) for stop in stops)
    assert not any(stop in text[: len(shown)] for stop in stops)
