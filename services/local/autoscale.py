"""``headway up --autoscale``: its options, and who scales the workers of this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headway.presets import find_preset

if TYPE_CHECKING:
    from services.local.supervisor import ProcessSpec, Supervisor
    from services.local.worker_scaler import WorkerScaler
    from services.runtime.config import ServiceConfig

_WITHOUT_PROFILE = "blitzscale"  # by request counts: needs to know nothing of the machine


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register them."""
    group = parser.add_argument_group("autoscaling")
    add = group.add_argument
    add("--autoscale", action="store_true", help="start and drain workers as the load asks for")
    add("--scaling", default="", metavar="POLICY", help="default: the preset's, or blitzscale")
    add("--scaling-params", default="{}", metavar="JSON", help="its parameters")
    add(
        "--profile",
        default="",
        metavar="FILE",
        help="what a worker carries, for tokenscale: what `headway profile run` writes",
    )
    add("--max-prefill", type=int, default=4, metavar="N", help="most prefill workers (default 4)")
    add("--max-decode", type=int, default=4, metavar="N", help="most decode workers (default 4)")
    add("--budget", type=int, default=0, metavar="N", help="most workers together (default: any)")
    add("--standby", type=int, default=0, metavar="N", help="warm workers without a role (0)")
    add("--scale-down-delay", type=float, default=10.0, help="s of quiet before one goes")


def autoscaler_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """What the autoscaler is told; without ``--autoscale`` what is started is what there is."""
    if not args.autoscale:
        return (
            *("--scaling", "fixed"),
            *("--num-prefill", str(args.prefill)),
            *("--num-decode", str(args.decode)),
            *("--num-convertible", str(args.convertible)),
            *("--num-unified", str(args.unified)),
        )
    return (
        *("--actuator", "process", "--scaling", _policy(args)),
        *("--scaling-params", json.dumps(_params(args))),
        *("--max-prefill", str(args.max_prefill), "--max-decode", str(args.max_decode)),
        *("--budget", str(args.budget), "--scale-down-delay", str(args.scale_down_delay)),
    )


def scheduler_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """TokenScale's routing reads the profile, too."""
    if not (args.profile and args.preset and find_preset(args.preset).dispatch == "tokenscale"):
        return ()
    return ("--dispatch-params", json.dumps({"profile": args.profile}))


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
    from headway.policies import registry

    require_between("--standby", args.standby, 0, 16)
    if not args.autoscale:
        if args.standby:
            message = f"--standby is {args.standby}; it is for --autoscale: give both, or neither"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        return
    if args.unified:
        message = "--autoscale scales prefill and decode workers: leave --unified out"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    name, params = _policy(args), _params(args)
    if args.profile and name != "tokenscale":
        message = (
            f"--profile is {args.profile!r}; --scaling {name} reads none: leave one of them out"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    registry.make("scaling", name, **params)
    if name == "tokenscale" and "profile" not in params:
        message = (
            "tokenscale needs to know what this machine carries: give its profile with --profile "
            f"FILE ({MAKE_ONE} measures one), or another --scaling, for example {_WITHOUT_PROFILE}"
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
    # other policies know nothing of convertible decoders: theirs stay as they were started
    roles = ("prefill", "decode", *(["convertible"] if _policy(args) == "tokenscale" else []))

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


def _params(args: argparse.Namespace) -> dict[str, Any]:
    """The policy's; HeadwayError for what is no JSON object."""
    from headway.errors import invalid

    try:
        params = json.loads(args.scaling_params)
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise invalid("--scaling-params", args.scaling_params, "a JSON object")
    return {"profile": args.profile, **params} if args.profile else params


def _policy(args: argparse.Namespace) -> str:
    preset = find_preset(args.preset).scaling if args.preset else "fixed"
    name: str = args.scaling or preset
    if name != "fixed":
        return name
    return "tokenscale" if args.profile else _WITHOUT_PROFILE
