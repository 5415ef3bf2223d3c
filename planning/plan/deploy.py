"""A plan for a target: what that can say as it was simulated, and refusals of what it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headway.cost.profile import load_profile, profile_names
from headway.errors import HeadwayError
from headway.sim.spec import Autoscaling
from planning.plan.candidate import Sizing
from planning.plan.emit import EMITTERS, flags, refused
from planning.plan.space import Space, differences

_ON_A_WORKER = (
    "chunk_tokens",
    "prefill_chunk_tokens",
    "convertible_chunk_tokens",
    "num_units",
)
"""Fields of a profile that a worker's own options say."""


def emit(
    target: str, plan: Sizing, model: str, bounds: Autoscaling | None, files: Mapping[str, str]
) -> str:
    """Return what deploys a plan; ``files``: those of profiles that are not ready-made, by name.

    HeadwayError for what the target cannot say.
    """
    _require_one_profile(plan)
    profile = _reference(plan, files)
    if target == "flags":
        return flags(plan, model, bounds, profile)
    if profile in files.values():
        message = (
            f"the containers of --emit {target} have ready-made profiles alone, and "
            f"{plan.back.name} is the file {profile}: choose --emit flags"
        )
        raise refused(message)
    return EMITTERS[target](plan, model, bounds)


def refuse_all(target: str, space: Space, files: Mapping[str, str]) -> None:
    """Refuse a target that can say nothing of what may be tried: before it is tried."""
    refusal: HeadwayError | None = None
    for smallest in space.smallest():
        try:
            emit(target, smallest, "model", None, files)
        except HeadwayError as error:
            refusal = refusal or error
        else:
            return
    if refusal is not None:
        raise refusal


def _require_one_profile(plan: Sizing) -> None:
    """Refuse what no worker or no cluster of ours can be."""
    front, back = plan.front if plan.prefill else plan.back, plan.back
    for profile in (front, back):
        if profile.num_gpus > 1:
            message = (
                f"an instance of {profile.name} has {profile.num_gpus} GPUs, and nothing that is "
                "emitted starts a worker over several: start each one with `torchrun "
                "--nproc-per-node N -m services.worker` (docs/engine.md), or plan with a profile "
                "of one GPU"
            )
            raise refused(message)
    own = front.prefill_chunk_tokens or back.prefill_chunk_tokens  # decoders need not name it
    same = replace(back, chunk_tokens=front.chunk_tokens, prefill_chunk_tokens=own)
    if differs := differences(front, same):
        message = (
            f"the plan's prefillers and decoders differ in {differs}, and all services of a "
            "cluster have one profile: plan with --profiles of a single one"
        )
        raise refused(message)


def _reference(plan: Sizing, files: Mapping[str, str]) -> str:
    """Return the name or the file by which services find a plan's profile."""
    profile = plan.back
    if profile.name in files:
        return files[profile.name]
    message = f"profile {profile.name} is no ready-made one"
    if profile.name in profile_names():
        named = load_profile(profile.name)
        kept = {name: getattr(named, name) for name in _ON_A_WORKER}
        differs = differences(replace(profile, **kept), named)
        if not differs:
            return profile.name
        message = f"the scenario changes {differs} of profile {profile.name}"
    raise refused(f"{message}: write it to a file of its own, and give that with --profiles FILE")
