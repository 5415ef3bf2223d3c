"""``Gateway.Generate``: the same calls as over HTTP, for gRPC clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from headway.errors import Code, HeadwayError, invalid
from headway.request import Request, TokenLogprobs, check_session_id
from protos import common_pb2, gateway_pb2, gateway_pb2_grpc
from services.gateway.api_call import ApiCall, ChatInput, Input, SessionAsk
from services.gateway.auth import KEY_CLIENT, KeyRing, check_client_id
from services.gateway.bounds import grpc_client
from services.gateway.calls import Calls
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai.messages import Conversation
from services.gateway.openai.requests import MAX_SALT_CHARS, Stops
from services.gateway.openai.sessions import MAX_TURNS
from services.gateway.openai.shapes import read
from services.gateway.output_text import Piece
from services.gateway.outputs import Output
from services.gateway.reading import INLINE_BYTES
from services.gateway.sessions import in_session

Context = grpc.aio.ServicerContext[Any, Any]

_MOST_UNREAD = 1024  # replies; a client that reads slower is cut off
_ENDS = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
}


class GatewayEdge(gateway_pb2_grpc.GatewayServicer):
    """The service for gRPC clients."""

    def __init__(
        self,
        calls: Calls,
        keys: KeyRing,
        metrics: GatewayMetrics,
        follow: Callable[[str, str], None],
        now: Callable[[], float],
    ) -> None:
        """``follow`` lets a request, by its id, belong to the trace of a ``traceparent``."""
        self._calls = calls
        self._keys = keys
        self._metrics = metrics
        self._follow = follow
        self._now = now
        self.draining = False

    async def Generate(  # noqa: N802 (the proto's name)
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateReply]:
        """See ``protos/gateway.proto``."""
        async with aclosing(self.replies(request, context)) as replies:
            async for said in replies:
                yield said

    async def replies(
        self, request: gateway_pb2.GenerateRequest, context: Context, own_id: str = ""
    ) -> AsyncGenerator[gateway_pb2.GenerateReply]:
        """Yield the replies to a call of this context; HeadwayError where it is refused or fails.

        ``own_id``: the client's id of the request; "": the one in the metadata.
        """
        reply = GrpcReply("", self._calls.let_go, self._metrics)
        try:
            arrival_at = self._now()
            name = self.check_key(context)
            given = check_client_id(own_id or _said(context, "x-request-id"))
            call_id = self._keys.new_id("gen", name, given)
            reply.call_id = given or call_id
            client = f"{KEY_CLIENT}{name}" if name else grpc_client(context.peer())
            if self.draining:
                message = "this gateway is shutting down; call another one"
                raise HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0)
            said_of = partial(_said, context)

            run = partial(self._calls.threads.run, client, num_bytes := request.ByteSize())

            def prepare() -> tuple[ApiCall, list[Request] | None]:
                call = in_session(read_call(request), said_of)
                if self._calls.is_slow(call):
                    return call, None
                return call, self._calls.prepare(call, call_id, arrival_at, client)

            if num_bytes <= INLINE_BYTES:
                call, requests = prepare()
            else:
                self._calls.check_room(client)
                call, requests = await run(prepare)
            if requests is None:
                render = partial(self._calls.prepare, call, call_id, arrival_at, client)
                requests = await run(render, is_long=True)
            self._calls.open(call, requests, reply, client)
            traceparent = _said(context, "traceparent")
            if traceparent and not reply.ended:
                for each in requests:
                    self._follow(each.request_id, traceparent)
            async for said in reply.messages():
                yield said
        except HeadwayError as error:
            if not reply.ended:
                self._metrics.count("errors", error.code.value)
            raise
        finally:  # however it ended, also if the client left
            reply.ended = True
            self._calls.let_go(reply.outputs)

    def check_key(self, context: Context) -> str:
        """Return the name of the caller's key, "" without keys; UNAUTHENTICATED for no good one."""
        return self._keys.check(_said(context, "authorization"))


class GrpcReply:
    """The replies of one call, queued for the client."""

    keeps_tokens = True
    streams = True
    keeps_prompt = False
    says_cut = False

    def __init__(
        self,
        call_id: str,
        let_go: Callable[[Sequence[Output]], None],
        metrics: GatewayMetrics,
    ) -> None:
        self.call_id = call_id
        self.outputs: list[Output] = []
        self.num_prompt_tokens = 0
        self.ended = False
        self._let_go = let_go
        self._metrics = metrics
        self._unread: asyncio.Queue[gateway_pb2.GenerateReply | HeadwayError | None]
        self._unread = asyncio.Queue(_MOST_UNREAD + 1)
        self._named = False

    def hold(self, logprobs: TokenLogprobs) -> None:
        """Do nothing: it streams."""

    def explain(self, decision: str) -> None:
        """Do nothing: its client asks by the id."""

    def show(self, output: Output, piece: Piece, end: str | None) -> None:
        """Queue one reply."""
        if self.ended:
            return
        if self._unread.qsize() >= _MOST_UNREAD:
            self._metrics.count("slow_clients")
            message = f"{_MOST_UNREAD} replies are unread, the most kept; read faster"
            self.fail(HeadwayError(Code.RESOURCE_EXHAUSTED, message))
            return
        token_ids, _ = output.take_tokens()
        reply = gateway_pb2.GenerateReply(
            text=piece.answer, reasoning_text=piece.reasoning, token_ids=token_ids
        )
        if not self._named:
            reply.request_id, self._named = self.call_id, True
        if end is not None:
            reply.finish_reason = _ENDS[end]
            reply.usage.prompt_tokens = self.num_prompt_tokens
            reply.usage.completion_tokens = output.text.num_tokens
            reply.usage.reasoning_tokens = output.text.num_reasoning_tokens
            reply.usage.cached_tokens = output.num_cached_tokens
        self._unread.put_nowait(reply)
        if end is not None:
            self.ended = True
            self._unread.put_nowait(None)

    def fail(self, error: HeadwayError) -> None:
        """End with the error, in place of the unread replies."""
        if self.ended:
            return
        self.ended = True
        while not self._unread.empty():
            self._unread.get_nowait()
        self._unread.put_nowait(error)
        self._let_go(self.outputs)

    async def messages(self) -> AsyncIterator[gateway_pb2.GenerateReply]:
        """Yield replies to the last one; raise the error that ended the call instead."""
        while (reply := await self._unread.get()) is not None:
            if isinstance(reply, HeadwayError):
                raise reply
            yield reply


def read_call(request: gateway_pb2.GenerateRequest) -> ApiCall:
    """Read a request; INVALID_ARGUMENT where it asks for nothing."""
    return ApiCall(
        model=request.model,
        inputs=(_input(request),),
        sampling=_sampling(request.sampling),
        stops=tuple(read(Stops, {"stop": list(request.stop)}).stop),
        split_reasoning=request.WhichOneof("input") == "chat",
        paced=not request.disable_pacing,
        thinking_budget=(
            request.thinking_token_budget if request.HasField("thinking_token_budget") else None
        ),
        service_class=request.service_class,
        priority=request.priority if request.HasField("priority") else None,
        request_fields={"cache_salt": _salt(request)},
        session=_session(request),
    )


def _salt(request: gateway_pb2.GenerateRequest) -> str:
    if len(request.cache_salt) > MAX_SALT_CHARS:
        raise invalid("cache_salt", len(request.cache_salt), f"at most {MAX_SALT_CHARS} long")
    return request.cache_salt


def _session(request: gateway_pb2.GenerateRequest) -> SessionAsk:
    if request.max_turns > MAX_TURNS:
        raise invalid("max_turns", request.max_turns, f"at most {MAX_TURNS}")
    named = check_session_id(request.session_id)
    return SessionAsk(named, ends=request.session_end, max_turns=request.max_turns)


def _input(request: gateway_pb2.GenerateRequest) -> Input:
    kind = request.WhichOneof("input")
    if kind == "prompt":
        return request.prompt
    if kind == "token_ids" and request.token_ids.ids:
        return tuple(request.token_ids.ids)
    if kind == "chat" and request.chat.messages:
        said = [{"role": m.role, "content": m.content} for m in request.chat.messages]
        messages = read(Conversation, {"messages": said}).messages
        return ChatInput(messages, {"enable_thinking": False} if request.disable_thinking else {})
    raise invalid("input", kind, "a prompt, a chat with messages, or token ids")


def _sampling(options: gateway_pb2.SamplingOptions) -> dict[str, Any]:
    return {field.name: value for field, value in options.ListFields()}


def _said(context: Context, asked: str) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == asked:
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""
