"""The options of a local cluster, and the flags that they give each service."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from headway.cost.profile import load_profile
from headway.policies import registry
from headway.policies.scaling import Scaling
from headway.presets import (
    PLAIN,
    SCALED_BY_PROFILE,
    SCALED_BY_REQUESTS,
    PresetChoice,
    find_preset,
    parse_choice,
)
from services.local.process_spec import ProcessSpec
from services.runtime.config import is_loopback
from services.runtime.identity.tls_files import tls_options
from services.runtime.rooms import model_folder
from services.worker.engine.model.supported import is_plain

_OF_EVERY = ("services.runtime.service",)
_OF_A_WORKER = "services.worker.servicer"
_OF_ENGINES: Mapping[str, str] = {
    "torch": "services.worker.engine.backend",
    "openai": "services.worker.openai.engine",
}
_BY_TRANSFORMERS = "services.worker.engine.model.by_transformers"
_OF_A_PREDICTOR = ("services.predictor.learner", "services.predictor.scorer")
"""Imports once their flags are read, and when they load a model: most of their start."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Numbers of workers to start, by role."""

    prefill: int = 1
    decode: int = 2
    convertible: int = 0
    unified: int = 0

    def by_role(self) -> Mapping[str, int]:
        """Return the counts by role, in the order in which workers share out GPUs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Bounds within which the autoscaler starts and drains workers."""

    max_prefill: int = 4
    max_decode: int = 4
    budget: int = 0  # most workers of all roles; 0: no limit
    standby: int = 0  # warm workers without a role
    scale_down_delay: float = 10.0  # seconds of lesser need before a worker goes


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Policies of all services, as their flags name them."""

    preset: str = ""
    policy: str = ""  # batching=trail,packing=pbaa
    settings: str = ""  # batching.c=0.5
    profile: str = ""  # what an instance costs and carries: a file or a name

    def scaling_policy(self) -> str:
        """Return the policy that scales: the chosen one, the preset's, or one that fits."""
        named = parse_choice(self.policy, self.settings).policies.get("scaling", "")
        preset = find_preset(self.preset) if self.preset else PLAIN
        name = named or preset.scaling
        if cast("type[Scaling]", registry.find("scaling", name).make).scales:
            return name
        return SCALED_BY_PROFILE if self.profile else SCALED_BY_REQUESTS

    def scaled_roles(self) -> tuple[str, ...]:
        """Return the roles whose number the autoscaler changes."""
        policy = cast("type[Scaling]", registry.find("scaling", self.scaling_policy()).make)
        more = {"convertible": policy.converts, "unified": policy.unifies}
        return ("prefill", "decode", *(role for role, has in more.items() if has))


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """One of several models of a cluster, with its workers."""

    name: str
    path: str
    workers: WorkerCounts
    predictor: str = ""  # as in ClusterOptions
    max_model_len: int = 0  # 0: the model's own
    tool_call_parser: str = ""  # "": as its chat template shows
    worker_flags: tuple[str, ...] = ()  # they win over those of all workers
    lora: Mapping[str, str] = field(default_factory=dict)  # as in ClusterOptions

    def for_gateway(self) -> Mapping[str, object]:
        """Return the gateway's options of this model."""
        parser = {"tool_call_parser": self.tool_call_parser} if self.tool_call_parser else {}
        length, lora = self.max_model_len, dict(self.lora)
        return {"path": self.path, "max_model_len": length, "lora": lora, **parser}


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster on this machine."""

    model: str = field(default_factory=lambda: model_folder(""))
    model_name: str = ""  # the name that requests use; default: the folder's
    lora: Mapping[str, str] = field(default_factory=dict)  # adapters: folders by name
    policies: PolicyOptions = PolicyOptions()
    workers: WorkerCounts = WorkerCounts()
    schedulers: int = 1  # one leads, the others stand by
    autoscale: Autoscale | None = None
    device: str = "cpu"
    dtype: str = "auto"
    dp: int = 1  # DP units of each worker
    predictor: str = ""  # folder of a trained predictor; default: the model's
    host: str = "127.0.0.1"
    port: int = 8000  # of HTTP; gRPC has the next one
    listen: str = "127.0.0.1"  # host of the services' ports; the private store has none
    certs: str = ""  # folder of certificates by role; "": none, and loopback alone
    api_key_file: str = ""
    metrics_port: int = 0  # the first of the processes' ports for Prometheus; 0: none
    log_level: str = "info"
    drain_timeout: float = 30.0
    service_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More flags by service; they win over those that follow from the other options."""
    models: tuple[ClusterModel, ...] = ()
    """Several models; they stand for ``model``, ``model_name``, ``workers`` and ``predictor``."""

    @property
    def url(self) -> str:
        """Base URL of the HTTP interface."""
        return f"http://{_address(self.host, self.port)}"

    @property
    def grpc_address(self) -> str:
        """Where gRPC clients go; "" without a port of its own."""
        return _address(self.host, self.port + 1) if self.port else ""

    @property
    def service_listen(self) -> str:
        """Address that a service binds, with any free port."""
        return _address(self.listen, 0)

    def known_hosts(self) -> tuple[str, ...]:
        """Return names and addresses by which other machines know this one."""
        given = {self.host, self.listen} - {"0.0.0.0", "::"}
        return (*sorted(given), socket.gethostname())

    @property
    def needs_certificates(self) -> bool:
        """Return whether other machines reach one of its gRPC ports."""
        return not all(is_loopback(_address(host, 0)) for host in (self.host, self.listen))

    @property
    def served_name(self) -> str:
        """The model's name in requests; of several the first one's."""
        return self.model_name or Path(self.model).name

    @property
    def num_workers(self) -> int:
        """Workers of all models together."""
        counts = [model.workers for model in self.models] or [self.workers]
        return sum(sum(each.by_role().values()) for each in counts)

    def by_model(self) -> Iterator[ClusterOptions]:
        """Yield the options for the workers of each model."""
        if not self.models:
            yield self
        for one in self.models:
            flags = (*self.service_flags.get("worker", ()), *one.worker_flags)
            yield replace(
                self,
                model=one.path,
                model_name=one.name,
                lora=one.lora,
                workers=one.workers,
                predictor=one.predictor,
                service_flags={**self.service_flags, "worker": flags},
            )


def process_specs(options: ClusterOptions, num_cores: int, num_gpus: int = 0) -> list[ProcessSpec]:
    """Return all services but the store."""
    specs = [
        _spec(options, "gateway", "gateway", *_policy_flags(options), *_gateway_flags(options)),
        *(
            _spec(options, "scheduler", name, *_policy_flags(options))
            for name in scheduler_ids(options.schedulers)
        ),
        _spec(
            *(options, "autoscaler", "autoscaler"),
            *(*_policy_flags(options), *_autoscaler_flags(options)),
        ),
        _predictor_spec(options),
    ]
    roles = [
        (one, role)
        for one in options.by_model()
        for role, count in one.workers.by_role().items()
        for _ in range(count)
    ]
    numbers: Counter[str] = Counter()  # of a role, through all models
    for place, (one, role) in enumerate(roles):
        numbers[role] += 1
        service_id = f"{role}-{numbers[role]}"
        specs.append(worker_spec(one, role, service_id, place, num_cores, num_gpus))
    return specs


def imports_ahead(options: ClusterOptions) -> list[str]:
    """Return what the services of a cluster import, each once, in the order of their starts."""
    specs = (spec for spec in process_specs(options, num_cores=1) if spec.imports is not None)
    return list(dict.fromkeys(name for spec in specs for name in spec.order({}).modules))


def worker_spec(
    options: ClusterOptions, role: str, service_id: str, place: int, num_cores: int, num_gpus: int
) -> ProcessSpec:
    """Return one worker; ``place`` among all workers says which GPU it has."""
    device = options.device
    if device == "cuda" and num_gpus > 1:
        device = f"cuda:{place % num_gpus}"
    num_workers = options.num_workers
    num_threads = max(1, num_cores // num_workers)
    flags = (
        *(*_policy_flags(options), *_model_flags(options), "--role", role),
        *("--device", device, "--dtype", options.dtype, "--dp", str(options.dp)),
        *("--num-threads", str(num_threads), *_chunk_flags(options)),
        *_share_flags(options, num_workers, num_gpus),
    )
    spec = _spec(options, "worker", service_id, *flags, role=role)
    module = _OF_ENGINES.get(_engine(spec.flags))
    if options.device != "cpu" or module is None:
        return replace(spec, imports=None)  # a card's driver starts threads as it sees fit
    network = _network(options.model) if module == _OF_ENGINES["torch"] else ()
    return replace(spec, imports=(*_OF_EVERY, _OF_A_WORKER, module, *network))


def _engine(flags: Sequence[str]) -> str:
    """Return the engine that a worker's flags name; another word where they say it oddly."""
    named = [
        after
        for flag, after in pairwise((*flags, ""))
        if flag.startswith("--engine") and flag != "--engine-args"
    ]
    return named[-1] if named else "torch"


def _network(model: str) -> tuple[str, ...]:
    """Return the modules that read a model which is not plain, where its folder names it."""
    try:
        config = json.loads((Path(model) / "config.json").read_text())
        name = str(config["model_type"]).replace("-", "_")
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    if is_plain(config) or not name.isidentifier():
        return ()
    return (_BY_TRANSFORMERS, f"transformers.models.{name}.modeling_{name}")


def scheduler_ids(num_schedulers: int) -> list[str]:
    """Return the id of the one that is started first, and of those that stand by."""
    return ["scheduler", *(f"scheduler-{number}" for number in range(2, num_schedulers + 1))]


def _spec(
    options: ClusterOptions, service: str, service_id: str, *flags: str, role: str = ""
) -> ProcessSpec:
    every = ("--log-level", options.log_level, "--drain-timeout", str(options.drain_timeout))
    listens = ("--listen", options.service_listen)
    more = options.service_flags.get(service, ())
    given = (*every, *listens, *_tls_flags(options, service), *flags, *more)
    imports = (*_OF_EVERY, f"services.{service}.service") if service != "worker" else ()
    return ProcessSpec(service, service_id, given, role=role, imports=imports)


def _tls_flags(options: ClusterOptions, service: str) -> tuple[str, ...]:
    """Return the certificate of the service's role, where the cluster has some."""
    if not options.certs:
        return ()
    files = tls_options(Path(options.certs) / service).items()
    return tuple(
        text for name, path in files for text in (f"--{name.replace('_', '-')}", str(path))
    )


def _policy_flags(options: ClusterOptions) -> tuple[str, ...]:
    """Return the flags of every service that decides; without autoscaling numbers stay."""
    given, scales = options.policies, options.autoscale is not None
    choice = parse_choice(given.policy, given.settings)
    scaling = {"scaling": given.scaling_policy() if scales else PLAIN.scaling}
    params = {q: p for q, p in choice.params.items() if scales or q not in scaling}
    policy, settings = PresetChoice({**choice.policies, **scaling}, params).texts()
    return (
        *(("--preset", given.preset) if given.preset else ()),
        *(("--profile", given.profile) if given.profile else ()),
        *("--policy", policy, "--set", settings),
    )


def _model_flags(options: ClusterOptions) -> tuple[str, ...]:
    lora = ("--lora", json.dumps(dict(options.lora))) if options.lora else ()
    return ("--model", options.model, "--model-name", options.model_name, *lora)


def _gateway_flags(options: ClusterOptions) -> tuple[str, ...]:
    several = {model.name: model.for_gateway() for model in options.models}
    served = ("--models", json.dumps(several)) if several else _model_flags(options)
    return (
        *(*served, "--http-host", options.host, "--http-port", str(options.port)),
        *(("--listen", options.grpc_address) if options.port else ()),
        *("--sink-listen", options.service_listen),
        *(("--api-key-file", options.api_key_file) if options.api_key_file else ()),
    )


def _predictor_spec(options: ClusterOptions) -> ProcessSpec:
    """Return the predictor, with the trained ones of remaining lengths that the models have."""
    folders = {}
    for one in options.by_model():
        folder = Path(one.predictor or Path(one.model) / "predictor")
        if one.predictor or folder.is_dir():
            folders[one.served_name] = str(folder)
    if not folders:
        return _spec(options, "predictor", "predictor")
    spec = _spec(options, "predictor", "predictor", "--predictors", json.dumps(folders))
    return replace(spec, imports=(*(spec.imports or ()), *_OF_A_PREDICTOR))


def _autoscaler_flags(options: ClusterOptions) -> tuple[str, ...]:
    bounds = options.autoscale
    if bounds is None:
        counts = Counter[str]()
        for one in options.by_model():
            counts.update(one.workers.by_role())
        return tuple(text for role in counts for text in (f"--num-{role}", str(counts[role])))
    most = bounds.max_prefill + bounds.max_decode
    unifies = "unified" in options.policies.scaled_roles()
    return (
        *("--actuator", "process"),
        *(("--max-unified", str(bounds.budget or most)) if unifies else ()),
        *("--max-prefill", str(bounds.max_prefill), "--max-decode", str(bounds.max_decode)),
        *("--budget", str(bounds.budget), "--scale-down-delay", str(bounds.scale_down_delay)),
    )


def _chunk_flags(options: ClusterOptions) -> tuple[str, ...]:
    """Return the chunks of roles that the profile knows: a worker may change its role."""
    if not options.policies.profile:
        return ()
    profile = load_profile(options.policies.profile)
    chunks = {
        "--prefill-chunk-tokens": profile.prefill_chunk_tokens,
        "--convertible-chunk-tokens": profile.convertible_chunk_tokens,
    }
    return tuple(text for flag, chunk in chunks.items() if chunk for text in (flag, str(chunk)))


def _share_flags(options: ClusterOptions, num_workers: int, num_gpus: int) -> tuple[str, ...]:
    """Return the share of a GPU's memory that is a worker's, where several workers use one."""
    if options.device == "cpu":
        return ()
    most, bounds = num_workers, options.autoscale
    if bounds is not None:
        most = max(most, bounds.budget or bounds.max_prefill + bounds.max_decode) + bounds.standby
    a_gpu = -(-most // max(1, num_gpus))
    return () if a_gpu == 1 else ("--gpu-share", f"{1 / a_gpu:.4g}")


def _address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
