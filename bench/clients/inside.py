"""The cases of one client, run where it is installed: nothing but Python's own is imported here.

``python inside.py MODULE OUT URL MODEL TOKENIZER SECONDS`` writes a line of JSON for each case.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

PASSED, REFUSED, FAILED = "passed", "refused", "failed"
MOST_CHARS = 160


def judge(run: Callable[[], Any], by_design: str, seconds: int) -> tuple[str, str]:
    """Run a case for at most so many seconds; return how it ended, and why.

    A case that is refused ``by_design`` (the reason) has to be refused, by an error of the client.
    """
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    try:
        run()
    except AssertionError as error:
        return FAILED, said(error, "an assertion of the case does not hold")
    except BaseException as error:  # a library may raise anything, and one case is not the others
        if isinstance(error, KeyboardInterrupt):
            raise
        if by_design and not isinstance(error, TimeoutError):
            return REFUSED, by_design
        return FAILED, said(error, type(error).__name__)
    finally:
        signal.alarm(0)
    return PASSED, ""


def said(error: BaseException, otherwise: str) -> str:
    """Return what an error says in one short line, or the line of the case where it was raised."""
    text = " ".join(str(error).split())
    if not text:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{otherwise}: {where.line}"
    return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"


def _keep(figures: dict[str, Any], run: Callable[[Any], Any], at: object) -> None:
    """Run a case, and keep the figures that it returns, if any."""
    figures.update(run(at) or {})


def _too_long(*_: object) -> None:
    raise TimeoutError("the case took too long")


def main(name: str, out: str, url: str, model: str, tokenizer: str, seconds: str) -> None:
    """Judge every case of a file, in its order."""
    module = importlib.import_module(f"cases.{name}")
    at = importlib.import_module("cases.asked").At(url, model, tokenizer)
    reasons: Mapping[str, str] = getattr(module, "REFUSED", {})
    with Path(out).open("a", encoding="utf-8") as lines:
        for case, run in module.CASES.items():
            figures: dict[str, Any] = {}
            keep = partial(_keep, figures, run, at)
            outcome, why = judge(keep, reasons.get(case, ""), int(seconds))
            result = {"case": case, "outcome": outcome, "said": why, "figures": figures}
            lines.write(json.dumps(result, ensure_ascii=False) + "\n")
            lines.flush()
    sys.stdout.flush()
    os._exit(0)  # threads of a client may outlive its cases


if __name__ == "__main__":
    main(*sys.argv[1:])
