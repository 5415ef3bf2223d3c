"""Endpoints by a file or by flags, and the addresses behind their names."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headway.cluster import Role
from headway.core.picker.events import MOST_TOKENS, EndpointInfo
from headway.errors import Code, HeadwayError
from services.runtime.config import host_and_port


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EndpointEntry(_Table):
    """One ``[[endpoints]]`` of the file."""

    address: str = ""
    """``ip:port``, or ``name:port`` for every address that the name has."""
    pool: str = ""
    """InferencePool whose pods are endpoints: ``name``, or ``namespace/name``."""
    model: str = ""
    chunk_tokens: int = Field(8192, ge=1, le=MOST_TOKENS)
    max_model_len: int = Field(MOST_TOKENS, ge=1, le=MOST_TOKENS)
    role: Role = Role.UNIFIED
    """``prefill`` computes prompts for ``decode``, which does short ones itself."""
    metrics: bool = True
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of ``/metrics`` at the same address; 0: that of the endpoint."""
    kv_events: int = Field(0, ge=0, le=65_535)
    """Port of the KV events at the same address; 0: none."""
    kv_replay: int = Field(0, ge=0, le=65_535)
    steps: int = Field(0, ge=0, le=65_535)
    """Port at the same address where the plug-in reports steps; 0: nowhere."""

    @field_validator("address")
    @classmethod
    def _an_address(cls, value: str) -> str:
        try:
            host_and_port("address", value)
        except HeadwayError as error:
            raise ValueError(error.message) from error
        return value

    @field_validator("role")
    @classmethod
    def _a_role(cls, value: Role) -> Role:
        if value is Role.CONVERTIBLE:
            raise ValueError("an endpoint is unified, prefill or decode")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> EndpointEntry:
        if bool(self.address) == bool(self.pool):
            raise ValueError("give either an address or a pool")
        return self


class _File(_Table):
    endpoints: list[EndpointEntry] = []


@dataclass(frozen=True, slots=True)
class Listed:
    """One address, and where its KV events and steps are; "" for none. ``metrics``: a URL."""

    info: EndpointInfo
    metrics: str
    kv_events: str = ""
    kv_replay: str = ""
    steps: str = ""


def read_entries(file: Path) -> Sequence[EndpointEntry]:
    """Return the entries of a file; INVALID_ARGUMENT says what is wrong with it."""
    try:
        return _File(**tomllib.loads(file.read_text("utf-8"))).endpoints
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _wrong(file, f"{where} is {first['input']!r:.80}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(file, str(error)) from error


def entries_of(flag: str) -> Sequence[EndpointEntry]:
    """Return the entries of ``--endpoints``; INVALID_ARGUMENT for what is no address."""
    addresses = [part.strip() for part in flag.split(",") if part.strip()]
    for address in addresses:
        host_and_port("endpoints", address)
    return [EndpointEntry(address=address) for address in addresses]


def entries_from(flag: str, file: Path | None, inference_pool: str) -> Sequence[EndpointEntry]:
    """Return the entries of whichever is given; INVALID_ARGUMENT for what is wrong with it."""
    if file is not None:
        return read_entries(file)
    return [EndpointEntry(pool=inference_pool)] if inference_pool else entries_of(flag)


def _wrong(file: Path, problem: str) -> HeadwayError:
    message = f"{file} cannot be used: {problem}; docs/picker.md shows one"
    return HeadwayError(Code.INVALID_ARGUMENT, message, param="endpoints_file")


async def resolve(
    entries: Sequence[EndpointEntry],
    pods: Callable[[str], Sequence[tuple[str, int]]] = lambda pool: (),
) -> list[Listed]:
    """Return the addresses behind all entries; an OSError for a name that cannot be looked up.

    ``pods``: the addresses and ports of a pool's pods.
    """
    by_address: dict[str, Listed] = {}
    for entry in entries:
        for ip, port in pods(entry.pool) if entry.pool else await _look_up(entry.address):
            listed = _listed(entry, f"[{ip}]" if ":" in ip else ip, port)
            by_address.setdefault(listed.info.address, listed)
    return [by_address[address] for address in sorted(by_address)]


async def _look_up(address: str) -> list[tuple[str, int]]:
    host, port = host_and_port("address", address)
    return [(ip, port) for ip in await _addresses(host.strip("[]"))]


async def _addresses(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = {str(info[4][0]) for info in infos}
        v4 = {ip for ip in addresses if ":" not in ip}
        return sorted(v4 or addresses)  # of one host in both families, once


def _listed(entry: EndpointEntry, ip: str, port: int) -> Listed:
    info = EndpointInfo(
        *(f"{ip}:{port}", entry.model, entry.chunk_tokens, entry.max_model_len, entry.metrics),
        entry.role,
    )

    def at(other: int) -> str:
        return f"tcp://{ip}:{other}" if other else ""

    metrics = f"http://{ip}:{entry.metrics_port or port}"
    return Listed(info, metrics, at(entry.kv_events), at(entry.kv_replay), at(entry.steps))
