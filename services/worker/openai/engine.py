"""A planning engine that is OpenAI endpoints: token ids out, token ids in, one stream each.

Where a stream goes the picker's core decides, over the same watch of endpoints as the picker's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple

import aiohttp
import httpx

from headway.cluster import Adapter
from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    Pick,
    PickAsked,
    PickerSettings,
    Responded,
    Scraped,
    Silence,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.engine import Drawn, EngineInfo, EngineStepped
from headway.errors import Code, HeadwayError
from headway.policies.packing.flow_control import FlowControl
from headway.request import FinishReason, Request, StreamKey, TokenLogprobs
from services.endpoints.choosing import WatchIntervals, choosing_settings
from services.endpoints.http_client import is_packed, open_client
from services.endpoints.pool import EndpointPool
from services.runtime.clock import Clock
from services.runtime.essential import end_tasks, essential
from services.runtime.logs import get_logger
from services.runtime.watchdog import end_process
from services.worker.config import WorkerConfig
from services.worker.openai.bodies import (
    completion_body,
    read_drawn,
    read_scores,
    scores_body,
    with_scores,
)
from services.worker.openai.endpoint import KnownEndpoint, examine_first, parse_args, root_of

_GATHER = 0.001
"""Seconds: the tokens that arrive within them count as one forward pass's."""
_PAUSE = 0.5  # seconds before an endpoint that did not answer is asked again
_IDLE = 2.0  # seconds: vLLM closes what is idle for 5, perhaps just as a request comes
_FACTOR = 10.0
"""A token may take so many times what the endpoint has taken for others."""
_NEW = 0.1
"""Weight of a new gap between tokens in their mean."""
_LONGEST_LINE, _LONGEST_ERROR, _LONGEST_SCORES = 1 << 20, 500, 1 << 25  # bytes
_UNABLE = (502, 503, 504)
"""Statuses of an endpoint that cannot serve: others are tried until it answers a scrape."""
_NO_LIMIT = 1 << 30
"""Requests, cycles and seconds of its window: who waits too long, the scheduler has the word on."""
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = (400, 413, 422)
_LOSSES = (
    "order, preemption and chunks inside the engine are its own, but for a request's priority",
    "ends of forward passes are guessed from tokens that arrive together",
    "KV neither leaves nor arrives: requests move by their tokens alone",
    "tenants share the window alone: the endpoint does not divide its passes among them",
    "no hidden states: remaining lengths are estimated from counts",
    "a sampled output that is resumed goes on with other draws",
    "an output with a response format or a thinking budget cannot be resumed",
)


class _Break(NamedTuple):
    """Why a stream broke before its request's end."""

    reason: str
    status: int = 0
    """The endpoint's HTTP status; 0 if it did not answer."""

    address: str = ""
    """The endpoint; "" if none was found."""

    @property
    def is_unable(self) -> bool:
        """True if its endpoint cannot serve anybody now."""
        return not self.status or self.status in _UNABLE


class _NoAnswerError(Exception):
    """An endpoint's answer without what was asked for; ``broken``: None where it is final."""

    def __init__(self, broken: _Break | None) -> None:
        super().__init__(broken)
        self.broken = broken


class _Following:
    """A stream that is read: its last token, or its beginning, and what ends it."""

    __slots__ = ("at", "has_begun", "limit", "num_prompt_tokens")

    def __init__(self, num_prompt_tokens: int, limit: asyncio.Timeout) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.limit = limit
        self.at = _now()
        self.has_begun = False


class _Pace:
    """The times that an endpoint has taken from token to token, and to first tokens."""

    def __init__(self, patience: float, start_patience: float) -> None:
        self._patience = patience
        self._start_patience = start_patience
        self._gap = 0.0  # mean seconds between tokens of a stream
        self._first = 0.0  # most seconds to a first token, by prompt token
        self._moved_at = 0.0
        """Instant at which a stream last began or ended: those in the endpoint's queue move up."""

    def drew(self, stream: _Following, num_tokens: int) -> None:
        """Note tokens of a stream."""
        now = _now()
        seconds = now - stream.at
        if stream.has_begun:
            gap = seconds / num_tokens
            self._gap = gap if not self._gap else self._gap + _NEW * (gap - self._gap)
        else:
            self.moved()
            self._first = max(self._first, seconds / max(1, stream.num_prompt_tokens))
        stream.at, stream.has_begun = now, True

    def moved(self) -> None:
        """Note that a stream has begun or ended."""
        self._moved_at = _now()

    def overdue(self, stream: _Following) -> float:
        """Return for how long a stream has been silent, seconds; 0 while that is no surprise.

        A first token may take long where none was seen yet, as at the endpoint's start.
        """
        if stream.has_begun:
            since, limit = stream.at, max(self._patience, _FACTOR * self._gap)
        else:
            since = max(stream.at, self._moved_at)
            expected = self._first * stream.num_prompt_tokens
            limit = max(self._patience, _FACTOR * expected) if expected else self._start_patience
        seconds = _now() - since
        return seconds if seconds > limit else 0.0


class OpenAIEngine:
    """A ``headway.engine.PlanningEngine`` over HTTP.

    ``scheduler``: settings of the core that chooses among its endpoints. A stream that breaks is
    resumed after its tokens, at another endpoint where there is one. If none answers for their
    patience this process ends (``gone``): other workers then take its requests over. A stream
    without a token for longer than the endpoints' pace explains ends its request alone, whatever
    else it sends and whatever else its endpoint answers: its gateway tries again elsewhere.
    """

    def __init__(
        self,
        endpoint: KnownEndpoint,
        block_size: int,
        gone: Callable[[str], Any] = lambda url: end_process("endpoint_is_gone", url=url),
        adapters: Iterable[str] = (),
        scheduler: SchedulerSettings | None = None,
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
            kernels=endpoint.args.name,
            kv_layout="",
            adapters=tuple(Adapter(name, "of the endpoint") for name in sorted(adapters)),
        )
        self._log = get_logger()
        self._tasks: dict[StreamKey, asyncio.Task[None]] = {}
        self._drawn: list[Drawn] = []
        settings = scheduler or SchedulerSettings(prefix_hits=True)
        self._core = PickerCore(settings, PickerSettings(longest_hold=_NO_LIMIT))
        self._numbers = count(1)
        self._last = self._heard = self._lost_at = 0.0
        self._pace = _Pace(endpoint.args.patience, endpoint.args.start_patience)
        self._streams: dict[StreamKey, _Following] = {}
        self._watching: list[asyncio.Task[Any]]
        self._stepped: Callable[[EngineStepped], None]
        self._client: aiohttp.ClientSession
        self._pool: EndpointPool

    @property
    def losses(self) -> Sequence[str]:
        """See ``PlanningEngine.losses``."""
        losses = list(_LOSSES)
        if not self._endpoint.takes_priority:
            losses[0] = "it takes no priority: its own order is first come, first served"
        if not self._endpoint.takes_salt:
            losses.append("it takes no cache_salt: requests with one are refused")
        if not self._endpoint.takes_grammars:
            losses.append("it takes no structured_outputs: response formats are refused")
        if not self._endpoint.takes_budget:
            losses.append("it takes no thinking_token_budget, nor formats behind reasoning")
        if not self._endpoint.takes_bad_words:
            losses.append("it takes no bad_words: requests with some are refused")
        if not self._endpoint.scores_prompts:
            losses.append("no log probabilities of prompts")
        return losses

    def start(self, stepped: Callable[[EngineStepped], None]) -> None:
        """See ``PlanningEngine.start``."""
        self._stepped = stepped
        args = self._endpoint.args
        trusted = httpx.create_ssl_context()  # as the endpoint was examined
        self._client = open_client(
            args.headers(),
            connector=aiohttp.TCPConnector(limit=0, ssl=trusted, keepalive_timeout=_IDLE),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=args.patience),
            trust_env=True,
        )
        fixed, often = args.fixed(), min(1.0, args.patience / 4)
        intervals = WatchIntervals(often, often)
        self._pool = EndpointPool(
            *(self._core, args.entries, self._client, intervals, Clock(), fixed)
        )
        self._watching = [
            essential(self._watch(), "endpoint watch", may_return=True),
            essential(self._watch_streams(), "stream watch"),
        ]

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
        tasks = [*self._watching, *self._tasks.values()]
        self._tasks.clear()
        await end_tasks(*tasks)
        await self._pool.close()
        await self._client.close()

    # --- one request ------------------------------------------------------------------

    async def _serve(self, request: Request, priority: int) -> None:
        """Follow a request to its end, over as many streams as that takes."""
        output, patience = list(request.output_token_ids), self._endpoint.args.patience
        stuck_since, last_at = inf, ""
        try:
            while True:
                num_before = len(output)
                body = await self._body(request, output, priority)
                broken = await self._at_an_endpoint(request, body, output, last_at)
                if broken is None:
                    return
                if len(output) - num_before == body["max_tokens"]:
                    continue  # it was asked for no more at once
                last_at = broken.address
                now = _now()
                stuck_since = now if len(output) > num_before else min(stuck_since, now)
                others_hear = now - self._heard < patience / 2
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

    async def _body(
        self, request: Request, output: Sequence[int], priority: int
    ) -> Mapping[str, Any]:
        """See ``completion_body``; a tokenizer may have to be loaded for bad words."""
        make = partial(completion_body, self._endpoint, request, output, priority)
        constraints = request.sampling.constraints
        is_slow = constraints is not None and constraints.bad_words
        return await asyncio.to_thread(make) if is_slow else make()

    async def _at_an_endpoint(
        self, request: Request, body: Mapping[str, Any], output: list[int], last_at: str
    ) -> _Break | None:
        """Read one stream, of the endpoint that is chosen; return why it broke, if it did.

        ``last_at``: where the last one broke; another endpoint is asked now if one is up.
        """
        asked = replace(
            request,
            prompt_token_ids=body["prompt"],
            output_token_ids=(),
            model=self._pool.first_model,
            gateway_id=GATEWAY_ID,
            stream_id=next(self._numbers),
        )
        key = asked.key
        try:
            others = self._others(last_at) if last_at else ()
            answer = await self._pool.ask(PickAsked(asked, others or None), key)
            if not isinstance(answer, Pick):
                return _Break(answer.message)
            address = answer.endpoints[0]
            broken = await self._stream(request, body, output, address, key)
            if broken is None:
                return None
            if broken.is_unable:
                self._pool.post(Responded(key, failed=True))
            return broken._replace(address=address)
        finally:
            self._pool.ended(key)

    async def _stream(
        self,
        request: Request,
        body: Mapping[str, Any],
        output: list[int],
        address: str,
        asked: StreamKey,
    ) -> _Break | None:
        """Read one stream to its end; return None, or why it broke before the request's end."""
        status, url = 0, f"{root_of(address)}/v1/completions"
        end = len(output) + body["max_tokens"]
        try:
            async with self._followed(request, body):
                scores = None if output else await self._scores(request, url, asked)
                async with self._post(request.key, url, body, asked) as reply:
                    status = reply.status
                    async for line in self._lines(reply):
                        if not line.startswith(b"data: {"):
                            continue
                        if self._take(request, json.loads(line[6:]), output, end, scores):
                            return None
        except _NoAnswerError as none:
            return none.broken
        except TimeoutError:
            self._lost_at = _now()
            if self._others(address):
                return _Break("its stream has fallen silent", 200)
            message = "the endpoint's stream has fallen silent: it is tried again elsewhere"
            raise HeadwayError(Code.UNAVAILABLE, message) from None
        except (aiohttp.ClientError, OSError) as error:
            return _Break(repr(error), status)
        return _Break("its stream ended before its request", status)

    @asynccontextmanager
    async def _post(
        self, key: StreamKey, url: str, body: Mapping[str, Any], asked: StreamKey
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the endpoint's reply; raise _NoAnswerError for another than 200."""
        async with self._client.post(url, json=body, allow_redirects=False) as reply:
            status = reply.status
            if status not in _UNABLE:
                self._pool.post(Responded(asked))
            if status in _BUSY:
                raise _NoAnswerError(_Break(f"the endpoint answered {status}", status))
            if status != 200:
                text = await reply.content.read(_LONGEST_ERROR)
                self._refused(key, status, text.decode(errors="replace"))
                raise _NoAnswerError(None)
            if is_packed(reply):
                message = "the endpoint sent a compressed answer: have it send plain ones"
                raise HeadwayError(Code.INTERNAL, message)
            yield reply

    async def _scores(
        self, request: Request, url: str, asked: StreamKey
    ) -> tuple[TokenLogprobs, ...] | None:
        """Return the log probabilities of a request's prompt, None where nobody asks for them."""
        body = scores_body(self._endpoint, request)
        if body is None:
            return None
        text = bytearray()
        async with self._post(request.key, url, body, asked) as reply:
            async for piece in reply.content.iter_any():
                text += piece
                if len(text) > _LONGEST_SCORES:
                    message = f"the endpoint sent an answer of more than {_LONGEST_SCORES} bytes"
                    raise HeadwayError(Code.INTERNAL, message)
        vocab_size = self._endpoint.vocab_size  # the loop stays free for tokens of others
        return await asyncio.to_thread(lambda: read_scores(json.loads(text), request, vocab_size))

    def _others(self, address: str) -> tuple[str, ...]:
        """Return the other endpoints that are up."""
        return tuple(
            each.address
            for each in self._pool.endpoints()
            if each.health == "up" and each.address != address
        )

    @asynccontextmanager
    async def _followed(self, request: Request, body: Mapping[str, Any]) -> AsyncIterator[None]:
        """Let ``_watch_streams`` end the stream with TimeoutError."""
        async with asyncio.timeout(None) as limit:
            self._streams[request.key] = _Following(len(body["prompt"]), limit)
            try:
                yield
            finally:
                del self._streams[request.key]
                self._pace.moved()

    async def _lines(self, reply: aiohttp.ClientResponse) -> AsyncIterator[bytearray]:
        """Yield the lines of a reply; HeadwayError for one that does not end."""
        rest = bytearray()
        async for piece in reply.content.iter_any():
            rest += piece
            if b"\n" in piece:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield line
            if len(rest) > _LONGEST_LINE:
                message = f"the endpoint sent a line of more than {_LONGEST_LINE} bytes"
                raise HeadwayError(Code.INTERNAL, message)

    def _take(
        self,
        request: Request,
        event: Mapping[str, Any],
        output: list[int],
        end: int,
        scores: tuple[TokenLogprobs, ...] | None,
    ) -> bool:
        """Take one event of a stream; return whether the request has ended with it.

        ``end``: the length of the output with what was asked for.
        """
        if "error" in event:
            error, text = event["error"], str(event["error"])[:_LONGEST_ERROR]
            status = error.get("code") if isinstance(error, dict) else None
            if status in _REFUSALS:  # vLLM looks at some fields after it has begun the stream
                self._refused(request.key, status, text)
            else:
                self._fail(request.key, "the endpoint failed while it computed this request", text)
            return True
        for choice in event.get("choices", ()):
            most = end - len(output)
            drawn = read_drawn(choice, request, most, self._endpoint.vocab_size)
            if drawn is not None:
                if scores is not None and drawn.token_ids and not output:
                    drawn = with_scores(drawn, scores)
                output += drawn.token_ids
                if drawn.token_ids:
                    self._heard = _now()
                    self._pace.drew(self._streams[request.key], len(drawn.token_ids))
                if len(output) == end < request.sampling.max_tokens:
                    is_over = drawn.finish_reason not in (None, FinishReason.LENGTH)
                    drawn = drawn if is_over else drawn._replace(finish_reason=None)
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
        fields = {"exc_info" if isinstance(details, Exception) else "details": details}
        self._log.error(
            "endpoint_failed_request", stream_id=key.stream_id, problem=message, **fields
        )
        self._say(Drawn(key, (), FinishReason.ERROR, message=message, code=code))

    # --- the endpoints ----------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch the endpoints; give them up if none answers a request for their patience."""
        patience = self._endpoint.args.patience
        await self._pool.start()
        for each in self._pool.endpoints():  # they have answered when they were examined
            self._pool.post(Scraped(each.address, Silence.NO_METRICS))
        answered_at = _now()
        while True:
            await asyncio.sleep(patience / 4)
            is_missed = self._tasks or self._lost_at > self._heard
            if any(each.health == "up" for each in self._pool.endpoints()):
                answered_at = _now()
            elif is_missed and _now() - max(self._heard, answered_at) > patience:
                self._log.error("endpoint_does_not_answer", problem="none is up")
                self._gone(self._endpoint.args.name)
                return

    async def _watch_streams(self) -> None:
        """End the streams that have had no token for too long."""
        while True:
            await asyncio.sleep(self._endpoint.args.patience / 4)
            for key, stream in self._streams.items():
                seconds = self._pace.overdue(stream)
                if seconds:
                    fields = {"stream_id": key.stream_id, "seconds": round(seconds, 1)}
                    self._log.warning("endpoint_stream_is_silent", **fields)
                    stream.limit.reschedule(_now())

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
    """Find the endpoints of ``--engine-args``; HeadwayError where they cannot be used."""
    args = parse_args(config.engine_args)
    endpoint = examine_first(args, config.model, config.max_model_len, config.lora)
    no_limits = SchedulerSettings(flow_control=FlowControl(_NO_LIMIT), max_waiting=_NO_LIMIT)
    scheduler = choosing_settings(config, no_limits)
    return OpenAIEngine(
        endpoint, config.tokens_per_block, adapters=config.lora, scheduler=scheduler
    )
