"""A preset and what a service's own options change of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from headway.presets import Preset, find_preset
from services.runtime.config import ServiceConfig


class PresetConfig(ServiceConfig):
    """A service that decides: ``questions`` are those whose policies it makes.

    Each has an option of its name, "" for the preset's policy, and one of its parameters.
    """

    questions: ClassVar[tuple[str, ...]] = ()

    preset: str = Field("sbs", description="policies for every question (see docs/composition.md)")

    @field_validator("preset")
    @classmethod
    def _a_preset(cls, value: str) -> str:
        find_preset(value)
        return value

    def chosen(self, params: Mapping[str, Mapping[str, Any]] | None = None) -> Preset:
        """The preset, with the options over it; ``params`` lie below what the options say."""
        said = {q: {**(params or {}).get(q, {}), **self._params(q)} for q in self.questions}
        return find_preset(self.preset).but({q: getattr(self, q) for q in self.questions}, said)

    def _params(self, question: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = getattr(self, f"{question}_params")
        return found
