"""Loads of the study of conversations: sessions, what runs beside them, and where they run.

Most run on four unified Llama-8B on H100, in a closed loop. AIPerf's agents come at the rate of an
open one, as AIPerf replays a trace. Mooncake's conversations are in ``shared/data`` (``--data``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headway.cluster import Role
from headway.cost.profile import load_profile
from headway.sim.clients import SimRequest
from headway.sim.experiment import UNLIMITED, Conditions
from headway.sim.failures import Failure
from headway.sim.network import NetworkParams
from headway.sim.sessions import SessionLoad
from headway.sim.spec import Instances
from headway.sim.worker import InstanceSpec
from headway.workload.agents import KINDS, make_sessions
from studies.recorded import MOONCAKE

_8B = "llama-8b-h100"
_DP8_PREFILL, _DP32_DECODE = "deepseek-v3-h800-prefill-dp8", "deepseek-v3-h800-decode-dp32"
_MOONCAKE_RATE = 0.7 * 3.4  # requests/s: 0.7 times its own
_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConversationLoad:
    """A load and its instances: roles with their profiles, and how many of each.

    ``kind``: of sessions, "" for Mooncake's. ``number``: of sessions that start by themselves, or
    of Mooncake's requests; ``rate``: of starts a second. ``changes``: of the kind's parameters.
    ``requests_per_s``: of an open loop, 0 for a closed one. ``kv_share``: of the profiles' KV.
    """

    title: str
    kind: str
    number: int
    rate: float
    changes: Mapping[str, float] = field(default_factory=lambda: _NONE)
    requests_per_s: float = 0.0
    instances: tuple[tuple[Role, int, str], ...] = ((Role.UNIFIED, 4, _8B),)
    kv_share: float = 1.0
    dispatch_latency: float = 0.0
    failures: Sequence[Failure] = ()

    @property
    def is_there(self) -> bool:
        """False where its recorded trace is missing."""
        return bool(self.kind) or not MOONCAKE.missing

    def conditions(self) -> Conditions:
        """Return the instances without limits: overload is latency."""
        network = NetworkParams()
        if self.dispatch_latency:
            network = replace(network, dispatch_latency=self.dispatch_latency)
        return Conditions(self._kinds(), network, limits=UNLIMITED)

    def _kinds(self) -> Instances:
        kinds = []
        for role, count, name in self.instances:
            profile = load_profile(name)
            num_tokens = int(profile.kv_capacity_tokens * self.kv_share)
            kinds.append(
                (InstanceSpec(role, replace(profile, kv_capacity_tokens=num_tokens)), count)
            )
        return kinds

    def make(self, seed: int) -> SessionLoad | list[SimRequest]:
        """Return the sessions of a seed, or requests where they come in an open loop."""
        if not self.kind:
            return self._mooncake(seed)
        params = replace(KINDS[self.kind], **self.changes)  # type: ignore[arg-type]  # its own names
        sessions = make_sessions(self.kind, seed, self.number, self.rate, params)
        load = SessionLoad(sessions, by_root=True)
        return load.replayed(self.requests_per_s) if self.requests_per_s else load

    def _mooncake(self, seed: int) -> list[SimRequest]:
        rows = MOONCAKE.rows(self.rate, self.number, random.Random(seed))
        return [
            SimRequest(
                f"request-{number}",
                row.arrival_at,
                row.prompt_tokens or 1,
                row.output_tokens or 1,
                prefix_hashes=row.prefix_hashes,
            )
            for number, row in enumerate(rows)
        ]


AIPERF = "AIPerf's agents, 4.65/s"
LOADS: Mapping[str, ConversationLoad] = {
    "agents, light": ConversationLoad("40 agents, one every 5 s", "agents", 40, 0.2),
    "agents, heavy": ConversationLoad("80 agents, one every 1.4 s", "agents", 80, 0.7),
    "agents, thrash": ConversationLoad(
        "160 agents, three a second, half the KV", "agents", 160, 3.0, kv_share=0.5
    ),
    AIPERF: ConversationLoad(
        "turns of 50 agents in an open loop", "aiperf", 50, 0.26, requests_per_s=4.65
    ),
    "mixed": ConversationLoad(
        "200 of agents, cold prompts of 14,000 tokens and reasoning, one a second",
        "mixed",
        200,
        1.0,
    ),
    "skewed, forks": ConversationLoad(
        "60 agents, of which 6 % are long and quick and fork often", "skewed", 60, 0.3
    ),
    "hot prefix, 48/s": ConversationLoad(
        "8,192 shared tokens, tails of 100 to 600", "hot", 6000, 48.0
    ),
    "Mooncake × 0.7": ConversationLoad(
        "its conversations, 700 requests at 0.7 times their rate", "", 700, _MOONCAKE_RATE
    ),
    "one dies, one comes": ConversationLoad(
        "50 agents, one every 3.3 s; an instance dies at 60 s, another comes 15 s later",
        "agents",
        50,
        0.3,
        failures=(Failure("unified-1", 60.0, back_after=15.0),),
    ),
    "3 × DP 8, long chats": ConversationLoad(
        "400 chats of 1,500 tokens and 900 more a turn, 6 a second",
        "chats",
        400,
        6.0,
        MappingProxyType({"first": 1500, "new": 900, "turns": 6.0, "pause": 6.0}),
        instances=((Role.PREFILL, 3, _DP8_PREFILL), (Role.DECODE, 1, _DP32_DECODE)),
        dispatch_latency=0.005,
    ),
    "2P + 2D, agents": ConversationLoad(
        "40 agents, one every 5 s",
        "agents",
        40,
        0.2,
        instances=((Role.PREFILL, 2, _8B), (Role.DECODE, 2, _8B)),
    ),
}
