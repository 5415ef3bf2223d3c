"""The check before every call that a server takes: who calls, and may they?"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc

from headway.errors import Code, HeadwayError
from services.runtime import wire
from services.runtime.identity.access import require_access
from services.runtime.identity.roles import PEERS, Caller, ServiceRole, read_spiffe_id
from services.runtime.identity.secret import given_proof, is_proof
from services.runtime.logs import get_logger
from services.runtime.wire.unreadable import Unreadable, or_error, or_unreadable

Context = grpc.aio.ServicerContext[Any, Any]
Identify = Callable[[Context], Caller]
"""Returns the caller of a call; HeadwayError if it may not even be heard."""

_MOST_LOGGED = 256
"""Refusals that are logged, one of a kind: a stranger must not fill the disk."""


class Guard(grpc.aio.ServerInterceptor):
    """Lets a call through if the table says so; a stream is checked once, when it opens.

    A method refuses by a HeadwayError, which becomes the status of its call here. Without
    ``identify`` everybody may call everything.
    """

    def __init__(self, identify: Identify | None) -> None:
        self._identify = identify
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._logged: set[tuple[str, str]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler behind the check; None if there is no such method."""
        method = str(handler_call_details.method)
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._guarded[method] = _behind(handler, lambda context: self._admit(context, method))
        return self._guarded[method]

    async def _admit(self, context: Context, method: str) -> None:
        if self._identify is None:
            return
        try:
            require_access(self._identify(context), method)
        except HeadwayError as error:
            kind = (method, error.message)
            if kind not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(kind)
                get_logger().warning(
                    "call_refused", method=method, peer=context.peer(), error=error.message
                )
            await wire.abort(context, error)


def by_certificate(cluster: str) -> Identify:
    """Return what reads the role from the caller's certificate."""

    def identify(context: Context) -> Caller:
        return read_spiffe_id(_peer_spiffe_id(context), cluster)

    return identify


def require_id(context: Context, service_id: str) -> None:
    """Raise PERMISSION_DENIED if the caller's certificate is that of another service.

    A certificate that is named as its role is shared by all services of the role.
    """
    role, _, name = _peer_spiffe_id(context).partition("://")[2].partition("/")[2].partition("/")
    if name not in ("", role, service_id):
        message = f"the caller says that it is {service_id!r}; its certificate names {role} {name}"
        raise HeadwayError(Code.PERMISSION_DENIED, message)


def _peer_spiffe_id(context: Context) -> str:
    """Return the URI in the caller's certificate; "" without one, or with several."""
    named = [*context.auth_context().get("peer_spiffe_id", ())]
    return named[0].decode(errors="replace") if len(named) == 1 else ""


def as_client(context: Context) -> Caller:
    """Take any caller for a client, whatever its certificate says."""
    named = [
        name.decode(errors="replace") for name in context.auth_context().get("x509_common_name", ())
    ]
    return Caller(f"client {named[0]}" if named else "a client", frozenset({ServiceRole.CLIENT}))


def by_secret(
    secret: bytes, ports: Callable[[], Collection[str]], *, for_clients: bool
) -> Identify:
    """Return a check that takes a caller with the cluster's secret for any of its services.

    ``ports``: the server's own, and the one that it advertises. ``for_clients``: take a caller
    without a proof for a client.
    """

    def identify(context: Context) -> Caller:
        proof = given_proof(context.invocation_metadata() or ())
        if any(is_proof(proof, secret, port) for port in ports()):
            return Caller("a service of this cluster", PEERS | {ServiceRole.CLIENT})
        if not proof and for_clients:
            return as_client(context)
        what = "proves to know another secret" if proof else "does not prove to know its secret"
        message = (
            f"only this cluster's services may call, and the caller {what}: "
            "give all of them the same --cluster-secret-file, or certificates"
        )
        raise HeadwayError(Code.UNAUTHENTICATED, message)

    return identify


def _behind(
    handler: grpc.RpcMethodHandler[Any, Any], admit: Callable[[Context], Awaitable[None]]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler with ``admit`` before its behaviour, and an answer to its refusals."""
    kind = _kind(handler)
    behaviour: Any = getattr(handler, kind)
    make: Any = getattr(grpc, f"{kind}_rpc_method_handler")

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        await admit(context)
        try:
            async for reply in behaviour(_readable(request), context):
                yield reply
        except HeadwayError as error:
            await wire.abort(context, error)

    async def answer(request: Any, context: Context) -> Any:
        await admit(context)
        try:
            return await behaviour(_readable(request), context)
        except HeadwayError as error:
            await wire.abort(context, error)

    guarded = stream if inspect.isasyncgenfunction(behaviour) else answer
    deserialize, reader = handler.request_deserializer, or_unreadable
    if handler.request_streaming:
        reader = or_error
    return make(  # type: ignore[no-any-return]
        guarded,
        request_deserializer=None if deserialize is None else reader(deserialize),
        response_serializer=handler.response_serializer,
    )


def _readable(request: Any) -> Any:
    """Return a request, or the iterator of several; HeadwayError for one that was unreadable."""
    if isinstance(request, Unreadable):
        raise request.error
    return request


def _kind(handler: grpc.RpcMethodHandler[Any, Any]) -> str:
    """Return, for example, ``unary_stream``: it names the behaviour and what makes a handler."""
    names = {True: "stream", False: "unary"}
    return f"{names[bool(handler.request_streaming)]}_{names[bool(handler.response_streaming)]}"
