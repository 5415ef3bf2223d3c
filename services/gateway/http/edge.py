"""The HTTP API: routes, keys, and OpenAI's error JSON for whatever goes wrong."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol
from urllib.parse import unquote

from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from headway.core.gateway.shares import Account
from headway.errors import Code, HeadwayError
from headway.request import Request
from services.gateway.anthropic.replies import MessagesReply, respond_messages_error
from services.gateway.anthropic.requests import parse_messages
from services.gateway.api_call import ApiCall, ReplyStyle, ResponseHistory
from services.gateway.auth import KEY_CLIENT, KeyRing, check_client_id
from services.gateway.calls import Calls
from services.gateway.http.exchange import Exchange, HttpCaller, HttpRefusal, SideRoutes
from services.gateway.http.explained import (
    TRACE,
    Explains,
    TraceDesk,
    explained,
    ids_behind,
)
from services.gateway.http.origins import Origins, allow_request
from services.gateway.http.schema import describe
from services.gateway.http.screening import (
    EXPLAIN,
    GET,
    LOAD,
    MESSAGES,
    MODEL,
    PING,
    SCHEMA,
    VERSION,
    Screening,
)
from services.gateway.http.tokens import count_messages, detokenize, tokenize
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai.json import CallIdentity, dumps
from services.gateway.openai.replies import (
    JSON,
    HttpReply,
    StreamReply,
    WholeReply,
    respond_error,
)
from services.gateway.openai.requests import parse_chat, parse_completion
from services.gateway.openai.response_replies import ResponseReply
from services.gateway.openai.responses import parse_response
from services.gateway.openai.shapes import MAX_CHOICES, parse_json_object
from services.gateway.openai.stored_responses import StoredResponses
from services.gateway.reading import INLINE_BYTES
from services.gateway.served_model import ServedModel
from services.gateway.sessions import in_session
from services.gateway.slices import Slices
from services.runtime.telemetry import package_version

_OPEN_METRICS = "application/openmetrics-text"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_POST = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
    "/v1/responses": parse_response,
    MESSAGES: parse_messages,
}
_SLOW_FIELDS = ("chat_template", "previous_response_id")
"""Fields by which a short body may take its time: a client's own template, a long conversation."""
_TOKENS = {
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    f"{MESSAGES}/count_tokens": count_messages,
}
_ACCOUNT_STEP = 2**16  # bytes
_REQUEST_ID = "x-request-id"
_UNPACED = "off"  # the value of x-headway-pacing

ROUTES = (*_POST, *_TOKENS, *sorted(GET), f"{MODEL}{{name}}", f"{EXPLAIN}{{request_id}}")
"""Every path of the API, as OpenAPI writes it; the console has its own."""

Parse = Callable[[Mapping[str, Any]], tuple[ApiCall, ReplyStyle]]
Called = tuple[str, ApiCall, ReplyStyle]  # with the call id


class Shell(Explains, Protocol):
    """The part of the gateway's service that the edge needs."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def health(self) -> Mapping[str, Any]:
        """Return what ``/health`` shows; ``status`` is ``ok`` if it can serve."""

    def unexpected(self, error: Exception, where: str) -> None:
        """Log a bug."""

    def refused(self, client: str, path: str, error: HeadwayError, *, is_known: bool) -> None:
        """Log a request that is not served."""


class HttpEdge:
    """A handler of the exchanges of one HTTP server."""

    def __init__(
        self,
        calls: Calls,
        keys: KeyRing,
        metrics: GatewayMetrics,
        shell: Shell,
        origins: Origins,
        console: SideRoutes,
        stored: StoredResponses | None,
        *,
        needs_key: bool,
        monitoring_needs_key: bool,
    ) -> None:
        """``monitoring_needs_key``: an operator's, where there are keys."""
        self._console = console
        self._stored = stored
        self._calls = calls
        self._keys = keys
        self._metrics = metrics
        self._shell = shell
        self._origins = origins
        self._traces = TraceDesk(shell)
        self._fingerprints = {model.name: model.fingerprint() for model in calls.models}
        self._shows_health = not monitoring_needs_key
        say = {"needs_key": needs_key, "monitoring_needs_key": monitoring_needs_key}
        self._described = cache(lambda: dumps(describe(package_version(), **say)).encode())
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = int(shell.now())
        self._slices = Slices()
        most_bytes = {
            path: calls.models.most_body_bytes(MAX_CHOICES if parse is parse_completion else 1)
            for path, parse in _POST.items()
        } | dict.fromkeys(_TOKENS, calls.models.most_body_bytes(1))
        self._screening = Screening(
            keys,
            origins,
            console,
            most_bytes,
            needs_key=needs_key,
            monitoring_needs_key=monitoring_needs_key,
        )

    def screen(
        self, method: str, path: str, headers: Mapping[bytes, bytes], address: str
    ) -> HttpCaller:
        """Check a request's head before its body is read; HttpRefusal where it need not be."""
        return self._screening.check(method, path, headers, address)

    def serve(self, exchange: Exchange) -> None:
        """Answer a whole request that passed ``screen``."""
        try:
            self._origins.allow_page(exchange)
            if exchange.method == "OPTIONS":
                allow_request(exchange)
            elif exchange.path in _POST:
                self._generate(exchange, _POST[exchange.path])
            elif self._console.has(exchange.path):
                self._console.serve(exchange)
            elif exchange.path in _TOKENS:
                self._in_task(exchange, self._count_tokens(exchange, _TOKENS[exchange.path]))
            else:
                self._get(exchange)
        except Exception as error:
            self._fail(exchange, error)

    def refuse(self, exchange: Exchange, refusal: HttpRefusal) -> None:
        """Answer a request that could not be read, or was screened out."""
        self._count_refused(exchange, refusal.error)
        self._origins.allow_page(exchange)
        if refusal.allow:
            exchange.add_header("allow", refusal.allow)
        _answer_error(exchange, refusal.error, refusal.status, refusal.code)

    def cut_off(self) -> None:
        """Count a client that was cut off because it does not read."""
        self._metrics.count("slow_clients")

    # --- generation -------------------------------------------------------------------

    def _generate(self, exchange: Exchange, parse: Parse) -> None:
        arrival_at = self._shell.now()
        if given := check_client_id(exchange.header(_REQUEST_ID)):
            exchange.add_header(_REQUEST_ID, given)  # of a refusal, too
        body, exchange.body = exchange.body, b""  # not kept while the answer is generated
        is_slow = False
        if len(body) <= INLINE_BYTES:
            fields = parse_json_object(body)
            if not any(name in fields for name in _SLOW_FIELDS):
                called = self._parse(exchange, fields, parse)
                is_slow = self._calls.is_slow(called[1])
                if not is_slow:
                    requests = self._prepare(exchange, called, arrival_at)
                    self._open(exchange, arrival_at, *called, requests)
                    return
        work = self._generate_long(exchange, body, parse, arrival_at, is_slow=is_slow)
        self._in_task(exchange, work)

    def _in_task(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(exchange, work))
        exchange.on_gone = partial(_cancel, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            self._fail(exchange, error)

    async def _generate_long(
        self, exchange: Exchange, body: bytes, parse: Parse, arrival_at: float, *, is_slow: bool
    ) -> None:
        """Read a long body, or one that may take long, in a thread; ``is_slow``: it does."""
        self._calls.check_room(exchange.client)
        run = partial(self._calls.threads.run, exchange.client, len(body))

        def read() -> tuple[Called, list[Request] | None]:
            called = self._parse(exchange, parse_json_object(body), parse)
            waits = not is_slow and self._calls.is_slow(called[1])
            return called, None if waits else self._prepare(exchange, called, arrival_at)

        called, requests = await run(read, is_long=is_slow)
        if requests is None:
            prepare = partial(self._prepare, exchange, called, arrival_at)
            requests = await run(prepare, is_long=True)
        if not exchange.ended:
            self._open(exchange, arrival_at, *called, requests)

    def _parse(self, exchange: Exchange, body: Mapping[str, Any], parse: Parse) -> Called:
        if parse is parse_response and self._stored is not None:
            parse = partial(parse_response, find=partial(self._stored.find, self._tenant(exchange)))
        call, style = parse(body)
        call = in_session(call, exchange.header)
        if given := exchange.header(_REQUEST_ID):
            call = replace(call, client_id=given)
        kind = "chatcmpl" if style.chat else "cmpl"
        return self._keys.new_id(kind, _key_of(exchange), call.client_id), call, style

    def _prepare(self, exchange: Exchange, called: Called, arrival_at: float) -> list[Request]:
        call_id, call, style = called
        try:
            return self._calls.prepare(call, call_id, arrival_at, exchange.client)
        except HeadwayError as error:
            error.param = style.param(error.param)
            raise

    def _open(
        self,
        exchange: Exchange,
        arrival_at: float,
        call_id: str,
        call: ApiCall,
        style: ReplyStyle,
        requests: Sequence[Request],
    ) -> None:
        if exchange.header("x-headway-pacing").lower() == _UNPACED:
            call = replace(call, paced=False)
        if not call.service_class and (asked := exchange.header("x-headway-class")):
            call = replace(call, service_class=asked)
        shown_id = call_id
        if call.client_id:
            shown_id = f"{'chatcmpl' if style.chat else 'cmpl'}-{call.client_id}"
        if not exchange.header(_REQUEST_ID):
            exchange.add_header(_REQUEST_ID, call.client_id or call_id)
        model = self._calls.models.find(call.model)
        identity = CallIdentity(
            shown_id, call.model, int(arrival_at), self._fingerprints[model.name], chat=style.chat
        )
        kind: type[HttpReply] = StreamReply if style.stream else WholeReply
        if style.responses:
            kind = ResponseReply
        elif style.messages:
            kind = MessagesReply
            exchange.add_header("request-id", call.client_id or call_id)
        reply = kind(exchange, identity, style, model.codec, self._calls.let_go)
        if isinstance(reply, ResponseReply) and self._stored is not None:
            reply.keep = partial(self._keep, self._stored, self._tenant(exchange), call.session_id)
        reply.find_life = self._shell.life
        reply.slices = self._slices
        reply.account = Account(self._calls.threads.buffered, exchange.client, _ACCOUNT_STEP)
        tell = partial(self._say_limits, exchange)
        self._calls.open(call, requests, reply, exchange.client, tell)
        traceparent = exchange.header("traceparent")
        if traceparent and not reply.ended:
            for request in requests:
                self._shell.follow(request.request_id, traceparent)

    def _tenant(self, exchange: Exchange) -> str:
        return self._keys.of_client(exchange.client).tenant

    @staticmethod
    def _keep(
        stored: StoredResponses,
        tenant: str,
        session_id: str,
        response_id: str,
        history: ResponseHistory,
    ) -> None:
        """Store a response; a conversation without a name is called by its first one."""
        own = history._replace(session_id=session_id or response_id)
        stored.keep(tenant, response_id, own)

    def _say_limits(self, exchange: Exchange) -> None:
        for name, value in self._calls.limits(exchange.client):
            exchange.add_header(name, value)

    async def _count_tokens(
        self, exchange: Exchange, work: Callable[[Calls, Mapping[str, Any]], Mapping[str, Any]]
    ) -> None:
        body, exchange.body = exchange.body, b""

        def read() -> bytes:
            return dumps(work(self._calls, parse_json_object(body))).encode()

        is_long = self._calls.renders_slowly()
        run = partial(self._calls.threads.run, exchange.client, len(body), is_long=is_long)
        answer = await run(read)
        if not exchange.ended:
            exchange.respond(200, JSON, answer)

    # --- other routes ---------------------------------------------------------------------

    def _get(self, exchange: Exchange) -> None:
        path = exchange.path
        if path == "/health":
            health = self._shell.health()
            status = 200 if health["status"] == "ok" else 503
            if not self._may_see_health(exchange):
                health = {"status": health["status"]}
            exchange.respond(status, JSON, dumps(health).encode())
        elif path == "/livez":
            exchange.respond(200, JSON, b'{"status":"ok"}')
        elif path == VERSION:
            exchange.respond(200, JSON, dumps({"version": package_version()}).encode())
        elif path == PING:
            is_well = self._shell.health()["status"] == "ok"
            exchange.respond(200 if is_well else 503, JSON, b"{}")
        elif path == LOAD:
            exchange.respond(200, JSON, dumps({"server_load": self._calls.num_open()}).encode())
        elif path == "/metrics":
            if _OPEN_METRICS in exchange.header("accept"):
                exchange.respond(200, CONTENT_TYPE_LATEST, self._metrics.render_with_exemplars())
            else:
                exchange.respond(200, _PROMETHEUS, self._metrics.render())
        elif path == "/v1/models":
            listed = [card for model in self._calls.models for card in self._cards(model)]
            listing = {"object": "list", "data": listed}
            exchange.respond(200, JSON, dumps(listing).encode())
        elif path == SCHEMA:
            exchange.respond(200, JSON, self._described())
        elif path == TRACE or path.startswith(EXPLAIN):
            self._in_task(exchange, self._tell(exchange))
        else:
            self._get_model(exchange, unquote(path[len(MODEL) :]))

    def _may_see_health(self, exchange: Exchange) -> bool:
        """Return whether the caller is shown more than the status."""
        return self._shows_health or self._keys.knows_operator(exchange.header("authorization"))

    def _get_model(self, exchange: Exchange, name: str) -> None:
        cards = self._cards(self._calls.models.find(name))
        model_card = next(card for card in cards if card["id"] == name)
        exchange.respond(200, JSON, dumps(model_card).encode())

    async def _tell(self, exchange: Exchange) -> None:
        """Answer with one request's life, or with all of them."""
        if exchange.path == TRACE:
            body = await self._traces.ask(exchange.query)
        else:
            request_id = unquote(exchange.path[len(EXPLAIN) :])
            key = _key_of(exchange)
            names = [self._keys.find_own(key, each) for each in ids_behind(request_id)]
            body = await explained(self._shell, request_id, names)
        if not exchange.ended:
            exchange.respond(200, JSON, body)

    def _cards(self, model: ServedModel) -> Iterator[dict[str, Any]]:
        """Yield what clients are told of a model and its adapters, in vLLM's words."""
        every: dict[str, Any] = {"object": "model", "created": self._started}
        every |= {"owned_by": "headway", "max_model_len": model.max_model_len}
        yield {"id": model.name, **every, "root": model.name, "parent": None}
        for name, folder in model.adapters.items():
            yield {"id": name, **every, "root": folder, "parent": model.name}

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        """Answer with an error; drop the client if that fails, too."""
        try:
            if isinstance(error, HeadwayError):
                if exchange.path in _POST:  # refused before it was charged
                    self._say_limits(exchange)
                self._respond_error(exchange, error)
            else:
                self._unexpected(exchange, error)
        finally:
            exchange.abort()  # does nothing after an answer

    def _respond_error(self, exchange: Exchange, error: HeadwayError) -> None:
        self._count_refused(exchange, error)
        code = None
        if error.code is Code.NOT_FOUND:
            is_response = error.param == "previous_response_id"
            code = "previous_response_not_found" if is_response else "model_not_found"
        _answer_error(exchange, error, code=code)

    def _count_refused(self, exchange: Exchange, error: HeadwayError) -> None:
        self._metrics.count("errors", error.code.value)
        is_known = exchange.client.startswith(KEY_CLIENT)
        self._shell.refused(exchange.client, exchange.path, error, is_known=is_known)

    def _unexpected(self, exchange: Exchange, error: Exception) -> None:
        self._shell.unexpected(error, exchange.path)
        message = "the gateway failed on this request; it has been logged"
        self._respond_error(exchange, HeadwayError(Code.INTERNAL, message))


def _answer_error(
    exchange: Exchange, error: HeadwayError, status: int = 0, code: str | None = None
) -> None:
    """Answer in the shape of the API that was called."""
    if exchange.path.startswith(MESSAGES):
        exchange.add_header("request-id", _id_of_refused(exchange))
        respond_messages_error(exchange, error, status)
    else:
        respond_error(exchange, error, status, code)


def _id_of_refused(exchange: Exchange) -> str:
    """Return a refused request's id: its client's own, or one that nobody else has."""
    try:
        given = check_client_id(exchange.header(_REQUEST_ID))
    except HeadwayError:
        given = ""
    return given or f"req_{secrets.token_hex(12)}"


def _key_of(exchange: Exchange) -> str:
    """Return the name of the caller's key, "" where none is required."""
    name = exchange.client
    return name.removeprefix(KEY_CLIENT) if name.startswith(KEY_CLIENT) else ""


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
