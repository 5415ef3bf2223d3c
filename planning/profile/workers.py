"""A prefiller and a convertible decoder of the deployment, started as ``headway up`` starts them.

Nothing else runs: the profiler is their scheduler and their gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headway.messages import KvHeader
from headway.request import Request, SamplingParams
from planning.profile.front import GATEWAY_ID, Front
from planning.profile.link import LedWorker, leading
from planning.profile.plan import RequestSize
from services.local.process_spec import ProcessSpec
from services.local.store import LocalStore
from services.local.supervisor import Supervisor
from services.runtime.config import ServiceConfig

_FEW_TOKENS = 100  # prompts are of so many ids: every vocabulary has them
_TOKENS = tuple(random.Random(0).choices(range(_FEW_TOKENS), k=1 << 17))
DRAIN_TIMEOUT = 10.0


@dataclass
class Bench:
    """Both workers under measurement; ``start_ups`` in seconds from a worker's order to ready."""

    front: Front
    prefiller: LedWorker
    decoder: LedWorker
    start_ups: list[float] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def request(self, kind: RequestSize, *, is_prefilled: bool = False) -> Request:
        """Make a request that runs to its end; with a first token where it ``is_prefilled``."""
        number = next(self._numbers)
        return Request(
            request_id=f"profile-{number}",
            attempt=0,
            stream_id=number,
            gateway_id=GATEWAY_ID,
            gateway_address=self.front.address,
            model=self.prefiller.info.model,
            prompt_token_ids=_prompt(number, kind.num_input),
            sampling=SamplingParams(
                temperature=0.0, max_tokens=kind.num_output, ignore_eos=True, seed=number
            ),
            arrival_at=time.time(),
            output_token_ids=(0,) if is_prefilled else (),
        )

    async def kv_header(self, num_input: int) -> KvHeader:
        """Return the layout of KV, from a prompt that the prefiller sends here."""
        request = self.request(RequestSize(num_input, 2))
        header = self.front.header(request.stream_id)
        await (await self.prefiller.prefill(request))
        await self.prefiller.hand_off(request.key, GATEWAY_ID, self.front.address)
        return await header


def _prompt(number: int, num_tokens: int) -> tuple[int, ...]:
    """Return tokens that no other request begins with; cheap, as they are made by the thousand."""
    first = (number % _FEW_TOKENS, number // _FEW_TOKENS % _FEW_TOKENS)
    return (*first, *_TOKENS[: num_tokens - 2])[:num_tokens]


@asynccontextmanager
async def bench(
    flags: Sequence[str], passes: Path, number: int, say: Callable[[str], None]
) -> AsyncIterator[Bench]:
    """Start both, one after the other; stop them. ``number`` of the call: names their records.

    The decoder takes any prompt in one pass, so that a chunk can be as large as it may.
    """
    async with AsyncExitStack() as stack:
        store = stack.enter_context(LocalStore())
        config = ServiceConfig(
            service_id="profile", store=store.url, cluster="profile", drain_timeout=DRAIN_TIMEOUT
        )
        supervisor = Supervisor([], config, passes / "logs", say)
        stack.push_async_callback(supervisor.stop)
        await supervisor.start()
        front = Front()
        await front.start()
        stack.push_async_callback(front.stop)
        links, start_ups = [], []
        for role, more in (("prefill", ()), ("convertible", ("--chunk-tokens", "1000000"))):
            spec = _spec(role, number, (*flags, *more), passes)
            ordered_at = asyncio.get_running_loop().time()
            process = supervisor.add(spec)
            await process.serving()
            start_ups.append(asyncio.get_running_loop().time() - ordered_at)
            links.append(await stack.enter_async_context(leading(process.address, config)))
        yield Bench(front, links[0], links[1], start_ups)


def _spec(role: str, number: int, flags: Sequence[str], passes: Path) -> ProcessSpec:
    fixed = ("--role", role, "--record-passes", str(passes), "--predict-every", "0")
    all_flags = (*flags, *fixed, "--no-prefix-caching", "--log-level", "warning")
    return ProcessSpec("worker", f"{role}-{number}", all_flags)
