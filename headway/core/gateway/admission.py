"""Refusals of new requests, and the hint when to retry."""

from __future__ import annotations

from headway.core.gateway.settings import GatewaySettings
from headway.errors import Code, HeadwayError
from headway.request import Request


def refusal(
    request: Request, settings: GatewaySettings, num_waiting: int, retry_after: float
) -> HeadwayError | None:
    """Return why a new request is refused, or None.

    ``num_waiting``: requests without a first token; they have it in ``retry_after`` seconds.
    """
    num_prompt, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
    limit = settings.length_of(request.model)
    if num_prompt + max_tokens > limit:
        return over_context(num_prompt, max_tokens, limit)
    if num_waiting >= settings.max_waiting:
        return too_many_waiting(num_waiting, settings.max_waiting, retry_after)
    return None


def over_context(num_prompt: int, max_tokens: int, limit: int) -> HeadwayError:
    """Return the refusal of a request whose prompt and output exceed the model's ``limit``."""
    if num_prompt >= limit:
        param, said = "prompt", "shorten the prompt"
        asked = f"the prompt has {num_prompt} tokens"
    else:
        param, said = "max_tokens", f"ask for at most {limit - num_prompt}"
        asked = (
            f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}, together "
            f"{num_prompt + max_tokens}"
        )
    message = f"{asked}; prompt and output may have {limit} tokens here: {said}"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def too_many_waiting(num_waiting: int, limit: int, retry_after: float) -> HeadwayError:
    """Return the refusal while too many requests wait; ``retry_after`` in seconds."""
    message = (
        f"{num_waiting} requests are waiting for their first token, and at most {limit} may; "
        f"try again in {retry_after:.0f} s"
    )
    return HeadwayError(Code.RESOURCE_EXHAUSTED, message, retry_after=retry_after)


class FirstTokenPace:
    """The rate at which waiting requests get their first token: an average of recent gaps."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self._gap = 0.0  # seconds between first tokens; 0: unknown
        self._last_at: float | None = None

    def record(self, num_first: int, now: float) -> None:
        """Count requests that got their first token."""
        if self._last_at is not None:
            gap = (now - self._last_at) / num_first
            self._gap += (gap - self._gap) * self._weight if self._gap else gap
        self._last_at = now

    def time_for(self, num_waiting: int) -> float:
        """Return the seconds until that many requests have their first token, from 1 to 60."""
        return min(60.0, max(1.0, num_waiting * self._gap))
