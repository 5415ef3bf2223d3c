"""Calls in a model's text: every format, whole and in pieces, and text that is none."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from services.gateway.tool_calls import FORMATS, REQUIRED, Format, ToolReader, format_of, named
from services.gateway.tool_calls.source import Arguments, Called, SaidText, ThoughtText

WEATHER = {"city": "Zürich", "note": 'a "quoted" } brace'}
CALLS = [("weather", WEATHER), ("time", {})]


def written(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)


DEEPSEEK_V3 = "<｜tool▁calls▁begin｜>" + "\n".join(
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{written(a)}\n```<｜tool▁call▁end｜>"
    for n, a in CALLS
)
DEEPSEEK_V31 = "<｜tool▁calls▁begin｜>" + "".join(
    f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{written(a)}<｜tool▁call▁end｜>" for n, a in CALLS
)
TEXTS = {
    "hermes": (
        "hermes",
        "\n".join(
            f'<tool_call>\n{{"name": "{n}", "arguments": {written(a)}}}\n</tool_call>'
            for n, a in CALLS
        ),
    ),
    "hermes, arguments first": (
        "hermes",
        "".join(
            f'<tool_call>{{"arguments": {written(a)}, "id": 5, "name": "{n}"}}</tool_call>'
            for n, a in CALLS
        ),
    ),
    "hermes, arguments as text": (
        "hermes",
        "".join(
            f'<tool_call>{{"name": "{n}", "arguments": {json.dumps(written(a))}}}</tool_call>'
            for n, a in CALLS
        ),
    ),
    "llama3": (
        "llama3_json",
        "<|python_tag|>"
        + "; ".join(f'{{"name": "{n}", "parameters": {written(a)}}}' for n, a in CALLS),
    ),
    "mistral": (
        "mistral",
        "[TOOL_CALLS] ["
        + ", ".join(f'{{"name": "{n}", "arguments": {written(a)}}}' for n, a in CALLS)
        + "]",
    ),
    "mistral, newer": (
        "mistral",
        "".join(f"[TOOL_CALLS]{n}[CALL_ID]abc[ARGS]{written(a)}" for n, a in CALLS),
    ),
    "mistral, no marker": ("mistral", "".join(f"[TOOL_CALLS]{n}{written(a)}" for n, a in CALLS)),
    "deepseek v3": ("deepseek_v3", DEEPSEEK_V3 + "<｜tool▁calls▁end｜>"),
    "deepseek v3.1": ("deepseek_v3", DEEPSEEK_V31 + "<｜tool▁calls▁end｜>"),
    "harmony": (
        "openai",
        "".join(
            f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>"
            f"{written(a)}<|call|>"
            for n, a in CALLS
        ),
    ),
    "harmony, recipient in the role": (
        "openai",
        "<|start|>assistant".join(
            f" to=functions.{n}<|channel|>commentary json<|message|>{written(a)}<|call|>"
            for n, a in CALLS
        ),
    ),
}


class Read:
    """What a reader made of a text."""

    def __init__(self, form: Format, text: str, cuts: random.Random | None = None) -> None:
        self.said, self.thought = "", ""
        self.calls: list[tuple[str, str]] = []
        reader = ToolReader(form)
        while text:
            size = len(text) if cuts is None else cuts.randint(1, 4)
            self._take(reader.push(text[:size]))
            text = text[size:]
        self._take(reader.finish())

    def _take(self, events: Any) -> None:
        for event in events:
            match event:
                case SaidText(text):
                    self.said += text
                case ThoughtText(text):
                    self.thought += text
                case Called(name):
                    self.calls.append((name, ""))
                case Arguments(text):
                    name, before = self.calls[-1]
                    self.calls[-1] = (name, before + text)

    @property
    def made(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


@pytest.mark.parametrize("kind", TEXTS)
def test_calls_are_read_whole_and_in_pieces(kind: str) -> None:
    name, text = TEXTS[kind]
    form = FORMATS[name]
    assert Read(form, text).made == CALLS
    for seed in range(30):
        read = Read(form, text, random.Random(seed))
        assert (read.made, read.said) == (CALLS, "")


@pytest.mark.parametrize("kind", [kind for kind in TEXTS if kind != "llama3"])
def test_text_before_calls_is_said(kind: str) -> None:
    name, text = TEXTS[kind]
    before = "Let me see.\n\nOne <moment>"
    if name == "openai":
        text = f"<|channel|>final<|message|>{before}<|end|><|start|>assistant{text}"
    else:
        text = f"{before}\n{text}"
    for seed in range(10):
        read = Read(FORMATS[name], text, random.Random(seed))
        assert (read.said, read.made) == (before, CALLS)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "openai"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello.\n  Two lines\n",
        "a < b, {1: [2]}; <tool_cal",
        '{"city": "Rome"}',
        '<tool_call>nothing</tool_call> and {"name"',
    ],
)
def test_text_without_calls_is_said_as_it_is(name: str, text: str) -> None:
    for seed in range(10):
        read = Read(FORMATS[name], text, random.Random(seed))
        assert read.calls == []
        assert read.said.replace(" ", "") == text.replace(" ", "")


def test_spaces_after_llama3s_calls_are_not_said() -> None:
    text = TEXTS["llama3"][1]
    for after in (" ", "\n\n", " ;"):
        read = Read(FORMATS["llama3_json"], text + after, random.Random(1))
        assert (read.made, read.said) == (CALLS, "")
    assert Read(FORMATS["llama3_json"], f"{text}\nSo.").said.strip() == "So."


def test_an_answer_that_begins_like_llama3s_tag_comes_as_it_is_written() -> None:
    reader = ToolReader(FORMATS["llama3_json"])
    assert reader.push("<b>bold</b> and") == [SaidText("<b>bold</b> and")]
    text = '<b>Now.</b> <|python_tag|>{"name": "f", "parameters": {}}'
    for seed in range(10):
        read = Read(FORMATS["llama3_json"], text, random.Random(seed))
        assert (read.said, read.made) == ("<b>Now.</b>", [("f", {})])


def test_arguments_come_as_they_are_written() -> None:
    reader = ToolReader(FORMATS["hermes"])
    assert reader.push('<tool_call>{"name": "f", "arg') == [Called("f")]
    assert reader.push('uments": {"a') == [Arguments('{"a')]
    assert reader.push('": 1') == [Arguments('": 1')]
    assert reader.push("}}</tool_call>") == [Arguments("}")]


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    text = TEXTS["hermes"][1]
    for length in range(len(text)):
        read = Read(FORMATS["hermes"], text[:length])
        assert len(read.calls) <= 2
        if not read.calls:
            assert read.said == text[:length].rstrip() or text[:length].startswith(read.said)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS][ARGS]{}"),
        ("mistral", "[TOOL_CALLS] {[ARGS]1"),
        ("deepseek_v3", DEEPSEEK_V31[:19] + "<｜tool▁call▁begin｜><｜tool▁sep｜>{}"),
    ],
)
def test_a_call_without_a_name_is_text(name: str, text: str) -> None:
    for seed in range(10):
        read = Read(FORMATS[name], text, random.Random(seed))
        assert read.calls == []
        assert text.endswith(read.said)
        assert read.said


def test_mistrals_one_call_needs_no_list() -> None:
    text = f'[TOOL_CALLS] {{"name": "weather", "arguments": {written(WEATHER)}}}'
    for seed in range(10):
        read = Read(FORMATS["mistral"], text, random.Random(seed))
        assert (read.made, read.said) == ([("weather", WEATHER)], "")


def test_a_call_before_one_that_is_none_is_not_said_again() -> None:
    text = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"x": 1}'
    for seed in range(10):
        read = Read(FORMATS["mistral"], text, random.Random(seed))
        assert read.made == [("f", {})]
        assert '"f"' not in read.said


def test_json_that_is_nested_too_deeply_is_no_value() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    read = Read(FORMATS["hermes"], f'<tool_call>{{"x": {deep}, "name": "f"}}</tool_call>')
    assert read.made == [("f", {})]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    read = Read(FORMATS["hermes"], '<tool_call>{"name": "f"}</tool_call>')
    assert read.made == [("f", {})]


def test_harmony_keeps_its_analysis_apart() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Yes.<|return|>"
    )
    for seed in range(10):
        read = Read(FORMATS["openai"], text, random.Random(seed))
        assert (read.thought, read.said, read.calls) == ("Hm.", "Yes.", [])


def test_required_calls_are_a_list_and_a_named_one_is_its_arguments() -> None:
    listed = written([{"name": n, "parameters": a} for n, a in CALLS])
    for seed in range(10):
        assert Read(REQUIRED, listed, random.Random(seed)).made == CALLS
        one = Read(named("weather"), written(WEATHER), random.Random(seed))
        assert one.made == [("weather", WEATHER)]


def test_a_template_shows_its_format() -> None:
    assert format_of("… <tool_call> …") is FORMATS["hermes"]
    assert format_of("… <|python_tag|> …") is FORMATS["llama3_json"]
    assert format_of("… [TOOL_CALLS] …") is FORMATS["mistral"]
    assert format_of("… <｜tool▁call▁begin｜> …") is FORMATS["deepseek_v3"]
    assert format_of("… <|channel|> …") is FORMATS["openai"]
    assert format_of("plain") is FORMATS["hermes"]


def test_an_answer_without_channels_is_text() -> None:
    for text in ("", "Hello.", "a <b> c\n"):
        read = Read(FORMATS["openai"], text, random.Random(1))
        assert (read.thought, read.said, read.calls) == ("", text, [])
    assert Read(FORMATS["openai"], "<|channel|>analy").said == ""


@pytest.mark.parametrize(
    ("name", "before", "again"),
    [
        ("hermes", "", " " * 64),
        ("hermes", '<tool_call>{"name": "weather"}', "x" * 64),
        ("mistral", "[TOOL_CALLS]weather", " " * 64),
        ("deepseek_v3", "", "\n" * 64),
        ("openai", "<|channel|>final<|message|>", " " * 64),
        ("openai", "<|channel|>x to=functions.weather<|message|>{}", "x" * 64),
    ],
)
def test_what_waits_for_a_marker_is_not_looked_at_again_with_each_token(
    name: str, before: str, again: str
) -> None:
    reader = ToolReader(FORMATS[name])
    events = [*reader.push(before)]
    for _ in range(100):
        events += reader.push(again)
        assert len(reader._source.text) <= 2048
    events += reader.finish()
    said = "".join(each.text for each in events if isinstance(each, SaidText))
    assert said in ("", before + 100 * again, 100 * again)
