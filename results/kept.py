"""Measurements kept in a file as they come, so that a second call goes on where the first ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from headway.errors import Code, HeadwayError


class _File(BaseModel):
    settings: dict[str, Any]
    measured: dict[str, float]


class Kept:
    """``settings`` are what was measured; the file of other ones is refused.

    ``out`` is the profile's file: this is the file beside it (``.partial.json``), and the folder
    of the passes (``.passes``).
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.path = out.with_name(out.name + ".partial.json")
        self.passes = out.with_name(out.name + ".passes")
        self._settings = json.loads(json.dumps(settings))
        self._measured: dict[str, float] = {}

    def read(self) -> int:
        """Read what an earlier call measured, return its count; HeadwayError for other settings."""
        if not self.path.is_file():
            shutil.rmtree(self.passes, ignore_errors=True)
            return 0
        try:
            file = _File.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            message = f"{self.path} cannot be read ({why}): begin anew with --restart"
            raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
        for name, value in self._settings.items():
            if file.settings.get(name) != value:
                message = (
                    f"{self.path} was begun with {name} {file.settings.get(name)!r}, this call "
                    f"has {value!r}: give the same, another --out, or begin anew with --restart"
                )
                raise HeadwayError(Code.FAILED_PRECONDITION, message)
        self._measured = file.measured
        return len(file.measured)

    def starting_with(self, prefix: str) -> list[float]:
        """Return all measurements of a kind, in the order in which they were made."""
        return [value for key, value in self._measured.items() if key.startswith(prefix)]

    def by_number(self, prefix: str) -> dict[int, float]:
        """Measurements of a kind by what was offered, the number behind the prefix."""
        measurements = self._measured.items()
        return {int(key[len(prefix) :]): v for key, v in measurements if key.startswith(prefix)}

    async def value(self, key: str, measure: Callable[[], Awaitable[float]]) -> float:
        """Return what was measured before, or measure it now."""
        if key not in self._measured:
            self.put(key, await measure())
        return self._measured[key]

    def put(self, key: str, value: float) -> None:
        """Keep it; the file is whole at any time."""
        self._measured[key] = value
        file = _File(settings=self._settings, measured=self._measured)
        whole = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
            whole.replace(self.path)
        except OSError as error:
            message = f"measurements cannot be kept in {self.path}: {error}; give another --out"
            raise HeadwayError(Code.INVALID_ARGUMENT, message) from error

    def forget(self) -> None:
        """Delete what was kept: the profile is written, or all begins anew."""
        self._measured.clear()
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.passes, ignore_errors=True)
