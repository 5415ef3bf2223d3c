"""A plan as something to deploy: flags, a file over ``compose.yaml``, or a kustomization.

What a target cannot say as it was simulated is refused: HeadwayError with the way out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice

from headway.cluster import Role
from headway.errors import Code, HeadwayError
from headway.sim.network import NetworkParams
from headway.sim.spec import Autoscaling
from planning.plan.candidate import DISAGGREGATED, Sizing

_FIXED = ("prefill-1", "prefill-2", "decode-1", "decode-2")
"""Workers of ``compose.yaml`` that a plan replaces."""
_SERVED = ("gateway", "scheduler", "scheduler-2")
_IN_KUBERNETES = (Role.PREFILL, Role.DECODE, Role.CONVERTIBLE)


def flags(plan: Sizing, model: str, bounds: Autoscaling | None = None, profile: str = "") -> str:
    """Return the command that starts it on one machine; ``bounds``: of an autoscaled fleet.

    ``profile``: the name or file by which it is found. HeadwayError where prefillers have a chunk
    that is not their own alone (``prefill_chunk_tokens``): the command has one for all workers.
    """
    chunk, of_prefillers = plan.back.chunk_tokens, plan.front.chunk_tokens
    if plan.prefill and chunk != of_prefillers:
        message = (
            f"the workers of {plan.topology} have chunks of {chunk} and {of_prefillers} tokens, "
            "and `headway up` has one --worker.chunk-tokens for all: choose --emit compose or "
            "kubernetes, or a profile with prefill_chunk_tokens"
        )
        raise refused(message)
    words = ["headway", "up", "--model", model, "--device", "cuda", "--preset", plan.preset]
    words += ["--profile", profile or plan.back.name]
    counts = {role: plan.counts.get(role, 0) for role in Role}
    for role, count in counts.items():
        if count or role in (Role.PREFILL, Role.DECODE):
            words += [f"--{role.value}", str(count)]
    if bounds is not None:
        words += ["--autoscale", "--max-prefill", str(bounds.max_prefill)]
        words += ["--max-decode", str(bounds.max_decode)]
    for setting in plan.settings:
        words += ["--set", setting]
    if plan.back.num_units > 1:
        words += ["--dp", str(plan.back.num_units)]
    words += ["--worker.chunk-tokens", str(chunk)]
    own_chunks = {
        Role.PREFILL: plan.front.prefill_chunk_tokens,
        Role.CONVERTIBLE: plan.back.convertible_chunk_tokens,
    }
    for role, own in own_chunks.items():
        if own and counts[role]:
            words += [f"--worker.{role.value}-chunk-tokens", str(own)]
    return shlex.join(words) + "\n"


def compose(plan: Sizing, model: str, bounds: Autoscaling | None = None) -> str:
    """Return a file over ``compose.yaml``: a service for each worker, with GPUs of its own.

    Replicas of one service would all have the same ones: a ``count`` of GPUs is always the first.
    HeadwayError for an autoscaled fleet: its autoscaler needs the host's engine.
    """
    if bounds is not None:
        message = (
            "a plan's compose file has fixed workers, and the cheapest fleet is autoscaled: "
            "choose --emit kubernetes or flags, or plan without --autoscale"
        )
        raise refused(message)
    chosen = [f"      {name}: {_quoted(value)}" for name, value in _policies(plan).items()]
    lines = [
        f"# A plan of `headway plan`: {plan.name}, {plan.num_gpus} GPUs of one machine.",
        "#   docker compose -f compose.yaml -f FILE up",
    ]
    for role in plan.counts:
        lines += _shared(plan, role, [*chosen, _model(model)])
    lines.append("services:")
    for name in _FIXED:
        lines += [f"  {name}:", '    profiles: ["fixed"]']
    for name in _SERVED:
        extra = [_model(model)] if name == "gateway" else []
        lines += ["", f"  {name}:", "    environment:", *chosen, *extra]
    lines += ["", "  autoscaler:", "    environment:", *chosen, *_numbers(plan)]
    gpus = iter(range(plan.num_gpus))
    for role, number in plan.counts.items():
        for place in range(1, number + 1):
            lines += ["", *_worker(role, place, list(islice(gpus, _num_gpus(plan, role))))]
    return "\n".join(lines) + "\n"


def _shared(plan: Sizing, role: Role, environment: Iterable[str]) -> Iterator[str]:
    """Yield what all workers of a role have."""
    yield f"x-{role.value}: &{role.value}"
    yield "  extends:"
    yield "    file: ${PWD}/compose.yaml"
    yield f"    service: {'prefill-1' if role is Role.PREFILL else 'decode-1'}"
    yield f"x-{role.value}-environment: &{role.value}-environment"
    yield from (line.removeprefix("    ") for line in environment)
    yield f"  HEADWAY_ROLE: {role.value}"
    yield "  HEADWAY_DEVICE: cuda"
    for name, value in _options(plan, role).items():
        yield f"  {name}: {_quoted(value)}"
    yield ""


def _worker(role: Role, place: int, gpus: Iterable[int]) -> Iterator[str]:
    name = f"plan-{role.value}-{place}"
    ids = ", ".join(_quoted(str(each)) for each in gpus)
    yield f"  {name}:"
    yield f"    <<: *{role.value}"
    yield "    environment:"
    yield f"      <<: *{role.value}-environment"
    yield f"      HEADWAY_SERVICE_ID: {name}"
    yield f"      HEADWAY_ADVERTISE: {name}:50051"
    yield "    deploy:"
    yield "      resources:"
    yield "        reservations:"
    yield "          devices:"
    yield "            - driver: nvidia"
    yield f"              device_ids: [{ids}]"
    yield '              capabilities: ["gpu"]'


def kubernetes(plan: Sizing, model: str, bounds: Autoscaling | None = None) -> str:
    """Return a kustomization beside ``deploy/kubernetes/gpu``; HeadwayError for unified workers.

    The pools keep their sizes, or follow the load within the ``bounds`` of an autoscaled fleet.
    """
    if Role.UNIFIED in plan.counts:
        message = (
            f"deploy/kubernetes has no unified workers, and the plan is {plan.topology}: "
            f"choose --emit compose or flags, or plan with --topologies {DISAGGREGATED}"
        )
        raise refused(message)
    settings = {
        **_policies(plan),
        "HEADWAY_MODEL": model,
        "HEADWAY_MODEL_NAME": model.rsplit("/", 1)[-1],
        **_scaling(plan, bounds),
    }
    sized = f"{plan.num_gpus} GPUs" if bounds is None else "autoscaled from there within its bounds"
    lines = [
        f"# A plan of `headway plan`: {plan.name}, {sized}.",
        "# As deploy/kubernetes/plan/kustomization.yaml: `kubectl apply -k deploy/kubernetes/plan`",
        "apiVersion: kustomize.config.k8s.io/v1beta1",
        "kind: Kustomization",
        "resources:",
        "  - ../gpu",
        "patches:",
        "  - patch: |",
        "      apiVersion: v1",
        "      kind: ConfigMap",
        "      metadata:",
        "        name: headway",
        "      data:",
        *(f"        {name}: {_quoted(value)}" for name, value in settings.items()),
    ]
    for role in _IN_KUBERNETES:
        lines += _scaled(plan, role, *_between(plan, role, bounds))
    return "\n".join(lines) + "\n"


def _scaling(plan: Sizing, bounds: Autoscaling | None) -> Mapping[str, str]:
    """Return the autoscaler's policy and numbers."""
    if bounds is None:
        numbers = {f"HEADWAY_NUM_{r.value.upper()}": r for r in _IN_KUBERNETES}
        counts = {name: str(plan.counts.get(role, 0)) for name, role in numbers.items()}
        return {"HEADWAY_POLICY": "scaling=fixed", **counts}
    policy = plan.spec(NetworkParams(), bounds).scaling
    assert policy is not None, "an autoscaled fleet has one"
    named = asdict(bounds)
    limits = ("min_prefill", "max_prefill", "min_decode", "max_decode")
    values = {f"HEADWAY_{name.upper()}": str(named[name]) for name in limits}
    return {"HEADWAY_POLICY": f"scaling={policy.name}", **values}


def _between(plan: Sizing, role: Role, bounds: Autoscaling | None) -> tuple[int, int]:
    """Return the fewest and the most workers of a role."""
    count = plan.counts.get(role, 0)
    if bounds is None or role is Role.CONVERTIBLE:
        return count, count
    if role is Role.PREFILL:
        return bounds.min_prefill, bounds.max_prefill
    return bounds.min_decode, bounds.max_decode


def _scaled(plan: Sizing, role: Role, fewest: int, most: int) -> Iterator[str]:
    """Yield the bounds of a role, and what each of its workers computes and has."""
    yield "  - patch: |"
    yield "      apiVersion: keda.sh/v1alpha1"
    yield "      kind: ScaledObject"
    yield "      metadata:"
    yield f"        name: headway-{role.value}"
    yield "      spec:"
    yield f"        minReplicaCount: {fewest}"
    yield f"        maxReplicaCount: {max(most, 1)}"
    if not most:
        return
    yield "  - patch: |"
    yield "      apiVersion: apps/v1"
    yield "      kind: Deployment"
    yield "      metadata:"
    yield f"        name: headway-{role.value}"
    yield "      spec:"
    yield "        template:"
    yield "          spec:"
    yield "            containers:"
    yield "              - name: headway"
    yield "                env:"
    for name, value in _options(plan, role).items():
        yield f"                  - name: {name}"
        yield f"                    value: {_quoted(value)}"
    yield "                resources:"
    yield "                  limits:"
    yield f'                    nvidia.com/gpu: "{_num_gpus(plan, role)}"'


def _policies(plan: Sizing) -> Mapping[str, str]:
    settings = ",".join(plan.settings)
    own = {"HEADWAY_SET": settings} if settings else {}
    return {"HEADWAY_PRESET": plan.preset, "HEADWAY_PROFILE": plan.back.name, **own}


def _numbers(plan: Sizing) -> Iterator[str]:
    yield "      HEADWAY_POLICY: scaling=fixed"
    for role in Role:
        yield f'      HEADWAY_NUM_{role.value.upper()}: "{plan.counts.get(role, 0)}"'


def _options(plan: Sizing, role: Role) -> Mapping[str, str]:
    """Return a worker's own options: what is simulated is not what it has by default."""
    profile = plan.deployed(role)
    own = {"HEADWAY_DP": str(profile.num_units)} if profile.num_units > 1 else {}
    if role is Role.PREFILL and (longer := plan.front.prefill_chunk_tokens):
        own["HEADWAY_PREFILL_CHUNK_TOKENS"] = str(longer)
        profile = plan.front
    return {"HEADWAY_CHUNK_TOKENS": str(profile.chunk_tokens), **own}


def _num_gpus(plan: Sizing, role: Role) -> int:
    return plan.deployed(role).num_gpus


def refused(message: str) -> HeadwayError:
    """Return the refusal of a target."""
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="emit")


def _model(model: str) -> str:
    return f"      HEADWAY_MODEL: {_quoted(model)}"


def _quoted(value: str) -> str:
    return f'"{value}"'


EMITTERS: Mapping[str, Callable[[Sizing, str, Autoscaling | None], str]] = {
    "compose": compose,
    "kubernetes": kubernetes,
    "flags": flags,
}
