"""API calls as requests for the core: checked, tokenised, numbered."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.gateway.events import Submit
from headway.core.gateway.quotas import Quotas
from headway.core.gateway.shares import Place, Places
from headway.core.reasoning import EFFORTS
from headway.errors import Code, HeadwayError, invalid
from headway.request import BadWord, Constraints, Request
from headway.service_class import NO_STANDING, ServiceClasses, Standing
from services.gateway.api_call import ApiCall, ChatInput, Input, complete_sampling, with_choice
from services.gateway.auth import KeyRing
from services.gateway.grammars import Grammar, GrammarChecker
from services.gateway.model_files import ModelFiles
from services.gateway.output_text import OutputText
from services.gateway.outputs import Output, Outputs, Reply
from services.gateway.reading import ReadingThreads
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import Format, ToolReader
from services.gateway.tool_calls.offered import grammar_of_offer

_BYTES_PER_CHAR = 24  # six in JSON for each of four in UTF-8
_BYTES_PER_TOKEN = 128
_OTHER_FIELDS = 2**16
_UNKNOWN = 2**62
_MOST_SCORES = 100_000
"""Log probabilities of a call's prompts: a request's come in one message, of 4 MiB at most."""
_TOKEN_IDS = {"biased_token_ids": "logit_bias", "allowed_token_ids": "allowed_token_ids"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model that a gateway serves; ``max_model_len`` bounds prompt and output tokens."""

    files: ModelFiles
    codec: TextCodec
    max_model_len: int
    tool_format: Format
    trusts_templates: bool = False
    """True if clients may bring chat templates of their own."""

    def most_body_bytes(self, num_prompts: int) -> int:
        """Return the longest JSON body whose prompts could fit the model.

        A character takes at most six bytes of JSON per byte of its own (``\\u0041``). A token of
        a chat may come with a whole message around it, and a body with fields besides.
        """
        num_chars = self.codec.most_chars(self.max_model_len)
        if num_chars is None:
            return _UNKNOWN
        per_prompt = max(_BYTES_PER_CHAR * num_chars, _BYTES_PER_TOKEN * self.max_model_len)
        return _OTHER_FIELDS + num_prompts * per_prompt

    @property
    def name(self) -> str:
        """The name that clients call it by."""
        return self.files.name

    def fingerprint(self) -> str:
        """Return OpenAI's ``system_fingerprint``: the same for the same model and limits."""
        said = f"{self.name}:{self.max_model_len}:{self.codec.vocab_size}"
        return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:10]}"


class Calls:
    """The opener of API calls.

    ``predict`` gives the expected output tokens for a prompt's length. Long prompts are prepared in
    ``threads``: the loop stays free for tokens. ``retry_after`` is the advice, in seconds, to a
    client with too many requests.
    """

    def __init__(
        self,
        model: ServedModel,
        outputs: Outputs,
        submit: Callable[[Submit], None],
        predict: Callable[[int], float],
        threads: ReadingThreads,
        places: Places,
        retry_after: Callable[[], float],
        keys: KeyRing,
        classes: ServiceClasses,
        now: Callable[[], float],
    ) -> None:
        self.model = model
        self.quotas = Quotas(places)
        self._keys = keys
        self._classes = classes
        self._now = now
        self._most_chars = model.codec.most_chars(model.max_model_len) or _UNKNOWN
        self.threads = threads
        self.let_go = outputs.let_go
        self._outputs = outputs
        self._submit = submit
        self._predict = predict
        self._places = places
        self._retry_after = retry_after
        self._grammars = GrammarChecker(model.files.folder, model.codec.vocab_size)

    def num_open(self) -> int:
        """Return how many outputs wait or are generated."""
        return len(self._outputs)

    def check_room(self, client: str) -> None:
        """Refuse a long request that its client may not open anyway, before it is read."""
        full = self._places.full(client)
        if full is not None:
            raise full.refusal(client, retry_after=self._retry_after())
        self._check_quota(client, 1)

    def _check_quota(self, client: str, num_outputs: int) -> None:
        quota, retry_after = self._keys.of_client(client).quota, self._retry_after()
        refused = self.quotas.refusal(client, quota, num_outputs, retry_after, now=self._now())
        if refused is not None:
            raise refused

    def limits(self, client: str) -> Sequence[tuple[str, str]]:
        """Return the headers on what a client may still do."""
        return self.quotas.headers(client, self._keys.of_client(client).quota, now=self._now())

    def ended(self, output: Output) -> None:
        """Count the tokens of an output that has ended for its client's minute."""
        client = output.place.client
        quota = self._keys.of_client(client).quota
        self.quotas.use(client, quota, output.text.num_tokens, now=self._now())

    def _standing(self, call: ApiCall, client: str) -> Standing:
        """Return whom a call counts for, and the class that it asks for, or its key."""
        key, classes = self._keys.of_client(client), self._classes
        if call.service_class or call.priority is None:
            service = classes.find(call.service_class or key.service_class or classes.default)
        else:
            service = classes.of_priority(call.priority)
        return Standing(key.tenant, key.share, service)

    def prepare(self, call: ApiCall, call_id: str, arrival_at: float) -> list[Request]:
        """Check and tokenise; return a request for every output. It may run in any thread.

        HeadwayError says what to change.
        """
        model = self.model
        if call.model != model.name:
            message = f"model {call.model!r} is not served here; this gateway serves {model.name!r}"
            raise HeadwayError(Code.NOT_FOUND, message, param="model")
        several = len(call.inputs) * call.num_choices > 1
        requests: list[Request] = []
        num_scores = 0
        for one in call.inputs:
            token_ids = self.token_ids(one)
            constraints = self._constraints(call, token_ids)
            sampling = complete_sampling(
                call.sampling
                if constraints is None
                else {**call.sampling, "constraints": constraints},
                model.files.sampling_defaults,
                default_max_tokens=call.default_max_tokens or model.files.max_new_tokens,
                num_prompt_tokens=len(token_ids),
                max_model_len=model.max_model_len,
                seed=secrets.randbits(63),
            )
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
                    call.model,
                    token_ids,
                    with_choice(sampling, choice),
                    arrival_at,
                    predicted_output_tokens=expected,
                    reasons=reasons,
                    **fields,
                )
                requests.append(request)
        return requests

    def open(self, call: ApiCall, requests: Sequence[Request], reply: Reply, client: str) -> None:
        """Submit every output of the call; pass a refusal to the reply.

        RESOURCE_EXHAUSTED where the client has too many requests: none is submitted.
        A client that does not stream reads nothing before the end. Stop strings have to be found
        as soon as they occur. Neither has a reader's clock, nor has a client that opted out.
        """
        standing = self._standing(call, client)
        if standing != NO_STANDING:
            requests = [replace(request, standing=standing) for request in requests]
        self._check_quota(client, len(requests))
        full = self._places.take(client, len(requests))
        if full is not None:
            raise full.refusal(client, len(requests), retry_after=self._retry_after())
        quota = self._keys.of_client(client).quota
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self.quotas.use(client, quota, num_tokens, now=self._now())
        for index, request in enumerate(requests):
            repeats = index % call.num_choices > 0
            if not repeats:
                reply.num_prompt_tokens += len(request.prompt_token_ids)
            text = self._output_text(call, request)
            place = Place(self._places, client)
            output = Output(request, index, text, reply, place, repeats_prompt=repeats)
            reply.outputs.append(output)
        is_read = call.paced and reply.streams and not call.stops
        for output, request in zip(list(reply.outputs), requests, strict=True):
            if reply.ended:  # an earlier one was refused
                output.place.end()
                continue
            self._outputs.add(output)
            self._submit(Submit(request, is_read))

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
        is_strict = any(tool.get("strict") for tool in offered)
        if not offered or not (is_strict or call.grammar):
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
        found = {
            encode(as_text(spelled), add_special_tokens=False): None
            for word in words
            for spelled in (word, f" {word.lstrip()}")
        }
        return {"bad_words": tuple(BadWord(ids) for ids in found)} if found else {}

    def _budget(self, call: ApiCall) -> int | None:
        """Return the most tokens of reasoning; an effort counts unless the template reads it."""
        template = self.model.files.template
        if call.thinking_budget is not None or (template is not None and template.reads_effort):
            return call.thinking_budget
        return EFFORTS.get(call.reasoning_effort)

    def token_ids(self, one: Input) -> tuple[int, ...]:
        """Return an input's tokens; INVALID_ARGUMENT where it has none, or too many."""
        codec = self.model.codec
        if isinstance(one, tuple):
            codec.check_ids(one, "prompt")
            return one
        if isinstance(one, str):
            self._check_length(one)
            token_ids = codec.encode(codec.as_text(one), add_special_tokens=True)
            if not token_ids:
                raise invalid("prompt", one, "at least one token long")
            return token_ids
        text = self._render(one)
        self._check_length(text)
        return codec.encode(text, add_special_tokens=False)

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
        if chat.template and chat.template != template.source:
            if not self.model.trusts_templates:
                message = "chat_template needs a gateway with --trust-request-chat-template"
                raise HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template")
            template = template.other(chat.template)
        return template.render(
            as_text(chat.messages),
            as_text(chat.template_options),
            as_text(chat.tools),
            chat.ending,
        )

    def _output_text(self, call: ApiCall, request: Request) -> OutputText:
        codec = self.model.codec
        markers = codec.markers if call.split_reasoning else None
        prompt = request.prompt_token_ids
        form = None
        if call.tools is not None:
            form = call.tools.form or self.model.tool_format
        shown: Sequence[str] = form.markers if form is not None else ()
        if call.shows_special:
            shown = codec.special_texts
        return OutputText(
            codec.detokeniser(shown),
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
