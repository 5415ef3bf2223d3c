"""A predictor's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from services.runtime.config import ServiceConfig


class PredictorConfig(ServiceConfig):
    """Nothing beside what every service has."""
