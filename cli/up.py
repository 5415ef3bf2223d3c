"""``headway up``: the whole cluster on this machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import add_model, add_policy_options, chosen, refuse_unknown
from headway.errors import Code, HeadwayError, invalid
from headway.presets import PRESETS, UNIFIED_PRESET
from services.runtime.rooms import SHIPPED_MODEL, model_folder

if TYPE_CHECKING:
    from cli.up_screen import Screen
    from services.local.options import ClusterOptions, WorkerCounts

# What a cluster consists of is imported once the flags are read: --help and a typed mistake need
# none of it.

_SERVICE_FLAGS = (
    "Every flag of a service can be given with its name: --worker.host-kv-gib 2, "
    "--gateway.max-waiting 100 (`headway service NAME --help` lists them). "
    "`headway up FILE.toml` serves several models, each a [[model]] of the file (docs/deploy.md)."
)

_UNIFIED = "if the engine plans, if --unified alone is given, or with preset headway"

_SAME = (
    *("model", "model_name", "schedulers", "device", "dtype", "dp", "predictor", "host", "port"),
    *("listen", "certs", "api_key_file", "metrics_port", "log_level", "drain_timeout"),
)
"""Options that a cluster has under the same name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options of a local cluster."""
    parser.epilog = _SERVICE_FLAGS
    add = parser.add_argument
    add_model(parser)
    add("--model-name", default="", help="name that requests use; default: the folder's name")
    lora = "LoRA adapter of the model, a name of its own in requests; once for each"
    add("--lora", action="append", default=[], metavar="NAME=FOLDER", help=lora)
    add("--preset", default="", help=f"one of {', '.join(PRESETS)} (default: the services' own)")
    add_policy_options(parser)
    add("--prefill", type=int, metavar="N", help=f"prefill workers (1; 0 {_UNIFIED})")
    add("--decode", type=int, metavar="N", help=f"decode workers (2; 0 {_UNIFIED})")
    add("--convertible", type=int, default=0, metavar="N", help="decoders that prefill bursts")
    unified = "workers that do both (0; 1 if the engine plans; 3 with preset headway)"
    add("--unified", type=int, metavar="N", help=unified)
    add("--schedulers", type=int, default=1, metavar="N", help="one leads, others stand by (1)")
    add("--device", default="cpu", help="cpu or cuda; several GPUs are shared out")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--engine", default="torch", help="torch, vllm, vllm-native or openai (docs/engines.md)")
    add("--engine-args", default="", metavar="JSON", help="options of an engine other than torch")
    add("--dp", type=int, default=1, metavar="N", help="DP units per worker (default 1)")
    add("--predictor", default="", help="folder of its versions; default: the model's predictor/")
    add("--host", default="127.0.0.1", help="clients' address (default: loopback)")
    add("--port", type=int, default=8000, help="HTTP port (default 8000); gRPC takes the next one")
    add("--listen", default="127.0.0.1", help="services' address; beyond loopback others may join")
    add("--certs", default="", metavar="DIR", help="default beyond loopback: certs in --log-dir")
    add("--store", default="", help="redis:// URL; default: a private server of its own")
    add("--cluster", default="default", help="name of the cluster in the store")
    add("--api-key-file", default="", help="who may call (see `headway key`); default: anybody")
    add("--metrics-port", type=int, default=0, metavar="N", help="Prometheus, from there on (off)")
    add("--log-dir", default="run", help="folder of the services' logs (default run)")
    add("--log-level", default="info", help="debug, info, warning or error")
    add("--drain-timeout", type=float, default=30.0, help="s to finish running work at a stop")
    _add_scaling(parser)
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    parser.set_defaults(run=partial(run, known_flags=known), service_flags=[])


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("autoscaling").add_argument
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


def parse(flags: Sequence[str]) -> ClusterOptions:
    """Return the cluster that ``headway up`` starts with these flags."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser)
    args, unknown = parser.parse_known_args(flags)
    return cluster_options(args, unknown)


def cluster_options(
    args: argparse.Namespace, service_flags: Sequence[str] = (), known_flags: Iterable[str] = ()
) -> ClusterOptions:
    """Return the options of a cluster; HeadwayError for flags that do not exist or fit."""
    refuse_unknown(args.preset, args)
    file, flags = _read_more(service_flags, known_flags)
    from services.local.models_file import read_models, refuse_flags_of_models
    from services.local.options import Autoscale, ClusterOptions, PolicyOptions

    if args.standby and not args.autoscale:
        message = f"--standby is {args.standby}; it is for --autoscale: give both, or neither"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    if file:
        _refuse_options_of_one_model(args, file)
    policy, settings = chosen(args)
    flags = _with_engine(args, flags)
    autoscale = Autoscale(
        args.max_prefill, args.max_decode, args.budget, args.standby, args.scale_down_delay
    )
    options = ClusterOptions(
        policies=PolicyOptions(args.preset, policy, settings, args.profile),
        workers=_counts(args),
        autoscale=autoscale if args.autoscale else None,
        service_flags=flags,
        lora=_adapters(args.lora),
        **{name: getattr(args, name) for name in _SAME},
    )
    if not file:
        return options
    refuse_flags_of_models(flags["worker"], "all workers")
    models = read_models(file)
    return replace(options, model=models[0].path, model_name=models[0].name, models=models)


def _read_more(
    texts: Sequence[str], known: Iterable[str]
) -> tuple[str, Mapping[str, tuple[str, ...]]]:
    """Return the file of models, "" for none, and the flags of services among these arguments."""
    if not texts:
        return "", {}
    from services.local.service_flags import find_models_file, parse_service_flags

    file, flags = find_models_file(texts)
    return file, parse_service_flags(flags, known)


def _refuse_options_of_one_model(args: argparse.Namespace, file: str) -> None:
    """Raise HeadwayError for an option that a file of models has instead, or cannot have."""
    given = {
        "--prefill": args.prefill is not None,
        "--decode": args.decode is not None,
        "--unified": args.unified is not None,
        "--convertible": args.convertible,
        "--model": args.model != model_folder(SHIPPED_MODEL),
        "--model-name": args.model_name,
        "--predictor": args.predictor,
        "--lora": args.lora,
    }
    if wrong := [flag for flag, is_given in given.items() if is_given]:
        message = f"{wrong[0]} is for one model: leave it out, {file} says it of each"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    if args.autoscale:
        message = f"--autoscale is for one model: leave it out, {file} says how many workers run"
        raise HeadwayError(Code.INVALID_ARGUMENT, message)


def _adapters(given: Sequence[str]) -> Mapping[str, str]:
    """Return the adapters' folders by name; INVALID_ARGUMENT for a wrong or a second one."""
    adapters: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in adapters:
            raise invalid("--lora", text, "NAME=FOLDER, each name once")
        adapters[name] = folder
    return adapters


def _counts(args: argparse.Namespace) -> WorkerCounts:
    """Return the workers that are asked for: unified ones alone, where no other role is named.

    Those of an endpoint do everything. So do those of the preset ``headway`` unless a role is
    given; its autoscaler splits them.
    """
    from services.local.options import WorkerCounts
    from services.worker.engines import MOVES_NO_KV

    given = (args.prefill, args.decode, args.unified)
    splits = args.convertible or args.prefill is not None or args.decode is not None
    default = (1, 2, 0)
    if args.engine in MOVES_NO_KV:
        default = (0, 0, 1)
    elif args.unified and not splits:
        default = (0, 0, 0)
    elif _starts_unified(args) and not splits and args.unified is None:
        default = (0, 0, 3)
    prefill, decode, unified = (
        own if number is None else number for number, own in zip(given, default, strict=True)
    )
    return WorkerCounts(prefill, decode, args.convertible, unified)


def _starts_unified(args: argparse.Namespace) -> bool:
    """Return whether the preset's workers are unified until a split pays."""
    if args.preset != UNIFIED_PRESET:
        return False
    from services.local.options import PolicyOptions

    policies = PolicyOptions(args.preset, *chosen(args), args.profile)
    return not args.autoscale or "unified" in policies.scaled_roles()


def _with_engine(
    args: argparse.Namespace, flags: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[str, ...]]:
    """Return the services' flags with the engine of the workers."""
    engine = ("--engine", args.engine) if args.engine != "torch" else ()
    options = ("--engine-args", args.engine_args) if args.engine_args else ()
    return {**flags, "worker": (*engine, *options, *flags.get("worker", ()))}


def run(args: argparse.Namespace, known_flags: Iterable[str] = ()) -> int:
    """Run until Ctrl-C or SIGTERM, then drain; return 2 for what is refused before the start."""
    log_folder = Path(args.log_dir)
    store = args.store or os.environ.get("HEADWAY_STORE", "")
    try:
        options = cluster_options(args, args.service_flags, known_flags)
        from services.local.refusals import refuse_wrong_options

        refuse_wrong_options(options, log_folder, store=store, name=args.cluster)
    except HeadwayError as error:
        print(f"headway up: {error.message}", file=sys.stderr)
        return 2

    from services.local.forked import Template
    from services.local.options import imports_ahead

    template = Template(log_folder, imports_ahead(options))
    template.begin()  # it imports beside this process, which now imports the rest of its own
    from cli.up_screen import Screen
    from services.local.cluster import LocalCluster, serve

    async def up() -> None:
        screen = Screen()
        cluster = LocalCluster(
            options, log_folder, screen.say, store=store, name=args.cluster, template=template
        )
        async with screen.following(cluster.supervisor.processes, options.url):
            await serve(cluster, screen.say, partial(_say_hello, options, screen))

    asyncio.run(up())
    return 0


def _say_hello(options: ClusterOptions, screen: Screen) -> None:
    say = screen.say
    url, name = options.url, options.served_name
    key = " -H 'Authorization: Bearer YOUR_KEY'" if options.api_key_file else ""
    body = (
        f'{{"model": "{name}", "stream": true, '
        '"messages": [{"role": "user", "content": "Add 17, 25, 8."}]}'
    )
    headers = f"-H 'Content-Type: application/json'{key}"
    grpc = f"gRPC on {options.grpc_address}{' (mutual TLS)' if options.needs_certificates else ''}"
    served = ", ".join(model.name for model in options.models) or name
    say(f"\nHeadway serves {served}: HTTP on {url}, {grpc}. Try:\n")
    if options.needs_certificates and not options.api_key_file:
        say("Whoever reaches it may ask it anything: give --api-key-file (`headway key`).\n")
    say(f"  curl -N {url}/v1/chat/completions {headers} -d '{body}'\n")
    say(f"  The console: {url}/console\n")
