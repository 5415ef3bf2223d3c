"""Structured logs on standard output: an event's name and key-value pairs."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logs(level: str, fmt: str, service: str, service_id: str) -> None:
    """Text for people, JSON for machines; every line names its service."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if fmt == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), pad_event_to=24)
    )
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if fmt == "json":
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, service_id=service_id)


def get_logger() -> Any:
    """A logger; ``bind`` adds pairs to every line."""
    return structlog.get_logger()
