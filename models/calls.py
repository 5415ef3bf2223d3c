"""Requests with tools: one that fits is called once, a result is told, and none may fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from models import facts
from models.facts import (
    COLOURS,
    DRAWN,
    Fact,
    Schema,
    draw_facts,
    own_name,
    schema_of_fact,
    spaced,
    spoken,
)
from models.forms import AnswerPiece, Messages, json_pieces

_Draw = Callable[[random.Random], Any]


class InventedTool(NamedTuple):
    """A tool of OpenAI's form, a call of it, and what a user says to have it called."""

    name: str
    description: str
    parameters: Schema
    arguments: dict[str, Any]
    said: str


class _Known(NamedTuple):
    names: str
    descriptions: tuple[str, ...]
    parameters: Mapping[str, tuple[str, _Draw]]
    said: tuple[str, ...]


_S, _I, _N = "string", "integer", "number"
_small = facts.integer(0, 999)
_KNOWN = (
    _Known(
        "get_weather weather current_weather look_up_weather get_forecast",
        ("Get the weather of a city.", "Tell the weather.", "Current weather in a given location"),
        {"city": (_S, facts.place)},
        (
            "What is the weather in {city}?",
            "Weather in {city}?",
            "How is the weather in {city}?",
            "Is it raining in {city}?",
            "Tell me the weather of {city}.",
            "How warm is it in {city}?",
            "What's the weather like in {city} today?",
            "Do I need an umbrella in {city}?",
        ),
    ),
    _Known(
        "get_time current_time clock get_current_time",
        ("Get the time in a place.", "Tell the current time."),
        {"location": (_S, facts.place)},
        (
            "What time is it in {location}?",
            "Tell me the time in {location}.",
            "Time in {location}?",
        ),
    ),
    _Known(
        "add sum_numbers add_numbers plus",
        ("Add two numbers.", "Return the sum of a and b."),
        {"a": (_I, _small), "b": (_I, _small)},
        (
            "Add {a} and {b}.",
            "What is {a} plus {b}?",
            "What is {a} + {b}?",
            "Sum {a} and {b}.",
            "Use the tool to add {a} and {b}.",
        ),
    ),
    _Known(
        "multiply times product",
        ("Multiply two numbers.", "Return a times b."),
        {"a": (_I, _small), "b": (_I, _small)},
        ("Multiply {a} by {b}.", "What is {a} times {b}?", "What is {a} * {b}?"),
    ),
    _Known(
        "subtract minus",
        ("Subtract b from a.",),
        {"a": (_I, _small), "b": (_I, _small)},
        ("What is {a} minus {b}?", "Compute {a} - {b}."),
    ),
    _Known(
        "divide",
        ("Divide a by b.",),
        {"a": (_N, _small), "b": (_N, facts.integer(1, 99))},
        ("Divide {a} by {b}.", "What is {a} divided by {b}?"),
    ),
    _Known(
        "square square_root",
        ("Work on one number.",),
        {"x": (_N, _small)},
        ("Take the {tool} of {x}.", "What is the {tool} of {x}?"),
    ),
    _Known(
        "calculator calculate evaluate",
        ("Evaluate an expression.", "Do a calculation."),
        {"expression": (_S, lambda r: f"{r.randint(1, 99)} {r.choice('+-*/')} {r.randint(1, 99)}")},
        ("Calculate {expression}.", "What is {expression}?", "Work out {expression}."),
    ),
    _Known(
        "search web_search search_web find",
        ("Search the web.", "Look something up."),
        {"query": (_S, lambda r: f"{facts.topic(r)} in {facts.place(r)}")},
        ("Search for {query}.", "Look up {query}.", "Find {query}.", "Search the web: {query}"),
    ),
    _Known(
        "send_email send_mail mail",
        ("Send an email.", "Send a message to an address."),
        {"to": (_S, facts.email), "subject": (_S, facts.topic)},
        (
            "Send an email to {to} about {subject}.",
            "Mail {to}: {subject}",
            "Write to {to} with the subject {subject}.",
        ),
    ),
    _Known(
        "send_message text_person message",
        ("Send a message to a person.",),
        {"name": (_S, facts.first_name), "text": (_S, facts.errand)},
        ("Tell {name} to {text}.", 'Send {name} the message "{text}".', "Message {name}: {text}"),
    ),
    _Known(
        "get_stock_price stock_price quote",
        ("Get the price of a stock.",),
        {
            "symbol": (
                _S,
                lambda r: "".join(r.choice("ABCDEFGHKLMNPRSTX") for _ in range(r.randint(2, 4))),
            )
        },
        ("What is the price of {symbol}?", "Stock price of {symbol}?", "How is {symbol} doing?"),
    ),
    _Known(
        "book_flight find_flights flights",
        ("Find a flight.", "Book a flight between cities."),
        {"origin": (_S, facts.place), "destination": (_S, facts.place)},
        (
            "Book a flight from {origin} to {destination}.",
            "I fly from {origin} to {destination}.",
            "Find flights from {origin} to {destination}.",
        ),
    ),
    _Known(
        "book_hotel reserve_hotel",
        ("Book a room in a hotel.",),
        {"city": (_S, facts.place), "nights": (_I, facts.integer(1, 14))},
        ("Book a hotel in {city} for {nights} nights.", "I need {nights} nights in {city}."),
    ),
    _Known(
        "set_timer start_timer timer",
        ("Set a timer.",),
        {"minutes": (_I, facts.integer(1, 120))},
        ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes."),
    ),
    _Known(
        "set_alarm alarm",
        ("Set an alarm.",),
        {"time": (_S, facts.clock)},
        ("Set an alarm for {time}.", "Wake me at {time}."),
    ),
    _Known(
        "create_event add_event schedule_meeting",
        ("Put an event into the calendar.",),
        {"title": (_S, facts.topic), "date": (_S, facts.date)},
        ("Schedule {title} on {date}.", "Add {title} to my calendar for {date}."),
    ),
    _Known(
        "add_todo create_task add_task",
        ("Add a task to a list.",),
        {"task": (_S, facts.errand)},
        ("Remind me to {task}.", "Add a task: {task}", "Put {task} on my list."),
    ),
    _Known(
        "get_user find_user lookup_user get_customer",
        ("Find a user.", "Get a user by id."),
        {"user_id": (_I, facts.integer(1, 9999))},
        ("Who is user {user_id}?", "Find the user {user_id}.", "Get user {user_id}."),
    ),
    _Known(
        "get_order order_status track_order",
        ("Get the status of an order.",),
        {"order_id": (_S, facts.code)},
        ("Where is my order {order_id}?", "Status of order {order_id}?", "Track {order_id}."),
    ),
    _Known(
        "play_song play_music",
        ("Play a song.",),
        {"title": (_S, facts.title)},
        ("Play {title}.", 'Play the song "{title}".'),
    ),
    _Known(
        "turn_on_light set_light lights",
        ("Turn the light of a room on.",),
        {"room": (_S, facts.one_of("kitchen", "bedroom", "bathroom", "office", "hall", "garage"))},
        ("Turn on the light in the {room}.", "Light in the {room}, please."),
    ),
    _Known(
        "set_color change_color paint",
        ("Set the color.",),
        {"color": (_S, facts.one_of(*COLOURS))},
        ("Make it {color}.", "Set the color to {color}.", "Change it to {color}."),
    ),
    _Known(
        "convert_currency exchange",
        ("Convert money.",),
        {"amount": (_N, _small), "currency": (_S, facts.one_of("USD", "EUR", "CHF", "GBP", "JPY"))},
        ("Convert {amount} to {currency}.", "How much is {amount} in {currency}?"),
    ),
    _Known(
        "convert_temperature",
        ("Convert degrees.",),
        {
            "degrees": (_N, facts.integer(0, 99)),
            "unit": ("enum", facts.one_of("celsius", "fahrenheit")),
        },
        ("Convert {degrees} degrees to {unit}.", "What is {degrees} degrees in {unit}?"),
    ),
    _Known(
        "translate",
        ("Translate a text.",),
        {
            "text": (_S, facts.thing),
            "language": (_S, facts.one_of("German", "French", "Spanish", "Italian")),
        },
        ("Translate {text} to {language}.", "What is {text} in {language}?"),
    ),
    _Known(
        "find_capital get_capital capital",
        ("Find the capital of a country.",),
        {"country": (_S, facts.country)},
        ("What is the capital of {country}?", "Find the capital of {country}."),
    ),
    _Known(
        "read_file open_file",
        ("Read a file.",),
        {"path": (_S, lambda r: f"{facts.invented(r)}.{r.choice(('txt', 'md', 'py', 'json'))}")},
        ("Read {path}.", "What is in {path}?", "Open the file {path}."),
    ),
    _Known(
        "list_files",
        ("List the files of a folder.",),
        {"folder": (_S, lambda r: facts.invented(r))},
        ("List the files in {folder}.", "Which files are in {folder}?"),
    ),
    _Known(
        "roll_dice roll",
        ("Roll dice.",),
        {"sides": (_I, facts.integer(2, 100))},
        ("Roll a dice with {sides} sides.", "Roll a d{sides}."),
    ),
    _Known(
        "random_number",
        ("Draw a random number.",),
        {"low": (_I, facts.integer(0, 50)), "high": (_I, facts.integer(51, 999))},
        ("Give me a random number between {low} and {high}.",),
    ),
    _Known(
        "get_news news",
        ("Get the news.",),
        {"topic": (_S, facts.topic)},
        ("What is new in {topic}?", "Show me the news about {topic}."),
    ),
    _Known(
        "word_count count_words count_letters",
        ("Count in a text.",),
        {"text": (_S, facts.errand)},
        ('Count the words in "{text}".', "How long is the text: {text}"),
    ),
    _Known(
        "get_date today",
        ("Tell today's date.",),
        {},
        ("What day is it?", "What is the date today?"),
    ),
    _Known(
        "ping health status",
        ("Check that the system works.",),
        {},
        ("Is the system up?", "Check it."),
    ),
)
_VERBS = DRAWN["call_verbs"]
_FILLERS = ("Please ", "Can you ", "I want you to ", "", "", "Could you ", "Now ")


def _nullable(schema: Schema, rng: random.Random) -> Schema:
    if rng.random() < 0.3:
        schema = {**schema, "description": rng.choice(("what to take", "the value", "as given"))}
    return schema


def _known(rng: random.Random) -> InventedTool:
    known = rng.choice(_KNOWN)
    name = rng.choice(known.names.split())
    values = {key: draw(rng) for key, (_, draw) in known.parameters.items()}
    properties: dict[str, Schema] = {}
    renamed: dict[str, Any] = {}
    for key, (kind, _) in known.parameters.items():
        other = {
            "city": ("city", "location", "place", "town"),
            "a": ("a", "x", "first", "left"),
            "location": ("location", "city", "timezone", "place"),
            "b": ("b", "y", "second", "right"),
            "query": ("query", "q", "text", "question"),
            "text": ("text", "body", "content"),
        }.get(key, (key,))
        new = rng.choice(other) if rng.random() < 0.6 else key
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
    said = rng.choice(known.said).format(**values, tool=name.replace("_", " "))
    return InventedTool(
        name, rng.choice(known.descriptions), _parameters(properties, rng), renamed, said
    )


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
        messages.append(
            {
                "role": "system",
                "content": rng.choice(
                    (
                        "You are a helpful assistant.",
                        "Use the tools.",
                        "Call a tool if you need one.",
                        "You are an agent.",
                        "Help the user.",
                    )
                ),
            }
        )
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
