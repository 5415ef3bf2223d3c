"""Chat templates, rendered as transformers would, in a sandbox and without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.errors import Code, HeadwayError

Message = Mapping[str, Any]

# Set by the gateway: a request's chat_template_kwargs may not replace them.
RESERVED = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"}
)

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")

# Errors of a template's own operations on unexpected values.
_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


class _GenerationBlock(Extension):
    """``{% generation %} … {% endgeneration %}`` marks assistant text for training: just text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body unchanged."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template; it can refer to ``special_tokens`` by name (``bos_token`` …)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        # a plain dict: every render copies it, and a ChainMap is slow to copy
        self._template.globals = dict(self._template.globals)
        self._special_tokens = dict(special_tokens)
        self._reserved = RESERVED.union(SPECIAL_TOKENS, self._template.globals)

    def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        """Render the prompt that ends where the assistant's answer begins.

        INVALID_ARGUMENT where the template does not take these messages or options.
        """
        reserved = self._reserved.intersection(options)
        if reserved:
            name = min(reserved)
            message = f"chat_template_kwargs may not set {name}: the gateway does"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template_kwargs")
        try:
            return self._template.render(
                self._special_tokens, **options, messages=messages, add_generation_prompt=True
            )
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as error:
            message = f"the model's chat template does not take these messages: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="messages") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
