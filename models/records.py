"""Whole records in one sentence, as people write them: a person, a meeting, an order, a flight."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from models import facts
from models.facts import DRAWN, Fact, several, spoken

_Draw = Callable[[random.Random], Any]


class _Field(NamedTuple):
    names: str
    kind: str
    draw: _Draw
    choices: str = ""


class _Record(NamedTuple):
    """Fields by their marks in the sentences; ``a|b`` in a sentence: if a boolean holds, if not."""

    fields: Mapping[str, _Field]
    said: tuple[str, ...]


_S, _I, _N, _B, _L = "string", "integer", "number", "boolean", "strings"
_DAYS = facts.one_of(*facts.DAYS, "today", "tomorrow")
_EVENT = facts.one_of(*DRAWN["events"])
_WORK = facts.one_of(*DRAWN["jobs"])
_FOOD = facts.one_of(*DRAWN["food"])
_PERSON = _Field("name name name full_name person", _S, facts.full_name)
_AGE = _Field("age age age years", _I, facts.integer(1, 99))
_CITY = _Field("city city town location", _S, facts.place)
_STREET = _Field(
    "street address",
    _S,
    lambda rng: (
        f"{rng.randint(1, 999)} {rng.choice((*DRAWN['last'], 'Main', 'Oak', 'High'))} "
        f"{rng.choice(('Street', 'Road', 'Avenue', 'Lane'))}"
    ),
)
_ZIP = _Field("zip zip_code postal_code", _S, lambda rng: f"{rng.randint(10_000, 99_999)}")
_PRICE = _Field("price price cost amount", _N, facts.decimal(900))
_THING = _Field("name product item product_name", _S, facts.thing)
_COUNT = _Field("quantity count number", _I, facts.integer(1, 99))
_EMAIL = _Field("email email mail", _S, facts.email)
_PHONE = _Field("phone phone_number", _S, lambda rng: f"555-{rng.randint(100, 9999):04d}")


def _yes(names: str) -> _Field:
    return _Field(names, _B, lambda rng: rng.random() < 0.5)


_RECORDS = (
    _Record(
        {"n": _PERSON, "a": _AGE},
        (
            "{n} is {a} years old.",
            "{n} is {a}.",
            "My name is {n} and I am {a}.",
            "My name is {n}. I am {a} years old.",
            "I'm {n}, {a} years old.",
            "{n}, {a}",
            "{n} ({a})",
            "{n} just turned {a}.",
            "{n}, aged {a}, won the prize.",
            "This is {n}, a {a}-year-old.",
            "At {a}, {n} runs every day.",
        ),
    ),
    _Record(
        {"n": _PERSON, "a": _AGE, "c": _CITY},
        (
            "{n}, {a}, lives in {c}.",
            "{n} is {a} years old and lives in {c}.",
            "{n} is {a} and comes from {c}.",
            "I am {n}, {a}, from {c}.",
            "{n} from {c} is {a} years old.",
        ),
    ),
    _Record(
        {"n": _PERSON, "j": _Field("job occupation profession role", _S, _WORK)},
        ("{n} is a {j}.", "{n} works as a {j}.", "I am {n}, a {j}.", "Our {j} is {n}."),
    ),
    _Record(
        {"n": _PERSON, "a": _AGE, "j": _Field("job occupation profession", _S, _WORK)},
        (
            "{n} is a {a}-year-old {j}.",
            "{n}, a {j}, is {a} years old.",
            "{n} is {a} and works as a {j}.",
        ),
    ),
    _Record(
        {
            "e": _Field("name event title event_name", _S, _EVENT),
            "d": _Field("date day when", _S, _DAYS),
            "p": _Field("participants people attendees guests", _L, several(facts.first_name)),
        },
        (
            "{p} are going to a {e} on {d}.",
            "{p} meet for a {e} on {d}.",
            "On {d} there is a {e} with {p}.",
            "{e} on {d}: {p}",
            "{p} will be at the {e} on {d}.",
        ),
    ),
    _Record(
        {
            "e": _Field("title event name topic", _S, _EVENT),
            "d": _Field("date day", _S, _DAYS),
            "t": _Field("time start hour", _S, facts.clock),
        },
        ("{e} on {d} at {t}.", "The {e} is {d} at {t}.", "On {d} at {t} we have a {e}."),
    ),
    _Record(
        {"n": _THING, "p": _PRICE, "s": _yes("in_stock available")},
        (
            "The {n} costs {p} dollars and is |not |in stock.",
            "{n}: ${p}, ||not |in stock.",
            "You can buy the {n} for {p} euros; it is |not |available.",
        ),
    ),
    _Record(
        {"n": _THING, "p": _PRICE},
        (
            "The {n} costs {p} dollars.",
            "A {n} for {p} euros.",
            "I paid ${p} for a {n}.",
            "The price of the {n} is {p}.",
            "{n} - {p} USD",
        ),
    ),
    _Record(
        {"q": _COUNT, "n": _THING},
        (
            "I want to order {q} of the {n}.",
            "{q} x {n}",
            "Please send {q} pieces of the {n}.",
            "We need {q} units of the {n}.",
        ),
    ),
    _Record(
        {"s": _STREET, "c": _CITY, "z": _ZIP},
        (
            "Ship it to {s}, {c}, {z}.",
            "{s}, {z} {c}",
            "{s}, {c} {z}",
            "I live at {s} in {c}, {z}.",
            "The address is {s}, {c}, {z}.",
            "Send the parcel to {s}, {z} {c}.",
        ),
    ),
    _Record(
        {"n": _PERSON, "e": _EMAIL},
        (
            "Contact: {n}, {e}",
            "{n} <{e}>",
            "You reach {n} at {e}.",
            "Write to {n} ({e}).",
            "{n}'s email is {e}.",
        ),
    ),
    _Record(
        {"n": _PERSON, "e": _EMAIL, "p": _PHONE},
        ("{n}, {e}, {p}", "Call {n} at {p} or write to {e}.", "{n}: {p}, {e}"),
    ),
    _Record(
        {
            "a": _Field("origin from departure from_city", _S, facts.place),
            "b": _Field("destination to arrival to_city", _S, facts.place),
            "d": _Field("date day", _S, _DAYS),
        },
        (
            "Book a flight from {a} to {b} on {d}.",
            "I want to go from {a} to {b} on {d}.",
            "A train to {b} from {a}, on {d}.",
            "{d}: {a} to {b}",
        ),
    ),
    _Record(
        {
            "t": _Field("title movie book name", _S, facts.title),
            "y": _Field("year published", _I, facts.integer(1900, 2030)),
            "w": _Field("author director writer", _S, facts.full_name),
        },
        (
            "{t} ({y}) by {w}",
            "{w} made {t} in {y}.",
            "The film {t} of {y} is by {w}.",
            "{t} was written by {w} in {y}.",
        ),
    ),
    _Record(
        {
            "t": _Field("title movie book", _S, facts.title),
            "r": _Field("rating stars", _I, facts.integer(1, 10)),
        },
        ("I give {t} {r} stars.", "{t}: {r}/10", "{t} gets {r} of 10."),
    ),
    _Record(
        {
            "t": _Field("title dish name recipe", _S, _FOOD),
            "i": _Field("ingredients", _L, several(_FOOD)),
            "m": _Field("minutes time_minutes duration", _I, facts.integer(5, 90)),
        },
        (
            "For {t} you need {i}. It takes {m} minutes.",
            "{t}: {i}, {m} min",
            "Make {t} from {i} in {m} minutes.",
        ),
    ),
    _Record(
        {
            "c": _CITY,
            "t": _Field("temperature degrees temp", _N, facts.decimal(40)),
            "w": _Field("condition weather", _S, facts.one_of("sunny", "rainy", "cloudy", "windy")),
        },
        (
            "It is {t} degrees and {w} in {c}.",
            "{c}: {t} degrees, {w}.",
            "In {c} it is {w} at {t} degrees.",
        ),
    ),
    _Record(
        {"n": _PERSON, "c": _Field("company employer", _S, facts.company)},
        ("{n} works at {c}.", "{n} of {c}", "I am {n} from {c}.", "{c} hired {n}."),
    ),
)


def draw_record(rng: random.Random) -> tuple[list[Fact], str]:
    """Draw a record: its fields in any order, and the text that tells them all."""
    record = rng.choice(_RECORDS)
    made = {mark: _drawn(field, rng) for mark, field in record.fields.items()}
    text = rng.choice(record.said)
    for each in made.values():
        if isinstance(each.value, bool):
            before, said, after = _parted(text)
            text = before + ("" if each.value else said) + after
    text = text.format(**{mark: each.sentence for mark, each in made.items()})
    fields = list({each.name: each for each in made.values()}.values())
    if rng.random() < 0.3:
        rng.shuffle(fields)
    return fields, text


def _parted(text: str) -> tuple[str, str, str]:
    """Return what stands before, within and behind a mark of what is said if it does not hold."""
    before, _, rest = text.partition("|")
    said, _, after = rest.rpartition("|")
    return before, said.replace("|", ""), after


def _drawn(field: _Field, rng: random.Random) -> Fact:
    """Draw a field; its sentence is its value as spoken."""
    value = field.draw(rng)
    return Fact(rng.choice(field.names.split()), field.kind, value, spoken(value, rng))
