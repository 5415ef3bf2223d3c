"""A whole cluster on this machine: its options, processes and life."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.presets import PRESETS
from services.local import autoscale as up_autoscale
from services.local import prometheus as up_metrics
from services.local.policy_options import add_policy_options
from services.runtime.rooms import SHIPPED_MODEL, model_folder

if TYPE_CHECKING:
    from services.local.supervisor import ProcessSpec, Supervisor
    from services.local.worker_scaler import WorkerScaler
    from services.runtime.config import ServiceConfig


_ROLES = ("prefill", "decode", "convertible", "unified")


def parse(flags: Sequence[str]) -> argparse.Namespace:
    """Read the options of a local cluster, for callers other than the command line."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(flags)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Register the options of a local cluster."""
    add = parser.add_argument
    add(
        "--model",
        type=model_folder,
        default=SHIPPED_MODEL,
        help="hub id or folder of the checkpoint",
    )
    add("--model-name", default="", help="name that requests use; default: the folder's name")
    add("--preset", default="", help=f"one of {', '.join(PRESETS)} (default: the services' own)")
    add("--prefill", type=int, default=1, metavar="N", help="prefill workers (default 1)")
    add("--decode", type=int, default=2, metavar="N", help="decode workers (default 2)")
    add("--convertible", type=int, default=0, metavar="N", help="decoders that prefill bursts")
    add("--unified", type=int, default=0, metavar="N", help="workers that do both (default 0)")
    add("--schedulers", type=int, default=1, metavar="N", help="one leads, others stand by (1)")
    add("--device", default="cpu", help="cpu or cuda; several GPUs are shared out")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--dp", type=int, default=1, metavar="N", help="DP units per worker (default 1)")
    add("--predictor", default="", help="folder of its versions; default: the model's predictor/")
    add("--host", default="127.0.0.1", help="HTTP address (default: loopback)")
    add("--port", type=int, default=8000, help="HTTP port (default 8000); gRPC takes the next one")
    add("--store", default="", help="redis:// URL; default: a private server of its own")
    add("--cluster", default="default", help="name of the cluster in the store")
    add("--api-key-file", default="", help="who may call (see `headway key`); default: anybody")
    add("--metrics-port", type=int, default=0, metavar="N", help="Prometheus, from there on (off)")
    add("--log-dir", default="run", help="folder of the services' logs (default run)")
    add("--log-level", default="info", help="debug, info, warning or error")
    add("--drain-timeout", type=float, default=30.0, help="s to finish what runs at a stop")
    add_policy_options(parser)
    up_autoscale.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run until Ctrl-C or SIGTERM; then drain."""
    import asyncio
    import os
    import tempfile

    from services.local import store as local_store
    from services.runtime.config import ServiceConfig

    _refuse_wrong_counts(args)
    refuse_wrong_options(args)
    _refuse_taken_ports(args)
    specs = process_specs(args, *_machine(args.device))
    url = args.store or os.environ.get("HEADWAY_STORE", "")
    with tempfile.TemporaryDirectory(prefix="headway-store-") as folder:
        if not url:
            port = local_store.free_port()
            url = local_store.store_url(port)
            specs.insert(0, store_spec(port, folder))
        config = ServiceConfig(
            service_id="supervisor",
            store=url,
            cluster=args.cluster,
            drain_timeout=args.drain_timeout,
        )
        return asyncio.run(_supervise(args, config, specs))


def process_specs(args: argparse.Namespace, num_cores: int, num_gpus: int = 0) -> list[ProcessSpec]:
    """What ``headway up`` starts."""
    from services.local.supervisor import ProcessSpec

    common, autoscaler = _common(args), up_autoscale.autoscaler_flags(args)
    model = ("--model", args.model, "--model-name", args.model_name)
    keys = ("--api-key-file", args.api_key_file) if args.api_key_file else ()
    http = ("--http-host", args.host, "--http-port", str(args.port))
    grpc_address = ("--listen", f"127.0.0.1:{args.port + 1}") if args.port else ()
    preset = _policies(args)
    specs = [
        ProcessSpec("gateway", "gateway", (*common, *preset, *model, *http, *grpc_address, *keys)),
        *(
            ProcessSpec("scheduler", name, (*common, *preset))
            for name in scheduler_ids(args.schedulers)
        ),
        ProcessSpec("predictor", "predictor", (*common, *_predictors(args))),
        ProcessSpec("autoscaler", "autoscaler", (*common, *preset, *autoscaler)),
    ]
    roles = [(role, number) for role in _ROLES for number in range(getattr(args, role))]
    for place, (role, number) in enumerate(roles):
        specs.append(worker_spec(args, role, f"{role}-{number + 1}", place, num_cores, num_gpus))
    return up_metrics.in_order(specs, args.metrics_port)


def worker_spec(
    args: argparse.Namespace, role: str, service_id: str, place: int, num_cores: int, num_gpus: int
) -> ProcessSpec:
    """One worker; GPUs are shared out by its place among all."""
    from services.local.supervisor import ProcessSpec

    device = args.device
    if device == "cuda" and num_gpus > 1:
        device = f"cuda:{place % num_gpus}"
    num_workers = sum(getattr(args, each) for each in _ROLES)
    flags = (
        *_common(args),
        *_policies(args),
        *("--model", args.model, "--model-name", args.model_name),
        *("--role", role, "--device", device, "--dtype", args.dtype, "--dp", str(args.dp)),
        *("--num-threads", str(max(1, num_cores // num_workers))),
        *up_autoscale.chunk_flags(args, role),
    )
    return ProcessSpec("worker", service_id, flags, role=role)


def _policies(args: argparse.Namespace) -> tuple[str, ...]:
    """Return what every service that decides is told."""
    preset = ("--preset", args.preset) if args.preset else ()
    profile = ("--profile", args.profile) if args.profile else ()
    return (*preset, *profile, *up_autoscale.policy_flags(args))


def refuse_wrong_options(args: argparse.Namespace) -> None:
    """Raise HeadwayError for what cannot be scaled, or a policy or parameter that is unknown."""
    from headway.core.settings import require_policies
    from services.runtime.preset import PresetConfig

    up_autoscale.refuse_wrong_options(args)
    config = PresetConfig(_cli_parse_args=[*_policies(args)])
    require_policies(config.chosen(), config.costs())


def _common(args: argparse.Namespace) -> tuple[str, ...]:
    return ("--log-level", args.log_level, "--drain-timeout", str(args.drain_timeout))


def with_flags(spec: ProcessSpec, *flags: str) -> ProcessSpec:
    """The same with more flags; of two that are given the last one holds."""
    return replace(spec, flags=(*spec.flags, *flags))


def _predictors(args: argparse.Namespace) -> tuple[str, ...]:
    """The trained predictor of remaining lengths, where the model has one."""
    import json
    from pathlib import Path

    folder = Path(args.predictor or Path(args.model) / "predictor")
    if not (args.predictor or folder.is_dir()):
        return ()
    name = args.model_name or Path(args.model).name
    return ("--predictors", json.dumps({name: str(folder)}))


def store_spec(port: int, folder: str) -> ProcessSpec:
    """A private store that keeps its data in a folder."""
    from services.local.store import store_command
    from services.local.supervisor import ProcessSpec

    command = store_command(port, folder)
    return ProcessSpec("store", "store", command=command, address=f"127.0.0.1:{port}")


async def _supervise(
    args: argparse.Namespace, config: ServiceConfig, specs: list[ProcessSpec]
) -> int:
    import asyncio
    import signal
    from pathlib import Path

    from services.local.supervisor import Supervisor

    supervisor = Supervisor(specs, config, Path(args.log_dir), lambda line: print(line, flush=True))
    scaler = make_scaler(args, supervisor, config)
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    print(f"starting {len(specs)} processes; their logs are in {args.log_dir}/", flush=True)
    running = asyncio.create_task(_serve(supervisor, scaler, args))
    listing = asyncio.create_task(_list_metrics(supervisor, args))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # a service that does not start ends everything
        await stopped
        print("draining (Ctrl-C again to end at once)", flush=True)
    finally:
        running.cancel()
        listing.cancel()
        if scaler is not None:
            await scaler.stop()
        await supervisor.stop()
        print("stopped", flush=True)
    return 0


def make_scaler(
    args: argparse.Namespace,
    supervisor: Supervisor,
    config: ServiceConfig,
    told: Callable[[ProcessSpec], ProcessSpec] = lambda spec: spec,
) -> WorkerScaler | None:
    """Who starts and drains workers for the autoscaler; None without ``--autoscale``.

    ``told``: what a worker is told beyond that.
    """
    machine = _machine(args.device)

    def make_spec(role: str, service_id: str, place: int) -> ProcessSpec:
        spec = told(worker_spec(args, role, service_id, place, *machine))
        others = (process.spec for process in supervisor.processes)
        return up_metrics.beside(spec, others, args.metrics_port)

    return up_autoscale.make_scaler(args, supervisor, config, make_spec)


async def _serve(
    supervisor: Supervisor, scaler: WorkerScaler | None, args: argparse.Namespace
) -> None:
    await supervisor.start()
    if scaler is not None:
        await scaler.start()
    await supervisor.serving()
    _say_hello(args)


async def _list_metrics(supervisor: Supervisor, args: argparse.Namespace) -> None:
    from pathlib import Path

    from services.local.metrics_targets import FILE_NAME, keep_targets

    if args.metrics_port:
        await keep_targets(Path(args.log_dir) / FILE_NAME, supervisor)


def _say_hello(args: argparse.Namespace) -> None:
    from pathlib import Path

    url = f"http://{args.host}:{args.port}"
    name = args.model_name or Path(args.model).name
    key = " -H 'Authorization: Bearer YOUR_KEY'" if args.api_key_file else ""
    body = (
        f'{{"model": "{name}", "stream": true, '
        '"messages": [{"role": "user", "content": "Add 17, 25, 8."}]}'
    )
    print(f"\nHeadway serves {name}: HTTP on {url}, gRPC on 127.0.0.1:{args.port + 1}. Try:\n")
    headers = f"-H 'Content-Type: application/json'{key}"
    print(f"  curl -N {url}/v1/chat/completions {headers} -d '{body}'\n", flush=True)


def _machine(device: str) -> tuple[int, int]:
    """Cores that this process may use, and GPUs where they are asked for."""
    import os
    import subprocess

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if device != "cuda":
        return num_cores or 1, 0
    try:  # without importing torch, which takes seconds
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return num_cores or 1, 1
    return num_cores or 1, len(listed.stdout.splitlines())


def scheduler_ids(num_schedulers: int) -> list[str]:
    """The one that is started first, and those that stand by."""
    return ["scheduler", *(f"scheduler-{number}" for number in range(2, num_schedulers + 1))]


def _refuse_wrong_counts(args: argparse.Namespace) -> None:
    from headway.errors import Code, HeadwayError, invalid

    if not 1 <= args.schedulers <= 8:
        raise invalid("--schedulers", args.schedulers, "from 1 to 8")
    for role in _ROLES:
        if not 0 <= getattr(args, role) <= 64:
            raise invalid(f"--{role}", getattr(args, role), "from 0 to 64")
    if not args.unified and not (args.prefill and args.decode):
        raise HeadwayError(
            Code.INVALID_ARGUMENT,
            f"--prefill {args.prefill} --decode {args.decode} --unified 0 cannot answer anything: "
            "give at least one of both, or a unified worker",
        )


def _refuse_taken_ports(args: argparse.Namespace) -> None:
    import socket

    from headway.errors import Code, HeadwayError, invalid

    if not 0 < args.port < 65535:
        raise invalid("--port", args.port, "from 1 to 65534")
    for port in (args.port, args.port + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((args.host, port))
            except OSError as error:
                raise HeadwayError(
                    Code.UNAVAILABLE,
                    f"cannot listen on {args.host}:{port} ({error.strerror}): choose a --port",
                ) from error
