"""Short requests of every day: greetings, repetition, facts, questions, chats of some turns."""

from __future__ import annotations

import random
from collections.abc import Callable

from models import facts
from models.facts import DRAWN, draw_facts, invented, sentences, spaced
from models.forms import Messages

Turns = tuple[str, str]
_Make = Callable[[random.Random], Turns]

CAPITALS = DRAWN["capitals"]
WORDS = DRAWN["words"]
LANGUAGES = DRAWN["languages"]
OPPOSITES = DRAWN["opposites"]
KINDS = DRAWN["kinds"]
_ASKED = DRAWN["asked"]
_PLURALS = {"city": "cities"}
_COUNTS = DRAWN["counts"]
SEQUENCES = DRAWN["sequences"]
FIXED = DRAWN["fixed"]


def _fixed(rng: random.Random) -> Turns:
    asked, answer = rng.choice(FIXED)
    return rng.choice(asked.split("|")), answer


def phrase(rng: random.Random) -> str:
    """Draw a word or a few, known or not."""
    style = rng.random()
    if style < 0.3:
        return invented(rng)
    if style < 0.5:
        return rng.choice((facts.thing, facts.topic, facts.colour, facts.place, facts.first_name))(
            rng
        )
    if style < 0.6:
        return str(rng.choice((facts.code(rng), str(rng.randrange(10000)), *DRAWN["said"])))
    if style < 0.8:
        words = [
            rng.choice((facts.thing, facts.topic, facts.colour, facts.place))(rng) for _ in range(3)
        ]
        return " ".join(words[: rng.randint(2, 3)])
    return rng.choice((facts.errand, facts.title))(rng)


def _repeat(rng: random.Random) -> Turns:
    said = phrase(rng)
    asked = rng.choice(_ASKED["repeat"])
    return asked.format(p=said), said


def _capital(rng: random.Random) -> Turns:
    country = rng.choice([*CAPITALS])
    asked = rng.choice(_ASKED["capital"])
    answer = CAPITALS[country]
    if rng.random() < 0.4:
        answer = f"The capital of {country} is {answer}."
        asked = asked.replace("Name the", "In a sentence, name the").replace("Tell me", "Explain")
        asked = asked if asked[:2] in ("In", "Ex") else f"{asked} Answer in a sentence."
    return asked.format(c=country), answer


def _translate(rng: random.Random) -> Turns:
    word = rng.choice([*WORDS])
    n = rng.randrange(4)
    asked = rng.choice(_ASKED["translate"])
    return asked.format(w=word, l=LANGUAGES[n]), WORDS[word][n]


def _opposite(rng: random.Random) -> Turns:
    pair = list(rng.choice([*OPPOSITES.items()]))
    if rng.random() < 0.5 and len({*OPPOSITES.values()}) == len(OPPOSITES):
        pair.reverse()
    asked = rng.choice(_ASKED["opposite"])
    return asked.format(w=pair[0]), pair[1]


def _plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{kind}s")


def _list(rng: random.Random) -> Turns:
    kind = rng.choice([*KINDS])
    count = rng.randint(2, min(6, len(KINDS[kind])))
    number = rng.choice((_COUNTS[count], str(count)))
    asked = rng.choice(_ASKED["list"])
    words = KINDS[kind][:count]
    if rng.random() < 0.15:
        return f"{asked.format(n=number, k=_plural(kind))} One per line.", "\n".join(words)
    return asked.format(n=number, k=_plural(kind)), ", ".join(words)


def _name_one(rng: random.Random) -> Turns:
    kind = rng.choice([*KINDS])
    article = "an" if kind[0] in "aeiou" else "a"
    asked = rng.choice(_ASKED["name_one"])
    return asked.format(a=article, k=kind), KINDS[kind][0]


def _is_kind(rng: random.Random) -> Turns:
    kind, other = rng.sample([*KINDS], 2)
    word = rng.choice(KINDS[kind])
    right = rng.random() < 0.5
    asked = kind if right else other
    article = "an" if asked[0] in "aeiou" else "a"
    answer = "Yes" if right else "No"
    return rng.choice(_ASKED["is_kind"]).format(w=word, a=article, k=asked), answer


def _compare(rng: random.Random) -> Turns:
    a, b = rng.sample(range(100), 2)
    style = rng.random()
    if style < 0.5:
        more = rng.random() < 0.5
        word = (
            rng.choice(("greater", "larger", "bigger")) if more else rng.choice(("smaller", "less"))
        )
        return f"Is {a} {word} than {b}?", "Yes" if (a > b) == more else "No"
    word, top = ("larger", max(a, b)) if rng.random() < 0.6 else ("smaller", min(a, b))
    return rng.choice(
        (f"Which is {word}, {a} or {b}?", f"Which number is {word}: {a} or {b}?")
    ), str(top)


def _count_to(rng: random.Random) -> Turns:
    top = rng.choice((3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 12, 15, 20))
    first = 1 if rng.random() < 0.8 else rng.randint(2, 9)
    numbers = range(first, max(top, first + 2) + 1)
    asked = rng.choice(_ASKED["count_on" if first > 1 else "count_to"])
    return asked.format(f=first, n=numbers[-1]), ", ".join(map(str, numbers))


def _cases(rng: random.Random) -> Turns:
    word = rng.choice((invented(rng), rng.choice(facts.THINGS), facts.topic(rng), "hello"))
    if rng.random() < 0.7:
        asked = rng.choice(_ASKED["cases"])
        return asked.format(w=word), word.upper()
    asked = rng.choice(_ASKED["lowercase"])
    return asked.format(w=word.upper()), word


def _spell(rng: random.Random) -> Turns:
    word = invented(rng) if rng.random() < 0.6 else rng.choice(facts.THINGS)
    if rng.random() < 0.4:
        n, place = rng.choice(((0, "first"), (-1, "last")))
        return f"What is the {place} letter of {word}?", word[n]
    return rng.choice((f"Spell {word}.", f"Spell the word {word}.")), "-".join(word)


def _next(rng: random.Random) -> Turns:
    row = rng.choice(SEQUENCES)
    n = rng.randrange(len(row))
    after = rng.random() < 0.65
    asked, own = rng.choice(_ASKED["next"]), "next_day" if row is SEQUENCES[0] else "next_month"
    asked = rng.choice((asked, *_ASKED[own]))
    neighbour = row[(n + (1 if after else -1)) % len(row)]
    return asked.format(d="after" if after else "before", w=row[n]), neighbour


def _sentence(rng: random.Random) -> Turns:
    about = rng.choice(
        (facts.topic, facts.thing, lambda r: f"{facts.topic(r)} in {facts.place(r)}")
    )(rng)
    asked, answer = rng.choice(_ASKED["sentence"])
    return asked.format(t=about), answer.format(t=about)


def _question(rng: random.Random) -> Turns:
    drawn = draw_facts(rng, rng.choice((1, 2, 3)))
    chosen = rng.choice(drawn)
    text = sentences(drawn, rng)
    name = spaced(chosen.name, rng)
    asked = rng.choice(_ASKED["question"])
    return asked.format(t=text, n=name), spoken_value(chosen.value)


def spoken_value(value: object) -> str:
    """Write a value as a short answer."""
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _feeling(rng: random.Random) -> Turns:
    good = rng.random() < 0.5
    words = "love like enjoy adore" if good else "hate dislike regret"
    other = "great good wonderful excellent perfect" if good else "terrible bad awful poor broken"
    said = f"I {rng.choice(words.split())} this {facts.thing(rng)}."
    if rng.random() < 0.5:
        said = f"The {facts.thing(rng)} is {rng.choice(other.split())}."
    asked = rng.choice(_ASKED["feeling"])
    return asked.format(s=said), "positive" if good else "negative"


def _summary(rng: random.Random) -> Turns:
    drawn = draw_facts(rng, rng.choice((2, 3)))
    lines = [f"{each.sentence[:1].upper()}{each.sentence[1:]}." for each in drawn]
    asked = rng.choice(_ASKED["summary"])
    return asked.format(t=" ".join(lines)), lines[0]


def _little_sum(rng: random.Random) -> Turns:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return f"{a} times {b}", str(a * b)


MAKERS: tuple[tuple[float, _Make], ...] = (
    (4, _fixed),
    (3, _repeat),
    (1.5, _capital),
    (1.2, _translate),
    (0.6, _opposite),
    (1.2, _list),
    (0.6, _name_one),
    (0.6, _is_kind),
    (0.8, _compare),
    (0.9, _count_to),
    (0.9, _cases),
    (0.5, _spell),
    (0.6, _next),
    (1.2, _sentence),
    (2, _question),
    (0.6, _feeling),
    (0.5, _summary),
    (0.1, _little_sum),
)
_SYSTEMS = DRAWN["systems"]


def one(rng: random.Random) -> Turns:
    """Draw a request and its answer."""
    makers = [make for _, make in MAKERS]
    (make,) = rng.choices(makers, weights=[weight for weight, _ in MAKERS])
    return make(rng)


def _turns(turns: Turns) -> Messages:
    asked, replied = turns
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": replied}]


def _remembered(rng: random.Random) -> tuple[Messages, str]:
    """Draw a chat whose last question asks what an earlier turn told."""
    drawn = [facts.full_name(rng), facts.place(rng), facts.colour(rng), str(rng.randint(5, 90))]
    drawn += [facts.code(rng), str(rng.randint(1, 999)), facts.thing(rng)]
    known = zip(DRAWN["remembered"].items(), drawn, strict=True)
    (key, answer), value = rng.choice([*known])
    said = rng.choice(_ASKED["tells"]).format(k=key, v=value)
    messages = _turns((said, rng.choice(_ASKED["is_told"])))
    for _ in range(rng.choice((0, 0, 1, 2))):
        messages += _turns(one(rng))
    ask = rng.choice(_ASKED["remembered"]).format(k=key)
    messages.append({"role": "user", "content": ask})
    return messages, answer.format(v=value)


def everyday(rng: random.Random) -> tuple[Messages, str]:
    """Draw a chat and the answer to its last message."""
    messages: Messages = []
    style = rng.random()
    if style < 0.22:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    elif style < 0.25:
        name = facts.first_name(rng)
        system = rng.choice(_ASKED["named"]).format(n=name)
        ask = rng.choice(_ASKED["who"])
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": ask},
        ], f"I am {name}."
    elif style < 0.28:
        said = phrase(rng)
        system = rng.choice(_ASKED["always"])
        return [
            {"role": "system", "content": system.format(p=said)},
            {"role": "user", "content": one(rng)[0]},
        ], said
    if style > 0.93:
        more, answer = _remembered(rng)
        return messages + more, answer
    for _ in range(rng.choice((0,) * 8 + (1, 1, 2, 3))):
        messages += _turns(one(rng))
    asked, answer = one(rng)
    if rng.random() < 0.05:
        asked = asked.lower().rstrip(".") if answer.islower() else asked
    messages.append({"role": "user", "content": asked})
    return messages, answer
