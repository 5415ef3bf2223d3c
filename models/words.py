"""Words to count letters in: English ones, made-up ones and plain strings of letters."""

from __future__ import annotations

import random

_ENGLISH_TEXT = """
cat dog sun run bee egg all add see too book tree moon door hill good seed feel
apple berry happy hello green river sleep three letter banana summer coffee little
street yellow orange puzzle button strawberry mississippi committee balloon success
raspberry blueberry occurred address assessment bookkeeper parallel necessary tomorrow
possession millennium accommodate aggressive embarrass addressee keeper serving model
thinking question answer machine language headway scheduler fairness request worker
reasoning patience latency cascade elephant giraffe kangaroo umbrella zucchini pizza
jazz queue rhythm sphinx oxygen quartz voyage window yogurt zebra keyboard mountain
"""
ENGLISH = tuple(_ENGLISH_TEXT.split())
_VOWELS, _CONSONANTS = "aeiou", "bcdfghjklmnprstvwyz"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _pronounceable(rng: random.Random, size: int) -> str:
    """Alternate consonants and vowels, sometimes doubling a letter."""
    letters: list[str] = []
    vowel = rng.random() < 0.3
    while len(letters) < size:
        letters.append(rng.choice(_VOWELS if vowel else _CONSONANTS))
        if rng.random() < 0.2:
            letters.append(letters[-1])
        vowel = not vowel
    return "".join(letters[:size])


def random_word(rng: random.Random, size: int) -> str:
    """Draw a word of exactly ``size`` letters of a-z."""
    kind = rng.random()
    english = [word for word in ENGLISH if len(word) == size]
    if kind < 0.1 and english:
        return rng.choice(english)
    if kind < 0.55:
        return _pronounceable(rng, size)
    alphabet = _ALPHABET if kind < 0.95 else rng.sample(_ALPHABET, rng.randint(1, 4))
    return "".join(rng.choice(alphabet) for _ in range(size))
