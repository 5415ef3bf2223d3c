"""The space of a search: profiles of prefillers and of all others, and topologies by preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product

from headway.cost.schema import Profile
from headway.errors import Code, HeadwayError, invalid
from headway.sim.network import NetworkParams
from headway.sim.views.run import missing_from_views
from planning.plan.candidate import DISAGGREGATED, UNIFIED, Sizing

_ALONE = {
    UNIFIED: "prefillers and decoders alone",
    DISAGGREGATED: "unified instances alone",
}
"""The instances that are tried where a topology is not."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles that instances may have; ``fronts``: of prefillers, ``backs``: of all others."""

    fronts: Sequence[Profile]
    backs: Sequence[Profile]

    def __post_init__(self) -> None:
        for one, other in (*combinations(self.fronts, 2), *combinations(self.backs, 2)):
            if one.name == other.name:
                limit = f"a name for each: two of this name differ in {differences(one, other)}"
                raise invalid("a profile's name", one.name, limit)

    @classmethod
    def same(cls, profiles: Sequence[Profile]) -> Profiles:
        """Return profiles that instances of every role may have."""
        each = list(dict.fromkeys(profiles))
        return cls(each, each)

    @property
    def roles_differ(self) -> str:
        """In what the roles' only profiles differ; "" if a unified instance may have one."""
        if any(front == back for front, back in product(self.fronts, self.backs)):
            return ""
        return differences(self.fronts[0], self.backs[0])

    def pairs(self) -> Iterator[tuple[Profile, Profile]]:
        """Yield profiles of prefillers and of decoders that can hand KV over."""
        for front, back in product(self.fronts, self.backs):
            if (front.model, front.kv_bytes_per_token) == (back.model, back.kv_bytes_per_token):
                yield front, back


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a search: pairs of profiles, and ``topologies`` by preset."""

    profiles: Profiles
    topologies: Mapping[str, Sequence[str]]

    def bases(self) -> Iterator[tuple[Sizing, Sequence[str]]]:
        """Yield candidates that have no instances yet, and the topologies to try with them."""
        for (preset, topologies), (front, back) in product(
            self.topologies.items(), self.profiles.pairs()
        ):
            fits = [each for each in topologies if each != UNIFIED or front == back]
            if fits:
                yield Sizing(preset, front, back), fits

    def smallest(self) -> Iterator[Sizing]:
        """Yield the smallest candidate of each preset, pair of profiles and topology."""
        for base, topologies in self.bases():
            yield from (_smallest(base, each) for each in topologies)


def make_space(
    presets: Sequence[str],
    profiles: Profiles,
    topologies: Sequence[str],
    network: NetworkParams,
) -> tuple[Space, Sequence[str]]:
    """Return what may be tried, and sentences on what is left out.

    HeadwayError for a preset that views do not have, and where nothing is left.
    """
    notes: list[str] = []
    if UNIFIED in topologies and (why := profiles.roles_differ):
        notes.append(
            f"no unified instances: the scenario's prefillers and decoders differ in {why}; "
            "--profiles NAME gives all of them one profile"
        )
        topologies = [each for each in topologies if each != UNIFIED]
    tried: dict[str, Sequence[str]] = {}
    for preset in dict.fromkeys(presets):
        missing = _missing(preset, profiles, topologies, network)
        tried[preset] = [each for each in topologies if not missing[each]]
        wrong = {each: why for each, why in missing.items() if why}
        if topologies and not tried[preset]:
            raise _no_views(preset, next(iter(wrong.values())))
        notes += [f"{preset}: {_ALONE[t]}, as views do not have {why}" for t, why in wrong.items()]
    space = Space(profiles, tried)
    if next(space.bases(), None) is None:
        why = notes[0] if notes else "no prefiller can hand its KV to a decoder"
        raise HeadwayError(
            Code.FAILED_PRECONDITION, f"nothing is left to search: {why}", param="profiles"
        )
    return space, notes


def differences(one: Profile, other: Profile) -> str:
    """Return in what two profiles differ: names, or fields and numbers' values; "" for nothing."""
    if one.name != other.name:
        return f"their profiles ({one.name}, {other.name})"
    said = []
    for name in (each.name for each in fields(Profile)):
        values = getattr(one, name), getattr(other, name)
        if values[0] != values[1]:
            are_numbers = all(isinstance(value, int | float) for value in values)
            said.append(f"{name} ({values[0]}, {values[1]})" if are_numbers else name)
    return ", ".join(said)


def _smallest(base: Sizing, topology: str) -> Sizing:
    return base.but(unified=1) if topology == UNIFIED else base.but(prefill=1, decode=1)


def _missing(
    preset: str, profiles: Profiles, topologies: Sequence[str], network: NetworkParams
) -> Mapping[str, str]:
    """Return what views lack for a preset, by topology; "" for nothing."""
    base = Sizing(preset, profiles.fronts[0], profiles.backs[0])
    kinds = {each: _smallest(base, each) for each in topologies}
    return {t: ", nor ".join(missing_from_views(kind.spec(network))) for t, kind in kinds.items()}


def _no_views(preset: str, why: str) -> HeadwayError:
    message = (
        f"a plan searches over views, which do not have {why}: leave {preset} out of --presets, "
        f"and run it on the plan's instances with `headway simulate --preset {preset}`"
    )
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="presets")
