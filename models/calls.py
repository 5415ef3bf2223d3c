"""Requests with tools: one that fits is called once, a result is told, and none may fit."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from models import facts
from models.facts import (
    DRAWN,
    Fact,
    Schema,
    draw_facts,
    own_name,
    schema_of_fact,
    source,
    spaced,
    spoken,
)
from models.forms import AnswerPiece, Messages, json_pieces


class InventedTool(NamedTuple):
    """A tool of OpenAI's form, a call of it, and what a user says to have it called."""

    name: str
    description: str
    parameters: Schema
    arguments: dict[str, Any]
    said: str


_SYNONYMS = DRAWN["synonyms"]
"""Other names of a tool's parameters."""
_VERBS = DRAWN["call_verbs"]
_FILLERS = ("Please ", "Can you ", "I want you to ", "", "", "Could you ", "Now ")


def _nullable(schema: Schema, rng: random.Random) -> Schema:
    if rng.random() < 0.3:
        schema = {**schema, "description": rng.choice(("what to take", "the value", "as given"))}
    return schema


def _known(rng: random.Random) -> InventedTool:
    names, descriptions, parameters, sayings = rng.choice(DRAWN["tools"])
    name = rng.choice(names.split())
    values = {key: source(drawn)(rng) for key, (_, drawn) in parameters.items()}
    properties: dict[str, Schema] = {}
    renamed: dict[str, Any] = {}
    for key, (kind, _) in parameters.items():
        new = rng.choice(_SYNONYMS.get(key, (key,))) if rng.random() < 0.6 else key
        if new in properties:
            new = key
        schema: Schema = {"type": kind}
        if kind == "enum":
            schema = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        elif kind == "string" and rng.random() < 0.12:
            choices = [values[key], facts.place(rng), facts.invented(rng)]
            rng.shuffle(choices)
            schema = {"enum": choices, "type": "string"}
        properties[new], renamed[new] = _nullable(schema, rng), values[key]
    said = rng.choice(sayings).format(**values, tool=name.replace("_", " "))
    return InventedTool(name, rng.choice(descriptions), _parameters(properties, rng), renamed, said)


def _parameters(properties: Mapping[str, Schema], rng: random.Random) -> Schema:
    if not properties and rng.random() < 0.4:
        return {"type": "object"}
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if rng.random() < 0.85:
        schema["required"] = list(properties)
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    return schema


def _invented(rng: random.Random) -> InventedTool:
    verb, noun = rng.choice(_VERBS), own_name(rng)
    drawn: list[Fact] = draw_facts(rng, rng.choice((0, 1, 1, 2, 2, 3)))
    name = f"{verb}_{noun}" if rng.random() < 0.8 else f"{verb}{noun[:1].upper()}{noun[1:]}"
    words = f"{verb} the {spaced(noun, rng)}"
    described = ", ".join(f"{spaced(each.name, rng)} {spoken(each.value, rng)}" for each in drawn)
    linked = rng.choice((" with ", ": ", " for ", ", ")) if described else ""
    filler = rng.choice(_FILLERS)
    said = f"{filler}{words}{linked}{described}."
    if rng.random() < 0.3 and drawn:
        said = f"{filler}{words}. " + " ".join(
            f"{f.sentence[:1].upper()}{f.sentence[1:]}." for f in drawn
        )
    said = said[:1].upper() + said[1:]
    properties = {each.name: schema_of_fact(each, rng) for each in drawn}
    arguments = {each.name: each.value for each in drawn}
    return InventedTool(
        name, f"{words[:1].upper()}{words[1:]}.", _parameters(properties, rng), arguments, said
    )


def draw_tool(rng: random.Random) -> InventedTool:
    """Draw a tool that people know, or one of any name."""
    return _known(rng) if rng.random() < 0.6 else _invented(rng)


def draw_tools(rng: random.Random) -> list[InventedTool]:
    """Draw one to five tools of different names."""
    wanted, by_name = rng.choice((1, 1, 1, 1, 2, 2, 3, 4)), dict[str, InventedTool]()
    while len(by_name) < wanted:
        tool = draw_tool(rng)
        if not any(tool.description == each.description for each in by_name.values()):
            by_name.setdefault(tool.name, tool)
    return list(by_name.values())


def declared(tool: InventedTool, rng: random.Random) -> dict[str, Any]:
    """Declare a tool as a request does."""
    function: dict[str, Any] = {"name": tool.name}
    if rng.random() < 0.85:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if rng.random() < 0.2:
        function["strict"] = True
    return {"type": "function", "function": function}


def call_text(tool: InventedTool) -> str:
    """Write a call as text between its marks."""
    body = json.dumps({"name": tool.name, "arguments": tool.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def call_pieces(tool: InventedTool, rng: random.Random) -> tuple[list[AnswerPiece], bool]:
    """Write a call: free, as a list that a grammar asks for, or its arguments alone."""
    style = rng.random()
    if style < 0.55:
        return [AnswerPiece(call_text(tool))], rng.random() < 0.15
    if style < 0.85:
        head = f'[{{"name": {json.dumps(tool.name)}, "parameters": '
        return [AnswerPiece(head), *json_pieces(tool.arguments, True), AnswerPiece("}]")], True
    return list(json_pieces(tool.arguments, True)), True


_RESULTS = DRAWN["results"]


def result_and_answer(rng: random.Random) -> tuple[str, str]:
    """Draw what a tool returned, and the plain answer that tells it."""
    style = rng.random()
    if style < 0.3:
        result = facts.sentences(draw_facts(rng, rng.choice((1, 1, 2))), rng)
        return result, result
    if style < 0.5:
        result = str(rng.choice((rng.randint(0, 9999), round(rng.uniform(0, 100), 1))))
        return result, f"The result is {result}."
    if style < 0.62:
        result = rng.choice((*_RESULTS, facts.place(rng), facts.full_name(rng), facts.thing(rng)))
        return result, f"The result is {result}."
    if style < 0.68:
        result = f"Error: {rng.choice(('not found', 'time out', 'wrong value', 'no access'))}"
        return result, f"The tool failed. {result}."
    drawn = draw_facts(rng, rng.choice((1, 2, 2, 3)))
    result = json.dumps({each.name: each.value for each in drawn}, ensure_ascii=False)
    parts = [f"the {each.name.replace('_', ' ')} is {spoken_plainly(each.value)}" for each in drawn]
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] + "."
    return result, f"{text[:1].upper()}{text[1:]}"


def spoken_plainly(value: Any) -> str:
    """Write a value as an answer does."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def called_message(tool: InventedTool) -> dict[str, Any]:
    """Write an earlier call as the message of a request."""
    function = {"name": tool.name, "arguments": tool.arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}


def tool_request(
    rng: random.Random,
) -> tuple[Messages, list[dict[str, Any]], list[AnswerPiece], bool]:
    """Return messages, tools, the answer's pieces, and whether a grammar would begin at once."""
    tools = draw_tools(rng)
    offered = [declared(each, rng) for each in tools]
    chosen = rng.choice(tools)
    messages: Messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(DRAWN["asked"]["agent"])})
    messages.append({"role": "user", "content": chosen.said})
    style = rng.random()
    if style < 0.6:
        pieces, at_once = call_pieces(chosen, rng)
        return messages, offered, pieces, at_once
    result, answer = result_and_answer(rng)
    messages.append(called_message(chosen))
    messages.append({"role": "tool", "content": result})
    if style < 0.88 or len(tools) == 1:
        return messages, offered, [AnswerPiece(answer)], False
    other = rng.choice([each for each in tools if each is not chosen])
    both = f"{chosen.said} {rng.choice(('Then: ', 'And then: ', ''))}{other.said}"
    if rng.random() < 0.5:
        messages[-3]["content"] = both
    else:
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": other.said},
        ]
    pieces, at_once = call_pieces(other, rng)
    return messages, offered, pieces, at_once
