"""How logs look, and where they go: lines on standard output, an event's name and key-value pairs.

Logging never raises. A line that cannot be written (disk full, closed pipe) is dropped and counted.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, BinaryIO, TextIO, cast

import structlog

_LEVEL_OF_LIBRARIES = logging.WARNING  # our logs in full, libraries' only from warnings on


class LogLines:
    """A text stream that drops and counts what it cannot write.

    It has no buffer: a buffer would keep a line that failed, and fail again with the next one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._file = _unbuffered(stream)
        self.num_dropped = 0

    def write(self, text: str) -> int:
        """Write a line; escape characters that UTF-8 lacks (surrogates)."""
        line = text.encode("utf-8", "backslashreplace")
        try:
            if self._file is None or self._file.write(line) != len(line):
                self.num_dropped += 1
        except (OSError, ValueError):
            self.num_dropped += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _unbuffered(stream: TextIO | None) -> BinaryIO | None:
    """Return the file below a stream; None if there is none."""
    if stream is None:
        return None
    try:
        return cast(BinaryIO, open(stream.fileno(), "wb", buffering=0, closefd=False))
    except (OSError, ValueError):  # a stand-in for a file
        return getattr(stream, "buffer", None)


def configure_logs(level: str, fmt: str, service: str, service_id: str) -> LogLines:
    """Log text for people or JSON for machines, with the service's name on every line.

    Logs of libraries (grpc's handler errors, asyncio, warnings) get the same format.
    """
    lines = LogLines(sys.stdout)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    after = _renderers(fmt)
    structlog.configure(
        processors=[*before, _Rendered(after)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, lines)),
        cache_logger_on_first_use=False,
    )
    _route_libraries(lines, before, after, max(threshold, _LEVEL_OF_LIBRARIES))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, service_id=service_id)
    return lines


class _Rendered:
    """The renderers as one processor, which shows a line in a plain way if they fail."""

    def __init__(self, renderers: list[Any]) -> None:
        self._renderers = renderers

    def __call__(self, logger: Any, name: str, fields: Any) -> Any:
        event = fields.get("event")
        try:
            for renderer in self._renderers:
                fields = renderer(logger, name, fields)
        except Exception as error:  # a field whose __repr__ fails, for example
            return f"{name} {event!a} (its fields cannot be shown: {type(error).__name__})"
        return fields


def _renderers(fmt: str) -> list[Any]:
    if fmt == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stdout is not None and sys.stdout.isatty(),
            pad_event_to=24,
            # the pretty formatter takes 0.1 s and shows local variables, such as keys and prompts
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _route_libraries(lines: LogLines, before: list[Any], after: list[Any], threshold: int) -> None:
    handler = logging.StreamHandler(lines)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[remove_meta, _Rendered(after)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    logging.captureWarnings(True)
