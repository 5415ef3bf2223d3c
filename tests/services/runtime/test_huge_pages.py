"""A worker asks for huge pages once, and leaves alone who has decided already."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services.runtime.huge_pages import TUNABLE, VARIABLE, with_huge_pages

SCRIPT = f"""
import os
from services.runtime.huge_pages import restart_with_huge_pages
restart_with_huge_pages()
print(os.getpid(), os.environ["{VARIABLE}"])
"""


def test_what_the_environment_says_of_others_stays() -> None:
    assert with_huge_pages({}) == {VARIABLE: f"{TUNABLE}=1"}
    assert with_huge_pages({VARIABLE: "a=2"}) == {VARIABLE: f"a=2:{TUNABLE}=1"}
    assert with_huge_pages({VARIABLE: f"{TUNABLE}=0"}) is None


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
def test_it_is_the_same_process_that_goes_on() -> None:
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environ, stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate(timeout=60)
    assert said.split() == [str(process.pid), f"{TUNABLE}=1"]
