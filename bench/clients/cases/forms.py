"""Forms as models of pydantic, for clients that take one."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from .asked import AGE, NAME


class Person(BaseModel):
    """A person's name and age."""

    model_config = ConfigDict(extra="forbid")
    name: str
    age: int


class WeatherOf(BaseModel):
    """Get the weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: str


JOHN = Person(name=NAME, age=AGE)
