"""gRPC's C core writes no lines of its own beside a service's log, unless it is asked to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.runtime.rooms import child_environment

PROGRAM = """
import subprocess, sys
import services
import grpc
from concurrent.futures import ThreadPoolExecutor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

server = grpc.server(ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
next(watch)
subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=lambda: None)  # forks
server.stop(grace=0).wait()
try:
    next(watch)
except grpc.RpcError as error:
    print(error.code().name)
"""


@pytest.mark.parametrize(("verbosity", "is_quiet"), [("", True), ("DEBUG", False)])
def test_a_fork_and_a_goodbye_leave_no_lines_on_standard_error(
    verbosity: str, is_quiet: bool
) -> None:
    environment = child_environment()
    for name in ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT"):
        environment.pop(name, None)
    if verbosity:
        environment["GRPC_VERBOSITY"] = verbosity
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert done.stdout.strip() in ("UNAVAILABLE", "CANCELLED")
    assert (done.stderr == "") == is_quiet
