"""OpenAI's request bodies as pydantic models. A refusal names the field, its value and the limit.

Accepted beyond OpenAI's own: every field of ``SamplingParams`` (vLLM's ``top_k``, ``min_p`` and so
on), vLLM's ``chat_template_kwargs`` and ``return_token_ids``, and our own object ``headway``:
``{"pacing": false}`` switches the token pacer off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import Field, create_model

from headway.errors import Code, HeadwayError, invalid
from headway.request import MAX_LOGPROBS, SamplingParams
from services.gateway.api_call import ApiCall, ChatEnd, ChatInput, ReplyStyle
from services.gateway.auth import MAX_ID_CHARS, check_client_id
from services.gateway.openai.draws import Draws, bounds_of
from services.gateway.openai.formats import Form, grammar_of
from services.gateway.openai.messages import Conversation
from services.gateway.openai.offers import Offering, tools_of
from services.gateway.openai.sessions import SessionBody, session_of
from services.gateway.openai.shapes import (
    MAX_CHOICES,
    F,
    Fields,
    Neutral,
    Number,
    Prompts,
    StopIds,
    StopStrings,
    Text,
    TokenIds,
    Whole,
    read,
)

MAX_SALT_CHARS = 256
MAX_TEMPLATE_CHARS = 2**16
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Salt = Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)]
RequestId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
MAX_LOGPROBS_OF_CALL = 2**18
"""Log probabilities of an answer that does not stream: they are kept to its end, and written at
once."""
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions

# Accepted and without effect here: bookkeeping of OpenAI's platform, and names of libraries.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier"}
    | {"safety_identifier", "prompt_cache_retention"}
    | {"guided_decoding_backend"}
)
# Refused unless they ask for nothing: OpenAI's, vLLM's and SGLang's, as clients write defaults.
NEUTRAL: Neutral = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("low", "medium", "high"),  # a wish, which only its makers' models know
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "priority": (0,),
    "documents": ([],),
    "length_penalty": (1, 1.0),
    "spaces_between_special_tokens": (True, False),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "vllm_xargs": ({},),
    "min_new_tokens": (0,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    **dict.fromkeys(("use_beam_search", "early_stopping", "no_stop_trim"), (False,)),
    **dict.fromkeys(("return_hidden_states", "return_token_offsets"), (False,)),
    "routed_experts_prompt_start": (0,),
    "mm_payload": ("tensors",),
    "truncation_side": ("left",),
    **dict.fromkeys(("audio", "prediction", "web_search_options"), ()),
    "kv_transfer_params": ({},),
    **dict.fromkeys(("stop_regex", "lora_path", "session_params", "custom_logit_processor"), ()),
}
OF_STREAMS = frozenset({"include_obfuscation"})
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class StreamOptions(Fields):
    """The object ``stream_options``."""

    harmless: ClassVar[frozenset[str]] = OF_STREAMS
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_timings: bool = False


class Extension(Fields):
    """The object ``headway``. The others are fields of ``Request``, by the same names."""

    pacing: bool = True
    service_class: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, alias="class"
    )


class Stops(Fields):
    """The part of a body that ends an output."""

    stop: StopStrings = Field([])


class Body(Stops, Form, Draws, SessionBody):
    """The fields of both kinds of request; those of ``SamplingParams`` are added below."""

    harmless: ClassVar[frozenset[str]] = HARMLESS
    neutral: ClassVar[Neutral] = NEUTRAL
    model: Text
    n: Whole = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    max_completion_tokens: Whole | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    request_id: RequestId | None = None
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    headway: Extension | None = None


class ChatBody(Body, Conversation, Offering):
    """``POST /v1/chat/completions``."""

    neutral: ClassVar[Neutral] = {**NEUTRAL, "add_special_tokens": (False,)}
    chat_template_kwargs: dict[str, Any] = Field({})
    thinking_token_budget: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)] | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = None


class CompletionBody(Body):
    """``POST /v1/completions``."""

    neutral: ClassVar[Neutral] = {
        **NEUTRAL,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "add_special_tokens": (True,),
    }
    prompt: Text | TokenIds | Prompts
    echo: bool = False
    logprobs: Whole | None = None


_KINDS = {int: Whole, float: Number, bool: bool, tuple[int, ...]: StopIds}
_OURS = ("is_seeded",)  # follows from whether the client gave a seed
# A client asks for ``num_logprobs`` by other names.
_SAMPLING = {
    n: _KINDS[t]
    for n, t in get_type_hints(SamplingParams).items()
    if t in _KINDS and n not in _OURS
}


def _with_sampling(base: type[F]) -> type[F]:
    sampling: dict[str, Any] = {name: (kind, None) for name, kind in _SAMPLING.items()}
    return create_model(base.__name__, __base__=base, **sampling)


CHAT, COMPLETION = _with_sampling(ChatBody), _with_sampling(CompletionBody)


# --- reading --------------------------------------------------------------------------


def parse_chat(body: Mapping[str, Any]) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/chat/completions``."""
    fields = read(CHAT, body)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", fields.top_logprobs, "left out unless logprobs is true")
    num_logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    sampling = _sampling(fields, "top_logprobs", num_logprobs)
    offered = tools_of(fields)
    options = {
        **_options(fields, 1),
        "tools": offered.use,
        "thinking_budget": fields.thinking_token_budget,
        "reasoning_effort": fields.reasoning_effort or "",
    }
    if offered.grammar is not None:
        options["grammar"] = offered.grammar
    options["most_tokens"] = _most_tokens(fields, sampling, fields.n)
    inputs = (chat_input(fields, _template_options(fields), offered.described),)
    call = ApiCall(fields.model, inputs, sampling, split_reasoning=True, **options)
    return call, _style(fields, chat=True, logprobs=fields.logprobs)


def _template_options(fields: ChatBody) -> Mapping[str, Any]:
    """Return the template's options; an effort is one, and without any the model does not think."""
    effort = fields.reasoning_effort
    if effort is None:
        return fields.chat_template_kwargs
    thinks = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **thinks, **fields.chat_template_kwargs}


def chat_input(
    fields: ChatBody, options: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()
) -> ChatInput:
    """Return what the chat template gets."""
    prompts = fields.add_generation_prompt and "add_generation_prompt" in fields.model_fields_set
    if fields.continue_final_message and prompts:
        message = "a final message that goes on has no generation prompt: set it to false"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="add_generation_prompt")
    ending = ChatEnd.ANSWER if fields.add_generation_prompt else ChatEnd.MESSAGE
    return ChatInput(
        fields.messages,
        options,
        tools,
        ChatEnd.OPEN if fields.continue_final_message else ending,
        fields.chat_template or "",
    )


def parse_completion(body: Mapping[str, Any]) -> tuple[ApiCall, ReplyStyle]:
    """Read a body of ``POST /v1/completions``."""
    fields = read(COMPLETION, body)
    sampling = _sampling(fields, "logprobs", fields.logprobs)
    if fields.echo and fields.logprobs is not None:
        most = max(fields.logprobs, fields.prompt_logprobs or 0)
        sampling["num_prompt_logprobs"] = most
    prompt_alone = sampling.get("max_tokens") == 0
    if prompt_alone:  # the first token costs no pass of its own
        sampling["max_tokens"] = 1
    inputs = tuple(fields.prompt) if isinstance(fields.prompt, list) else (fields.prompt,)
    options = _options(fields, len(inputs))
    _most_tokens(fields, sampling, len(inputs) * fields.n)
    call = ApiCall(
        fields.model, inputs, sampling, default_max_tokens=COMPLETION_MAX_TOKENS, **options
    )
    style = _style(fields, chat=False, logprobs=fields.logprobs is not None)
    return call, replace(style, echo=fields.echo, prompt_alone=prompt_alone)


def _options(fields: Body, num_inputs: int) -> dict[str, Any]:
    """Return the fields of an ``ApiCall`` that both kinds of body give."""
    most = MAX_CHOICES // num_inputs
    if not 1 <= fields.n <= most:
        raise invalid("n", fields.n, f"from 1 to {most} for {num_inputs} prompts")
    grammar = grammar_of(fields)
    options: dict[str, Any] = {
        "num_choices": fields.n,
        "stops": tuple(fields.stop),
        "grammar": grammar,
        "bounds": bounds_of(fields, has_form=grammar is not None),
        "bad_words": tuple(fields.bad_words or ()),
        "keeps_stop": fields.include_stop_str_in_output,
        "shows_special": not fields.skip_special_tokens,
    }
    own: dict[str, Any] = {}
    if fields.headway is not None:
        own = fields.headway.model_dump(exclude_unset=True)
        options["paced"] = own.pop("pacing", True)
        options["service_class"] = own.pop("service_class", None) or ""
    if fields.cache_salt is not None:
        own["cache_salt"] = fields.cache_salt
    options["request_fields"], options["priority"] = own, fields.priority
    options["truncate"] = fields.truncate_prompt_tokens
    options["client_id"] = check_client_id(fields.request_id or "", "request_id")
    options["session"] = session_of(fields)
    return options


def _sampling(fields: Body, param: str, num_logprobs: int | None) -> dict[str, Any]:
    """Return the sampling fields of the body, by the names of ``SamplingParams``."""
    said, values = fields.model_fields_set, fields.__dict__
    chosen = {name: values[name] for name in _SAMPLING if name in said}
    if chosen.get("top_k") == -1:  # also off, in vLLM
        chosen["top_k"] = 0
    if "seed" in chosen:
        chosen["seed"] %= 2**64  # OpenAI allows negative ones
    old, new = chosen.get("max_tokens"), fields.max_completion_tokens
    if new is not None:
        if old not in (None, new):
            message = f"max_tokens is {old} and max_completion_tokens is {new}; give one of them"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_completion_tokens")
        chosen["max_tokens"] = new
    if num_logprobs is not None:
        if not 0 <= num_logprobs <= MAX_LOGPROBS:
            raise invalid(param, num_logprobs, f"from 0 to {MAX_LOGPROBS}")
        chosen["num_logprobs"] = num_logprobs
    if fields.prompt_logprobs is not None:
        chosen["num_prompt_logprobs"] = fields.prompt_logprobs
    return chosen


def _most_tokens(fields: Body, sampling: Mapping[str, Any], num_outputs: int) -> int:
    """Return how many tokens an output may have for its log probabilities, 0 for any number.

    INVALID_ARGUMENT where more are asked for.
    """
    count = sampling.get("num_logprobs")
    if count is None or fields.stream:
        return 0
    most: int = max(1, MAX_LOGPROBS_OF_CALL // (num_outputs * (1 + count)))
    asked = sampling.get("max_tokens", 0)
    if asked > most:
        message = (
            f"max_tokens is {asked}; with {1 + count} log probabilities of each token, "
            f"{num_outputs} outputs that do not stream may have {most}, for "
            f"{MAX_LOGPROBS_OF_CALL} together: stream, or ask for fewer"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_tokens")
    return most


def _style(fields: Body, *, chat: bool, logprobs: bool) -> ReplyStyle:
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise invalid("stream_options", options.model_dump(), "left out without stream")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", fields.prompt_logprobs, "left out where stream is true")
    timings = options is not None and options.include_timings
    usage = options is not None and (options.include_usage or timings)
    continuous = options is not None and usage and options.continuous_usage_stats
    return ReplyStyle(
        chat,
        fields.stream,
        usage,
        fields.return_token_ids,
        logprobs,
        prompt_logprobs=fields.prompt_logprobs is not None,
        continuous_usage=continuous,
        include_timings=timings,
        tokens_as_ids=fields.return_tokens_as_token_ids,
    )
