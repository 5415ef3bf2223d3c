"""Clients of a history: each asks one gateway over gRPC, and writes down what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import inf
from typing import Any

import grpc

from headway.errors import Code
from proof.checker import Asked, Ended, Failed, Left, Read
from proof.vopr.loop import ProcessLife
from proof.vopr.paged import answer_to
from proof.vopr.processes import address_of, models_of
from proof.vopr.scenario import BLOCK_SIZE, MODEL, Asking
from proof.vopr.world import ShellWorld
from protos import common_pb2, gateway_pb2, gateway_pb2_grpc
from services.gateway.api_call import ChatInput
from services.gateway.preparation import Preparation


class HistoryClient:
    """One client with one request."""

    def __init__(
        self, world: ShellWorld, asking: Asking, gateway: str, served_by: ProcessLife | None
    ) -> None:
        """``served_by``: the gateway's present life; None without one."""
        self._world = world
        self._asking = asking
        self._gateway = gateway
        self._served_by = served_by
        self._call: Any = None
        self._has_ended = False
        life = ProcessLife(world.loop, "client")
        life.handler = partial(world.failed, life)
        world.loop.start(life, self._ask())

    async def _ask(self) -> None:
        world, asking = self._world, self._asking
        request, expected = _request(asking, world.scenario.shape.num_blocks)
        self._asked_at = now = world.loop.time()
        deadline_at = now + world.scenario.request_timeout
        world.record(Asked(asking.name, now, expected, deadline_at))
        channel = grpc.aio.insecure_channel(address_of(self._gateway))
        stub = gateway_pb2_grpc.GatewayStub(channel)
        metadata = [("x-request-id", asking.name)]
        if asking.tenant:
            metadata.append(("authorization", f"Bearer {asking.tenant}"))
        self._call = stub.Generate(request, metadata=tuple(metadata))
        if asking.leaves:
            world.loop.later(asking.leaves, self._leave)
        try:
            async for reply in self._call:
                self._read(reply)
        except grpc.aio.AioRpcError as error:
            self._fail(error)
        await channel.close()

    def _read(self, reply: gateway_pb2.GenerateReply) -> None:
        name, now = self._asking.name, self._world.loop.time()
        if reply.token_ids and not self._has_ended:
            self._world.record(Read(name, now, tuple(reply.token_ids)))
        if reply.finish_reason and not self._has_ended:
            self._has_ended = True
            reason = common_pb2.FinishReason.Name(reply.finish_reason)
            self._world.record(Ended(name, self._due(now), reason))

    def _fail(self, error: grpc.aio.AioRpcError) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        world, name, now = self._world, self._asking.name, self._world.loop.time()
        code, message = error.code().name, error.details() or ""
        world.hit(f"a request fails: {code}")
        due_at = self._asked_at + world.scenario.request_timeout
        world.require(
            now >= due_at or code != Code.DEADLINE_EXCEEDED.name,
            "no deadline passes early",
            f"{name}: {message}",
        )
        is_excused = world.excuses(message, self._asked_at)
        silent_at = world.silent_at.get(self._gateway, -inf)
        is_silent = silent_at >= self._asked_at  # keepalive is slow to tell
        ended_at = silent_at if is_silent else self._due(now)
        world.record(Failed(name, ended_at, code, message, is_excused))

    def _due(self, now: float) -> float:
        """Return when it would have been told: a gateway that stands still tells nothing."""
        deadline_at = self._asked_at + self._world.scenario.request_timeout
        return now if self._served_by is None else now - self._served_by.stood_still(deadline_at)

    def _leave(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._world.hit("a client leaves")
            self._world.record(Left(self._asking.name, self._world.loop.time()))
            self._call.cancel()


def _request(asking: Asking, num_blocks: int) -> tuple[gateway_pb2.GenerateRequest, Sequence[int]]:
    """Return what a client asks for, and the undisturbed answer."""
    room = num_blocks * BLOCK_SIZE - asking.max_tokens
    request = gateway_pb2.GenerateRequest(model=MODEL, disable_pacing=not asking.paced)
    prompt = prompt_of(asking)[:room]
    chat = _chat(asking, num_blocks) if asking.reasons else ()
    if 0 < len(chat) <= room:
        message = request.chat.messages.add()
        message.role, message.content = "user", _words(asking)
        prompt = tuple(chat)
    else:
        request.token_ids.ids.extend(prompt)
    options = request.sampling
    options.temperature, options.max_tokens, options.seed = 0.0, asking.max_tokens, 0
    options.ignore_eos = True
    return request, answer_to(prompt, asking.max_tokens)


def prompt_of(asking: Asking) -> tuple[int, ...]:
    """Return the tokens of a prompt; the first ``shared`` are those of others, too."""
    number = int("".join(filter(str.isdigit, asking.name)) or 0)
    common = [place % 50 + 1 for place in range(min(asking.shared, asking.num_prompt))]
    own = [(number * 7 + place) % 50 + 1 for place in range(asking.num_prompt - len(common))]
    return (*common, *own)


def _words(asking: Asking) -> str:
    return "".join(chr(ord("a") + token % 26) for token in prompt_of(asking))


def _chat(asking: Asking, num_blocks: int) -> Sequence[int]:
    messages = [{"role": "user", "content": _words(asking)}]
    return _preparation(num_blocks).token_ids(ChatInput(messages))


@cache
def _preparation(num_blocks: int) -> Preparation:
    (model,) = models_of(num_blocks)
    return Preparation(model, lambda num_tokens: 0.0)
