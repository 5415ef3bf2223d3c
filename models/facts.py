"""Invented records: fields with a name, a kind, a value, and a sentence that tells the value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
DRAWN: dict[str, Any] = json.loads(Path(__file__).with_name("drawn.json").read_text("utf-8"))
"""Names, things and phrases that requests are made of."""
_FIRST: list[str] = DRAWN["first"]
_LAST: list[str] = DRAWN["last"]
_PLACES: list[str] = DRAWN["places"]
_COUNTRIES: list[str] = DRAWN["countries"]
THINGS: list[str] = DRAWN["things"]
_ADJECTIVES = DRAWN["adjectives"]
COLOURS: list[str] = DRAWN["colours"]
_TOPICS: list[str] = DRAWN["topics"]
_VERBS = DRAWN["verbs"]
_MONTHS = DRAWN["months"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def invented(rng: random.Random, least: int = 2, most: int = 4) -> str:
    """Draw a word that nobody knows, of a few syllables."""
    syllables = (
        rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(("", "", "n", "r", "l"))
        for _ in range(rng.randint(least, most))
    )
    return "".join(syllables)


def first_name(rng: random.Random) -> str:
    """Draw a first name."""
    return rng.choice(_FIRST) if rng.random() < 0.5 else invented(rng).capitalize()


def full_name(rng: random.Random) -> str:
    """Draw a first name, or a first and a last one."""
    if rng.random() < 0.4:
        return first_name(rng)
    last = rng.choice(_LAST) if rng.random() < 0.5 else invented(rng).capitalize()
    return f"{first_name(rng)} {last}"


def place(rng: random.Random) -> str:
    """Draw a town."""
    return rng.choice(_PLACES) if rng.random() < 0.55 else invented(rng).capitalize()


def country(rng: random.Random) -> str:
    """Draw a country."""
    return rng.choice(_COUNTRIES) if rng.random() < 0.8 else invented(rng).capitalize() + "ia"


def thing(rng: random.Random) -> str:
    """Draw a thing, now and then with an adjective."""
    noun = rng.choice(THINGS) if rng.random() < 0.75 else invented(rng)
    return f"{rng.choice(_ADJECTIVES)} {noun}" if rng.random() < 0.4 else noun


def topic(rng: random.Random) -> str:
    """Draw a topic in one word."""
    return rng.choice(_TOPICS) if rng.random() < 0.75 else invented(rng)


def colour(rng: random.Random) -> str:
    """Draw a colour."""
    return rng.choice(COLOURS)


def title(rng: random.Random) -> str:
    """Draw the title of a book or film."""
    nouns = [rng.choice((THINGS, _TOPICS, _ADJECTIVES)[n % 3]).capitalize() for n in range(3)]
    return rng.choice(
        (
            f"The {nouns[2]} {nouns[0]}",
            f"{nouns[0]} and {nouns[1]}",
            f"A {nouns[0]} in {place(rng)}",
            f"{nouns[2]} {nouns[1]}",
            invented(rng).capitalize(),
        )
    )


def date(rng: random.Random) -> str:
    """Draw a date in digits."""
    return f"{rng.randint(1950, 2035)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock(rng: random.Random) -> str:
    """Draw a time of the day."""
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45, rng.randrange(60))):02d}"


def email(rng: random.Random) -> str:
    """Draw an address of mail."""
    host = rng.choice(("example.com", "mail.org", "test.net", f"{invented(rng)}.com"))
    return f"{first_name(rng).lower()}@{host}"


def code(rng: random.Random) -> str:
    """Draw a code of letters and digits."""
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    return f"{letters}{rng.choice(('-', ''))}{rng.randint(1, 9999)}"


def company(rng: random.Random) -> str:
    """Draw the name of a company."""
    return f"{invented(rng).capitalize()}{rng.choice(('', ' Inc', ' Ltd', ' AG'))}"


def errand(rng: random.Random) -> str:
    """Draw a small task."""
    return f"{rng.choice(_VERBS)} the {thing(rng)}"


def integer(low: int, high: int) -> Callable[[random.Random], int]:
    """Return a source of whole numbers, shorter ones as often as long ones."""

    def drawn(rng: random.Random) -> int:
        top = high if rng.random() < 0.6 else min(high, 10 ** rng.randint(1, len(str(high))))
        return rng.randint(min(low, top), top)

    return drawn


def decimal(high: int) -> Callable[[random.Random], float]:
    """Return a source of numbers with one or two decimals, now and then whole ones."""

    def drawn(rng: random.Random) -> float:
        places = rng.choice((1, 1, 2, 2))
        return round(rng.uniform(0, high if rng.random() < 0.6 else min(high, 10)), places)

    return drawn


def one_of(*choices: str) -> Callable[[random.Random], str]:
    """Return a source of these values."""
    return lambda rng: rng.choice(choices)


def several(source: Callable[[random.Random], Any]) -> Callable[[random.Random], list[Any]]:
    """Return a source of lists of different values."""

    def drawn(rng: random.Random) -> list[Any]:
        wanted, values = rng.choice((1, 2, 2, 3, 3, 4, 5)), []
        for _ in range(wanted):
            value = source(rng)
            if value not in values:
                values.append(value)
        return values

    return drawn


@dataclass(frozen=True)
class FieldFamily:
    """Fields of like meaning: possible names, kind, values, sentences (``{v}``, ``{who}``)."""

    names: tuple[str, ...]
    kind: str
    draw: Callable[[random.Random], Any]
    said: tuple[str, ...]
    choices: tuple[str, ...] = ()


def _family(
    names: str, kind: str, draw: Callable[[random.Random], Any], *said: str, choices: str = ""
) -> FieldFamily:
    return FieldFamily(tuple(names.split()), kind, draw, said, tuple(choices.split()))


def _enum(names: str, choices: str, *said: str) -> FieldFamily:
    return _family(names, "enum", one_of(*choices.split()), *said, choices=choices)


FAMILIES = (
    _family(
        "name full_name person customer user owner author",
        "string",
        full_name,
        "{who} is called {v}",
        "the name is {v}",
        "this is {v}",
        "my name is {v}",
        "I am {v}",
    ),
    _family("first_name firstName", "string", first_name, "the first name is {v}"),
    _family(
        "age years age_years",
        "integer",
        integer(1, 99),
        "{who} is {v} years old",
        "the age is {v}",
        "{who} is {v}",
        "{who} turned {v}",
    ),
    _family(
        "city town place location destination",
        "string",
        place,
        "{who} lives in {v}",
        "the city is {v}",
        "it is in {v}",
        "we went to {v}",
        "in {v}",
    ),
    _family("origin from_city departure", "string", place, "it starts in {v}", "from {v}"),
    _family("country nation", "string", country, "the country is {v}", "{who} comes from {v}"),
    _family("capital", "string", place, "its capital is {v}", "the capital is {v}"),
    _family(
        "population inhabitants",
        "integer",
        integer(100, 9_999_999),
        "it has {v} inhabitants",
        "{v} people live there",
        "the population is {v}",
    ),
    _family("email mail email_address", "string", email, "the email is {v}", "write to {v}"),
    _family(
        "phone phone_number telephone",
        "string",
        lambda rng: f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
        "call {v}",
        "the phone number is {v}",
    ),
    _family(
        "job occupation profession role",
        "string",
        one_of(*DRAWN["jobs"]),
        "{who} works as a {v}",
        "{who} is a {v}",
        "the job is {v}",
    ),
    _family(
        "company employer organization",
        "string",
        company,
        "{who} works at {v}",
        "the company is {v}",
    ),
    _family(
        "price cost amount total",
        "number",
        decimal(2000),
        "it costs {v} dollars",
        "the price is {v}",
        "for {v} euros",
        "it costs ${v}",
    ),
    _family(
        "quantity count number num units",
        "integer",
        integer(1, 500),
        "we need {v} of them",
        "the quantity is {v}",
        "there are {v} of them",
        "{v} pieces",
    ),
    _family(
        "product item article product_name",
        "string",
        thing,
        "{who} bought a {v}",
        "the product is a {v}",
        "the item is a {v}",
        "a {v}",
    ),
    _family("color colour", "string", colour, "it is {v}", "the color is {v}", "in {v}"),
    _family(
        "temperature degrees temp temperature_c",
        "number",
        decimal(45),
        "it is {v} degrees",
        "the temperature is {v}",
        "{v} degrees",
    ),
    _family(
        "temperature degrees",
        "integer",
        integer(-9, 45),
        "it is {v} degrees",
        "the temperature is {v}",
    ),
    _family(
        "weight mass weight_kg", "number", decimal(200), "it weighs {v} kg", "the weight is {v}"
    ),
    _family(
        "height length width distance",
        "number",
        decimal(500),
        "it is {v} m long",
        "the {key} is {v}",
        "it measures {v}",
    ),
    _family(
        "year published year_published",
        "integer",
        integer(1800, 2035),
        "it was made in {v}",
        "the year is {v}",
        "in {v}",
    ),
    _family("date day due_date start_date", "string", date, "the date is {v}", "on {v}", "due {v}"),
    _family("time hour start_time", "string", clock, "at {v}", "the time is {v}"),
    _family("month", "string", one_of(*_MONTHS), "in {v}", "the month is {v}"),
    _family("weekday day", "string", one_of(*DAYS), "on {v}", "the day is {v}"),
    _family("title book movie film", "string", title, "the title is {v}", 'the book "{v}"'),
    _family("task todo action", "string", errand, "please {v}", "the task is to {v}"),
    _family("id code order_id reference", "string", code, "the code is {v}", "order {v}"),
    _family(
        "id order_number ticket room",
        "integer",
        integer(1, 9999),
        "number {v}",
        "the {key} is {v}",
        "room {v}",
    ),
    _family(
        "score rating stars points",
        "integer",
        integer(0, 10),
        "the score is {v}",
        "I give it {v} of 10",
        "rated {v}",
        "{who} has {v} points",
    ),
    _family(
        "score probability confidence ratio share",
        "number",
        decimal(1),
        "the {key} is {v}",
        "with a {key} of {v}",
    ),
    _family(
        "language",
        "string",
        one_of(
            "English",
            "German",
            "French",
            "Spanish",
            "Italian",
            "Dutch",
            "Polish",
            "Hindi",
            "Python",
            "Rust",
            "Java",
        ),
        "the language is {v}",
        "in {v}",
    ),
    _family("topic subject category", "string", topic, "it is about {v}", "the topic is {v}"),
    _family(
        "tags keywords topics labels",
        "strings",
        several(topic),
        "the tags are {v}",
        "it is about {v}",
        "tagged {v}",
    ),
    _family(
        "names people participants guests attendees",
        "strings",
        several(first_name),
        "{v} came",
        "the guests are {v}",
        "with {v}",
        "{v} will meet",
    ),
    _family(
        "items products things ingredients shopping_list",
        "strings",
        several(thing),
        "we bought {v}",
        "the list has {v}",
        "I need {v}",
    ),
    _family("colors colours", "strings", several(colour), "it comes in {v}", "the colors are {v}"),
    _family("cities places stops", "strings", several(place), "we saw {v}", "by way of {v}"),
    _family(
        "numbers values scores",
        "integers",
        several(integer(0, 99)),
        "the numbers are {v}",
        "the values are {v}",
        "{v}",
    ),
    _family("prices measurements", "numbers", several(decimal(100)), "the {key} are {v}"),
    _family(
        "available in_stock",
        "boolean",
        lambda rng: rng.random() < 0.5,
        "it is in stock|it is not in stock",
        "it is available|it is not available",
        "you can have it|it is sold out",
        "{key}: yes|{key}: no",
    ),
    _family(
        "warm is_warm",
        "boolean",
        lambda rng: rng.random() < 0.5,
        "it is warm|it is cold",
        "it is hot|it is not warm",
        "the weather is warm|it freezes",
    ),
    _family(
        "active enabled is_active open",
        "boolean",
        lambda rng: rng.random() < 0.5,
        "it is {key}|it is not {key}",
        "it works|it does not work",
        "{key}|not {key}",
    ),
    _family(
        "married member student is_member vegetarian",
        "boolean",
        lambda rng: rng.random() < 0.5,
        "{who} is a {key}: yes|{who} is a {key}: no",
        "{who} is {key}|{who} is not {key}",
    ),
    _family(
        "urgent important done finished paid",
        "boolean",
        lambda rng: rng.random() < 0.5,
        "it is {key}|it is not {key}",
        "this is {key}|this is not {key} yet",
    ),
    _enum("sentiment mood", "positive negative neutral", "the mood is {v}", "a {v} review"),
    _enum("priority level severity", "low medium high", "the {key} is {v}", "{v} {key}"),
    _enum("size", "small medium large", "a {v} one", "the size is {v}"),
    _enum("status state", "open closed pending", "the {key} is {v}", "it is {v}"),
    _enum("unit units", "celsius fahrenheit", "in {v}", "the unit is {v}"),
    _enum("weather conditions", "sunny cloudy rainy snowy", "it is {v}", "the weather is {v}"),
    _enum("type kind category", "cat dog bird fish", "it is a {v}", "a {v}"),
    _enum("transport vehicle", "car train bus plane", "by {v}", "we take the {v}"),
    _enum("operation op", "add subtract multiply divide", "{v} them", "the operation is {v}"),
)
_OWN_NOUNS = DRAWN["own_nouns"]
_KINDS: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda rng: rng.choice((invented, thing, full_name, place, code, topic, errand))(rng),
    "integer": integer(0, 99_999),
    "number": decimal(5000),
    "boolean": lambda rng: rng.random() < 0.5,
    "strings": several(lambda rng: rng.choice((invented, topic, thing))(rng)),
    "integers": several(integer(0, 999)),
}


@dataclass(frozen=True)
class Fact:
    """A field of a record: its name, kind, value, choices, and whether a text tells it."""

    name: str
    kind: str
    value: Any
    sentence: str
    choices: tuple[str, ...] = ()


def spoken(value: Any, rng: random.Random) -> str:
    """Write a value as a text would."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        words = [spoken(each, rng) for each in value]
        if len(words) > 1 and rng.random() < 0.6:
            return f"{', '.join(words[:-1])} and {words[-1]}"
        return ", ".join(words)
    return str(value)


def own_name(rng: random.Random) -> str:
    """Draw the name of a field from everyday and from invented words."""
    word = rng.choice(_OWN_NOUNS) if rng.random() < 0.7 else invented(rng, 2, 3)
    shape = rng.random()
    if shape < 0.6:
        return word
    other = rng.choice(_OWN_NOUNS)
    return f"{other}_{word}" if shape < 0.85 else f"{other}{word.capitalize()}"


def _own(rng: random.Random) -> Fact:
    """Draw a field of any name: its sentence names it."""
    kind = rng.choice(("string", "string", "integer", "number", "boolean", "strings", "integers"))
    name = own_name(rng)
    value = _KINDS[kind](rng)
    choices: tuple[str, ...] = ()
    if kind == "string" and rng.random() < 0.35:
        kind = "enum"
        names = [
            rng.choice((invented, topic, colour, place))(rng) for _ in range(rng.randint(2, 5))
        ]
        choices = tuple(dict.fromkeys(names))
        value = rng.choice(choices)
    said = spaced(name, rng)
    pattern = rng.choice(
        ("the {n} is {v}", "{n}: {v}", "its {n} is {v}", "{n} = {v}", "a {n} of {v}")
    )
    return Fact(name, kind, value, pattern.format(n=said, v=spoken(value, rng)), choices)


def spaced(name: str, rng: random.Random) -> str:
    """Write the name of a field as words, or leave it."""
    if rng.random() < 0.3:
        return name
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name)
    return words.replace("_", " ").strip()


def draw_fact(rng: random.Random) -> Fact:
    """Draw one field."""
    if rng.random() < 0.4:
        return _own(rng)
    family = rng.choice(FAMILIES)
    name, value = rng.choice(family.names), family.draw(rng)
    if rng.random() < 0.2:
        sentence = f"{spaced(name, rng)}: {spoken(value, rng)}"
    else:
        said = rng.choice(family.said)
        if isinstance(value, bool):
            said = said.split("|")[not value]
        who = rng.choice(("he", "she", "it", "our guest", first_name(rng)))
        sentence = said.format(v=spoken(value, rng), who=who, key=spaced(name, rng))
    choices = list(family.choices)
    rng.shuffle(choices)
    return Fact(name, family.kind, value, sentence, tuple(choices))


def draw_facts(rng: random.Random, count: int) -> list[Fact]:
    """Draw fields of different names."""
    facts: dict[str, Fact] = {}
    while len(facts) < count:
        each = draw_fact(rng)
        facts.setdefault(each.name, each)
    return list(facts.values())


def schema_of_fact(fact: Fact, rng: random.Random) -> Schema:
    """Write the schema of a field, now and then with a title or a description."""
    simple = {"strings": "string", "integers": "integer", "numbers": "number"}
    schema: Schema = {}
    if rng.random() < 0.3:
        schema["title"] = fact.name.replace("_", " ").title()
    if rng.random() < 0.25:
        schema["description"] = f"The {spaced(fact.name, rng)}"
    if fact.kind in simple:
        schema |= {"type": "array", "items": {"type": simple[fact.kind]}}
    elif fact.kind == "enum":
        schema["enum"] = list(fact.choices)
        if rng.random() < 0.8:
            schema["type"] = "string"
    else:
        schema["type"] = fact.kind
    return schema


def sentences(facts: Sequence[Fact], rng: random.Random) -> str:
    """Write the facts as a text: sentences, one sentence, a list, or lines of names and values."""
    parts = [each.sentence for each in facts]
    if rng.random() < 0.3:
        rng.shuffle(parts)
    style = rng.random()
    if style < 0.45:
        return " ".join(f"{each[:1].upper()}{each[1:]}." for each in parts)
    if style < 0.75:
        text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
        return f"{text[:1].upper()}{text[1:]}."
    plain = [f"{spaced(each.name, rng)}: {spoken(each.value, rng)}" for each in facts]
    if style < 0.85:
        return "\n".join(rng.choice(("- ", "")) + each for each in plain)
    return (", " if style < 0.95 else "; ").join(plain)
