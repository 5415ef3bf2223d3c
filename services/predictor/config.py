"""A predictor's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.config import ServiceConfig


class PredictorConfig(ServiceConfig):
    """Options of a predictor; without any models it only learns mean output lengths."""

    predictors: dict[str, Path] = Field(
        default_factory=dict,
        description='trained predictors by model name, JSON: {"headway-mini": "DIR"}',
    )
    reload_interval: float = Field(
        2.0, gt=0.0, description="s between checks for a new version in the predictors' folders"
    )
    learn: bool = Field(False, description="keep learning from finished requests")
    learn_every: int = Field(256, ge=8, description="finished requests between new versions")
    num_threads: int = Field(1, ge=1, le=256, description="torch threads")
