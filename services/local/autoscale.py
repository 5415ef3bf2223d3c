"""``headway up --autoscale``: its options, and who scales the workers of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from headway.policies import registry
from headway.policies.scaling import Scaling
from headway.presets import (
    PLAIN,
    SCALED_BY_PROFILE,
    SCALED_BY_REQUESTS,
    Choice,
    find_preset,
    parse_choice,
)
from services.local.policy_options import chosen

if TYPE_CHECKING:
    from services.local.supervisor import ProcessSpec, Supervisor
    from services.local.worker_scaler import WorkerScaler
    from services.runtime.config import ServiceConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register them."""
    group = parser.add_argument_group("autoscaling")
    add = group.add_argument
    add("--autoscale", action="store_true", help="start and drain workers as the load asks for")
    add(
        "--profile",
        default="",
        metavar="FILE",
        help="what a worker costs and carries: what `headway profile run` writes",
    )
    add("--max-prefill", type=int, default=4, metavar="N", help="most prefill workers (default 4)")
    add("--max-decode", type=int, default=4, metavar="N", help="most decode workers (default 4)")
    add("--budget", type=int, default=0, metavar="N", help="most workers together (default: any)")
    add("--standby", type=int, default=0, metavar="N", help="warm workers without a role (0)")
    add("--scale-down-delay", type=float, default=10.0, help="s of quiet before one goes")


def policy_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the policies of all services; without ``--autoscale`` numbers stay as started."""
    choice = parse_choice(*chosen(args))
    scaling = {"scaling": scaling_policy(args) if args.autoscale else PLAIN.scaling}
    params = {q: p for q, p in choice.params.items() if args.autoscale or q not in scaling}
    policy, settings = Choice({**choice.policies, **scaling}, params).texts()
    return ("--policy", policy, "--set", settings)


def autoscaler_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the numbers of the autoscaler."""
    if not args.autoscale:
        return (
            *("--num-prefill", str(args.prefill)),
            *("--num-decode", str(args.decode)),
            *("--num-convertible", str(args.convertible)),
            *("--num-unified", str(args.unified)),
        )
    return (
        *("--actuator", "process"),
        *("--max-prefill", str(args.max_prefill), "--max-decode", str(args.max_decode)),
        *("--budget", str(args.budget), "--scale-down-delay", str(args.scale_down_delay)),
    )


def chunk_flags(args: argparse.Namespace, role: str) -> tuple[str, ...]:
    """A convertible decoder's chunk is its profile's."""
    from headway.cost.profile import load_profile

    if not args.profile or role != "convertible":
        return ()
    chunk = load_profile(args.profile).convertible_chunk_tokens
    return () if chunk is None else ("--chunk-tokens", str(chunk))


def refuse_wrong_options(args: argparse.Namespace) -> None:
    """HeadwayError for what cannot be scaled."""
    from headway.cost.schema import MAKE_ONE
    from headway.errors import Code, HeadwayError, require_between

    require_between("--standby", args.standby, 0, 16)
    if not args.autoscale:
        if args.standby:
            message = f"--standby is {args.standby}; it is for --autoscale: give both, or neither"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        return
    if args.unified:
        message = "--autoscale scales prefill and decode workers: leave --unified out"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    asked = registry.find("scaling", scaling_policy(args))
    if asked.reads_profile and not args.profile:
        message = (
            f"{asked.name} needs to know what this machine carries: give its profile with "
            f"--profile FILE ({MAKE_ONE} measures one), or another policy, for example "
            f"--policy scaling={SCALED_BY_REQUESTS}"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)


def make_scaler(
    args: argparse.Namespace,
    supervisor: Supervisor,
    config: ServiceConfig,
    make_spec: Callable[[str, str, int], ProcessSpec],
) -> WorkerScaler | None:
    """Who scales; None where nothing is scaled. ``make_spec``: of a role, an id and a place."""
    from services.local.standby_workers import StandbyWorkers
    from services.local.worker_scaler import WorkerScaler

    if not args.autoscale:
        return None
    # what knows nothing of convertible decoders leaves theirs as they were started
    converts = cast("type[Scaling]", registry.find("scaling", scaling_policy(args)).make).converts
    roles = ("prefill", "decode", *(["convertible"] if converts else []))

    def next_spec(role: str, service_id: str) -> ProcessSpec:
        place = sum(process.spec.service == "worker" for process in supervisor.processes)
        return make_spec(role, service_id, place)

    def standby_spec(service_id: str) -> ProcessSpec:
        spec = next_spec("decode", service_id)
        return replace(spec, flags=(*spec.flags, "--standby"))

    standby = None
    if args.standby:
        standby = StandbyWorkers(supervisor, config, args.standby, standby_spec)
    return WorkerScaler(supervisor, config, roles, next_spec, standby)


def scaling_policy(args: argparse.Namespace) -> str:
    """Return the policy that scales: the chosen one, the preset's, or one that needs no preset."""
    named = parse_choice(*chosen(args)).policies.get("scaling", "")
    preset = find_preset(args.preset) if args.preset else PLAIN
    name = named or preset.scaling
    if cast("type[Scaling]", registry.find("scaling", name).make).scales:
        return name
    return SCALED_BY_PROFILE if args.profile else SCALED_BY_REQUESTS
