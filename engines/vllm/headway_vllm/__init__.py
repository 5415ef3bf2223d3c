"""vLLM as an engine of Headway, and Headway's order inside a plain vLLM."""

from __future__ import annotations

from typing import Any

_SCHEDULERS = ("HeadwayScheduler", "HeadwayAsyncScheduler")


def __getattr__(name: str) -> Any:
    """Return a scheduler for ``--scheduler-cls headway_vllm.NAME``; vLLM is imported then."""
    if name in _SCHEDULERS:
        from headway_vllm import scheduler

        return getattr(scheduler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
