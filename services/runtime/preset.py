"""A preset, with the user's changes to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from headway.cluster import Role
from headway.core.defaults import ASSUMED_PROFILE
from headway.core.settings import needs_profile, require_live
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.errors import Code, HeadwayError
from headway.presets import NO_PARAMS, Preset, find_preset, parse_choice
from headway.service_class import ServiceClasses, parse_classes, shipped_classes
from services.runtime.config import ServiceConfig


class PresetConfig(ServiceConfig):
    """Options of a service that decides by the policies of a preset."""

    preset: str = Field("sbs", description="policies for every question (see docs/composition.md)")
    policy: str = Field("", description="other policies: batching=trail,packing=pbaa")
    set: str = Field("", description="their parameters: batching.c=0.5,packing.order=boost")
    profile: str = Field(
        "", description="profile of an instance: a file or a name; default: unknown"
    )

    @field_validator("preset")
    @classmethod
    def _a_preset(cls, value: str) -> str:
        find_preset(value)
        return value

    @model_validator(mode="after")
    def _a_choice(self) -> PresetConfig:
        require_live(self.chosen())
        return self

    def chosen(self, below: Mapping[str, Mapping[str, Any]] = NO_PARAMS) -> Preset:
        """Return the preset with the options over it and ``below`` under its parameters."""
        choice = parse_choice(self.policy, self.set)
        questions = {**below, **choice.params}
        params = {q: {**below.get(q, {}), **choice.params.get(q, {})} for q in questions}
        return find_preset(self.preset).but(choice.policies, params)

    def check(self) -> None:
        """See ``ServiceConfig``."""
        super().check()
        self.costs()

    def costs(self) -> Costs:
        """Return the profile's costs of the instances; velocities alone without a profile."""
        if self.profile:
            return Costs.of([(Role.UNIFIED, load_profile(self.profile))])
        return Costs(profile=load_profile(self.assumed) if self.assumed else None)

    @property
    def assumed(self) -> str:
        """The profile that stands in for velocities that nobody has given, "" for none."""
        is_needed = not self.profile and needs_profile(self.chosen())
        return ASSUMED_PROFILE if is_needed else ""


class ClassesConfig(PresetConfig):
    """Options of a service that tells requests apart by their classes, too."""

    classes: Path | None = Field(
        None, description="TOML file of service classes; default: the shipped ones"
    )

    def check(self) -> None:
        """See ``ServiceConfig``."""
        super().check()
        self.service_classes()

    def service_classes(self) -> ServiceClasses:
        """Return the classes; HeadwayError where the file does not serve."""
        if self.classes is None:
            return shipped_classes()
        try:
            return parse_classes(self.classes.read_text("utf-8"), str(self.classes))
        except (OSError, UnicodeDecodeError) as error:
            message = f"classes {self.classes} cannot be read: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="classes") from error
