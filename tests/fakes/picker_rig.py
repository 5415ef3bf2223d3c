"""A picker over real gRPC, in front of emulated endpoints."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from google.protobuf import struct_pb2

from services.picker.config import PickerConfig
from services.picker.service import PickerService

_DEPLOY = Path(__file__).parents[2] / "deploy" / "picker"
DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED


def load_tool(name: str) -> Any:
    """Return a module of ``deploy/picker``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, _DEPLOY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


emulated = load_tool("emulated_endpoint")


class Endpoints:
    """Emulated endpoints on ports of this machine."""

    def __init__(self) -> None:
        self.by_address: dict[str, Any] = {}
        self._runners: dict[str, Any] = {}

    async def add(self, **costs: float) -> str:
        endpoint = emulated.EmulatedEndpoint(emulated.Costs(**costs))
        runner, port = await emulated.start(endpoint)
        address = endpoint.name = f"127.0.0.1:{port}"
        self.by_address[address], self._runners[address] = endpoint, runner
        return address

    async def kill(self, address: str) -> None:
        await self._runners.pop(address).cleanup()

    async def close(self) -> None:
        for address in list(self._runners):
            await self.kill(address)


class EndpointProcess:
    """An emulated endpoint in a process of its own, which can be stopped as a whole."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def endpoint_process() -> AsyncIterator[EndpointProcess]:
    """Run one; it has begun to serve."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_DEPLOY / "emulated_endpoint.py"), str(port)
    )
    try:
        async with asyncio.timeout(60):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield EndpointProcess(process, f"127.0.0.1:{port}")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def picker(*addresses: str, **options: Any) -> AsyncIterator[PickerService]:
    """Run a picker in front of these endpoints; it is ready, or has none."""
    given = {"listen": "127.0.0.1:0", "endpoints": ",".join(addresses), "scrape_interval": 0.2}
    given["scrape_timeout"] = 3.0  # endpoints of busy machines answer late
    service = PickerService(PickerConfig(_cli_parse_args=[], **{**given, **options}))
    try:
        await service.start()
        if addresses:
            await until(lambda: all(e.health == "up" for e in service.endpoints()))
        yield service
    finally:
        await service.stop()


async def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


def headers(
    path: str = "/v1/completions",
    *,
    end_of_stream: bool = False,
    metadata: Mapping[str, Any] | None = None,
    others: Mapping[str, str] | None = None,
    mode: int = DUPLEX,
) -> Any:
    """Return the first message of an exchange."""
    pairs = {":method": "POST", ":path": path, **(others or {})}
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=_map(pairs), end_of_stream=end_of_stream),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=mode),
    )
    _set(message, metadata)
    return message


def _map(pairs: Mapping[str, str]) -> Any:
    listed = [base_pb2.HeaderValue(key=k, raw_value=v.encode()) for k, v in pairs.items()]
    return base_pb2.HeaderMap(headers=listed)


def _set(message: Any, metadata: Mapping[str, Any] | None) -> None:
    for namespace, fields in (metadata or {}).items():
        struct = struct_pb2.Struct()
        struct.update(fields)
        message.metadata_context.filter_metadata[namespace].CopyFrom(struct)


def body(*pieces: bytes, is_end: bool = True) -> list[Any]:
    """Return the messages of a request's body."""
    last = len(pieces) - 1
    return [
        pb.ProcessingRequest(
            request_body=pb.HttpBody(body=piece, end_of_stream=is_end and n == last)
        )
        for n, piece in enumerate(pieces)
    ]


def response_headers(status: str = "200", served: str = "") -> Any:
    """Return the message of a response's headers."""
    message = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(headers=_map({":status": status}))
    )
    if served:
        _set(message, {"envoy.lb": {"x-gateway-destination-endpoint-served": served}})
    return message


class Exchange:
    """One exchange with a picker, as Envoy has it."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        stub = external_processor_pb2_grpc.ExternalProcessorStub(self._channel)
        self._call = stub.Process()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._call.cancel()
        await self._channel.close()

    async def send(self, *messages: Any) -> None:
        for message in messages:
            await self._call.write(message)

    async def read(self) -> Any:
        async with asyncio.timeout(30):
            return await self._call.read()

    async def has_ended(self) -> bool:
        return bool(await self.read() == grpc.aio.EOF)

    async def ask(self, *pieces: bytes, **options: Any) -> Any:
        """Return the answer to the headers of a request with this body."""
        await self.send(headers(**options), *body(*pieces))
        return await self.read()


def named(response: Any) -> Sequence[str]:
    """Return the endpoints that an answer names, in the header and in the metadata alike."""
    common = response.request_headers.response
    (option,) = common.header_mutation.set_headers
    assert option.header.key == "x-gateway-destination-endpoint"
    in_header = str(option.header.raw_value.decode())
    fields = response.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert fields["x-gateway-destination-endpoint"].string_value == in_header
    return in_header.split(",")
