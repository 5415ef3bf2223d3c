"""Tasks that a process lives by: none of them ends unnoticed."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.runtime.essential import Ending, essential

SERVICES = Path(__file__).resolve().parents[3] / "services"
SHORT_LIVED = {
    # what starts tasks for a service
    ("runtime/essential.py", "essential"),
    # awaited where they are started
    ("runtime/service.py", "_live"),
    ("runtime/service.py", "done_before"),
    ("runtime/stream.py", "_first_of"),
    ("local/cluster.py", "serve"),
    ("worker/kv_receiver.py", "_to_the_end"),
    # its error is raised to whoever waits for it
    ("worker/kv_nixl.py", "__init__"),
    # one stream, request, transfer, or order each
    ("runtime/stream.py", "serve"),
    ("runtime/channel.py", "to"),  # closes a channel that was replaced
    ("gateway/http/edge.py", "_in_task"),
    ("gateway/http/tls_listener.py", "_accept"),  # a handshake
    ("gateway/console/routes.py", "serve"),
    ("gateway/http/explained.py", "ask"),
    ("worker/token_link.py", "__init__"),
    ("worker/kv_sender.py", "start"),
    ("scheduler/term.py", "_left"),
    ("predictor/models.py", "_learn"),
    ("worker/openai/engine.py", "add"),
    ("local/worker_scaler.py", "_do_beside"),
    ("local/worker_scaler.py", "scale"),
    ("local/standby_workers.py", "take"),
}
"""(file, function): tasks whose end a service survives."""


def _starters() -> set[tuple[str, str]]:
    found = set()
    for path in SERVICES.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names = {getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(function)}
            if names & {"create_task", "ensure_future"}:
                found.add((path.relative_to(SERVICES).as_posix(), function.name))
    return found


def test_every_other_task_of_a_service_is_essential() -> None:
    assert _starters() <= SHORT_LIVED, "start it with `essential`, or say here why it may end"


@pytest.fixture
async def ending() -> Ending:
    found = Ending()
    asyncio.get_running_loop().set_exception_handler(found.take)
    return found


async def _raise(error: BaseException) -> None:
    raise error


async def _return() -> None:
    pass


async def _wait_for_a_cancelled_task() -> None:
    other = asyncio.create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


@pytest.mark.parametrize(
    "work", [_return, partial(_raise, ValueError("a bug")), _wait_for_a_cancelled_task]
)
async def test_a_task_that_ends_by_itself_ends_the_process(
    ending: Ending, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    essential(work(), "leadership")
    async with asyncio.timeout(60):
        await ending.begins.wait()
    assert ending.failure == "leadership"


async def test_a_task_that_is_cancelled_or_may_return_does_not(ending: Ending) -> None:
    cancelled = essential(asyncio.sleep(3600), "leadership")
    await asyncio.sleep(0)
    cancelled.cancel()
    returned = essential(_return(), "journal", may_return=True)
    await asyncio.wait((cancelled, returned))
    await asyncio.sleep(0)
    assert not ending.begins.is_set()
    essential(_raise(ValueError("a bug")), "journal", may_return=True)
    async with asyncio.timeout(60):
        await ending.begins.wait()
    assert ending.failure == "journal"
