"""Configuration: flags before environment (``HEADWAY_*``) before defaults."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar
from uuid import uuid4

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceConfig(BaseSettings):
    """What every service has."""

    model_config = SettingsConfigDict(
        env_prefix="HEADWAY_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        protected_namespaces=(),
        extra="forbid",
    )

    cluster: str = Field("default", min_length=1, description="services of one cluster share it")
    service_id: str = Field("", description="unique name; default: drawn at random")
    store: str = Field("redis://127.0.0.1:6379/0", description="URL of the state store (Redis)")
    listen: str = Field("127.0.0.1:0", description="gRPC address; port 0: any that is free")
    advertise: str = Field("", description="host[:port] that others use; default: as bound")
    metrics_listen: str = Field("", description="host:port for Prometheus; empty: none")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    tls_cert: Path | None = Field(None, description="certificate (PEM) for gRPC between services")
    tls_key: Path | None = Field(None, description="its private key (PEM)")
    tls_ca: Path | None = Field(
        None, description="authority that signed all services' certificates"
    )
    drain_timeout: float = Field(30.0, ge=0.0, description="s to finish what runs at a stop")

    @model_validator(mode="after")
    def _complete(self) -> ServiceConfig:
        given = [self.tls_cert, self.tls_key, self.tls_ca]
        if any(given) and not all(given):
            raise ValueError("give tls_cert, tls_key and tls_ca together, or none of them")
        if not self.service_id:
            object.__setattr__(
                self, "service_id", f"{type(self).__name__[:-6].lower()}-{uuid4().hex[:8]}"
            )
        return self

    @property
    def has_tls(self) -> bool:
        """Whether services authenticate each other (mTLS)."""
        return self.tls_cert is not None


C = TypeVar("C", bound=ServiceConfig)


def load_config(config_class: type[C], argv: Sequence[str] | None = None) -> C:
    """The configuration from flags and environment; ends the process (2) where it is wrong."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return config_class(_cli_parse_args=args)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"]) or "configuration"
            print(f"{name}: {problem['msg']} (given: {problem['input']!r})", file=sys.stderr)  # noqa: T201 (no logs yet)
        raise SystemExit(2) from None


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
