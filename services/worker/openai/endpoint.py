"""The abilities of an OpenAI endpoint, found out before the worker takes requests."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headway.core.picker.events import EndpointInfo
from headway.errors import Code, HeadwayError, invalid
from services.endpoints.endpoints_file import EndpointEntry, Listed, entries_from, resolve
from services.endpoints.pool_watch import PoolWatch
from services.runtime.logs import get_logger
from services.runtime.reasoning import model_file

_ANY_TOKEN = 65
"""A token id that every vocabulary has."""
_A_PRIORITY = 1 << 41
"""A priority of the size that arrivals in milliseconds have."""
_WAYS = ("url", "endpoints", "endpoints_file", "inference_pool")
_EXAMPLE = '\'{"url": "http://host:8000"}\''
_PAUSE = 0.5  # seconds between looks for a first endpoint
_LONGEST_PAGE = 2**24  # bytes
_LONGEST_PROBLEM = 300
_TOKEN_IDS = 2**31
"""As many ids as the wire has."""


class EndpointArgs(BaseModel):
    """The ``--engine-args`` of this engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    url: str = Field("", pattern=r"^https?://[^/\s@]+(/v1)?/?$")
    """Base URL, with or without ``/v1``; it holds no password, for it is logged."""
    endpoints: str = ""
    """In place of a URL: ``host:port`` by commas; a name is all its addresses."""
    endpoints_file: Path | None = None
    """The same as a file, as the picker reads it."""
    inference_pool: str = ""
    """The same as an InferencePool of Kubernetes."""
    model: str = ""
    """The model's name there; default: the first that it lists."""
    api_key_file: Path | None = None
    """File with the key that it wants."""
    capacity_tokens: int = Field(0, ge=0)
    """Tokens of KV that it holds; default: as its metrics say, else 64 of the longest requests."""
    priority: bool | None = None
    """True to send a priority with each request; default: if it takes one."""
    patience: float = Field(20.0, gt=0.0, le=3600.0)
    """Seconds without an answer after which a running worker gives its endpoint up."""
    start_patience: float = Field(600.0, gt=0.0, le=86_400.0)
    """Seconds that a worker waits for its endpoint at the start."""

    @model_validator(mode="after")
    def _one_way(self) -> EndpointArgs:
        if sum(map(bool, self._ways)) != 1:
            raise ValueError(f"give one of {', '.join(_WAYS)}")
        return self

    @property
    def _ways(self) -> tuple[str | Path | None, ...]:
        return self.url, self.endpoints, self.endpoints_file, self.inference_pool

    @property
    def root(self) -> str:
        """The URL without ``/v1``."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def name(self) -> str:
        """The endpoints as they were given, for logs."""
        return str(next(filter(None, self._ways)))

    def fixed(self) -> Sequence[Listed]:
        """Return the endpoint of a URL, which is its own address."""
        return [Listed(EndpointInfo(self.root, ""), self.root)] if self.url else []

    def entries(self) -> Sequence[EndpointEntry]:
        """Return the entries of endpoints without a URL; HeadwayError for wrong ones."""
        if self.url:
            return ()
        return entries_from(self.endpoints, self.endpoints_file, self.inference_pool)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        if self.api_key_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self.api_key_file.read_text().strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            message = f"--engine-args: api_key_file cannot be read: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args") from error


def root_of(address: str) -> str:
    """Return the URL in front of ``/v1`` of an endpoint's address."""
    return address if "://" in address else f"http://{address}"


@dataclass(frozen=True, slots=True)
class KnownEndpoint:
    """An endpoint as it has answered; several are taken to be alike.

    ``capacity_tokens``: of all.
    """

    args: EndpointArgs
    model: str
    max_model_len: int
    capacity_tokens: int
    takes_priority: bool
    names_logprobs: bool
    """True if log probabilities come with token ids."""
    takes_salt: bool
    """True if requests with different ``cache_salt`` share no cached prefix there."""
    takes_grammars: bool
    """True if it reads ``structured_outputs``, vLLM's field for forms of answers."""
    takes_budget: bool
    """True if it reads ``thinking_token_budget``: it knows where the model's reasoning ends, then,
    and its grammars begin there."""
    takes_bad_words: bool
    scores_prompts: bool
    """True if it gives the log probabilities of a prompt's tokens."""
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    """Token ids from this one on cannot be drawn."""
    tokenizer: str
    """Folder or hub id."""


def parse_args(given: dict[str, Any]) -> EndpointArgs:
    """Return the arguments; HeadwayError for a wrong one."""
    try:
        args = EndpointArgs(**given)
        args.entries()
        httpx.URL(args.url)
        return args
    except httpx.InvalidURL as error:
        message = f"--engine-args: url is {given['url']!r}: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"--engine-args: {name or 'they'}: {first['msg']}"
        if not given:
            message = f"--engine-args needs a url, or another of {', '.join(_WAYS)}: {_EXAMPLE}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="engine_args") from error


def examine_first(
    args: EndpointArgs, model: str, max_model_len: int, adapters: Iterable[str] = ()
) -> KnownEndpoint:
    """Examine the first endpoint that is found; it waits for one. See ``examine``.

    An event loop runs in another thread than this, or none does.
    """
    if args.url:
        return examine(args, model, max_model_len, adapters)
    listed = asyncio.run(_await_listed(args))
    one = args.model_copy(update={"url": root_of(listed[0].info.address)})
    known = examine(one, model, max_model_len, adapters)
    num_tokens = known.capacity_tokens * (1 if args.capacity_tokens else len(listed))
    return replace(known, args=args, capacity_tokens=num_tokens)


async def _await_listed(args: EndpointArgs) -> Sequence[Listed]:
    """Return the endpoints as soon as there are any; HeadwayError if that takes too long."""
    entries = args.entries()
    pools = {entry.pool: PoolWatch(entry.pool, lambda: None) for entry in entries if entry.pool}
    problem = "nothing is listed"
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(args.start_patience):
                while True:
                    try:
                        if endpoints := await resolve(entries, lambda pool: pools[pool].endpoints):
                            return endpoints
                    except OSError as error:
                        problem = str(error)
                    await asyncio.sleep(_PAUSE)
    finally:
        for pool in pools.values():
            await pool.close()
    message = f"{args.name} has no endpoints: {problem}"
    raise HeadwayError(Code.UNAVAILABLE, message, param="engine_args")


def examine(
    args: EndpointArgs, model: str, max_model_len: int, adapters: Iterable[str] = ()
) -> KnownEndpoint:
    """Ask the endpoint what it serves and takes; HeadwayError where it cannot be used.

    ``model``: the folder or hub id of its tokenizer. ``max_model_len`` in tokens, 0: as it says.
    ``adapters``: names of adapters that it has to list.
    """
    with httpx.Client(base_url=args.root, headers=args.headers(), timeout=60.0) as client:
        listed = _models(client, args)
        known = [each.id for each in listed]
        entry = next((each for each in listed if args.model in ("", each.id)), None)
        if entry is None:
            raise invalid("engine_args.model", args.model, f"one of {', '.join(known)}")
        for name in adapters:
            if name not in known:
                raise invalid("lora", name, f"an adapter of the endpoint: {', '.join(known)}")
        length = max_model_len or entry.max_model_len or 0
        if not length:
            message = f"{args.url} does not say how long requests may be: give --max-model-len"
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="max_model_len")
        probe = _Probe(client, entry.id, args)
        if not probe.returns_token_ids():
            message = (
                f"{args.url} does not return token ids ('return_token_ids'), without which no "
                "request can be resumed exactly: vLLM from 0.10.2 on and Headway do"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message)
        takes_priority = (
            probe.takes(priority=_A_PRIORITY) if args.priority is None else args.priority
        )
        return KnownEndpoint(
            args,
            entry.id,
            length,
            args.capacity_tokens or _capacity(client) or 64 * length,
            takes_priority,
            probe.takes(logprobs=1, return_tokens_as_token_ids=True),
            probe.reads("cache_salt", "headway", []),
            probe.reads("structured_outputs", {"regex": "a"}, {"regex": "a", "choice": ["a"]}),
            probe.reads("thinking_token_budget", 8, -8),
            probe.reads("bad_words", ["headway"], [8]),
            probe.reads("prompt_logprobs", 1, -8),
            eos_token_ids(model),
            _vocab_size(model),
            model,
        )


class _Model(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    max_model_len: int | None = Field(None, ge=0, lt=2**31)


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1)


def _got(client: httpx.Client, path: str) -> tuple[int, bytes]:
    """Return the status and the body of a page; ValueError for one that does not end."""
    body = bytearray()
    with client.stream("GET", path) as reply:
        for piece in reply.iter_bytes():
            body += piece
            if len(body) > _LONGEST_PAGE:
                raise ValueError(f"it answers with more than {_LONGEST_PAGE} bytes")
        return reply.status_code, bytes(body)


def _models(client: httpx.Client, args: EndpointArgs) -> Sequence[_Model]:
    """Wait until the endpoint answers; return the models that it lists."""
    until, is_told = time.monotonic() + args.start_patience, False
    while True:
        try:
            status, body = _got(client, "/v1/models")
            if status == 200:
                return _Models.model_validate_json(body).data
            problem = f"it answered {status}: {body.decode(errors='replace')[:200]}"
            if status < 500:
                break
        except (httpx.TransportError, httpx.DecodingError, ValueError) as error:
            problem = repr(error)[:_LONGEST_PROBLEM]
        if time.monotonic() > until:
            break
        if not is_told:
            get_logger().info("waiting_for_endpoint", url=args.url, problem=problem)
            is_told = True
        time.sleep(0.5)
    message = f"{args.url} lists no models: {problem}"
    raise HeadwayError(Code.UNAVAILABLE, message, param="engine_args")


class _Probe:
    """Requests of one token, which show what the endpoint takes.

    They may take as long as a start: vLLM compiles some operators when they are first asked for.
    """

    def __init__(self, client: httpx.Client, model: str, args: EndpointArgs) -> None:
        self._client = client
        self._args = args
        self._body = {"model": model, "prompt": [_ANY_TOKEN], "max_tokens": 1, "temperature": 0}

    def returns_token_ids(self) -> bool:
        reply = self._post(return_token_ids=True)
        if reply.status_code != 200:
            return False
        try:
            return bool(reply.json()["choices"][0]["token_ids"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    def takes(self, **fields: Any) -> bool:
        return self._post(**fields).status_code == 200

    def reads(self, field: str, right: Any, wrong: Any) -> bool:
        """Return whether it knows a field: one that ignores it takes a wrong value, too."""
        return self.takes(**{field: right}) and not self.takes(**{field: wrong})

    def _post(self, **fields: Any) -> httpx.Response:
        """Return the reply; HeadwayError (UNAVAILABLE) where none comes in time."""
        body, patience = {**self._body, **fields}, self._args.start_patience
        try:
            return self._client.post("/v1/completions", json=body, timeout=patience)
        except httpx.TransportError as error:
            message = f"{self._args.url} did not answer a request of one token: {error!r}"
            raise HeadwayError(Code.UNAVAILABLE, message, param="engine_args") from error


def _capacity(client: httpx.Client) -> int:
    """Return the tokens of KV that vLLM's metrics tell of; 0 where there are none."""
    try:
        text = _got(client, "/metrics")[1].decode(errors="replace")
    except (httpx.TransportError, httpx.DecodingError, ValueError):
        return 0
    match = re.search(r"vllm:cache_config_info\{([^}]*)\}", text)
    labels = dict(re.findall(r'(\w+)="(\d+)"', match.group(1))) if match else {}
    return int(labels.get("num_gpu_blocks", 0)) * int(labels.get("block_size", 0))


def _vocab_size(model: str) -> int:
    """Return the model's number of token ids, as its files say; the wire's bound if they do not."""
    file = model_file(model, "config.json")
    config = json.loads(file.read_text()) if file is not None else {}
    return int(config.get("text_config", config).get("vocab_size") or _TOKEN_IDS)


def eos_token_ids(model: str) -> tuple[int, ...]:
    """Return the tokens that end an output, as the model's files say; empty if they do not."""
    for name in ("generation_config.json", "config.json"):
        file = model_file(model, name)
        ids = json.loads(file.read_text()).get("eos_token_id") if file is not None else None
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()
