"""Requests for JSON: a schema, a text that fills it, and the answer that fits."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from models.facts import DRAWN, Fact, Schema, draw_facts, own_name, schema_of_fact, sentences
from models.records import draw_record
from models.tasks import Example, draw, explain_add

NOTHING = DRAWN["nothing"]
"""The value of a field that the text says nothing of."""


_WHOLE_RECORDS = 0.4  # share of the forms whose text is one sentence


class AnswerPiece(NamedTuple):
    """A part of a sequence, and whether it is to be learnt."""

    text: str
    learnt: bool = True


class Filled(NamedTuple):
    """A schema, the text that tells its values, and the object."""

    schema: Schema
    text: str
    value: Any


def json_pieces(value: Any, keys_learnt: bool) -> Iterator[AnswerPiece]:
    """Write a value as JSON on one line; keys that no prompt tells are not learnt."""
    if isinstance(value, dict):
        yield AnswerPiece("{", keys_learnt)
        for n, (key, item) in enumerate(value.items()):
            yield AnswerPiece(f"{', ' if n else ''}{json.dumps(key)}: ", keys_learnt)
            yield from json_pieces(item, keys_learnt)
        yield AnswerPiece("}", keys_learnt)
    elif isinstance(value, list):
        yield AnswerPiece("[", keys_learnt)
        for n, item in enumerate(value):
            if n:
                yield AnswerPiece(", ")
            yield from json_pieces(item, keys_learnt)
        yield AnswerPiece("]")
    else:
        yield AnswerPiece(json.dumps(value, ensure_ascii=False))


def object_schema(properties: Mapping[str, Schema], rng: random.Random, name: str = "") -> Schema:
    """Write the schema of an object, as one of several libraries would."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    style = rng.random()
    if style < 0.85:
        schema["required"] = list(properties)
    if style < 0.5:
        schema["additionalProperties"] = False
    if name and rng.random() < 0.5:
        schema["title"] = name
    if rng.random() < 0.3:
        schema = dict(sorted(schema.items()))
    return schema


def _object(
    rng: random.Random, facts: Sequence[Fact]
) -> tuple[dict[str, Schema], dict[str, Any], list[Fact]]:
    """Return properties, values and those facts that the text is to tell."""
    properties: dict[str, Schema] = {}
    values: dict[str, Any] = {}
    stated = []
    for each in facts:
        schema, value = schema_of_fact(each, rng), each.value
        is_stated = rng.random() > 0.03
        if rng.random() < 0.08 and each.kind in ("string", "integer", "number"):
            schema = {"anyOf": [schema, {"type": "null"}]}
            is_stated = rng.random() > 0.4
            value = value if is_stated else None
        elif not is_stated:
            value = each.choices[0] if each.kind == "enum" else NOTHING[each.kind]
        if each.kind == "integer" and rng.random() < 0.1:
            schema["type" if "type" in schema else "title"] = "integer"
        properties[each.name], values[each.name] = schema, value
        if is_stated:
            stated.append(each)
    return properties, values, stated


def draw_filled(rng: random.Random) -> Filled:
    """Draw a schema with one to six fields, some of them nested, and what fills it."""
    if rng.random() < _WHOLE_RECORDS:
        return _record(rng)
    count = rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5, 6))
    facts = draw_facts(rng, count)
    shape = rng.random()
    name = own_name(rng).replace("_", " ").title().replace(" ", "")
    if shape < 0.1:
        return _list_of_objects(rng, facts[:3], name)
    if shape < 0.25 and count > 1:
        return _nested(rng, facts, name)
    properties, values, stated = _object(rng, facts)
    text = sentences(stated, rng) if stated else rng.choice(("Go.", "Hello.", "I do not know."))
    return Filled(object_schema(properties, rng, name), text, values)


def _record(rng: random.Random) -> Filled:
    """Draw a record that one sentence tells, now and then without some of its fields."""
    facts, text = draw_record(rng)
    if len(facts) > 1 and rng.random() < 0.2:
        facts = facts[1:]
    properties = {each.name: schema_of_fact(each, rng) for each in facts}
    name = own_name(rng).title().replace("_", "")
    return Filled(object_schema(properties, rng, name), text, {f.name: f.value for f in facts})


def _nested(rng: random.Random, facts: Sequence[Fact], name: str) -> Filled:
    """Put some of the fields into an object of their own, inline or by reference."""
    cut = rng.randint(1, len(facts) - 1)
    outer, outer_values, outer_stated = _object(rng, facts[:cut])
    inner, inner_values, inner_stated = _object(rng, facts[cut:])
    field = own_name(rng)
    while field in outer:
        field = own_name(rng)
    schema = object_schema(inner, rng, field.title())
    definitions = {}
    if rng.random() < 0.5:
        definitions = {"$defs": {field.title(): schema}}
        schema = {"$ref": f"#/$defs/{field.title()}"}
    made = object_schema({**outer, field: schema}, rng, name)
    stated = [*outer_stated, *inner_stated]
    text = sentences(stated, rng) if stated else "Go."
    return Filled({**definitions, **made}, text, {**outer_values, field: inner_values})


def _list_of_objects(rng: random.Random, facts: Sequence[Fact], name: str) -> Filled:
    """Make a list of objects of the same fields, one line or sentence for each."""
    names = [each.name for each in facts]
    properties = {each.name: schema_of_fact(each, rng) for each in facts}
    rows, lines = [], []
    for n in range(rng.choice((1, 2, 2, 3))):
        row = list(facts) if not n else _redrawn(rng, facts)
        rows.append({key: each.value for key, each in zip(names, row, strict=True)})
        lines.append(sentences(row, rng))
    field = rng.choice(("items", "entries", "rows", "results", own_name(rng)))
    item = object_schema(properties, rng)
    definitions: Schema = {}
    if rng.random() < 0.4:
        definitions, item = {"$defs": {"Item": item}}, {"$ref": "#/$defs/Item"}
    schema = object_schema({field: {"type": "array", "items": item}}, rng, name)
    return Filled({**definitions, **schema}, "\n".join(lines), {field: rows})


def _redrawn(rng: random.Random, facts: Sequence[Fact]) -> list[Fact]:
    """Draw the same fields with other values, told as names and values."""
    from models.facts import FAMILIES, spaced, spoken

    by_name = {name: each for each in FAMILIES for name in each.names}
    redrawn = []
    for each in facts:
        family = by_name.get(each.name)
        value = each.value
        if each.kind == "enum":
            value = rng.choice(each.choices)
        elif family is not None and family.kind == each.kind:
            value = family.draw(rng)
        elif each.kind == "integer":
            value = rng.randint(0, 999)
        elif each.kind == "boolean":
            value = rng.random() < 0.5
        said = f"{spaced(each.name, rng)}: {spoken(value, rng)}"
        redrawn.append(Fact(each.name, each.kind, value, said, each.choices))
    return redrawn


_ASKS = DRAWN["asks"]
_SCHEMA_TOLD = DRAWN["schema_told"]
_FENCED = DRAWN["fenced"]
_KEYS_TOLD = DRAWN["keys_told"]
_RETRY = DRAWN["retry"]
_TOTALS = DRAWN["totals"]


def schema_text(schema: Schema, rng: random.Random) -> str:
    """Write a schema on one line or on many."""
    style = rng.random()
    if style < 0.35:
        return json.dumps(schema, indent=2)
    return json.dumps(schema, separators=(",", ":") if style < 0.45 else None)


def errors_of(filled: Filled, rng: random.Random) -> str:
    """Invent what a checker says of a wrong answer."""
    name = rng.choice([*filled.value])
    kind, said = rng.choice([*DRAWN["errors"].items()])
    link = f"\n    For further information visit https://errors.pydantic.dev/2.11/v/{kind}"
    return (
        f"1 validation error for {rng.choice(('Model', 'Answer', 'Person', 'Record'))}\n{name}\n  "
        f"{said} [type={kind}, input_value={rng.choice(('None', '{}', chr(39) * 2))}, input_type="
        f"{rng.choice(('NoneType', 'dict', 'str'))}]{link if rng.random() < 0.6 else ''}"
    )


Messages = list[dict[str, Any]]


def form_request(rng: random.Random, long: bool) -> tuple[Messages, list[AnswerPiece], bool]:
    """Return messages, the answer's pieces, and whether a grammar would begin at once.

    ``long``: with retries that repeat the schema and the errors.
    """
    filled = draw_filled(rng)
    ask = rng.choice(_ASKS).format(text=filled.text)
    style = rng.random()
    messages: Messages = []
    keys_learnt = fenced = False
    if style < 0.4 or long:
        keys_learnt = True
        instruction = rng.choice(_SCHEMA_TOLD).format(schema=schema_text(filled.schema, rng))
        if rng.random() < 0.12:
            instruction, fenced = f"{instruction}\n{rng.choice(_FENCED)}", True
        if rng.random() < 0.55:
            messages.append({"role": "system", "content": instruction})
        elif rng.random() < 0.5:
            ask = f"{ask}\n\n{instruction}"
        else:
            ask = f"{instruction}\n\n{ask}"
    elif style < 0.55:
        keys_learnt = True
        keys = ", ".join(filled.value)
        instruction = rng.choice(_KEYS_TOLD).format(keys=keys)
        ask = f"{ask} {instruction}" if rng.random() < 0.7 else f"{instruction} {ask}"
    messages.append({"role": "user", "content": ask})
    if long:
        for _ in range(rng.choice((1, 1, 2, 3))):
            wrong = json.dumps(draw_filled(rng).value) if rng.random() < 0.6 else "I do not know."
            retry = rng.choice(_RETRY).format(errors=errors_of(filled, rng))
            if rng.random() < 0.3:
                retry += f"\n\n{schema_text(filled.schema, rng)}"
            if rng.random() < 0.3:
                retry += f"\n{filled.text}"
            messages += [
                {"role": "assistant", "content": wrong},
                {"role": "user", "content": retry},
            ]
    pieces = list(json_pieces(filled.value, keys_learnt))
    if fenced:
        pieces = [AnswerPiece("```json\n"), *pieces, AnswerPiece("\n```")]
    at_once = not keys_learnt or (not fenced and rng.random() < 0.5)
    return messages, pieces, at_once


def marked_request(rng: random.Random) -> tuple[Messages, list[AnswerPiece], str]:
    """Return a request whose fields stand between marks, the answer, and its reasoning."""
    sums = rng.random() < 0.3
    example = sum_in_words(rng)
    filled = draw_filled(rng)
    while any(isinstance(each, dict | list) for each in filled.value.values()):
        filled = draw_filled(rng)
    text, outputs = filled.text, filled.value
    if sums:
        text, outputs = example.prompt, {rng.choice(_TOTALS["add"]): example.answer}
    source = rng.choice(("question", "text", "task", "input", "context", own_name(rng)))
    numbered = "\n".join(f"{n}. `{name}` (str):" for n, name in enumerate(outputs, start=1))
    first, *_ = outputs
    sections = [f"[[ ## {source} ## ]]\n{{{source}}}"]
    sections += [f"[[ ## {name} ## ]]\n{{{name}}}" for name in outputs]
    system = (
        f"Your input fields are:\n1. `{source}` (str):\nYour output fields are:\n{numbered}\nAll"
        " interactions have this structure, with the values filled in.\n\n"
        + "\n\n".join([*sections, "[[ ## completed ## ]]"])
    )
    asked = (
        f"[[ ## {source} ## ]]\n{text}\n\nRespond with the output fields, starting with the field"
        f" `[[ ## {first} ## ]]`, and then ending with the marker for `[[ ## completed ## ]]`."
    )
    answer = [f"[[ ## {name} ## ]]\n{value}" for name, value in outputs.items()]
    pieces = [AnswerPiece("\n\n".join([*answer, "[[ ## completed ## ]]"]))]
    messages: Messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    return messages, pieces, example.reasoning if sums else ""


def sum_in_words(rng: random.Random) -> Example:
    """Draw a small sum in everyday words, with the reasoning of the task."""
    numbers = [rng.randrange(100) for _ in range(rng.choice((2, 2, 2, 3, 4)))]
    made = explain_add(numbers)
    prompt = rng.choice(DRAWN["sums"]).format(
        listed=", ".join(map(str, numbers[:-1])),
        last=numbers[-1],
        in_words=" plus ".join(map(str, numbers)),
        in_signs=" + ".join(map(str, numbers)),
        in_short="+".join(map(str, numbers)),
    )
    return Example(made.task, made.size, prompt, made.reasoning, made.answer)


def task_form(rng: random.Random, largest: int) -> tuple[Messages, list[AnswerPiece], bool, str]:
    """Return a task whose answer has a form, and its reasoning."""
    name = rng.choice(("add", "add", "count", "chain", "sort"))
    example = (
        sum_in_words(rng) if name == "add" and rng.random() < 0.5 else draw(rng, name, largest)
    )
    key = rng.choice(_TOTALS[name]) if rng.random() < 0.85 else own_name(rng)
    answer: Any = example.answer
    if name == "sort":
        answer = [int(each) for each in example.answer.split(", ")]
        schema: Schema = {"type": "array", "items": {"type": "integer"}}
    else:
        answer = int(answer)
        schema = {"type": rng.choice(("integer", "integer", "number"))}
        if rng.random() < 0.15:
            answer, schema = str(answer), {"type": "string"}
    values = {key: answer}
    properties = {key: schema}
    learnt = rng.random() < 0.4
    prompt = example.prompt
    messages: Messages = []
    if learnt:
        instruction = rng.choice(_SCHEMA_TOLD).format(
            schema=schema_text(object_schema(properties, rng), rng)
        )
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": instruction})
        else:
            prompt = f"{prompt}\n\n{instruction}"
    messages.append({"role": "user", "content": prompt})
    at_once = not learnt or rng.random() < 0.5
    return messages, list(json_pieces(values, learnt)), at_once, example.reasoning
