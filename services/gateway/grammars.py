"""Grammars that clients ask for: read from their fields, checked before a worker sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from headway.errors import Code, HeadwayError
from headway.request import MAX_GRAMMAR_CHARS
from services.runtime.grammars import admitted, compile_grammar, first_line, load_tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# On one line: a model that only writes spaces comes to no end. Separators are regular expressions.
COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
_KEPT = 256
_MOST_STEPS = 128
_TRIED = 0.02
"""Seconds for which a new grammar is followed, as many tokens as that gives."""


class Grammar(NamedTuple):
    """A grammar in llguidance's form, and the field of the body that it comes from."""

    text: str
    param: str


def of_schema(schema: Any, param: str, *, lenient: bool = False) -> Grammar:
    """Return the grammar of JSON texts that fit a schema: an object, a boolean, or its JSON.

    ``lenient``: words that no grammar can express are left out.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        options: JsonCompileOptions = {**COMPACT, "lenient": lenient}
        made = LLMatcher.grammar_from_json_schema(text, overrides=options)
    except (ValueError, RecursionError) as error:
        raise _refusal(param, str(error)) from error
    return Grammar(made, param)


def of_regex(regex: str, param: str) -> Grammar:
    """Return the grammar of texts that match all of a regular expression."""
    return Grammar(LLMatcher.grammar_from_regex(regex), param)


def of_choice(choices: Sequence[str], param: str) -> Grammar:
    """Return the grammar that admits one of these texts."""
    rule = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return Grammar(LLMatcher.grammar_from_lark(f"start: {rule}"), param)


def of_rules(rules: str, param: str) -> Grammar:
    """Return a grammar written as Lark, or as GBNF (llama.cpp's and xgrammar's EBNF)."""
    try:
        return Grammar(LLMatcher.grammar_from_lark(any_to_lark(rules)), param)
    except Exception as error:  # for a rule that is missing the library raises just this
        raise _refusal(param, str(error)) from error


class MaskCost(NamedTuple):
    """Seconds that an output's grammar costs a worker: once, and for each token."""

    once: float = 0.0
    per_token: float = 0.0

    def seconds(self, num_tokens: float) -> float:
        """Return the seconds of an output of so many tokens."""
        return self.once + self.per_token * num_tokens


NO_COST = MaskCost()


class GrammarChecker:
    """A checker of grammars against the tokenizer of the served model; several threads use it."""

    def __init__(
        self, folder: Path, vocab_size: int, clock: Callable[[], float] = time.thread_time
    ) -> None:
        """``clock``: seconds that the calling thread has computed."""
        self._file = folder / "tokenizer.json"
        self._vocab_size = vocab_size
        self._clock = clock
        self._tokenizer: LLTokenizer | None = None
        self._good: dict[str, MaskCost] = {}  # newest last

    def check(self, grammar: Grammar) -> str:
        """Return the grammar's text; INVALID_ARGUMENT says why a worker could not follow it."""
        text = grammar.text
        if text in self._good:
            return text
        if len(text) > MAX_GRAMMAR_CHARS:
            limit = f"it has {len(text)} characters, and may have {MAX_GRAMMAR_CHARS}"
            raise _refusal(grammar.param, limit)
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._file, self._vocab_size, ())
        self._good[text] = self._cost(self._tokenizer, grammar)
        for oldest in [*self._good][:-_KEPT]:
            self._good.pop(oldest, None)
        return text

    def cost(self, text: str) -> MaskCost:
        """Return what a checked grammar costs a worker."""
        return self._good.get(text, NO_COST)

    def _cost(self, tokenizer: LLTokenizer, grammar: Grammar) -> MaskCost:
        """Follow a grammar for a while; INVALID_ARGUMENT where not even its first mask comes.

        Always the lowest token that it admits: answers that repeat themselves are dearest.
        """
        began_at = self._clock()
        matcher = compile_grammar(tokenizer, grammar.text)
        ready_at = self._clock()
        instants = [ready_at]
        while len(instants) <= _MOST_STEPS and instants[-1] - ready_at < _TRIED:
            mask = () if matcher.is_error() else admitted(matcher, tokenizer.vocab_size)
            if matcher.is_error():
                if len(instants) == 1:
                    raise _refusal(grammar.param, first_line(matcher.get_error()))
                break
            instants.append(self._clock())
            token_ids = np.flatnonzero(mask)
            goes_on = token_ids[token_ids != tokenizer.eos_token]
            if not len(goes_on) or matcher.is_stopped():
                break
            matcher.consume_token(int(goes_on[0]))
        num_last = max(1, (len(instants) - 1) // 4)  # masks get dearer as an answer grows
        per_token = (instants[-1] - instants[-1 - num_last]) / num_last
        return MaskCost(ready_at - began_at, per_token)


def _refusal(param: str, why: str) -> HeadwayError:
    message = f"{param} cannot be followed: {why}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)
