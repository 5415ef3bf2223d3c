"""A client's own chat template, rendered in a process of its own.

A sandbox bounds what a template may reach, and not the memory and the time that texts take there:
a filter alone makes a gigabyte of one letter, and some of it happens as the template is compiled.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ChatEnd
from services.gateway.openai.chat_template import ChatTemplate, Message
from services.runtime.rooms import child_environment, module_command

MOST_BYTES = 2**29
"""Memory of the process."""
MOST_SECONDS = 2
"""Seconds of a processor that it may use."""
_PATIENCE = 20.0
"""Seconds, on a machine that is busy."""
_MOST_CHARS = 2**23
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ")  # nothing that may hold a password


def render_foreign(
    source: str,
    special_tokens: Mapping[str, str],
    messages: Sequence[Message],
    options: Mapping[str, Any],
    tools: Sequence[Message],
    ending: ChatEnd,
) -> str:
    """Render as ``ChatTemplate.render`` does; it takes a tenth of a second or two.

    INVALID_ARGUMENT where the source is no template, does not take these messages, or takes too
    much memory or time. UNAVAILABLE where no process can be started.
    """
    asked = [source, special_tokens, messages, options, tools, ending.value]
    try:
        done = subprocess.run(
            module_command("services.gateway.openai.foreign_template"),
            input=json.dumps(asked, default=dict).encode(),
            capture_output=True,
            env=environment(),
            timeout=_PATIENCE,
            check=True,
        )
    except OSError as error:
        message = f"no process can be started for chat_template ({error.strerror}): try again later"
        raise HeadwayError(Code.UNAVAILABLE, message, retry_after=1.0) from error
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise _too_much() from error
    said = json.loads(done.stdout)
    if isinstance(said, str):
        return said
    message, param = said
    raise HeadwayError(Code.INVALID_ARGUMENT, message, param=param)


def environment() -> dict[str, str]:
    """Return the environment of the process, which has one thread.

    numpy's library would start one a core, and with 40 MiB of addresses each they are the memory.
    """
    passed = {name: each for name, each in child_environment().items() if name in _ENVIRONMENT}
    return {**passed, "OPENBLAS_NUM_THREADS": "1"}


def _too_much() -> HeadwayError:
    message = (
        f"chat_template takes more than {MOST_BYTES >> 20} MiB or {MOST_SECONDS} s, or makes a "
        f"prompt of more than {_MOST_CHARS} characters"
    )
    return HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template")


def _rendered(asked: Sequence[Any]) -> str:
    source, special_tokens, messages, options, tools, ending = asked
    template = ChatTemplate.of_client(source, special_tokens)
    text = template.render(messages, options, tools, ChatEnd(ending))
    if len(text) > _MOST_CHARS:
        raise _too_much()
    return text


def main() -> None:
    """Render what standard input asks for; print the text, or a message and a field's name."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    asked = json.load(sys.stdin.buffer)
    try:
        said: Any = _rendered(asked)
    except HeadwayError as error:
        said = [error.message, error.param]
    except MemoryError:
        sys.exit(1)
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
