"""API calls as requests for the core: checked, tokenised, numbered."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.core.gateway.events import Submit
from headway.core.gateway.shares import Place, Places
from headway.errors import Code, HeadwayError, invalid
from headway.request import Request
from services.gateway.api_call import ApiCall, ChatInput, Input, complete_sampling, with_choice
from services.gateway.model_files import ModelFiles
from services.gateway.output_text import OutputText
from services.gateway.outputs import Output, Outputs, Reply
from services.gateway.reading import ReadingThreads
from services.gateway.tokenizer import TextCodec

_BYTES_PER_CHAR = 24  # six in JSON for each of four in UTF-8
_BYTES_PER_TOKEN = 128
_OTHER_FIELDS = 2**16
_UNKNOWN = 2**62


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model that a gateway serves; ``max_model_len`` bounds prompt and output tokens."""

    files: ModelFiles
    codec: TextCodec
    max_model_len: int

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
    ) -> None:
        self.model = model
        self._most_chars = model.codec.most_chars(model.max_model_len) or _UNKNOWN
        self.threads = threads
        self.let_go = outputs.let_go
        self._outputs = outputs
        self._submit = submit
        self._predict = predict
        self._places = places
        self._retry_after = retry_after

    def check_room(self, client: str) -> None:
        """Refuse a long request that its client may not open anyway, before it is read."""
        full = self._places.full(client)
        if full is not None:
            raise full.refusal(client, retry_after=self._retry_after())

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
        for one in call.inputs:
            token_ids = self._token_ids(one)
            sampling = complete_sampling(
                call.sampling,
                model.files.sampling_defaults,
                default_max_tokens=call.default_max_tokens or model.files.max_new_tokens,
                num_prompt_tokens=len(token_ids),
                max_model_len=model.max_model_len,
                seed=secrets.randbits(63),
            )
            expected, reasons = self._predict(len(token_ids)), self._reasons(call, token_ids)
            for choice in range(call.num_choices):
                request = Request(
                    f"{call_id}-{len(requests)}" if several else call_id,
                    call.model,
                    token_ids,
                    with_choice(sampling, choice),
                    arrival_at,
                    predicted_output_tokens=expected,
                    reasons=reasons,
                    **call.request_fields,
                )
                requests.append(request)
        return requests

    def open(self, call: ApiCall, requests: Sequence[Request], reply: Reply, client: str) -> None:
        """Submit every output of the call; pass a refusal to the reply.

        RESOURCE_EXHAUSTED where the client has too many requests: none is submitted.
        A client that does not stream reads nothing before the end. Stop strings have to be found
        as soon as they occur. Neither has a reader's clock, nor has a client that opted out.
        """
        full = self._places.take(client, len(requests))
        if full is not None:
            raise full.refusal(client, len(requests), retry_after=self._retry_after())
        for index, request in enumerate(requests):
            repeats = index % call.num_choices > 0
            if not repeats:
                reply.num_prompt_tokens += len(request.prompt_token_ids)
            text = self._output_text(call, request)
            place = Place(self._places, client)
            reply.outputs.append(Output(request, index, text, reply, place, repeats_prompt=repeats))
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

    def _token_ids(self, one: Input) -> tuple[int, ...]:
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
        return template.render(as_text(chat.messages), as_text(chat.template_options))

    def _output_text(self, call: ApiCall, request: Request) -> OutputText:
        codec = self.model.codec
        markers = codec.markers if call.split_reasoning else None
        prompt = request.prompt_token_ids
        return OutputText(
            codec.detokeniser(),
            call.stops,
            request.sampling.min_tokens,
            markers,
            in_reasoning=markers is not None and markers.is_open(prompt, codec.special_ids),
        )
