"""Flags of single services on the command line of a cluster: ``--worker.host-kv-gib 2``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from headway.errors import Code, HeadwayError
from services.autoscaler.config import AutoscalerConfig
from services.gateway.config import GatewayConfig
from services.predictor.config import PredictorConfig
from services.runtime.config import ServiceConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

CONFIGS: Mapping[str, type[ServiceConfig]] = {
    "gateway": GatewayConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
    "predictor": PredictorConfig,
    "autoscaler": AutoscalerConfig,
}
_OURS = ("service_id", "role", "standby", "store", "cluster", "listen", "metrics_listen")
"""Fields that the cluster sets for each process."""


def parse_service_flags(
    texts: Sequence[str], known: Iterable[str] = ()
) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of each service; HeadwayError for a flag that no service has.

    ``known``: other flags of the command, for the advice. Values are checked by the service's
    configuration (``services.runtime.config.read_config``).
    """
    by_service: dict[str, list[str]] = {}
    flags = dict(_service_flags())
    service = ""
    for text in texts:
        if not text.startswith("--"):
            if not service:
                raise _unknown(text, (*flags, *known))
            by_service[service].append(text)
            continue
        name, equals, value = text.partition("=")
        if name not in flags:
            raise _unknown(name, (*flags, *known))
        service, flag = flags[name]
        by_service.setdefault(service, []).append(f"{flag}{equals}{value}")
    return {service: tuple(given) for service, given in by_service.items()}


def find_models_file(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Return the file among a command's other arguments, "" for none, and the rest.

    A text after a flag is the flag's value.
    """
    places = [
        place
        for place, text in enumerate(texts)
        if text.endswith(".toml") and not (place and _takes_value(texts[place - 1]))
        if not text.startswith("--")
    ]
    if not places:
        return "", list(texts)
    return texts[places[0]], [text for place, text in enumerate(texts) if place != places[0]]


def _service_flags() -> Iterator[tuple[str, tuple[str, str]]]:
    for service, config in CONFIGS.items():
        for field, info in config.model_fields.items():
            if field in _OURS:
                continue
            name = field.replace("_", "-")
            yield f"--{service}.{name}", (service, f"--{name}")
            if info.annotation is bool:
                yield f"--{service}.no-{name}", (service, f"--no-{name}")


def _takes_value(text: str) -> bool:
    return text.startswith("--") and "=" not in text


def _unknown(text: str, flags: Sequence[str]) -> HeadwayError:
    same = [flag for flag in flags if flag.rpartition(".")[2] == text.removeprefix("--")]
    near = same or get_close_matches(text, flags, n=3, cutoff=0.6)
    advice = f"did you mean {' or '.join(near)}?" if near else "--help lists what there is"
    return HeadwayError(Code.INVALID_ARGUMENT, f"unknown argument {text}: {advice}")
