"""vLLM as an engine of Headway, and Headway's order inside a plain vLLM."""

from __future__ import annotations

from typing import Any

_SCHEDULERS = ("HeadwayScheduler", "HeadwayAsyncScheduler")


def __getattr__(name: str) -> Any:
    """Return what vLLM is given by name: ``--scheduler-cls`` and ``--middleware headway_vllm.…``.

    vLLM is imported with a scheduler.
    """
    if name in _SCHEDULERS:
        from headway_vllm import scheduler

        return getattr(scheduler, name)
    if name == "ClassHeader":
        from headway_vllm.hints import ClassHeader

        return ClassHeader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
