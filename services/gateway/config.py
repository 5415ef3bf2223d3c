"""A gateway's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from headway.core.gateway.lives import MOST_ENDED
from headway.core.gateway.settings import GatewaySettings
from headway.core.settings import PolicySettings, policy_settings
from services.gateway.auth import KeyRing
from services.gateway.bounds import ClientBounds
from services.gateway.http.exchange import HttpLimits
from services.gateway.http.origins import Origins
from services.runtime.config import (
    Adapters,
    ModelName,
    ServiceConfig,
    host_and_port,
    is_loopback,
    reachable_address,
)
from services.runtime.preset import ClassesConfig
from services.runtime.rooms import SHIPPED_MODEL

_DEFAULTS = GatewaySettings()
_OF_A_MODEL = ("max_model_len", "tool_call_parser", "lora")
_ANSWER_GRACE = 30.0  # seconds over the request's timeout, which ends every answer before


ToolFormat = Literal["auto", "hermes", "llama3_json", "mistral", "deepseek_v3", "openai"]


class ModelOptions(BaseModel):
    """One of several models: the options that a gateway has for its only one."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    path: ModelName
    max_model_len: int = Field(0, ge=0)
    tool_call_parser: ToolFormat = "auto"
    lora: Adapters = Field(default_factory=dict)


def _options_of(given: Any) -> Any:
    """Return the options of a model of which only the path is given."""
    return {"path": given} if isinstance(given, str) else given


class GatewayConfig(ClassesConfig):
    """Options of a gateway, which serves one model or several over HTTP and gRPC."""

    serves_clients: ClassVar[bool] = True

    model: ModelName = Field(
        SHIPPED_MODEL,
        validate_default=True,
        description="folder or hub id of tokenizer and configs",
    )
    model_name: str = Field("", description="name that clients use; default: the folder's name")
    models: dict[str, Annotated[ModelOptions, BeforeValidator(_options_of)]] = Field(
        default_factory=dict,
        description='several models by name, instead of --model, JSON: {"a": "DIR", "b": '
        '{"path": "DIR", "max_model_len": 4096, "tool_call_parser": "hermes"}}',
    )
    http_host: str = Field("127.0.0.1", description="HTTP address; default: loopback")
    http_port: int = Field(8000, ge=0, le=65535, description="HTTP port; 0: any free one")
    http_tls_cert: Path | None = Field(None, description="certificate chain (PEM) for HTTPS")
    http_tls_key: Path | None = Field(None, description="its private key (PEM)")
    api_key_file: Path | None = Field(
        None,
        description="lines of name:sha256hex[:operator] (`headway key`); none: no keys",
    )
    sink_listen: str = Field(
        "127.0.0.1:0", description="gRPC address for workers' tokens; clients need not reach it"
    )
    sink_advertise: str = Field(
        "", description="host[:port] that workers use; default: --advertise's host, or as bound"
    )
    allowed_host: str = Field(
        "", description="names that HTTP requests may call it by, besides loopback's: a.example,b"
    )
    cors_origin: str = Field(
        "", description="origins of web pages that may call it: https://a.example,http://b:3000"
    )
    monitoring_needs_key: bool = Field(
        True, description="where keys are on, /metrics and /health's details ask for an operator's"
    )
    max_model_len: int = Field(0, ge=0, description="prompt + output tokens; 0: the model's own")
    tool_call_parser: ToolFormat = Field(
        "auto", description="format of the model's tool calls; auto: as its chat template shows"
    )
    lora: Adapters = Field(
        default_factory=dict,
        description="LoRA adapters of the model that its workers have, NAME=FOLDER, once for each",
    )
    trust_request_chat_template: bool = Field(
        False, description="take chat templates from clients, which may compute for long"
    )
    max_waiting: int = Field(
        _DEFAULTS.max_waiting, ge=1, description="requests without a first token, then 429"
    )
    request_timeout: float = Field(
        _DEFAULTS.request_timeout, gt=0.0, description="longest a request may take, s"
    )
    worker_patience: float = Field(
        _DEFAULTS.worker_patience,
        ge=0.0,
        description="s without workers that could serve a model, then 503",
    )
    past_interval: float = Field(
        5.0,
        ge=0,
        le=60,
        description="seconds between writes of the last minutes' curves and lives to the store, "
        "for this gateway's next process; 0: none",
    )
    num_lives: int = Field(
        MOST_ENDED, ge=0, le=2**20, description="lives of ended requests kept for explain; 0: none"
    )
    otlp_traces_endpoint: str = Field(
        "", description="URL of an OpenTelemetry collector, such as http://host:4318/v1/traces"
    )
    access_log: bool = Field(True, description="log a line of every output that ends")
    max_body_bytes: int = Field(4 * 2**20, ge=1024, description="longest request body, then 413")
    max_connections: int = Field(4096, ge=1, description="HTTP connections, then 503")
    max_open_requests: int = Field(
        16_384, ge=1, description="outputs that wait or are generated (n=8 is 8), then 429"
    )
    max_mask_seconds: float = Field(
        600.0,
        gt=0.0,
        description="workers' time for the masks of open outputs with grammars, s, then 429",
    )
    max_buffered_bytes: int = Field(
        2**29, ge=2**16, description="bodies and unread answers in memory together, then 429"
    )
    client_share: float = Field(
        0.8,
        gt=0.0,
        le=1.0,
        description="part of each of these bounds that one key or address may hold; 1: all",
    )
    fair_clients: bool = Field(
        False, description="without keys, every address is a tenant: they share by work done"
    )
    head_timeout: float = Field(
        10.0, gt=0.0, description="longest time for a request's head to arrive, s"
    )
    body_timeout: float = Field(
        30.0, gt=0.0, description="longest time for a request's body to arrive, s"
    )
    idle_timeout: float = Field(
        75.0, gt=0.0, description="longest time between requests on a connection, s"
    )
    max_stored_bytes: int = Field(
        2**26, ge=0, description="responses that a later one may continue, together; 0: none"
    )
    stored_response_age: float = Field(
        3600.0, gt=0.0, description="longest that such a response is kept, s"
    )
    session_idle: float = Field(
        _DEFAULTS.session_idle, gt=0.0, description="seconds without a turn that end a session"
    )
    num_sessions: int = Field(
        _DEFAULTS.num_sessions, ge=1, le=2**20, description="idle sessions that are counted"
    )
    max_unsent_bytes: int = Field(
        2**20, ge=4096, description="bytes that a client may leave unread before it is cut off"
    )

    @field_validator("sink_advertise")
    @classmethod
    def _a_reachable_sink(cls, value: str) -> str:
        return reachable_address(value)

    @field_validator("sink_listen")
    @classmethod
    def _sink_is_an_address(cls, value: str) -> str:
        host_and_port("sink_listen", value)
        return value

    @model_validator(mode="after")
    def _http_tls_is_whole(self) -> GatewayConfig:
        if (self.http_tls_cert is None) != (self.http_tls_key is None):
            raise ValueError("give http_tls_cert and http_tls_key together, or neither")
        return self

    @model_validator(mode="after")
    def _models_stand_alone(self) -> GatewayConfig:
        if "" in self.models:
            raise ValueError("models has a model without a name: give it one")
        of_one = ["model", "model_name", *_OF_A_MODEL]
        if self.models and (given := [name for name in of_one if name in self.model_fields_set]):
            raise ValueError(f"{given[0]} is for one model: say it of each in models, or leave it")
        return self

    def by_model(self) -> Iterator[GatewayConfig]:
        """Yield the options of a gateway of each model alone."""
        if not self.models:
            yield self
        for name, one in self.models.items():
            own = {field: getattr(one, field) for field in _OF_A_MODEL}
            yield self.model_copy(update={"model": one.path, "model_name": name, **own})

    def for_sink(self) -> ServiceConfig:
        """Return the options of the server for workers, which is not the clients'."""
        advertised = self.sink_advertise or _host(self.advertise)
        return self.model_copy(update={"listen": self.sink_listen, "advertise": advertised})

    def check(self) -> None:
        """See ``ServiceConfig``."""
        super().check()
        KeyRing.load(self.api_key_file, self.service_classes())

    def sees_tenants(self) -> Callable[[str], bool]:
        """Return whether it is an operator's key; HeadwayError where the keys cannot be read."""
        if self.api_key_file is None or not self.monitoring_needs_key:
            return super().sees_tenants()
        return KeyRing(self.api_key_file).knows_operator

    def policies(self, model: GatewaySettings | None = None) -> PolicySettings:
        """Return the settings of the cores with these options; HeadwayError for an unknown one.

        ``model``: what the served model adds to those of the gateway.
        """
        limits = replace(
            model or GatewaySettings(),
            max_waiting=self.max_waiting,
            request_timeout=self.request_timeout,
            worker_patience=self.worker_patience,
            num_lives=self.num_lives,
            session_idle=self.session_idle,
            num_sessions=self.num_sessions,
        )
        return policy_settings(self.chosen(), gateway=limits)

    def http_limits(self) -> HttpLimits:
        """Return the limits of the HTTP server."""
        return HttpLimits(
            max_body_bytes=self.max_body_bytes,
            max_unsent_bytes=self.max_unsent_bytes,
            head_timeout=self.head_timeout,
            body_timeout=self.body_timeout,
            idle_timeout=self.idle_timeout,
            answer_timeout=max(self.request_timeout, self.service_classes().longest)
            + _ANSWER_GRACE,
        )

    def origins(self) -> Origins:
        """Return the checks of hosts and origins."""
        hosts, origins = (_listed(text) for text in (self.allowed_host, self.cors_origin))
        return Origins(hosts, origins, loopback=is_loopback(f"{self.http_host}:0"))

    def client_bounds(self) -> ClientBounds:
        """Return the bounds that clients share, with nothing taken."""
        return ClientBounds.of(
            self.client_share,
            max_connections=self.max_connections,
            max_buffered_bytes=self.max_buffered_bytes,
            max_waiting=self.max_waiting,
            max_open_requests=self.max_open_requests,
            max_mask_seconds=self.max_mask_seconds,
        )


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _host(advertised: str) -> str:
    """Return the host of ``host[:port]``; an IPv6 host is in brackets."""
    host, colon, port = advertised.rpartition(":")
    return host if colon and port.isdecimal() else advertised
