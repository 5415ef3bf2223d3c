"""Chat templates, rendered as transformers would, in a sandbox and without transformers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ChatEnd
from services.gateway.tool_calls.prompt import with_tools

Message = Mapping[str, Any]

# Set by the gateway: a request's chat_template_kwargs may not replace them.
RESERVED = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "raise_exception", "strftime_now"}
)

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")

MOST_STEPS = 200_000
"""Turns of its loops that a template may take for one prompt: less than a second."""
_MOST_PRODUCT, _MOST_POWER = 1_000_000, 16
_COUNTED = "counted by the sandbox"  # no template can write such a name

# Errors of a template's own operations on unexpected values.
_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


class _GenerationBlock(Extension):
    """``{% generation %} … {% endgeneration %}`` marks assistant text for training: just text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body unchanged."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Steps(Extension):
    """The work of a render, counted: each turn of a loop and each call of a macro is a step.

    A thread that renders cannot be stopped from outside, and a template may loop for ever.
    """

    tags: set[str] = set()  # noqa: RUF012 (jinja2's own interface)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._left = threading.local()
        environment.filters[_COUNTED] = self._items

    def begin(self) -> None:
        self._left.steps = MOST_STEPS

    def step(self) -> None:
        """Count one; TemplateError for one too many."""
        self._left.steps -= 1
        if self._left.steps < 0:
            raise jinja2.TemplateError(f"it takes more than {MOST_STEPS} turns of its loops")

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def counted(self, template: nodes.Template) -> nodes.Template:
        """Return a template whose loops and macros count their turns."""
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        bodies = [
            (each.lineno, each.body) for each in template.find_all(nodes.For) if each.recursive
        ]
        bodies += [(each.lineno, each.body) for each in template.find_all(nodes.Macro)]
        bodies += [(each.lineno, each.body) for each in template.find_all(nodes.CallBlock)]
        for lineno, body in bodies:
            body.insert(0, nodes.ExprStmt(self.call_method("step"), lineno=lineno))
        return template


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, whose renders end."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return self.steps.counted(super()._parse(source, name, filename))

    @property
    def steps(self) -> _Steps:
        """The count of a render's work."""
        steps = self.extensions[_Steps.identifier]
        assert isinstance(steps, _Steps)
        return steps

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse products of texts and lists, and powers, that could fill the memory."""
        if operator == "**" and not (abs(left) <= _MOST_PRODUCT and abs(right) <= _MOST_POWER):
            raise jinja2.TemplateError(f"a power is beyond {_MOST_PRODUCT} ** {_MOST_POWER}")
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and len(value) * times > _MOST_PRODUCT:
                raise jinja2.TemplateError(f"a product is longer than {_MOST_PRODUCT}")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template; it can refer to ``special_tokens`` by name (``bos_token`` …)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, "jinja2.ext.loopcontrols", _Steps],
        )
        self._begin = environment.steps.begin
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        self._knows_tools = "tools" in source
        self._template = environment.from_string(source)
        self.reads_effort = "reasoning_effort" in source
        """True if it says itself how much to reason."""
        # a plain dict: every render copies it, and a ChainMap is slow to copy
        self._template.globals = dict(self._template.globals)
        self.special_tokens = dict(special_tokens)
        self._reserved = RESERVED.union(SPECIAL_TOKENS, self._template.globals)

    @classmethod
    def of_client(cls, source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
        """Compile a client's own template; INVALID_ARGUMENT where it is none."""
        try:
            return cls(source, special_tokens)
        except jinja2.TemplateError as error:
            message = f"chat_template is no template: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template") from error

    def render(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Message] = (),
        ending: ChatEnd = ChatEnd.ANSWER,
    ) -> str:
        """Render the prompt; it ends where the assistant's answer begins, or as ``ending`` says.

        A template that does not know tools gets them as text. INVALID_ARGUMENT where the template
        does not take these messages or options.
        """
        reserved = self._reserved.intersection(options)
        if reserved:
            name = min(reserved)
            message = f"chat_template_kwargs may not set {name}: the gateway does"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="chat_template_kwargs")
        if not self._knows_tools:
            messages, tools = with_tools(messages, tools), ()
        self._begin()
        try:
            text = self._template.render(
                self.special_tokens,
                **options,
                messages=messages,
                tools=[*tools] or None,
                add_generation_prompt=ending is ChatEnd.ANSWER,
            )
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as error:
            message = f"the model's chat template does not take these messages: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="messages") from error
        return _up_to(text, messages[-1]) if ending is ChatEnd.OPEN else text


def _up_to(text: str, last: Message) -> str:
    """Return a prompt up to the end of its last message's content.

    It is looked for from the end, in reversed texts: the time of Python's ``rfind`` grows with the
    product of both lengths, that of ``find`` with their sum.
    """
    content = str(last.get("content") or "").strip()
    num_behind = text[::-1].find(content[::-1]) if content else -1
    if num_behind < 0:
        message = "the last message cannot go on: its content is not in the prompt as it is"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="continue_final_message")
    return text[: len(text) - num_behind]


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
