"""Refusals of a local cluster's options, each in one sentence, before anything is started."""

from __future__ import annotations

import os
import re
import socket
import stat
from dataclasses import replace
from glob import glob
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from headway.core.settings import require_policies
from headway.cost.schema import MAKE_ONE
from headway.errors import Code, HeadwayError, invalid, require_between
from headway.policies import registry
from headway.presets import SCALED_BY_REQUESTS, parse_choice
from services.gateway.auth import KeyRing
from services.gateway.config import GatewayConfig
from services.local.options import ClusterOptions, process_specs
from services.local.service_flags import CONFIGS
from services.runtime.config import ServiceConfig, read_config
from services.runtime.preset import PresetConfig
from services.worker.config import WorkerConfig
from services.worker.engine.model.adapter_files import check_adapter
from services.worker.engine.model.check import check_model
from services.worker.engines import MOVES_NO_KV, find_engine, refuse_unread

_CARDS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
"""Where NVIDIA's cards show, AMD's, and those of a Windows below this Linux."""


def refuse_wrong_options(
    options: ClusterOptions, log_folder: Path, *, store: str = "", name: str = "default"
) -> None:
    """Raise HeadwayError for the first thing that is wrong; ``store`` as for LocalCluster."""
    shared = ("--store", store) if store else ()
    read_config(ServiceConfig, (*shared, "--cluster", name))
    refuse_wrong_scaling(options)
    refuse_missing_card(options.device)
    taken = {one.served_name for one in options.by_model()}
    for adapter in chain.from_iterable(one.lora for one in options.by_model()):
        if adapter in taken:
            raise invalid("--lora", adapter, "a name that no model and no other adapter has")
        taken.add(adapter)
    for one in options.by_model():
        try:
            _refuse_wrong_model(replace(one, models=()))
        except HeadwayError as error:
            named = f"model {one.served_name!r}: {error.message}" if options.models else ""
            raise HeadwayError(error.code, named or error.message) from error
    if options.models:
        refuse_wrong_configurations(options)
        _refuse_wrong_files(options)
    if options.api_key_file:
        KeyRing.load(_readable("--api-key-file", options.api_key_file))
    refuse_log_folder(log_folder)
    refuse_taken_ports(options)


def _refuse_wrong_model(options: ClusterOptions) -> None:
    """Raise HeadwayError for a cluster of one model that could not start."""
    refuse_wrong_counts(options)
    refuse_wrong_configurations(options)
    if "torch" in engines_of(options):
        check_model(options.model)
        for name, folder in options.lora.items():
            check_adapter(name, folder)
    if options.predictor and not Path(options.predictor).is_dir():
        raise invalid("--predictor", options.predictor, "a folder of a predictor's versions")


def _refuse_wrong_files(options: ClusterOptions) -> None:
    """Raise HeadwayError for a folder of a model that the gateway could not serve."""
    from services.gateway.model_loading import load_model  # slow to import

    gateway = next(
        spec for spec in process_specs(options, num_cores=1) if spec.service == "gateway"
    )
    for one in read_config(GatewayConfig, gateway.flags).by_model():
        try:
            if Path(one.model).is_dir():
                load_model(one)
        except HeadwayError as error:
            raise HeadwayError(error.code, f"model {one.model_name!r}: {error.message}") from error


def refuse_wrong_counts(options: ClusterOptions) -> None:
    """Raise HeadwayError for numbers of processes that cannot serve."""
    if not 1 <= options.schedulers <= 8:
        raise invalid("--schedulers", options.schedulers, "from 1 to 8")
    for role, number in options.workers.by_role().items():
        if not 0 <= number <= 64:
            raise invalid(f"--{role}", number, "from 0 to 64")
    counts = options.workers
    can_decode = counts.decode or counts.convertible
    if not counts.unified and not (counts.prefill and can_decode):
        raise HeadwayError(
            Code.INVALID_ARGUMENT,
            f"--prefill {counts.prefill} --decode {counts.decode} --unified 0 cannot answer "
            "anything: give at least one of both, or a unified worker",
        )


def refuse_wrong_scaling(options: ClusterOptions) -> None:
    """Raise HeadwayError for a cluster that cannot be scaled as asked."""
    bounds = options.autoscale
    if bounds is None:
        chosen = parse_choice(options.policies.policy, options.policies.settings)
        if "scaling" in chosen.policies:
            named = f"--policy scaling={chosen.policies['scaling']}"
            message = f"{named} is for --autoscale: give both, or neither"
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        return
    require_between("--standby", bounds.standby, 0, 16)
    if options.workers.unified and "unified" not in options.policies.scaled_roles():
        message = (
            f"scaling {options.policies.scaling_policy()} scales prefill and decode workers: leave "
            "--unified out, or give --policy scaling=headway"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    asked = registry.find("scaling", options.policies.scaling_policy())
    if asked.reads_profile and not options.policies.profile:
        message = (
            f"{asked.name} needs to know what this machine carries: give its profile with "
            f"--profile FILE ({MAKE_ONE} measures one), or another policy, for example "
            f"--policy scaling={SCALED_BY_REQUESTS}"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)


def refuse_wrong_configurations(options: ClusterOptions) -> None:
    """Raise HeadwayError for a configuration that a service would not start with."""
    for spec in process_specs(options, num_cores=1):
        config = read_config(CONFIGS[spec.service], spec.flags)
        if isinstance(config, PresetConfig):
            require_policies(config.chosen(), config.costs())
        if isinstance(config, WorkerConfig):
            _refuse_wrong_engine(config)


def engines_of(options: ClusterOptions) -> set[str]:
    """Return the names of the engines that its workers compute with."""
    specs = (spec for spec in process_specs(options, num_cores=1) if spec.service == "worker")
    return {read_config(WorkerConfig, spec.flags).engine for spec in specs}


def _refuse_wrong_engine(config: WorkerConfig) -> None:
    """Raise HeadwayError for an engine that is not here, or has no such role, units or option."""
    if config.engine != "torch":
        find_engine(config.engine)
    if config.engine in MOVES_NO_KV and config.role != "unified":
        message = (
            f"engine {config.engine} moves no KV between workers: its workers do both phases, "
            "--prefill 0 --decode 0 --unified N"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message)
    if config.engine in MOVES_NO_KV and config.dp != 1:
        raise invalid("--dp", config.dp, f"1 with engine {config.engine}")
    refuse_unread(config)


def refuse_log_folder(folder: Path) -> None:
    """Raise HeadwayError for a folder that cannot be made or written to, or is open to others.

    Who can write there could choose the cluster's secret, or have logs written elsewhere.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise invalid("--log-dir", str(folder), f"a folder: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise invalid("--log-dir", str(folder), f"a folder to write to: {there} is not")
    status = folder.stat() if folder.exists() else None
    if status and status.st_uid not in (0, os.geteuid()):
        limit = f"a folder of your own: it belongs to the user with id {status.st_uid}"
        raise invalid("--log-dir", str(folder), limit)
    if status and status.st_mode & stat.S_IWOTH:
        limit = f"a folder that not everybody may write to: chmod o-w {folder}"
        raise invalid("--log-dir", str(folder), limit)


def refuse_taken_ports(options: ClusterOptions) -> None:
    """Raise UNAVAILABLE if a port is taken (HTTP's, gRPC's next to it), or an address not ours."""
    if not 0 < options.port < 65535:
        raise invalid("--port", options.port, "from 1 to 65534")
    _refuse_taken("--host", options.host, options.port, options.port + 1)
    _refuse_taken("--listen", options.listen, 0)


def _refuse_taken(flag: str, host: str, *ports: int) -> None:
    try:
        family = socket.getaddrinfo(host, ports[0])[0][0]
    except OSError as error:
        raise invalid(flag, host, f"an address ({error.strerror})") from error
    for port in ports:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                message = f"cannot listen on {host}:{port} ({error.strerror})"
                advice = "choose a --port" if port else f"choose another {flag}"
                raise HeadwayError(Code.UNAVAILABLE, f"{message}: {advice}") from error


def refuse_missing_card(device: str) -> None:
    """Raise HeadwayError for a device that this machine, or its torch, does not have.

    Without importing torch, which takes seconds: a card shows in ``/dev``.
    """
    if device == "cpu":
        return
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise invalid("--device", device, "cpu, cuda or cuda:N")
    if not any(glob(pattern) for pattern in _CARDS):
        message = f"--device is {device}, and this machine shows no card: leave it out"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="device")
    if version("torch").endswith("+cpu"):
        message = f"--device is {device}, and torch {version('torch')} is built for CPUs alone"
        advice = "install torch from PyPI, or leave --device out"
        raise HeadwayError(Code.FAILED_PRECONDITION, f"{message}: {advice}", param="device")


def _readable(flag: str, name: str) -> Path:
    path = Path(name)
    try:
        path.open("rb").close()
    except OSError as error:
        raise invalid(flag, name, f"a file that can be read ({error.strerror})") from error
    return path
