"""Whole records in one sentence, as people write them: a person, a meeting, an order, a flight."""

from __future__ import annotations

import random

from models.facts import DRAWN, Fact, source, spoken


def draw_record(rng: random.Random) -> tuple[list[Fact], str]:
    """Draw a record: its fields in any order, and the text that tells them all."""
    fields_by_mark, sayings = rng.choice(DRAWN["records"])
    made = {mark: _drawn(field, rng) for mark, field in fields_by_mark.items()}
    text = rng.choice(sayings)
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


def _drawn(field: str | list[str], rng: random.Random) -> Fact:
    """Draw a field, given by its name or in full; its sentence is its value as spoken."""
    names, kind, drawn = DRAWN["record_fields"][field] if isinstance(field, str) else field
    value = source(drawn)(rng)
    return Fact(rng.choice(names.split()), kind, value, spoken(value, rng))
