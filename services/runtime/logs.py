"""Structured logs on standard output: an event's name and key-value pairs."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_LEVEL_OF_LIBRARIES = logging.WARNING  # our logs in full, libraries' only from warnings on


def configure_logs(level: str, fmt: str, service: str, service_id: str) -> None:
    """Log text for people or JSON for machines, with the service's name on every line.

    Logs of libraries (grpc's handler errors, asyncio, warnings) get the same format.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    after = _renderers(fmt)
    structlog.configure(
        processors=[*before, *after],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=False,
    )
    _route_libraries(before, after, max(threshold, _LEVEL_OF_LIBRARIES))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, service_id=service_id)


def _renderers(fmt: str) -> list[Any]:
    if fmt == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stdout.isatty(),
            pad_event_to=24,
            # the pretty formatter takes 0.1 s and shows local variables, such as keys and prompts
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _route_libraries(before: list[Any], after: list[Any], threshold: int) -> None:
    handler = logging.StreamHandler(sys.stdout)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[remove_meta, *after],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    logging.captureWarnings(True)


def get_logger() -> Any:
    """Return a logger; ``bind`` adds pairs to every line."""
    return structlog.get_logger()
