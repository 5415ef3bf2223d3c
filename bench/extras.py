"""Packages that only studies of runs need: the extra ``analysis``."""

from __future__ import annotations

from importlib.util import find_spec

from headway.errors import Code, HeadwayError


def require_extra(module: str, what: str) -> None:
    """Refuse ``what`` where the module for it is not installed; the message names the extra."""
    if find_spec(module) is None:
        message = f"{what} needs {module}: pip install 'headway[analysis]'"
        raise HeadwayError(Code.FAILED_PRECONDITION, message, param=what)
