"""Calls that a model may make: a grammar keeps each to its schema, and the rest to a form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.grammars import COMPACT, Grammar
from services.gateway.tool_calls.forced import NO_PARAMETERS, closed
from services.gateway.tool_calls.source import Frame

_FREE = (
    "start: (head body)* TEXT",
    "head[lazy]: TEXT {begin}",
    r"TEXT: /(.|\n)*/",
)
_FORMED = ("start: @form | call (/\\n?/ call)*", "call: {begin} body")


def grammar_of_offer(
    frame: Frame, tools: Sequence[Mapping[str, Any]], form: Grammar | None
) -> Grammar:
    """Return the grammar of an answer that may call these tools (OpenAI's ``function`` objects).

    Arguments of strict tools follow their schemas, others are any object. Text is free before and
    after calls; with a ``form`` the answer is that, or calls alone.
    """
    begin = json.dumps(frame.begin)
    lines = [line.replace("{begin}", begin) for line in (_FORMED if form else _FREE)]
    lines.append(f"body: {' | '.join(f'body{n}' for n in range(len(tools)))}")
    for n, tool in enumerate(tools):
        name = json.dumps(frame.name.format(name=tool["name"]))
        lines.append(f"body{n}: {name} %json {json.dumps(_schema(tool))} {json.dumps(frame.end)}")
    text = "\n".join(["%llguidance {}", *lines])
    if form is None:
        return Grammar(text, "tools")
    of_form = {"lark_grammar": form.text}
    if form.text.startswith("{"):
        (of_form,) = json.loads(form.text)["grammars"]
    grammars = [{"lark_grammar": text}, {**of_form, "name": "form"}]
    return Grammar(json.dumps({"grammars": grammars}), form.param)


def _schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if not tool.get("strict"):
        return {"type": "object", "x-guidance": COMPACT}
    schema = closed(tool.get("parameters") or NO_PARAMETERS, "#")
    return {**schema, "x-guidance": {**COMPACT, "lenient": True}}
