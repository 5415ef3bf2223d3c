"""Cases of instructor, one for each way in which it asks for a form."""

from __future__ import annotations

from typing import Any

import instructor
import openai

from .asked import CITIES, KEY, MESSAGES, NO_THINKING, SECONDS, At, cases
from .forecast import Forecast

# instructor asks for it in words alone: our small model needs the form, too.
BLOCK = r"```json\n\{\"city\": \"(Bern|Oslo)\", \"warm\": (true|false)\}\n```"


def ask(at: At, mode: Any, **more: Any) -> None:
    """Ask for the form in this mode, once."""
    plain = openai.OpenAI(base_url=at.v1, api_key=KEY, timeout=SECONDS, max_retries=0)
    made = instructor.from_openai(plain, mode=mode).chat.completions
    body = {**NO_THINKING, **more}
    fields = {"messages": MESSAGES, "response_model": Forecast, "max_retries": 0}
    found = made.create(model=at.model, temperature=0, extra_body=body, **fields)
    assert found.city in CITIES


def tools(at: At) -> None:
    ask(at, instructor.Mode.TOOLS)


def json(at: At) -> None:
    ask(at, instructor.Mode.JSON, guided_json=Forecast.model_json_schema())


def json_schema(at: At) -> None:
    ask(at, instructor.Mode.JSON_SCHEMA)


def json_in_markdown(at: At) -> None:
    ask(at, instructor.Mode.MD_JSON, guided_regex=BLOCK)


CASES = cases(tools, json, json_schema, json_in_markdown)
