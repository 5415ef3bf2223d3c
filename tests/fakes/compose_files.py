"""The compose files, read, and the configuration of each service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from services.autoscaler.config import AutoscalerConfig
from services.gateway.config import GatewayConfig
from services.predictor.config import PredictorConfig
from services.runtime.config import ServiceConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

ROOT = Path(__file__).resolve().parents[2]


CONFIGS: dict[str, type[ServiceConfig]] = {
    "services.autoscaler": AutoscalerConfig,
    "services.gateway": GatewayConfig,
    "services.predictor": PredictorConfig,
    "services.scheduler": SchedulerConfig,
    "services.worker": WorkerConfig,
}


COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


PATH = ROOT / "deploy" / "compose.autoscale.yaml"


OVER: dict[str, Any] = yaml.safe_load(PATH.read_text())
