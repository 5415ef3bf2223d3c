"""The Endpoint Picker Protocol 1.0 over Envoy's external processing.

One stream is one HTTP request: its headers, its body, then the headers of its response. The answer
names endpoints in a header and in dynamic metadata. Bodies pass through untouched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import ceil
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2

from headway.core.picker.events import Refuse, WhyRefused
from services.endpoints.pool import Answer

DESTINATION = "x-gateway-destination-endpoint"
PREFILLER = "x-prefiller-host-port"
"""Names who computes the prompt to llm-d's side-car of the endpoint that decodes."""
_OTHERS = ("x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-data-parallel-host-port")
NAMES_HOSTS = tuple(
    [
        name.replace("x-", prefix, 1)
        for name in (PREFILLER, *_OTHERS)
        for prefix in ("x-", "x-llm-d-")
    ]
)
"""All headers by which that side-car may be sent to other hosts, under older and newer names."""
SUBSET, SERVED = f"{DESTINATION}-subset", f"{DESTINATION}-served"
NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
MOST_PIECE = 62_000
"""Bytes of a piece of a body: what Envoy takes in one message."""
_DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_UNABLE = ("502", "503", "504")
"""Statuses of a response that no endpoint gave, or one that cannot serve."""

_RESPONSE_HEADERS = (pb.ProcessingResponse(response_headers=pb.HeadersResponse()),)
_RESPONSE_TRAILERS = (pb.ProcessingResponse(response_trailers=pb.TrailersResponse()),)
_KNOWN_PICKS = 4096
_TWO_REQUESTS = "the headers of a request came twice: a stream is one request"


@dataclass(slots=True)
class HttpExchange:
    """One HTTP request, as far as it has come; ``among``: the subset hint, None without one."""

    headers: Mapping[str, str] = field(default_factory=dict)
    among: tuple[str, ...] | None = None
    body: bytes = b""


class Bodies:
    """The bytes of all bodies that are held, at most so many.

    Where there is no room, bodies that have been coming for ``patience`` seconds give way: clients
    that send slowly would hold it all.
    """

    def __init__(self, most: int, patience: float = 10.0) -> None:
        self.most = most
        self.num_held = 0
        self.patience = patience
        self._begun_at: dict[_Stream, float] = {}

    def take(self, stream: _Stream, num_bytes: int, *, now: float) -> bool:
        """Take room for some bytes of a stream's body; return whether there is."""
        while self.num_held + num_bytes > self.most:
            oldest = next(iter(self._begun_at), stream)
            if oldest is stream or self._begun_at[oldest] + self.patience > now:
                return False
            oldest.give_way()
        self._begun_at.setdefault(stream, now)
        self.num_held += num_bytes
        return True

    def is_whole(self, stream: _Stream) -> None:
        """Let a stream's body give way no more."""
        self._begun_at.pop(stream, None)

    def give_back(self, stream: _Stream, num_bytes: int) -> None:
        """Give back all that was taken for a stream."""
        self.is_whole(stream)
        self.num_held -= num_bytes


class ExternalProcessor(external_processor_pb2_grpc.ExternalProcessorServicer):  # type: ignore[misc]
    """The servicer. ``ask`` answers an exchange; ``responded`` and ``ended`` hear what follows.

    Each exchange has a number, the same in all three.
    """

    def __init__(
        self,
        ask: Callable[[int, HttpExchange], Awaitable[Answer]],
        responded: Callable[[int, str, bool], None],
        ended: Callable[[int], None],
        max_body: int,
        bodies: Bodies,
    ) -> None:
        self._bodies = bodies
        self._ask = ask
        self._responded = responded
        self._ended = ended
        self._max_body = max_body
        self._num_exchanges = 0

    async def Process(  # noqa: N802 (the protocol's name)
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Serve one HTTP request; messages are read and written one by one, as generators cost."""
        self._num_exchanges += 1
        number = self._num_exchanges
        stream = _Stream(partial(self._ask, number), self._max_body, self._bodies)
        try:
            while not stream.is_over and (message := await context.read()) is not grpc.aio.EOF:
                if message.HasField("response_headers"):
                    status, served = _status(message), _served(message)
                    self._responded(number, served, status in _UNABLE)
                for response in await stream.take(message):
                    await context.write(response)
        finally:
            stream.let_go()
            self._ended(number)


class _Stream:
    """The state of one exchange: which message is answered by which."""

    def __init__(
        self, ask: Callable[[HttpExchange], Awaitable[Answer]], max_body: int, bodies: Bodies
    ) -> None:
        self._bodies = bodies
        self._ask = ask
        self._max_body = max_body
        self._exchange = HttpExchange()
        self._pieces: list[bytes] = []
        self._size = 0
        self._waits = self._has_headers = self._has_given_way = False
        self._is_duplex = True
        self.is_over = False
        """True once an answer in the place of an endpoint's was given."""

    async def take(self, message: Any) -> Sequence[Any]:
        """Return the answers to a message, none while more is awaited."""
        match message.WhichOneof("request"):
            case "request_headers":
                return await self._on_headers(message)
            case "request_body":
                return await self._on_body(message.request_body)
            case "request_trailers":
                before = await self._answer(is_end=False) if self._waits else []
                trailers = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
                return before if self.is_over else [*before, trailers]
            case "response_headers":
                return _RESPONSE_HEADERS
            case "response_body":
                return [_as_it_came(message.response_body, "response_body", self._is_duplex)]
            case "response_trailers":
                return _RESPONSE_TRAILERS
        return []

    async def _on_headers(self, message: Any) -> Sequence[Any]:
        if self._has_headers:  # of two requests by one number only one would be seen to end
            self.is_over = True
            return [_immediate(400, "invalid_request_error", _TWO_REQUESTS)]
        self._has_headers = True
        if message.HasField("protocol_config"):
            self._is_duplex = message.protocol_config.request_body_mode == _DUPLEX
        self._exchange = _exchange(message)
        self._waits = self._is_duplex and not message.request_headers.end_of_stream
        return [] if self._waits else await self._answer_headers()

    async def _on_body(self, piece: Any) -> Sequence[Any]:
        if not self._waits:
            return [_as_it_came(piece, "request_body", self._is_duplex)]
        if self._size + len(piece.body) > self._max_body:
            self.is_over = True
            return [_too_large(self._max_body)]
        now = asyncio.get_running_loop().time()
        if self._has_given_way or not self._bodies.take(self, len(piece.body), now=now):
            self.is_over = True
            return [_too_many(self._bodies.most)]
        self._pieces.append(piece.body)
        self._size += len(piece.body)
        return await self._answer(is_end=True) if piece.end_of_stream else []

    def give_way(self) -> None:
        """Hold what has come of the body no more; it is refused as more of it comes."""
        self._has_given_way = True
        self.let_go()

    def let_go(self) -> None:
        """Hold the body no more."""
        self._bodies.give_back(self, self._size)
        self._exchange.body, self._size = b"", 0
        self._pieces.clear()

    async def _answer_headers(self) -> Sequence[Any]:
        answer = await self._ask(self._exchange)
        self.is_over = isinstance(answer, Refuse)
        return [_headers_answer(answer)]

    async def _answer(self, *, is_end: bool) -> list[Any]:
        """Answer the headers now that the body is whole, and give it back in pieces."""
        if self._has_given_way:
            self.is_over = True
            return [_too_many(self._bodies.most)]
        self._waits = False
        self._bodies.is_whole(self)
        body = self._exchange.body = b"".join(self._pieces)
        self._pieces.clear()
        answers = [*await self._answer_headers()]
        self.let_go()
        return answers if self.is_over else [*answers, *_body(body, is_end=is_end)]


def _exchange(message: Any) -> HttpExchange:
    headers = {
        each.key.lower(): each.value or each.raw_value.decode("utf-8", "replace")
        for each in message.request_headers.headers.headers
    }
    return HttpExchange(headers, _subset(message.metadata_context.filter_metadata))


def _subset(metadata: Any) -> tuple[str, ...] | None:
    """Return the endpoints that alone may be named; None where the gateway has set none."""
    if SUBSET_NAMESPACE not in metadata or SUBSET not in metadata[SUBSET_NAMESPACE].fields:
        return None
    value = metadata[SUBSET_NAMESPACE].fields[SUBSET]
    if value.WhichOneof("kind") == "string_value":
        return tuple(part.strip() for part in value.string_value.split(",") if part.strip())
    return tuple(each.string_value for each in value.list_value.values if each.string_value)


def _served(message: Any) -> str:
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE not in metadata or SERVED not in metadata[NAMESPACE].fields:
        return ""
    return str(metadata[NAMESPACE].fields[SERVED].string_value)


def _status(message: Any) -> str:
    for each in message.response_headers.headers.headers:
        if each.key == ":status":
            return str(each.value or each.raw_value.decode("ascii", "replace"))
    return ""


def _headers_answer(answer: Answer) -> Any:
    if isinstance(answer, Refuse):
        return _refusal(answer)
    return _pick(answer.endpoints, answer.prefiller)


@lru_cache(_KNOWN_PICKS)
def _pick(addresses: tuple[str, ...], prefiller: str) -> Any:
    """Return the answer that names these endpoints; nobody changes it.

    A client's own word of who computes its prompt, or of any other host, does not count.
    """
    endpoints = ",".join(addresses)
    metadata = struct_pb2.Struct()
    metadata.update({NAMESPACE: {DESTINATION: endpoints}})
    headers = pb.HeaderMutation(set_headers=[_header(DESTINATION, endpoints)])
    if prefiller:
        headers.set_headers.append(_header(PREFILLER, prefiller))
    given = {PREFILLER} if prefiller else set()
    headers.remove_headers.extend([name for name in NAMES_HOSTS if name not in given])
    common = pb.CommonResponse(clear_route_cache=True, header_mutation=headers)
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata
    )


def _header(key: str, value: str) -> Any:
    pair = base_pb2.HeaderValue(key=key, raw_value=value.encode())
    return base_pb2.HeaderValueOption(header=pair, append_action=_OVERWRITE)


def _body(body: bytes, *, is_end: bool) -> Iterator[Any]:
    """Yield a body in pieces; one without bytes is one piece."""
    for at in range(0, max(len(body), 1), MOST_PIECE):
        last = is_end and at + MOST_PIECE >= len(body)
        yield _streamed("request_body", body[at : at + MOST_PIECE], last)


def _streamed(kind: str, body: bytes, end_of_stream: bool) -> Any:
    piece = pb.StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    mutation = pb.BodyMutation(streamed_response=piece)
    response = pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
    return pb.ProcessingResponse(**{kind: response})


def _as_it_came(message: Any, kind: str, is_streamed: bool) -> Any:
    """Return the answer that leaves a piece of a body as it is."""
    if is_streamed:
        return _streamed(kind, message.body, message.end_of_stream)
    return pb.ProcessingResponse(**{kind: pb.BodyResponse()})


def _refusal(refuse: Refuse) -> Any:
    is_shed = refuse.reason is WhyRefused.SHED
    kind = "rate_limit_exceeded" if is_shed else "service_unavailable"
    return _immediate(429 if is_shed else 503, kind, refuse.message, refuse.retry_after)


def _too_large(limit: int) -> Any:
    message = f"the body has more than {limit} bytes, the picker's limit: send less"
    return _immediate(413, "invalid_request_error", message)


def _too_many(limit: int) -> Any:
    message = f"bodies of {limit} bytes are on their way, the picker's limit: try again"
    return _immediate(503, "service_unavailable", message, 1.0)


def _immediate(status: int, kind: str, message: str, retry_after: float = 0.0) -> Any:
    """Return an answer in the place of an endpoint's, in the form of OpenAI's errors."""
    headers = [_header("content-type", "application/json")]
    if retry_after > 0:
        headers.append(_header("retry-after", str(ceil(retry_after))))
    error = {"error": {"message": message, "type": kind, "code": status}}
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=status),
            headers=pb.HeaderMutation(set_headers=headers),
            body=json.dumps(error).encode(),
            details=f"headway_{kind}",
        )
    )
