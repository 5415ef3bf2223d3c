"""From what a client asks to requests for the core: checked, tokenised, numbered."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.gateway.events import Submit
from headway.errors import Code, HeadwayError, invalid
from headway.request import SamplingParams
from services.gateway.asks import Ask, ChatInput, Input, complete_sampling, with_choice
from services.gateway.model_files import ModelFiles
from services.gateway.output_text import OutputText, ReasoningMarkers
from services.gateway.outputs import Output, Outputs, Reply
from services.gateway.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model that a gateway serves; ``max_model_len`` bounds prompt and output tokens."""

    files: ModelFiles
    codec: TextCodec
    max_model_len: int

    @property
    def name(self) -> str:
        """The name that clients call it by."""
        return self.files.name


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """One input, tokenised, with the parameters of its first choice."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams


class CallReply(Reply, Protocol):
    """A reply whose outputs are filled in before the first token comes."""

    outputs: list[Output]
    num_prompt_tokens: int
    ended: bool


class Calls:
    """Opens API calls. ``predict`` says how many output tokens a prompt of so many brings."""

    def __init__(
        self,
        model: ServedModel,
        outputs: Outputs,
        submit: Callable[[Submit], None],
        predict: Callable[[int], float],
    ) -> None:
        self.model = model
        self._outputs = outputs
        self._submit = submit
        self._predict = predict

    def prepare(self, ask: Ask) -> list[PreparedInput]:
        """Check and tokenise; may run in any thread. HeadwayError says what to change."""
        model = self.model
        if ask.model != model.name:
            message = f"model {ask.model!r} is not served here; this gateway serves {model.name!r}"
            raise HeadwayError(Code.NOT_FOUND, message, param="model")
        prepared = []
        for one in ask.inputs:
            token_ids = self._token_ids(one)
            sampling = complete_sampling(
                ask.sampling,
                model.files.sampling_defaults,
                default_max_tokens=ask.default_max_tokens or model.files.max_new_tokens,
                num_prompt_tokens=len(token_ids),
                max_model_len=model.max_model_len,
                seed=secrets.randbits(63),
            )
            prepared.append(PreparedInput(token_ids, sampling))
        return prepared

    def open(
        self,
        call_id: str,
        ask: Ask,
        prepared: Sequence[PreparedInput],
        reply: CallReply,
        *,
        arrival_at: float,
        keeps_tokens: bool,
        streams: bool,
    ) -> None:
        """Submit every output of the call; a refusal reaches the reply.

        Who does not stream reads nothing before the end, and a stop string has to be seen as soon
        as it is there: neither is paced.
        """
        submits: list[Submit] = []
        several = len(prepared) * ask.num_choices > 1
        for one in prepared:
            reply.num_prompt_tokens += len(one.token_ids)
            expected = self._predict(len(one.token_ids))
            for choice in range(ask.num_choices):
                index = len(submits)
                request_id = f"{call_id}-{index}" if several else call_id
                output = Output(
                    request_id,
                    index,
                    self._output_text(ask, one),
                    reply,
                    num_prompt_tokens=len(one.token_ids),
                    arrival_at=arrival_at,
                    keeps_tokens=keeps_tokens,
                    is_read=streams,
                    repeats_prompt=choice > 0,
                )
                reply.outputs.append(output)
                submits.append(
                    Submit(
                        request_id,
                        ask.model,
                        one.token_ids,
                        with_choice(one.sampling, choice),
                        arrival_at,
                        expected,
                        reasons=self._reasons(ask, one),
                        paced=ask.paced and streams and not ask.stops,
                    )
                )
        for output, submit in zip(list(reply.outputs), submits, strict=True):
            if reply.ended:  # an earlier one was refused
                return
            self._outputs.add(output)
            self._submit(submit)

    def _reasons(self, ask: Ask, one: PreparedInput) -> bool:
        """Whether reasoning that its reader is not shown comes before the answer."""
        markers = self.model.codec.markers if ask.split_reasoning else None
        return markers is not None and not markers.is_closed(
            one.token_ids, self.model.codec.special_ids
        )

    def _token_ids(self, one: Input) -> tuple[int, ...]:
        codec = self.model.codec
        if isinstance(one, tuple):
            codec.check_ids(one, "prompt")
            return one
        if isinstance(one, str):
            token_ids = codec.encode(one, add_special_tokens=True)
            if not token_ids:
                raise invalid("prompt", one, "at least one token long")
            return token_ids
        return codec.encode(self._render(one), add_special_tokens=False)

    def _render(self, chat: ChatInput) -> str:
        template = self.model.files.template
        if template is None:
            message = f"model {self.model.name!r} has no chat template; use /v1/completions"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="messages")
        return template.render(chat.messages, chat.template_options)

    def _output_text(self, ask: Ask, one: PreparedInput) -> OutputText:
        codec = self.model.codec
        markers: ReasoningMarkers | None = codec.markers if ask.split_reasoning else None
        return OutputText(
            codec.detokeniser(),
            ask.stops,
            one.sampling.min_tokens,
            markers,
            in_reasoning=markers is not None and markers.is_open(one.token_ids, codec.special_ids),
        )
