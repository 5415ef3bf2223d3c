"""The time that a request would take alone on its instances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.cluster import Role
from headway.cost.pass_time import prefill_context
from headway.cost.schema import Profile
from headway.sim.worker import InstanceSpec


@dataclass(frozen=True, slots=True)
class SoloTime:
    """Prefill on one instance and decode on another, or both on the same.

    ``own_chunk``: of passes of the first; 0: the profile's.
    """

    prefill: Profile
    decode: Profile
    own_chunk: int = 0

    @classmethod
    def on(cls, instances: Iterable[tuple[InstanceSpec, int]]) -> SoloTime:
        """Return the time on the first instance of each kind."""
        kinds = [kind for kind, _ in instances]
        prefill = next((k for k in kinds if k.role in (Role.PREFILL, Role.UNIFIED)), kinds[0])
        decode = next((k for k in kinds if k.role in (Role.DECODE, Role.UNIFIED)), kinds[0])
        return cls(prefill.profile, decode.profile, prefill.deployed.chunk_tokens)

    def of(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """Return prefill in chunks and then one token a pass, seconds."""
        usual, seconds = self.prefill.chunk_tokens, 0.0
        chunk = self.own_chunk or usual
        for start in range(0, num_prompt_tokens, chunk):
            count = min(chunk, num_prompt_tokens - start)
            context = prefill_context(start, count, usual)
            seconds += self.prefill.pass_time.seconds(count, context, 0, 0)
        num_passes = max(0, num_output_tokens - 1)  # prefill draws the first token
        step = self.decode.pass_time.seconds(0, 0, 1, num_prompt_tokens + (num_passes + 1) / 2)
        return seconds + num_passes * step
