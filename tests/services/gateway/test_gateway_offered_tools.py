"""Tools that the model may call: strict ones follow their schemas, and a form may stand beside."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from services.gateway.grammars import Grammar, GrammarChecker, of_choice, of_schema
from services.gateway.tool_calls import FORMATS
from services.gateway.tool_calls.offered import grammar_of_offer
from services.runtime.grammars import compile_grammar, load_tokenizer
from tests.fakes.gateway_harness import Cluster, cluster

MINI = Path(__file__).parents[3] / "models" / "headway-mini"
CITY: Mapping[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}},
    "required": ["city"],
}
TOOLS = ({"name": "weather", "parameters": CITY, "strict": True}, {"name": "clock"})
BERN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ROME = BERN.replace("Bern", "Rome")
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {"zone": [1]}}\n</tool_call>'
OTHER = CLOCK.replace("clock", "door")


def admits(form: Grammar | None, text: str) -> bool:
    frame = FORMATS["hermes"].frame
    assert frame is not None
    grammar = grammar_of_offer(frame, TOOLS, form)
    GrammarChecker(MINI, 0).check(grammar)
    tokenizer = load_tokenizer(MINI / "tokenizer.json", 0, ())
    matcher = compile_grammar(tokenizer, grammar.text)
    ids = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "free", "formed"),
    [
        ("any text", True, False),
        (BERN, True, True),
        (f"Let me see. {BERN} So.", True, False),
        (f"{BERN}\n{CLOCK}", True, True),
        (ROME, False, False),
        (OTHER, False, False),
        ('{"city": "Oslo"}', True, True),
        ('{"city": "Rome"}', True, False),
    ],
)
def test_calls_follow_their_schemas(text: str, free: bool, formed: bool) -> None:
    assert admits(None, text) is free
    assert admits(of_schema(CITY, "response_format"), text) is formed


def test_a_form_may_be_any_grammar() -> None:
    form = of_choice(["yes", "no"], "structured_outputs.choice")
    assert admits(form, "yes")
    assert admits(form, BERN)
    assert not admits(form, "maybe")


async def ask(running: Cluster, **more: Any) -> Any:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY, **more}}
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    return await running.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "a"}],
        tools=[tool],
        extra_body={} if more else {"response_format": form},
    )


async def test_a_strict_tool_or_a_form_beside_tools_has_a_grammar(running: Cluster) -> None:
    for more in ({"strict": True}, {}):
        await ask(running, **more)
        constraints = running.emulated.submitted[-1].sampling.constraints
        assert constraints is not None
        assert "weather" in constraints.grammar
    await ask(running, strict=False)
    last = running.emulated.submitted[-1].sampling.constraints
    assert last is None or not last.grammar


async def test_a_format_without_a_grammar_refuses_a_form_beside_tools(
    tmp_path: Path, store_url: str
) -> None:
    async with cluster(tmp_path, store_url, tool_call_parser="mistral") as running:
        with pytest.raises(BadRequestError, match="have no grammar") as caught:
            await ask(running)
        assert caught.value.param == "tools"
        assert (await ask(running, strict=True)).choices, "the arguments are the model's own"


async def test_grammars_are_compiled_in_threads(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, check = [], GrammarChecker.check

    def noted(checker: GrammarChecker, grammar: Grammar) -> str:
        compiled.append(threading.current_thread())
        return check(checker, grammar)

    monkeypatch.setattr(GrammarChecker, "check", noted)
    for more in ({"strict": True}, {}):
        await ask(running, **more)
    assert len(compiled) == 2
    assert threading.main_thread() not in compiled
