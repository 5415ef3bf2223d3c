"""OpenAI's request bodies: checked by hand, refused by name.

Accepted beyond OpenAI's own: vLLM's ``top_k``, ``min_p``, ``repetition_penalty``, ``ignore_eos``,
``min_tokens``, ``stop_token_ids``, ``chat_template_kwargs`` and ``return_token_ids``; and
``headway``, our own: ``{"pacing": false}`` switches the token pacer off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import Code, HeadwayError, invalid
from headway.request import MAX_LOGPROBS
from services.gateway.asks import Ask, ChatInput, Input, ReplyStyle
from services.gateway.openai.fields import Fields, checked_text

MAX_CHOICES = 128  # inputs × n
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions

# Accepted and without effect here: bookkeeping of OpenAI's platform.
HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
# Refused, unless the value asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "prompt_logprobs": (0,),
    "guided_json": (),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def parse_chat(body: Mapping[str, Any]) -> tuple[Ask, ReplyStyle]:
    """``POST /v1/chat/completions``."""
    fields = Fields(body)
    messages = [chat_message(item, place) for place, item in enumerate(fields.items("messages"))]
    if not messages:
        raise invalid("messages", body.get("messages"), "a list of at least one message")
    options = fields.mapping("chat_template_kwargs")
    sampling = _sampling(fields)
    logprobs = fields.flag("logprobs")
    top_logprobs = fields.integer("top_logprobs")
    if top_logprobs is not None and not logprobs:
        raise invalid("top_logprobs", top_logprobs, "left out unless logprobs is true")
    if logprobs:
        sampling["num_logprobs"] = _num_logprobs("top_logprobs", top_logprobs or 0)
    asked = _ask(fields, (ChatInput(messages, options),), sampling)
    return asked, _style(fields, chat=True, logprobs=logprobs)


def parse_completion(body: Mapping[str, Any]) -> tuple[Ask, ReplyStyle]:
    """``POST /v1/completions``."""
    fields = Fields(body)
    inputs = _prompts(fields.any("prompt"))
    sampling = _sampling(fields)
    num_logprobs = fields.integer("logprobs")
    if num_logprobs is not None:
        sampling["num_logprobs"] = _num_logprobs("logprobs", num_logprobs)
    asked = _ask(fields, inputs, sampling)
    return asked, _style(fields, chat=False, logprobs=num_logprobs is not None)


def _ask(fields: Fields, inputs: tuple[Input, ...], sampling: dict[str, Any]) -> Ask:
    num_choices = fields.integer("n")
    num_choices = 1 if num_choices is None else num_choices
    if not 1 <= num_choices <= MAX_CHOICES // len(inputs):
        limit = f"from 1 to {MAX_CHOICES // len(inputs)} for {len(inputs)} prompts"
        raise invalid("n", num_choices, limit)
    chat = isinstance(inputs[0], ChatInput)
    return Ask(
        model=fields.text("model"),
        inputs=inputs,
        sampling=sampling,
        num_choices=num_choices,
        stops=stop_strings(fields.any("stop")),
        split_reasoning=chat,
        default_max_tokens=0 if chat else COMPLETION_MAX_TOKENS,
        paced=_paced(fields),
    )


def _paced(fields: Fields) -> bool:
    ours = Fields(fields.mapping("headway"), "headway")
    paced = ours.flag("pacing", default=True)
    ours.refuse_others((), {})
    return paced


def _style(fields: Fields, *, chat: bool, logprobs: bool) -> ReplyStyle:
    stream = fields.flag("stream")
    if "stream_options" in fields and not stream:
        raise invalid("stream_options", fields.any("stream_options"), "left out without stream")
    options = Fields(fields.mapping("stream_options"), "stream_options")
    style = ReplyStyle(
        chat=chat,
        stream=stream,
        include_usage=options.flag("include_usage"),
        return_token_ids=fields.flag("return_token_ids"),
        logprobs=logprobs,
    )
    options.refuse_others({"include_obfuscation"}, {"continuous_usage_stats": (False,)})
    fields.refuse_others(HARMLESS, NEUTRAL)
    return style


# --- inputs ---------------------------------------------------------------------------


def chat_message(item: Any, place: int) -> dict[str, Any]:
    """One message, as chat templates want it: text content, and a role that they know."""
    where = f"messages[{place}]"
    if not isinstance(item, dict):
        raise invalid(where, item, "an object with role and content")
    fields = Fields(item, where)
    role = fields.text("role")
    if role not in _ROLES:
        raise invalid(f"{where}.role", role, f"one of {', '.join(_ROLES)}")
    content = fields.any("content")
    if isinstance(content, list):
        content = "\n".join(
            _text_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)
        )
    elif not isinstance(content, str):
        raise invalid(f"{where}.content", content, "a string or a list of text parts")
    message: dict[str, Any] = {
        "role": _ROLES[role],
        "content": checked_text(content, f"{where}.content"),
    }
    for name in ("name", "reasoning_content"):
        if name in fields:
            message[name] = fields.text(name)
    # What a client sends back of our own earlier answers.
    fields.refuse_others({"refusal", "annotations"}, {"tool_calls": ([],), "audio": ()})
    return message


def _text_part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise invalid(f"{where}.type", kind, "'text': this model reads nothing else")
    return Fields(part, where).text("text")


def _prompts(prompt: Any) -> tuple[Input, ...]:
    """A string, token ids, or a list of either."""
    limit = "a string, a list of token ids, or a list of up to 128 of either"
    if isinstance(prompt, str):
        return (checked_text(prompt, "prompt"),)
    if not isinstance(prompt, list) or not prompt:
        raise invalid("prompt", prompt, limit)
    if all(type(entry) is int for entry in prompt):
        return (tuple(prompt),)
    if len(prompt) > MAX_CHOICES:
        raise invalid("prompt", f"a list of {len(prompt)}", limit)
    return tuple(_one_prompt(entry, f"prompt[{i}]") for i, entry in enumerate(prompt))


def _one_prompt(entry: Any, where: str) -> Input:
    if isinstance(entry, str):
        return checked_text(entry, where)
    if isinstance(entry, list) and entry and all(type(i) is int for i in entry):
        return tuple(entry)
    raise invalid(where, entry, "a string or a list of token ids")


# --- parameters -----------------------------------------------------------------------


def _sampling(fields: Fields) -> dict[str, Any]:
    """What the body says of sampling, by the names of ``SamplingParams``."""
    chosen: dict[str, Any] = {}
    for name in _NUMBERS:
        number = fields.number(name)
        if number is not None:
            chosen[name] = float(number)
    for name in ("min_tokens", "top_k", "seed"):
        integer = fields.integer(name)
        if integer is not None:
            chosen[name] = integer
    if chosen.get("top_k") == -1:  # vLLM's other word for off
        chosen["top_k"] = 0
    if "seed" in chosen:
        chosen["seed"] %= 2**64  # OpenAI allows negative ones
    if fields.flag("ignore_eos"):
        chosen["ignore_eos"] = True
    stop_token_ids = fields.items("stop_token_ids")
    if not all(type(i) is int and 0 <= i < 2**32 for i in stop_token_ids):
        raise invalid("stop_token_ids", stop_token_ids, "a list of token ids")
    if stop_token_ids:
        chosen["stop_token_ids"] = tuple(stop_token_ids)
    max_tokens = _max_tokens(fields)
    if max_tokens is not None:
        chosen["max_tokens"] = max_tokens
    return chosen


def _max_tokens(fields: Fields) -> int | None:
    old, new = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
    if old is not None and new is not None and old != new:
        message = f"max_tokens is {old} and max_completion_tokens is {new}; give one of them"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_completion_tokens")
    return old if new is None else new


def _num_logprobs(param: str, value: int) -> int:
    if not 0 <= value <= MAX_LOGPROBS:
        raise invalid(param, value, f"from 0 to {MAX_LOGPROBS}")
    return value


def stop_strings(stop: Any) -> tuple[str, ...]:
    """A string or a list of some."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid("stop", stop, f"a string or a list of at most {MAX_STOPS}")
    for entry in stops:
        if not isinstance(entry, str) or not 0 < len(entry) <= MAX_STOP_LENGTH:
            raise invalid("stop", entry, f"a string of 1 to {MAX_STOP_LENGTH} characters")
        checked_text(entry, "stop")
    return tuple(stops)
