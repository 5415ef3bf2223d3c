"""Loggers of structured logs (``log_lines``), for modules that a refusal imports, too."""

from __future__ import annotations

from typing import Any


def get_logger() -> Any:
    """Return a logger; ``bind`` adds pairs to every line."""
    import structlog  # slow to import; a command that refuses its flags logs nothing

    return structlog.get_logger()
