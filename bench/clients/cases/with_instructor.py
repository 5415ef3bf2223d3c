"""Cases of instructor, one for each way in which it asks for a form."""

from __future__ import annotations

from typing import Any

import instructor
import openai

from .asked import EXTRACT, KEY, SECONDS, At, cases
from .forms import JOHN, Person


def ask(at: At, mode: Any) -> None:
    """Ask for the form in this mode, once."""
    plain = openai.OpenAI(base_url=at.v1, api_key=KEY, timeout=SECONDS, max_retries=0)
    made = instructor.from_openai(plain, mode=mode).chat.completions
    fields = {"messages": EXTRACT, "response_model": Person, "max_retries": 0}
    answer = made.create(model=at.model, temperature=0, **fields)  # of a class made from the form's
    assert answer.model_dump() == JOHN.model_dump()


def tools(at: At) -> None:
    ask(at, instructor.Mode.TOOLS)


def json(at: At) -> None:
    ask(at, instructor.Mode.JSON)


def json_schema(at: At) -> None:
    ask(at, instructor.Mode.JSON_SCHEMA)


def json_in_markdown(at: At) -> None:
    ask(at, instructor.Mode.MD_JSON)


CASES = cases(tools, json, json_schema, json_in_markdown)
