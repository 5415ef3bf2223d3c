"""The calls for one model as requests: checked, rendered, tokenised and numbered."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import ceil
from time import thread_time
from typing import Any

from headway.core.gateway.admission import over_context
from headway.core.gateway.quotas import expected_output
from headway.core.reasoning import EFFORTS
from headway.errors import Code, HeadwayError, invalid
from headway.request import BadWord, Constraints, Request
from services.gateway.api_call import ApiCall, ChatInput, Input, complete_sampling, with_choice
from services.gateway.grammars import Grammar, GrammarChecker
from services.gateway.openai.foreign_template import render_foreign
from services.gateway.output_text import OutputText
from services.gateway.reading import INLINE_BYTES
from services.gateway.served_model import UNKNOWN, ServedModel
from services.gateway.tool_calls import Format, ToolReader
from services.gateway.tool_calls.offered import grammar_of_offer

_MOST_SCORES = 100_000
"""Log probabilities of a call's prompts: a request's come in one message, of 4 MiB at most."""
_MOST_BOUNDS = 2**17
"""Tokens that the bounds of a call's draws may name, for all its outputs together: each output
goes to the leader and to its worker with them."""
_SLOW_RENDER = 0.02
"""Seconds of a processor for a short chat: a template that takes more is rendered in a thread."""
_RENDERS_KEPT = 4  # one that is slow by chance does not count
_TOKEN_IDS = {"biased_token_ids": "logit_bias", "allowed_token_ids": "allowed_token_ids"}


class Preparation:
    """The way from a call to requests of one model; several threads use it.

    ``predict`` gives the expected output tokens for a prompt's length.
    """

    def __init__(self, model: ServedModel, predict: Callable[[int], float]) -> None:
        self.model = model
        self._predict = predict
        self._most_chars = model.codec.most_chars(model.max_model_len) or UNKNOWN
        self._grammars = GrammarChecker(model.files.folder, model.codec.vocab_size)
        self._render_seconds = 0.0
        """Seconds of a processor that the template takes for a short chat, of late."""

    @property
    def renders_slowly(self) -> bool:
        """True if the model's template would hold up the event loop."""
        return self._render_seconds > _SLOW_RENDER

    def is_slow(self, call: ApiCall) -> bool:
        """Return whether it may take long: a grammar, a slow template, or a client's own."""
        if call.needs_grammar:
            return True
        chats = [one for one in call.inputs if isinstance(one, ChatInput)]
        return bool(chats) and (self.renders_slowly or any(map(self._has_own_template, chats)))

    def prepare(self, call: ApiCall, call_id: str, arrival_at: float) -> list[Request]:
        """Check and tokenise; return a request for every output. It may run in any thread.

        HeadwayError says what to change.
        """
        model = self.model
        several = len(call.inputs) * call.num_choices > 1
        requests: list[Request] = []
        num_scores = 0
        for one in call.inputs:
            token_ids = self.token_ids(one, self._most_tokens(call))
            constraints = self._constraints(call, token_ids)
            _require_few_bounds(constraints, len(call.inputs) * call.num_choices)
            sampling = complete_sampling(
                call.sampling
                if constraints is None
                else {**call.sampling, "constraints": constraints},
                model.files.sampling_defaults,
                default_max_tokens=_default_tokens(call, model.files.max_new_tokens),
                num_prompt_tokens=len(token_ids),
                max_model_len=model.max_model_len,
                seed=secrets.randbits(63),
                fills_context=call.fills_context,
            )
            if (
                len(token_ids) + sampling.max_tokens > model.max_model_len
            ):  # it costs its key nothing
                raise over_context(len(token_ids), sampling.max_tokens, model.max_model_len)
            expected = min(self._predict(len(token_ids)), sampling.max_tokens)
            reasons = self._reasons(call, token_ids)
            fields, count = call.request_fields, sampling.num_prompt_logprobs
            if count is not None:
                num_scores += len(token_ids) * (1 + count) * call.num_choices
                _require_few(num_scores)
            for choice in range(call.num_choices):
                if count is not None:  # cached tokens have no logits, not even another choice's
                    fields = {**fields, "cache_salt": secrets.token_hex(16)}
                request = Request(
                    f"{call_id}-{len(requests)}" if several else call_id,
                    model.name,
                    token_ids,
                    with_choice(sampling, choice),
                    arrival_at,
                    predicted_output_tokens=expected,
                    reasons=reasons,
                    adapter=model.adapter(call.model),
                    **fields,
                )
                requests.append(request)
        return requests

    def mask_ms(self, request: Request) -> int:
        """Return the milliseconds of masks that a request is expected to cost its worker."""
        sampling = request.sampling
        grammar = sampling.constraints.grammar if sampling.constraints is not None else ""
        least = sampling.max_tokens if sampling.ignore_eos else sampling.min_tokens
        num_tokens = max(expected_output(request), least)
        return ceil(1000 * self._grammars.cost(grammar).seconds(num_tokens))

    def _reasons(self, call: ApiCall, prompt: Sequence[int]) -> bool:
        """Return whether hidden reasoning comes before the answer."""
        markers = self.model.codec.markers if call.split_reasoning else None
        return markers is not None and not markers.is_closed(prompt, self.model.codec.special_ids)

    def _constraints(self, call: ApiCall, prompt: Sequence[int]) -> Constraints | None:
        """Return what bounds the draws; a grammar holds after the reasoning."""
        bounds = {**call.bounds, **self._bad_words(call.bad_words)}
        for name, param in _TOKEN_IDS.items():
            self.model.codec.check_ids(bounds.get(name, ()), param)
        grammar = self._grammar(call)
        if grammar is not None:
            bounds["grammar"] = self._grammars.check(grammar)
        markers, budget = self.model.codec.markers, self._budget(call)
        if markers is not None and self._reasons(call, prompt) and (grammar or budget is not None):
            is_open = markers.is_open(prompt, self.model.codec.special_ids)
            bounds["reasoning_start"] = () if is_open else markers.start
            bounds |= {"reasoning_end": markers.end, "reasoning_budget": budget}
        return Constraints(**bounds) if bounds else None

    def _grammar(self, call: ApiCall) -> Grammar | None:
        """Return the form of the answer, with the calls that it may have instead."""
        offered = () if call.tools is None else call.tools.offered
        if not offered or not call.needs_grammar:
            return call.grammar
        frame = self.model.tool_format.frame
        if frame is not None:
            return grammar_of_offer(frame, offered, call.grammar)
        if call.grammar is None:
            return None
        message = "this model's calls have no grammar: leave out tools, or the answer's form"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="tools")

    def _bad_words(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the tokens of each word, also after a space (as in vLLM)."""
        encode, as_text = self.model.codec.encode, self.model.codec.as_text
        token_ids = {
            encode(as_text(spelled), add_special_tokens=False): None
            for word in words
            for spelled in (word, f" {word.lstrip()}")
        }
        return {"bad_words": tuple(BadWord(ids) for ids in token_ids)} if token_ids else {}

    def _budget(self, call: ApiCall) -> int | None:
        """Return the most tokens of reasoning; an effort counts unless the template reads it."""
        template = self.model.files.template
        if call.thinking_budget is not None or (template is not None and template.reads_effort):
            return call.thinking_budget
        return EFFORTS.get(call.reasoning_effort)

    def _most_tokens(self, call: ApiCall) -> int:
        """Return the number of last tokens of a prompt that are kept, 0 for all of them."""
        limit, most = self.model.max_model_len, call.truncate
        if most == -1:
            return max(1, limit - int(call.sampling.get("max_tokens", 1)))
        if most is not None and not 1 <= most <= limit:
            raise invalid("truncate_prompt_tokens", most, f"-1, or from 1 to {limit}")
        return most or 0

    def token_ids(self, one: Input, most: int = 0) -> tuple[int, ...]:
        """Return an input's tokens, its last ``most``, or all of them where that is 0.

        INVALID_ARGUMENT where it has none, or too many.
        """
        codec = self.model.codec
        if isinstance(one, tuple):
            codec.check_ids(one, "prompt")
            return one[-most:]
        text = codec.as_text(one) if isinstance(one, str) else self._render(one)
        if most:  # what is too long to fit is not tokenised
            text = text[-self._most_chars :]
        else:
            self._check_length(one if isinstance(one, str) else text)
        token_ids = codec.encode(text, add_special_tokens=isinstance(one, str))
        if not token_ids and isinstance(one, str):
            raise invalid("prompt", one, "at least one token long")
        return token_ids[-most:]

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit the model before it is tokenised."""
        if len(text) > self._most_chars:
            limit = self.model.max_model_len
            num_tokens = len(text) * limit // self._most_chars
            message = (
                f"the prompt has {len(text)} characters, that is at least {num_tokens} tokens; "
                f"prompt and output may have {limit} tokens here: shorten the prompt"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="prompt")

    def _render(self, chat: ChatInput) -> str:
        template = self.model.files.template
        if template is None:
            message = f"model {self.model.name!r} has no chat template; use /v1/completions"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="messages")
        as_text = self.model.codec.as_text
        is_own = self._has_own_template(chat)
        if is_own and not self.model.trusts_templates:
            message = "chat_template needs a gateway with --trust-request-chat-template"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template")
        asked = (
            as_text(chat.messages),
            as_text(chat.template_options),
            as_text(chat.tools),
            chat.ending,
        )
        if is_own:
            return render_foreign(chat.template, template.special_tokens, *asked)
        began_at = thread_time()
        try:
            text = template.render(*asked)
        except HeadwayError:  # of a render that fails the length is what it was given
            self._note_render(thread_time() - began_at, len(repr(asked)))
            raise
        self._note_render(thread_time() - began_at, len(text))
        return text

    def _note_render(self, seconds: float, num_chars: int) -> None:
        of_short = seconds * INLINE_BYTES / max(num_chars, INLINE_BYTES)
        self._render_seconds += (of_short - self._render_seconds) / _RENDERS_KEPT

    def _has_own_template(self, chat: ChatInput) -> bool:
        template = self.model.files.template
        return bool(chat.template) and template is not None and chat.template != template.source

    def _form(self, call: ApiCall) -> Format | None:
        """Return the format that answers are read in; None: they are text."""
        own = self.model.tool_format
        if call.tools is not None:
            return call.tools.form or own
        is_free = call.split_reasoning and call.grammar is None  # a grammar admits no channels
        return own if own.has_channels and is_free else None

    def output_text(self, call: ApiCall, request: Request) -> OutputText:
        """Return the reader of what the model writes."""
        codec = self.model.codec
        markers = codec.markers if call.split_reasoning else None
        prompt = request.prompt_token_ids
        form = self._form(call)
        specials: Sequence[str] = form.markers if form is not None else ()
        if call.shows_special:
            specials = codec.special_texts
        return OutputText(
            codec.detokeniser(specials),
            call.stops,
            request.sampling.min_tokens,
            markers,
            in_reasoning=markers is not None and markers.is_open(prompt, codec.special_ids),
            tools=None if form is None else ToolReader(form),
            several_calls=call.tools is None or call.tools.several,
            keeps_stop=call.keeps_stop,
        )


def _require_few(num_scores: int) -> None:
    """Raise HeadwayError for more log probabilities of prompts than one call may have."""
    if num_scores > _MOST_SCORES:
        message = (
            f"{num_scores} log probabilities of prompts are asked for; a call may have at most "
            f"{_MOST_SCORES}: ask for fewer of each token, or with fewer or shorter prompts"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="prompt_logprobs")


def _default_tokens(call: ApiCall, of_model: int) -> int:
    """Return the limit on output tokens where the client gives none; 0: as many as fit."""
    limits = (call.default_max_tokens or of_model, call.most_tokens)
    return min(filter(None, limits), default=0)


def _require_few_bounds(constraints: Constraints | None, num_outputs: int) -> None:
    """Raise HeadwayError where the draws' bounds name more tokens than one call may."""
    if constraints is None:
        return
    named = len(constraints.biased_token_ids) + len(constraints.allowed_token_ids)
    named += sum(len(word.token_ids) for word in constraints.bad_words)
    if named * num_outputs > _MOST_BOUNDS:
        message = (
            f"logit_bias, allowed_token_ids and bad_words name {named} tokens for each of "
            f"{num_outputs} outputs; a call may have {_MOST_BOUNDS} of them together: name fewer, "
            "or ask for fewer outputs"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="n")
