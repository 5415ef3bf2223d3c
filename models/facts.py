"""Invented records: fields with a name, a kind, a value, and a sentence that tells the value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
Source = Callable[[random.Random], Any]
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


def several(each: Source) -> Callable[[random.Random], list[Any]]:
    """Return a source of lists of different values."""

    def drawn(rng: random.Random) -> list[Any]:
        wanted, values = rng.choice((1, 2, 2, 3, 3, 4, 5)), []
        for _ in range(wanted):
            value = each(rng)
            if value not in values:
                values.append(value)
        return values

    return drawn


@dataclass(frozen=True)
class FieldFamily:
    """Fields of like meaning: possible names, kind, values, sentences (``{v}``, ``{who}``)."""

    names: Sequence[str]
    kind: str
    draw: Source
    said: Sequence[str]
    choices: Sequence[str]


SOURCES: dict[str, Source] = {
    **{
        each.__name__: each
        for each in (full_name, first_name, place, country, email, company, thing, colour, date)
    },
    **{each.__name__: each for each in (clock, title, errand, code, topic, invented)},
    "yes": lambda rng: rng.random() < 0.5,
    "phone": lambda rng: f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
    "extension": lambda rng: f"555-{rng.randint(100, 9999):04d}",
    "zip": lambda rng: f"{rng.randint(10_000, 99_999)}",
    "street": lambda rng: (
        f"{rng.randint(1, 999)} {rng.choice((*_LAST, 'Main', 'Oak', 'High'))} "
        f"{rng.choice(('Street', 'Road', 'Avenue', 'Lane'))}"
    ),
    "expression": lambda rng: f"{rng.randint(1, 99)} {rng.choice('+-*/')} {rng.randint(1, 99)}",
    "query": lambda rng: f"{topic(rng)} in {place(rng)}",
    "symbol": lambda rng: "".join(
        rng.choice("ABCDEFGHKLMNPRSTX") for _ in range(rng.randint(2, 4))
    ),
    "path": lambda rng: f"{invented(rng)}.{rng.choice(('txt', 'md', 'py', 'json'))}",
}


def source(text: str) -> Source:
    """Return the source of a table: ``place``, ``integer 1 99``, ``word jobs``, ``several topic``.

    ``of a b c`` draws one of these words; ``word`` one of a list of ``DRAWN``.
    """
    name, *rest = text.split()
    if name == "integer":
        return integer(*map(int, rest))
    if name == "decimal":
        return decimal(*map(int, rest))
    if name == "several":
        return several(source(" ".join(rest)))
    if name in ("of", "word"):
        return one_of(*(rest if name == "of" else DRAWN[rest[0]]))
    return SOURCES[name]


FAMILIES = [
    FieldFamily(
        names.split(), kind, source(drawn), said, drawn.split()[1:] if kind == "enum" else []
    )
    for names, kind, drawn, said in DRAWN["families"]
]
_OWN_NOUNS = DRAWN["own_nouns"]
_KINDS: dict[str, Source] = {
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
