"""A form as a model of pydantic, for clients that take one."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Forecast(BaseModel):
    """The weather of a city, and nothing else."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Bern", "Oslo"]
    warm: bool
