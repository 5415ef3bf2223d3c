"""Configuration: flags before environment (``HEADWAY_*``) before defaults."""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from headway.errors import Code, HeadwayError, invalid
from services.runtime.failpoints import arm_from_environment
from services.runtime.rooms import model_folder

_NAME = r"^[A-Za-z0-9._-]{1,128}$"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?|[0-9A-Fa-f:.]+")
_NAME_OR_NONE = r"^[A-Za-z0-9._-]{0,128}$"

ModelName = Annotated[str, AfterValidator(model_folder)]
"""A hub id, a folder, or the name of a model in the package."""

MOST_ADAPTERS = 256
Adapters = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/@+-]{1,128}$")], str],
    Field(max_length=MOST_ADAPTERS),
]
"""Folders of a model's adapters, by name."""


class ServiceConfig(BaseSettings):
    """Options of every service."""

    model_config = SettingsConfigDict(
        env_prefix="HEADWAY_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        protected_namespaces=(),
        extra="forbid",
    )

    cluster: str = Field("default", pattern=_NAME, description="services of one cluster share it")
    service_id: str = Field("", pattern=_NAME_OR_NONE, description="unique name; default: random")
    store: str = Field("redis://127.0.0.1:6379/0", description="URL of the state store (Redis)")
    listen: str = Field("127.0.0.1:0", description="gRPC address; port 0: any free one")
    advertise: str = Field(
        "", description="host[:port] that others use; default: as bound, or the machine's name"
    )
    grpc_reflection: bool = Field(
        False, description="let whoever reaches a gRPC port list its services (grpcurl)"
    )
    metrics_listen: str = Field("", description="host:port for Prometheus; empty: none")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    record_events: str = Field(
        "", description="folder to record every event and decision in, for replay; default: none"
    )
    record_spans: str = Field(
        "", description="folder to record in when each core heard of what; default: none"
    )
    tls_cert: Path | None = Field(None, description="certificate (PEM) for gRPC between services")
    tls_key: Path | None = Field(None, description="its private key (PEM)")
    tls_ca: Path | None = Field(
        None, description="authority that signed all services' certificates"
    )
    tls_client_ca: Path | None = Field(
        None, description="authority of gRPC clients' certificates; default: --tls-ca"
    )
    cluster_secret_file: Path | None = Field(
        None,
        description="without certificates, a secret that all services share (mode 0600, made if "
        "missing); default: a file of this user's cache folder",
    )
    allow_plaintext: bool = Field(
        False, description="let services listen beyond this machine without certificates"
    )
    drain_timeout: float = Field(
        30.0, ge=0.0, allow_inf_nan=False, description="s to finish running work at a stop"
    )
    hang_timeout: float = Field(
        10.0,
        ge=0.0,
        le=1e6,
        allow_inf_nan=False,
        description="seconds that its event loop or a pass may hang before it ends itself; 0: any",
    )

    clock_error: float = Field(
        0.0,
        ge=-86_400.0,
        le=86_400.0,
        description="for tests: seconds by which this service's clock is wrong",
    )

    @field_validator("store")
    @classmethod
    def _a_store(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must be a URL of Redis, for example redis://127.0.0.1:6379/0")
        return value

    @field_validator("advertise")
    @classmethod
    def _a_reachable_address(cls, value: str) -> str:
        return reachable_address(value)

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _an_address(cls, value: str, info: ValidationInfo) -> str:
        if value:
            host_and_port(info.field_name or "address", value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> ServiceConfig:
        given = [self.tls_cert, self.tls_key, self.tls_ca]
        if any(given) and not all(given):
            raise ValueError("give tls_cert, tls_key and tls_ca together, or none of them")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert, tls_key and tls_ca")
        if not self.service_id:
            object.__setattr__(self, "service_id", f"{self.service_name()}-{uuid4().hex[:8]}")
        return self

    serves_clients: ClassVar[bool] = False
    """True if ``listen`` is for clients, who are no services of the cluster."""
    reads_in_turn: ClassVar[bool] = False
    """True if peers' messages wait on their side, where they take turns, until they are read."""

    @classmethod
    def service_name(cls) -> str:
        """Return the name in membership and logs, e.g. ``worker`` for WorkerConfig."""
        return cls.__name__.removesuffix("Config").lower()

    def check(self) -> None:
        """Refuse (HeadwayError) files that it could not go on with once the store is there."""

    def sees_tenants(self) -> Callable[[str], bool]:
        """Return whether who shows this ``Authorization`` is told tenants' names by the metrics."""
        return lambda authorization: True


C = TypeVar("C", bound=ServiceConfig)


def load_config(config_class: type[C], argv: Sequence[str] | None = None) -> C:
    """Return the configuration from flags and environment; exit with 2 where it is wrong."""
    try:
        arm_from_environment()
        return read_config(config_class, sys.argv[1:] if argv is None else argv)
    except HeadwayError as error:
        said = error.message
    except OSError as error:  # a file's name may be none
        said = str(error)[:_MOST_SHOWN]
    print(said, file=sys.stderr)  # noqa: T201 (there are no logs yet)
    raise SystemExit(2)


def read_config(config_class: type[C], argv: Sequence[str]) -> C:
    """Return the configuration from flags and environment; HeadwayError where it is wrong.

    ``--help`` ends the process.
    """
    program = f"headway service {config_class.service_name()}"
    try:
        return config_class(_cli_parse_args=[*argv], _cli_prog_name=program)
    except ValidationError as error:
        problems = [_problem(each) for each in error.errors()]
    except SettingsError as error:
        problem = str(error).removeprefix("error parsing CLI: ")
        problems = [f"{program}: {problem}; {program} --help lists what there is"]
    raise HeadwayError(Code.INVALID_ARGUMENT, "\n".join(problems))


_MOST_SHOWN = 300
"""Characters of a wrong value that its refusal repeats."""
_KINDS = {
    "int_parsing": "be a whole number",
    "int_from_float": "be a whole number",
    "float_parsing": "be a number",
    "bool_parsing": "be true or false",
}
"""The limit of an option by pydantic's kind of error; its own words say the others."""


def _problem(error: ErrorDetails) -> str:
    kind, message = error["type"], error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return message
    flag = "--" + ".".join(str(part) for part in error["loc"]).replace("_", "-")
    if kind == "string_pattern_mismatch":
        limit = f"have the form {error['ctx']['pattern']}"
    else:
        limit = _KINDS.get(kind) or message.partition(" should ")[2]
    text = repr(error["input"])
    given = f"{flag} is {text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}...'}"
    return f"{given}; it must {limit}" if limit else f"{given}: {message}"


def host_and_port(param: str, address: str) -> tuple[str, int]:
    """Split ``host:port``, an IPv6 host in brackets; refuse anything else."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise invalid(param, address, "host:port, for example 127.0.0.1:7000")
    return host, int(port)


def reachable_address(address: str) -> str:
    """Return ``host[:port]``, or ""; ValueError for what nobody can call."""
    if address and not _ADDRESS.fullmatch(address):
        raise ValueError("must be host or host:port, for example worker-1:7000")
    return address


def without_password(url: str) -> str:
    """Return the URL without its password, for logs."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{parts.username or ''}:***@{host}").geturl()
    except ValueError:
        return "an unreadable URL"


def is_loopback(address: str) -> bool:
    """Return whether ``host:port`` is reachable from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
