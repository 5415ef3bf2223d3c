"""A planning engine that is an OpenAI endpoint: token ids out, token ids in, one stream each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from math import inf
from typing import Any, NamedTuple

import aiohttp
import httpx

from headway.engine import Drawn, EngineInfo, EngineStepped
from headway.errors import Code, HeadwayError
from headway.request import FinishReason, Request, StreamKey
from services.runtime.essential import essential
from services.runtime.logs import get_logger
from services.runtime.watchdog import end_process
from services.worker.config import WorkerConfig
from services.worker.openai.bodies import completion_body, read_drawn
from services.worker.openai.endpoint import KnownEndpoint, examine, parse_args

_GATHER = 0.001
"""Seconds: the tokens that arrive within them count as one forward pass's."""
_PAUSE = 0.5  # seconds before an endpoint that did not answer is asked again
_LONGEST_LINE, _LONGEST_ERROR = 1 << 20, 500  # bytes
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = (400, 413, 422)
_LOSSES = (
    "order, preemption and chunks inside the engine are its own, but for a request's priority",
    "ends of forward passes are guessed from tokens that arrive together",
    "KV neither leaves nor arrives: requests move by their tokens alone",
    "tenants share the window alone: the endpoint does not divide its passes among them",
    "no hidden states: remaining lengths are estimated from counts",
    "a sampled output that is resumed goes on with other draws",
    "no response formats, bad words, thinking budgets or log probabilities of prompts",
)


class _Break(NamedTuple):
    """Why a stream broke before its request's end."""

    reason: str
    status: int = 0
    """The endpoint's HTTP status; 0 if it did not answer."""


class OpenAIEngine:
    """A ``headway.engine.PlanningEngine`` over HTTP.

    A stream that breaks is resumed after its tokens. An endpoint that stays silent for its patience
    ends this process (``gone``): other workers then take its requests over. One that answers a
    request without tokens for as long ends that request alone.
    """

    def __init__(
        self,
        endpoint: KnownEndpoint,
        block_size: int,
        gone: Callable[[str], Any] = lambda url: end_process("endpoint_is_gone", url=url),
    ) -> None:
        self._endpoint = endpoint
        self._gone = gone
        self.info = EngineInfo(
            num_blocks=max(1, endpoint.capacity_tokens // block_size),
            num_host_blocks=0,
            block_size=block_size,
            kv_bytes_per_token=0,
            max_model_len=endpoint.max_model_len,
            eos_token_ids=endpoint.eos_token_ids,
            dtype="unknown",
            kernels=endpoint.args.url,
            kv_layout="",
        )
        self._log = get_logger()
        self._tasks: dict[StreamKey, asyncio.Task[None]] = {}
        self._drawn: list[Drawn] = []
        self._last = self._heard = 0.0
        self._watching: asyncio.Task[Any]
        self._stepped: Callable[[EngineStepped], None]
        self._client: aiohttp.ClientSession

    @property
    def losses(self) -> Sequence[str]:
        """See ``PlanningEngine.losses``."""
        losses = list(_LOSSES)
        if not self._endpoint.takes_priority:
            losses[0] = "it takes no priority: its own order is first come, first served"
        if not self._endpoint.takes_salt:
            losses.append("it takes no cache_salt: requests with one are refused")
        return losses

    def start(self, stepped: Callable[[EngineStepped], None]) -> None:
        """See ``PlanningEngine.start``."""
        self._stepped = stepped
        args = self._endpoint.args
        trusted = httpx.create_ssl_context()  # as the endpoint was examined
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted),
            headers=args.headers(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=args.patience),
            trust_env=True,
        )
        self._watching = essential(self._watch(), "endpoint watch", may_return=True)

    async def watch(self, least: float) -> None:
        """Return at once: its patience with the endpoint is an option of its own."""

    def add(self, request: Request, priority: int) -> None:
        """See ``PlanningEngine.add``."""
        if not self._tasks:
            self._last = self._heard = _now()
        task = asyncio.create_task(self._serve(request, priority))
        self._tasks[request.key] = task

    def abort(self, key: StreamKey) -> None:
        """See ``PlanningEngine.abort``; the endpoint notices that its stream is closed."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def tune(self, gamma: float) -> None:
        """See ``PlanningEngine.tune``: a priority stays as it was sent."""

    async def close(self) -> None:
        """See ``PlanningEngine.close``."""
        tasks = [self._watching, *self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    # --- one request ------------------------------------------------------------------

    async def _serve(self, request: Request, priority: int) -> None:
        """Follow a request to its end, over as many streams as that takes."""
        output, patience = list(request.output_token_ids), self._endpoint.args.patience
        silent_since = stuck_since = inf
        try:
            while True:
                began_at, num_before = _now(), len(output)
                body = completion_body(self._endpoint, request, output, priority)
                broken = await self._stream(request, body, output)
                if broken is None:
                    return
                now = _now()
                silent_since = now if broken.status else min(silent_since, began_at)
                stuck_since = now if len(output) > num_before else min(stuck_since, now)
                others_hear = now - self._heard < patience / 2
                if now - silent_since > patience and not others_hear:
                    self._log.error("endpoint_does_not_answer", problem=broken.reason)
                    self._gone(self._endpoint.args.url)
                    return
                if now - stuck_since > patience and (broken.status or others_hear):
                    raise _stuck(broken, patience)
                await asyncio.sleep(_PAUSE)
        except HeadwayError as error:
            self._fail(request.key, error.message, error.code.value, error.code)
        except Exception as error:
            self._fail(request.key, "the endpoint sent an answer that cannot be read", error)
        finally:
            if self._tasks.get(request.key) is asyncio.current_task():
                del self._tasks[request.key]

    async def _stream(
        self, request: Request, body: Mapping[str, Any], output: list[int]
    ) -> _Break | None:
        """Read one stream to its end; return None, or why it broke before the request's end."""
        status = 0
        try:
            async with self._request("POST", "/v1/completions", json=body) as reply:
                status = reply.status
                if status in _BUSY:
                    return _Break(f"the endpoint answered {status}", status)
                if status != 200:
                    text = await reply.content.read(_LONGEST_ERROR)
                    self._refused(request.key, status, text.decode(errors="replace"))
                    return None
                async for line in self._lines(reply):
                    if not line.startswith(b"data: {"):
                        continue
                    if self._take(request, json.loads(line[6:]), output):
                        return None
        except (aiohttp.ClientError, OSError) as error:
            return _Break(repr(error), status)
        return _Break("its stream ended before its request", status)

    async def _lines(self, reply: aiohttp.ClientResponse) -> AsyncIterator[bytearray]:
        """Yield the lines of a reply; HeadwayError for one that does not end."""
        rest = bytearray()
        async for piece in reply.content.iter_any():
            self._heard = _now()
            rest += piece
            if b"\n" in piece:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield line
            if len(rest) > _LONGEST_LINE:
                message = f"the endpoint sent a line of more than {_LONGEST_LINE} bytes"
                raise HeadwayError(Code.INTERNAL, message)

    def _take(self, request: Request, event: Mapping[str, Any], output: list[int]) -> bool:
        """Take one event of a stream; return whether the request has ended with it."""
        if "error" in event:
            told = str(event["error"])[:_LONGEST_ERROR]
            self._fail(request.key, "the endpoint failed while it computed this request", told)
            return True
        for choice in event.get("choices", ()):
            most = request.sampling.max_tokens - len(output)
            drawn = read_drawn(choice, request.key, most, self._endpoint.vocab_size)
            if drawn is not None:
                output += drawn.token_ids
                self._say(drawn)
                if drawn.finish_reason is not None:
                    return True
        return False

    def _refused(self, key: StreamKey, status: int, text: str) -> None:
        """End a request that the endpoint has refused; the log alone has the endpoint's words."""
        message, code = f"the endpoint answered {status}", Code.INTERNAL
        if status in _REFUSALS:
            message += ": it does not take this request's parameters; the worker's log says why"
            code = Code.INVALID_ARGUMENT
        self._fail(key, message, text, code)

    def _fail(
        self, key: StreamKey, message: str, details: str | Exception, code: Code = Code.INTERNAL
    ) -> None:
        """End a request; its client reads the message, and the log has the details, too."""
        told = {"exc_info" if isinstance(details, Exception) else "details": details}
        self._log.error("endpoint_failed_request", stream_id=key.stream_id, problem=message, **told)
        self._say(Drawn(key, (), FinishReason.ERROR, message=message, code=code))

    # --- the endpoint -----------------------------------------------------------------

    def _request(
        self, method: str, path: str, **options: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = self._endpoint.args.root + path
        return self._client.request(method, url, allow_redirects=False, **options)

    async def _watch(self) -> None:
        """Ask the endpoint whether it is there when all streams are silent; give it up if not."""
        patience = self._endpoint.args.patience
        while True:
            await asyncio.sleep(patience / 4)
            if not self._tasks or _now() - self._heard < patience:
                continue
            with suppress(aiohttp.ClientError, OSError):
                async with (
                    asyncio.timeout(patience),
                    self._request("GET", "/v1/models") as reply,
                ):
                    if reply.status < 500:
                        self._heard = _now()
                        continue
            self._log.error("endpoint_does_not_answer", problem="it is silent")
            self._gone(self._endpoint.args.url)
            return

    # --- passes -----------------------------------------------------------------------

    def _say(self, drawn: Drawn) -> None:
        if not self._drawn:
            asyncio.get_running_loop().call_later(_GATHER, self._step)
        self._drawn.append(drawn)

    def _step(self) -> None:
        drawn, self._drawn = self._drawn, []
        last, self._last = self._last, _now()
        self._stepped(EngineStepped(max(0.0, self._last - last), tuple(drawn)))


def _stuck(broken: _Break, patience: float) -> HeadwayError:
    """Return the error of a request that an endpoint has answered without tokens for so long."""
    if broken.status in (200, 500):  # the request may be the cause: not too many attempts
        message = f"the endpoint has broken off every attempt for {patience:g} s"
        return HeadwayError(Code.INTERNAL, message)
    what = f"answered {broken.status}" if broken.status else "not taken this request"
    message = f"the endpoint has {what} for {patience:g} s: try again later"
    return HeadwayError(Code.UNAVAILABLE, message)


def _now() -> float:
    return asyncio.get_running_loop().time()


def load(config: WorkerConfig) -> OpenAIEngine:
    """Find the endpoint of ``--engine-args``; HeadwayError where it cannot be used."""
    args = parse_args(config.engine_args)
    endpoint = examine(args, config.model, config.max_model_len)
    return OpenAIEngine(endpoint, config.tokens_per_block)
