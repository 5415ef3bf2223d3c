"""A scheduler and a worker without a model: what a gateway costs, and how it behaves, alone.

Joins a cluster as its scheduler leader and streams tokens to gateways as a worker does: one
message per pass with one token of every running request. An output repeats its prompt: token
``i`` is prompt token ``i`` modulo its length; without ``ignore_eos`` it ends when the prompt
has been said once.

    python -m bench.gateway.emulated_worker --store redis://127.0.0.1:6379/0 --cluster demo
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import grpc
import uvloop

from headway.cluster import Role
from headway.messages import (
    CancelStream,
    GatewayHello,
    Lost,
    Placed,
    Rejected,
    ToGateway,
    TokenBatch,
)
from headway.picture import NO_PICTURE, ClusterPicture
from headway.request import FinishReason, Request, StreamKey, TokenLogprobs
from protos import gateway_pb2, scheduler_pb2, scheduler_pb2_grpc
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.config import ServiceConfig
from services.runtime.identity.roles import ServiceRole
from services.runtime.server import GrpcServer
from services.runtime.store import Member, Store

_LEASE = 3.0


@dataclass(slots=True)
class Running:
    """A request and how far it is."""

    request: Request
    index: int

    def next_token(self) -> tuple[int, FinishReason | None]:
        """Return the token at ``index``, and whether it is the last."""
        prompt, sampling = self.request.prompt_token_ids, self.request.sampling
        token_id = prompt[self.index % len(prompt)]
        self.index += 1
        if self.index >= sampling.max_tokens:
            return token_id, FinishReason.LENGTH
        if self.index == len(prompt) and not sampling.ignore_eos:
            return token_id, FinishReason.STOP
        return token_id, None

    def logprobs(self, token_id: int) -> TokenLogprobs | None:
        """Made up: the drawn token at -0.5, the next ids below it."""
        sampling, prompt = self.request.sampling, self.request.prompt_token_ids
        of_prompt: tuple[TokenLogprobs, ...] = ()
        if sampling.num_prompt_logprobs is not None and self.index == 1:
            of_prompt = tuple(_made_up(i, sampling.num_prompt_logprobs) for i in prompt[1:])
        if sampling.num_logprobs is None and not of_prompt:
            return None
        return replace(_made_up(token_id, sampling.num_logprobs or 0), prompt=of_prompt)


def _made_up(token_id: int, count: int) -> TokenLogprobs:
    """Return the token at -0.5, the next ids below it."""
    tops = range(count)
    return TokenLogprobs(-0.5, tuple(token_id + i for i in tops), tuple(-0.5 - i for i in tops))


class TokenLink:
    """The stream to one gateway: a pass every ``delay`` seconds while anything runs."""

    def __init__(self, worker_id: str, address: str, config: ServiceConfig, delay: float) -> None:
        self._worker_id = worker_id
        self._address = address
        self._config = config
        self._delay = delay
        self._wanted = asyncio.Event()
        self.running: dict[int, Running] = {}
        self.cancelled: list[int] = []
        self._prompts: dict[Sequence[int], None] = {}  # seen: all but the last token are cached
        self.task = asyncio.create_task(self._run())

    def add(self, request: Request) -> None:
        """Compute this request; one that is known is ignored."""
        known = Running(request, len(request.output_token_ids))
        self.running.setdefault(request.stream_id, known)
        self._wanted.set()

    def cancel(self, stream_id: int) -> None:
        """Stop a request."""
        if self.running.pop(stream_id, None) is not None:
            self.cancelled.append(stream_id)

    async def _run(self) -> None:
        async with open_channel(self._address, self._config, ServiceRole.GATEWAY) as channel:
            call = wire.dial_attach(channel)
            reader = asyncio.create_task(self._read(call))
            try:
                while True:
                    await self._wanted.wait()
                    await call.write(wire.pack_token_batch(self.forward_pass()))
                    if self.running:  # an idle worker begins at once
                        await asyncio.sleep(self._delay)
            finally:
                reader.cancel()
                call.cancel()

    def forward_pass(self) -> TokenBatch:
        """Make one token of every running request."""
        stream_ids: list[int] = []
        indices: list[int] = []
        token_ids: list[int] = []
        reasons: list[FinishReason | None] = []
        logprobs: dict[int, TokenLogprobs] = {}
        cached: dict[int, int] = {}
        for stream_id, running in list(self.running.items()):
            index = running.index
            token_id, reason = running.next_token()
            prompt = running.request.prompt_token_ids
            if index == 0:
                if prompt in self._prompts:
                    cached[len(stream_ids)] = len(prompt) - 1
                self._prompts[prompt] = None
            entry = running.logprobs(token_id)
            if entry is not None:
                logprobs[len(stream_ids)] = entry
            stream_ids.append(stream_id)
            indices.append(index)
            token_ids.append(token_id)
            reasons.append(reason)
            if reason is not None:
                del self.running[stream_id]
        if not self.running:
            self._wanted.clear()
        return TokenBatch(
            self._worker_id, stream_ids, indices, token_ids, reasons, logprobs, num_cached=cached
        )

    async def _read(
        self,
        call: grpc.aio.StreamStreamCall[gateway_pb2.TokenBatch, gateway_pb2.TokenControl],
    ) -> None:
        async for control in call:
            for stream_id in control.cancel_stream_ids:
                self.cancel(stream_id)


@dataclass
class Emulated:
    """Scheduler leader and worker in one; tests pull its levers."""

    config: ServiceConfig
    store: Store
    delay: float = 0.0
    worker_id: str = "emulated"
    links: dict[str, TokenLink] = field(default_factory=dict)
    gateways: dict[str, asyncio.Queue[ToGateway | None]] = field(default_factory=dict)
    submitted: list[Request] = field(default_factory=list)
    keeps_submitted: bool = True
    rejection: Rejected | None = None  # the answer to every submission, with its own key
    decisions: list[str] = field(default_factory=list)  # about whatever request is asked for
    asked_about: list[str] = field(default_factory=list)
    picture: ClusterPicture | None = NO_PICTURE  # that gateways are shown; None: no answer
    paused: bool = False  # submissions are taken and never computed
    address: str = ""
    _server: GrpcServer | None = None
    _renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, and lead."""
        self._server = GrpcServer(self.config)
        self._server.add(_Scheduler(self))
        self.address = await self._server.start()
        await self._lead()
        self._renewing = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """Hang up on everybody."""
        for link in self.links.values():
            link.task.cancel()
        for queue in self.gateways.values():
            queue.put_nowait(None)
        if self._renewing is not None:
            self._renewing.cancel()
        await self.store.release_leader(self.config.service_id)
        await self.store.leave(self._member())
        if self._server is not None:
            await self._server.stop(0.1)

    def drop_link(self, gateway_id: str) -> None:
        """Break the worker's token stream; its requests are gone."""
        self.links.pop(gateway_id).task.cancel()

    def lose(self, gateway_id: str) -> None:
        """Report all of a gateway's running requests lost, as the scheduler does."""
        link = self.links[gateway_id]
        keys = tuple(StreamKey(gateway_id, i) for i in link.running)
        link.running.clear()
        self.gateways[gateway_id].put_nowait(Lost(keys, "the worker was killed"))

    def hang_up(self) -> None:
        """Break the scheduler's streams; the worker goes on."""
        for queue in self.gateways.values():
            queue.put_nowait(None)

    def take(self, message: GatewayHello | Request | CancelStream, gateway_id: str) -> None:
        """Answer one message of a gateway."""
        if isinstance(message, CancelStream):
            if gateway_id in self.links:
                self.links[gateway_id].cancel(message.key.stream_id)
        elif isinstance(message, Request):
            if self.keeps_submitted:
                self.submitted.append(message)
            self._submit(message, self.gateways[gateway_id])

    def _submit(self, request: Request, gateway: asyncio.Queue[ToGateway | None]) -> None:
        if self.rejection is not None:
            code, said = self.rejection.code, self.rejection.message
            gateway.put_nowait(Rejected(request.key, code, said, self.rejection.retry_after))
            return
        if self.paused:
            return
        gateway.put_nowait(Placed(request.key, self.worker_id, 0, Role.UNIFIED, "", "at once"))
        link = self.links.get(request.gateway_id)
        if link is None or link.task.done():
            link = TokenLink(self.worker_id, request.gateway_address, self.config, self.delay)
            self.links[request.gateway_id] = link
        link.add(request)

    async def _lead(self) -> None:
        leads = self.store.acquire_leader
        while await leads(self.config.service_id, self.address, _LEASE) is None:  # noqa: ASYNC110 (a lease knows no events)
            await asyncio.sleep(0.2)
        await self.store.join(self._member(), _LEASE)

    def _member(self) -> Member:
        return Member("worker", self.worker_id, self.address, Role.UNIFIED.value)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_LEASE / 3)
            await self._lead()


class _Scheduler(scheduler_pb2_grpc.SchedulerServicer):
    def __init__(self, emulated: Emulated) -> None:
        self._emulated = emulated

    async def Connect(  # noqa: N802 (the proto's name)
        self,
        request_iterator: AsyncIterator[scheduler_pb2.GatewayMessage],
        context: grpc.aio.ServicerContext[
            scheduler_pb2.GatewayMessage, scheduler_pb2.SchedulerMessage
        ],
    ) -> AsyncIterator[scheduler_pb2.SchedulerMessage]:
        messages = aiter(request_iterator)
        hello = wire.FROM_GATEWAY.unpack(await anext(messages), now=time.time())
        assert isinstance(hello, GatewayHello)
        queue: asyncio.Queue[ToGateway | None] = asyncio.Queue()
        self._emulated.gateways[hello.gateway_id] = queue
        reader = asyncio.create_task(self._read(messages, hello.gateway_id))
        try:
            while (message := await queue.get()) is not None:
                gathered = [message]
                while not queue.empty() and (message := queue.get_nowait()) is not None:
                    gathered.append(message)
                yield wire.TO_GATEWAY.pack_all(gathered)
                if message is None:
                    return
        finally:
            reader.cancel()

    async def Explain(  # noqa: N802 (the proto's name)
        self,
        request: scheduler_pb2.ExplainRequest,
        context: grpc.aio.ServicerContext[scheduler_pb2.ExplainRequest, scheduler_pb2.ExplainReply],
    ) -> scheduler_pb2.ExplainReply:
        self._emulated.asked_about.append(request.request_id)
        return scheduler_pb2.ExplainReply(decisions=self._emulated.decisions)

    async def Picture(  # noqa: N802 (the proto's name)
        self,
        request: scheduler_pb2.PictureRequest,
        context: grpc.aio.ServicerContext[
            scheduler_pb2.PictureRequest, scheduler_pb2.ClusterPicture
        ],
    ) -> scheduler_pb2.ClusterPicture:
        if self._emulated.picture is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it does not answer")
        packed: scheduler_pb2.ClusterPicture = wire.PICTURE.pack(self._emulated.picture)
        return packed

    async def _read(
        self, messages: AsyncIterator[scheduler_pb2.GatewayMessage], gateway_id: str
    ) -> None:
        async for packed in messages:
            for message in wire.FROM_GATEWAY.unpack_all(packed, now=time.time()):
                self._emulated.take(message, gateway_id)


async def _main(args: argparse.Namespace) -> None:
    config = ServiceConfig(service_id="emulated", cluster=args.cluster, store=args.store)
    store = await Store.connect(config.store, config.cluster)
    emulated = Emulated(config, store, delay=args.delay_ms / 1000, keeps_submitted=False)
    await emulated.start()
    print(f"emulated worker leads cluster {config.cluster} at {emulated.address}", flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await emulated.stop()
    with contextlib.suppress(Exception):
        await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description="an emulated scheduler and worker"
    )
    parser.add_argument("--store", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--cluster", default="default")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="between passes")
    uvloop.run(_main(parser.parse_args()))
