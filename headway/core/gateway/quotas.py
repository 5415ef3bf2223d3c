"""Limits of a key: requests at once, requests that wait, and tokens a minute.

The tokens of a minute are a bucket that fills steadily. A request may begin while there are tokens
in it. It takes its prompt and its expected output at once, and its end corrects the output, so the
level may fall below 0. So tokens that are still to come bound what runs at once. Over time a key
has at most its tokens a minute, once at most a minute's and a request's more than that, and what
outputs had beyond what was expected of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.gateway.shares import Places
from headway.errors import Code, HeadwayError
from headway.request import Request
from headway.service_class import Quota

LIMIT_HEADERS = (
    *(f"x-ratelimit-{what}-requests" for what in ("limit", "remaining")),
    *(f"x-ratelimit-{what}-tokens" for what in ("limit", "remaining", "reset")),
)
"""OpenAI's headers on what a client may still do."""
_MINUTE = 60.0
_USUAL_OUTPUT = 256.0
"""Tokens that an output is taken for where nothing is known of its model's."""


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


def expected_output(request: Request) -> float:
    """Return the output tokens that a request takes of its minute when it begins."""
    expected = request.predicted_output_tokens or _USUAL_OUTPUT
    return min(float(request.sampling.max_tokens), expected)


class Quotas:
    """The limits of all keys, and what is left of them."""

    def __init__(self, places: Places) -> None:
        """Read open outputs and waiting ones from ``places``, which all clients share."""
        self._places = places
        self._buckets: dict[str, _Bucket] = {}

    def refusal(
        self, client: str, quota: Quota, num_outputs: int, retry_after: float, *, now: float
    ) -> HeadwayError | None:
        """Return why a client may not begin so many outputs now, or None; seconds.

        INVALID_ARGUMENT for more than it may ever have at once.
        """
        counts = (
            ("requests at once", self._places.open.held_by(client), quota.requests),
            ("requests that wait", self._places.waiting.held_by(client), quota.waiting),
        )
        for what, held, most in counts:
            if most and num_outputs > most:
                message = f"{client} may have {most} {what}, asks for {num_outputs}: ask for fewer"
                return HeadwayError(Code.INVALID_ARGUMENT, message, param="n")
            if most and held + num_outputs > most:
                message = f"{client} may have {most} {what}, has {held}, asks for {num_outputs}"
                return _refusal(message, retry_after)
        bucket = self._bucket(client, quota, now)
        if bucket is not None and bucket.level <= 0:
            wait = (1.0 - bucket.level) * _MINUTE / quota.tokens_per_minute
            message = f"{client} has used the {quota.tokens_per_minute} tokens of its minute"
            return _refusal(message, max(1.0, wait))
        return None

    def use(self, client: str, quota: Quota, num_tokens: float, *, now: float) -> None:
        """Take tokens that a client uses, or is expected to; below 0: give them back."""
        bucket = self._bucket(client, quota, now)
        if bucket is not None:
            bucket.level -= num_tokens  # ``_bucket`` bounds it

    def headers(self, client: str, quota: Quota, *, now: float) -> Sequence[tuple[str, str]]:
        """Return OpenAI's headers on a client's limits, none where it has none."""
        said: list[tuple[str, str]] = []
        if quota.requests:
            left = max(0, quota.requests - self._places.open.held_by(client))
            said += _said("requests", quota.requests, left)
        bucket = self._bucket(client, quota, now)
        if bucket is not None:
            most = quota.tokens_per_minute
            said += _said("tokens", most, max(0, int(bucket.level)))
            reset = (most - bucket.level) * _MINUTE / most
            said.append(("x-ratelimit-reset-tokens", f"{reset:.3f}s"))
        return said

    def _bucket(self, client: str, quota: Quota, now: float) -> _Bucket | None:
        """Return the client's bucket as it is now, None without a limit."""
        most = quota.tokens_per_minute
        if not most:
            self._buckets.pop(client, None)
            return None
        bucket = self._buckets.setdefault(client, _Bucket(float(most), now))
        gained = max(0.0, now - bucket.at) * most / _MINUTE
        bucket.level, bucket.at = min(float(most), bucket.level + gained), now
        return bucket


def _said(what: str, most: int, left: int) -> list[tuple[str, str]]:
    names = (f"x-ratelimit-limit-{what}", f"x-ratelimit-remaining-{what}")
    return list(zip(names, (str(most), str(left)), strict=True))


def _refusal(message: str, retry_after: float) -> HeadwayError:
    text = f"{message}: end some, or try again in {retry_after:.0f} s"
    return HeadwayError(Code.RESOURCE_EXHAUSTED, text, retry_after=retry_after)
