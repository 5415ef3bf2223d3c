"""A certificate that names one process lets no other speak in its name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headway.errors import Code, HeadwayError
from headway.messages import GatewayHello, TokenBatch
from services.gateway.token_sink import TokenSink
from services.runtime import wire
from services.runtime.identity.guard import require_id
from services.scheduler.gateway_link import GatewayLinks


class Call:
    """The context of a call whose certificate names these processes."""

    def __init__(self, *uris: str) -> None:
        self._uris = uris

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_spiffe_id": [uri.encode() for uri in self._uris]} if self._uris else {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


async def one(message: Any) -> AsyncIterator[Any]:
    yield message


async def refusal(stream: AsyncIterator[Any]) -> Code:
    with pytest.raises(HeadwayError) as refused:
        async for _ in stream:
            pass
    return refused.value.code


def test_the_name_in_a_certificate_is_the_only_one_that_its_process_may_use() -> None:
    context: Any = Call("spiffe://c/worker/w1")
    require_id(context, "w1")
    with pytest.raises(HeadwayError) as refused:
        require_id(context, "w2")
    assert refused.value.code is Code.PERMISSION_DENIED


@pytest.mark.parametrize("uris", [(), ("spiffe://c/worker/worker",)])
def test_without_a_name_of_its_own_a_process_may_use_any(uris: tuple[str, ...]) -> None:
    context: Any = Call(*uris)
    require_id(context, "w2")


async def test_no_gateway_opens_a_stream_in_the_name_of_another() -> None:
    links = GatewayLinks(lambda: "", lambda: 0.0)
    links.open(lambda event: pytest.fail("the leader heard of it"))
    context: Any = Call("spiffe://c/gateway/g1")
    stream = links.Connect(one(wire.FROM_GATEWAY.pack(GatewayHello("g2", "g:1"), now=0.0)), context)
    assert await refusal(stream) is Code.PERMISSION_DENIED


async def test_no_worker_sends_tokens_in_the_name_of_another() -> None:
    async def unknown(worker_id: str) -> str:
        return ""

    sink = TokenSink(lambda event: pytest.fail("the gateway heard of it"), unknown, lambda: 0.0)
    context: Any = Call("spiffe://c/worker/w1")
    batch = wire.pack_token_batch(TokenBatch("w2", [1], [0], [7], [None], {}), now=0.0)
    assert await refusal(sink.Attach(one(batch), context)) is Code.PERMISSION_DENIED
