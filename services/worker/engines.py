"""Engines by name: Headway's own, and those that other packages register as entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from headway.errors import Code, HeadwayError, invalid
from services.worker.config import WorkerConfig

if TYPE_CHECKING:
    from headway.engine import Backend, PlanningEngine

GROUP = "headway.engines"
"""The group of entry points; each is a function of a ``WorkerConfig`` that returns an engine."""

Engine: TypeAlias = "Backend | PlanningEngine"
Load = Callable[[WorkerConfig], Engine]

_OWN: Mapping[str, str] = {
    "torch": "services.worker.loading:load_backend",
    "openai": "services.worker.openai.engine:load",
}
MOVES_NO_KV = ("openai", "vllm-native")
"""Engines whose workers can be ``unified`` alone, with one DP unit."""
_OF_TORCH = ("kernels", "deterministic")
_OF_PLANNED_PASSES = (
    *("host_kv_gib", "host_prefixes", "watermark", "linger", "async_scheduling", "move_rounds"),
    "least_pass_time",
)
_UNREAD: Mapping[str, tuple[str, ...]] = {
    "openai": (
        *_OF_TORCH,
        *("dtype", "quantization", "num_blocks", "kv_cache_gib", "max_running"),
        *("prefix_caching", *_OF_PLANNED_PASSES),
    ),
    "vllm": (*_OF_TORCH, "block_size", "lora"),
    "vllm-native": (*_OF_TORCH, "block_size", "lora", *_OF_PLANNED_PASSES),
}
"""Options of a worker that an engine does not read."""
_PACKAGES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("vllm", "vllm-native"), "-e . -e 'engines/vllm[cpu]'")
)
"""Engines that belong to Headway and may not be installed: what pip installs, in a checkout."""


def load_engine(config: WorkerConfig) -> Engine:
    """Load the engine that a worker is configured for; HeadwayError where that cannot be."""
    load = find_engine(config.engine)
    refuse_unread(config)
    return load(config)


def refuse_unread(config: WorkerConfig) -> None:
    """Raise HeadwayError for an option that was given and that the engine does not read."""
    for name in _UNREAD.get(config.engine, ()):
        value = getattr(config, name)
        if value != WorkerConfig.model_fields[name].get_default(call_default_factory=True):
            flag = f"--{name.replace('_', '-')}"
            limit = f"left out with engine {config.engine}, which does not read it"
            raise invalid(flag, value, limit)


def find_engine(name: str) -> Load:
    """Return the loader of an engine; HeadwayError (INVALID_ARGUMENT) for an unknown one."""
    if name in _OWN:
        module, function = _OWN[name].split(":")
        load: Load = getattr(import_module(module), function)
        return load
    registered = _registered()
    if name in registered:
        try:
            load = registered[name].load()
        except ImportError as error:
            message = f"engine {name!r} is registered and cannot be imported: {error}"
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine") from error
        return load
    if name in _PACKAGES:
        message = (
            f"engine {name!r} is not installed in this environment: in a checkout, `pip install "
            f"{_PACKAGES[name]}` (docs/engines.md), or take --engine torch or openai"
        )
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param="engine")
    message = f"engine is {name!r}; it must be one of {', '.join(known_engines())}"
    raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine")


def known_engines() -> list[str]:
    """Return the engines that this environment has, Headway's own first."""
    return [*_OWN, *sorted(name for name in _registered() if name not in _OWN)]


def _registered() -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}
