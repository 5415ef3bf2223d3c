"""Lines of the log: outputs that end, what each cost and how long it took, and who asks in vain."""

from __future__ import annotations

from typing import Any

from headway.core.settings import stages_without_classes
from headway.errors import HeadwayError
from headway.life.record import LifeRecord
from services.gateway.config import GatewayConfig
from services.gateway.outputs import Output
from services.gateway.spans import open_spans
from services.runtime.log_limit import LogLimit


class RequestLog:
    """The log of requests that ended or were refused, and the sender of their spans, if any."""

    def __init__(self, config: GatewayConfig, log: Any) -> None:
        """HeadwayError where spans are to be sent and cannot be."""
        self._log = log
        self._is_on = config.access_log
        self._has_keys = config.api_key_file is not None
        self._strangers = LogLimit()
        self._spans = open_spans(config.otlp_traces_endpoint, config.service_id)
        self._idle_stages = stages_without_classes(config.chosen())

    def class_used(self) -> None:
        """Log, once, where classes have no effect with this preset."""
        stages, self._idle_stages = self._idle_stages, []
        if stages:
            self._log.warning("classes_without_effect", stages=", ".join(stages))

    def ended(self, output: Output, end: str, life: LifeRecord | None, now: float) -> None:
        """Log an output, and send its spans."""
        if self._spans is not None:
            self._spans.ended(output.request_id, life)
        if self._is_on:
            self._log.info("request_ended", **access_line(output, end, life, now))

    def refused(
        self, client: str, path: str, error: HeadwayError, now: float, *, is_known: bool
    ) -> None:
        """Log who asked in vain; few lines of those who showed no key."""
        if not (self._is_on or self._has_keys):
            return
        held_back = 0 if is_known and self._has_keys else self._strangers.take(now)
        if held_back is not None:
            self._log.info(
                "request_refused",
                client=client,
                path=path[:80],
                code=error.code.value,
                **({"num_held_back": held_back} if held_back else {}),
            )

    def follow(self, request_id: str, traceparent: str) -> None:
        """Let a request belong to its client's trace, if traces are sent."""
        if self._spans is not None:
            self._spans.follow(request_id, traceparent)

    async def close(self) -> None:
        """Send the spans that are queued."""
        if self._spans is not None:
            await self._spans.close()


def access_line(output: Output, end: str, life: LifeRecord | None, now: float) -> dict[str, Any]:
    """Return the fields; never what was said. Times are in seconds, None where there is none.

    ``end``: ``stop``, ``length``, ``cancelled`` or the code of an error.
    """
    standing, text, arrival_at = output.standing, output.text, output.arrival_at
    first_at = output.first_at if text.num_tokens else None
    answered_at = output.answered_at[0] if output.answered_at else None
    tpot = None
    if first_at is not None and text.num_tokens > 1:
        tpot = (now - first_at) / (text.num_tokens - 1)
    return {
        "request_id": output.request_id,
        "client": output.place.client,
        "model": output.adapter or output.model,
        "status": end,
        "class": standing.service.name if standing.service is not None else "",
        "tenant": standing.tenant,
        "num_prompt_tokens": output.num_prompt_tokens,
        "num_cached_tokens": output.num_cached_tokens,
        "num_output_tokens": text.num_tokens,
        "num_reasoning_tokens": text.num_reasoning_tokens,
        "ttft": _rounded(None if first_at is None else first_at - arrival_at),
        "ttfat": _rounded(None if answered_at is None else answered_at - arrival_at),
        "tpot": _rounded(tpot),
        "duration": _rounded(now - arrival_at),
        "workers": list(life.workers) if life is not None else [],
        **({"session_id": life.session_id, "turn": life.turn} if life and life.session_id else {}),
        **({"error": life.error} if life is not None and life.error else {}),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
