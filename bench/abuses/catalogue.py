"""The abuses: what one key sends, over and over, while another asks for a few tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
AMBIGUOUS = 'start: a a a a a a a a\na: b b | "x"\nb: c c | "x"\nc: start? "x" | "y"\n'
"""A grammar whose masks get dearer with every token."""
MEGABYTE = 2**20


class Manner(Enum):
    """The abuser's way with its connection."""

    READS = "reads the answer"
    LEAVES = "leaves after the first piece"
    STARES = "never reads"
    STALLS = "sends half of the body, then nothing"
    HANGS = "connects and sends nothing"


@dataclass(frozen=True, slots=True)
class Abuse:
    """One of them: ``at_once`` connections do it until they are stopped."""

    name: str
    path: str = COMPLETIONS
    body: Mapping[str, Any] = field(default_factory=dict)
    at_once: int = 4
    manner: Manner = Manner.READS
    is_operator: bool = False
    """True if an operator's key does it."""

    def sent(self, model: str) -> Mapping[str, Any]:
        """Return the body that is sent; {}: it is a GET without one."""
        if not self.body or not self.path.startswith("/v1"):
            return self.body
        return {"model": model, **self.body}


def _long(num_outputs: int, num_tokens: int, **more: Any) -> dict[str, Any]:
    body = {"prompt": "Once", "n": num_outputs, "max_tokens": num_tokens, "ignore_eos": True}
    return {**body, "temperature": 1.0, **more}


def _chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 200, **more}


def _prompt(prompt: str | Sequence[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1}


def _scored(prompt: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 20, **more}


def _schema(num_properties: int, num_required: int) -> dict[str, Any]:
    names = [f"property_{number}" for number in range(num_properties)]
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": names[:num_required]}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _tools(num_tools: int, num_properties: int) -> list[dict[str, Any]]:
    parameters = _schema(num_properties, num_properties)
    return [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": parameters}}
        for n in range(num_tools)
    ]


_WHAT_IF = {"preset": "sbs", "profile": "llama-8b-a100", "prefill": 1, "decode": 1}
_EMPTY = {"role": "user", "content": ""}
_STREAM = {"stream": True}

CATALOGUE: Sequence[Abuse] = (
    # --- grammars
    Abuse("ambiguous grammar, n=32", body=_long(32, 400, guided_grammar=AMBIGUOUS), at_once=1),
    Abuse("ambiguous grammar, one output", body=_long(1, 400, guided_grammar=AMBIGUOUS)),
    Abuse("grammar of one letter", body=_long(16, 400, guided_grammar='start: "x"+')),
    Abuse("nested repeats", body=_long(8, 200, guided_regex="((a|b)*c{1,9}){1,99}")),
    Abuse("expression of 100,000 repeats", body=_long(1, 200, guided_regex="(ab?){1,100000}")),
    Abuse("choice of 2,000 texts", body=_long(8, 20, guided_choice=[f"t{n}" for n in range(2000)])),
    # --- schemas
    Abuse("schema of 1,000 properties, n=32", body=_long(32, 400, guided_json=_schema(1000, 900))),
    Abuse("schema of 3,000 properties", body=_long(1, 200, guided_json=_schema(3000, 1))),
    Abuse("schema 60 deep", body=_long(8, 200, guided_json=_nested(60))),
    Abuse("any object, n=64", body=_long(64, 200, guided_json={"type": "object"}), at_once=2),
    Abuse(
        "schema that no grammar can follow", body=_long(1, 9, guided_json={"$ref": "http://a/b"})
    ),
    # --- outputs
    Abuse("n=128, 200 tokens", body=_long(128, 200), at_once=8),
    Abuse("n=128, one token", body=_long(128, 1), at_once=8),
    Abuse("40 streams of 1,900 tokens", body=_long(1, 1900, **_STREAM), at_once=40),
    Abuse("n=16 in streams", body=_long(16, 200, **_STREAM), at_once=8),
    Abuse("64 prompts in a call", body={"prompt": ["Once"] * 64, "max_tokens": 100}),
    Abuse("log probabilities of all", body=_long(8, 100, logprobs=5), at_once=4),
    Abuse("as many outputs as there may be", body=_long(128, 1900), at_once=40),
    # --- long prompts
    Abuse("prompts of 4 MB", body=_prompt("a" * (4 * MEGABYTE - 999))),
    Abuse("prompts of 8 MB", body=_prompt("a" * (8 * MEGABYTE))),
    Abuse("prompts as long as the context", body=_prompt("ab " * 640), at_once=16),
    Abuse("prompts of token ids", body=_prompt([97] * 2000), at_once=16),
    Abuse("chats of 10,000 messages", CHAT, _chat(messages=[_EMPTY] * 10**4)),
    Abuse("log probabilities of prompts", body={"prompt": "ab" * 900, "prompt_logprobs": 5}),
    Abuse("ranks of prompts, n=8", body=_scored([97] * 590, n=8), at_once=6),
    # --- tools
    Abuse("100 tools, one required", CHAT, _chat(tools=_tools(100, 5), tool_choice="required")),
    Abuse("10 tools of 100 properties", CHAT, _chat(tools=_tools(10, 100), tool_choice="required")),
    Abuse("1,000 tools, none required", CHAT, _chat(tools=_tools(1000, 1))),
    # --- connections
    Abuse("tiny streams", body=_long(1, 1, **_STREAM), at_once=32),
    Abuse("tiny chats", CHAT, _chat(max_tokens=1), at_once=32),
    Abuse("streams that nobody reads", body=_long(16, 400, **_STREAM), manner=Manner.STARES),
    Abuse("streams that are left", body=_long(8, 400, **_STREAM), at_once=16, manner=Manner.LEAVES),
    Abuse("half uploads", body={"prompt": "a" * MEGABYTE}, at_once=64, manner=Manner.STALLS),
    Abuse("silent connections", at_once=500, manner=Manner.HANGS),
    # --- other calls
    Abuse("tokenise 256 KB", "/tokenize", {"prompt": "a b " * 2**16}),
    Abuse("tokenise little", "/tokenize", {"prompt": "a"}, at_once=32),
    Abuse("detokenise nothing", "/detokenize", {"tokens": []}, at_once=32),
    Abuse("detokenise 100,000", "/detokenize", {"tokens": [97] * 10**5}),
    Abuse("explain", "/explain/abuse", at_once=16),
    Abuse("what-if by a client", "/console/what-if", _WHAT_IF, at_once=16),
    Abuse("what-if by an operator", "/console/what-if", _WHAT_IF, is_operator=True),
    Abuse("responses that are kept", RESPONSES, {"input": "a" * 1500, "max_output_tokens": 1}),
    Abuse("bodies that are no JSON's shape", body={"prompt": {"a": [[[[]]]]}}, at_once=32),
)
