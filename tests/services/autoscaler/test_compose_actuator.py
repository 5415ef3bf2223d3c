"""The compose actuator over a command that keeps books as compose does."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from services.autoscaler.actuators.compose import ComposeActuator

FAKE = """#!{python}
import pathlib, re, sys
folder, arguments = pathlib.Path({folder!r}), sys.argv[1:]
with (folder / "calls").open("a") as calls:
    print(*arguments, file=calls)
assert arguments[:2] == ["--file", "a b.yaml"], arguments
command, service = arguments[2], arguments[-1]
if service == "broken":
    sys.exit("no such service: broken")
book = folder / service
if command == "ps":
    print("\\n".join(f"id-{{n}}" for n in range(int(book.read_text() if book.exists() else 0))))
elif command == "up":
    name, number = arguments[arguments.index("--scale") + 1].split("=")
    assert name == service
    book.write_text(number)
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    script = tmp_path / "compose"
    script.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{script} --file 'a b.yaml'"


async def test_services_are_scaled_by_the_command_and_counted(command: str, tmp_path: Path) -> None:
    actuator = ComposeActuator(command, {"prefill": "prefill-worker", "decode": "decode-worker"})
    assert await actuator.ordered() == {"prefill": 0, "decode": 0}
    await actuator.scale("prefill", 3)
    await actuator.scale("decode", 2)
    await actuator.scale("prefill", 1)
    assert await actuator.ordered() == {"prefill": 1, "decode": 2}
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[2].endswith(
        "up --detach --no-deps --no-recreate --scale prefill-worker=3 prefill-worker"
    )


async def test_what_compose_complains_of_is_told(command: str) -> None:
    actuator = ComposeActuator(command, {"prefill": "broken"})
    with pytest.raises(HeadwayError, match="no such service: broken"):
        await actuator.ordered()


async def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    actuator = ComposeActuator(str(tmp_path / "nothing"), {"prefill": "prefill"})
    with pytest.raises(HeadwayError, match=r"cannot run .*nothing.*--compose-command"):
        await actuator.scale("prefill", 1)
