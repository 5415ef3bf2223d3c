"""A worker whose engine is an OpenAI endpoint, over real gRPC and real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from gzip import compress
from math import inf, nan
from typing import Any

import pytest
from structlog.testing import capture_logs

from headway.engine import Drawn
from headway.errors import Code, HeadwayError
from headway.messages import CancelStream, Dispatch, EndForward, UnitBatch
from headway.request import BadWord, Constraints, FinishReason, Request, TokenLogprobs
from services.gateway.grammars import of_regex, of_schema
from services.worker.config import WorkerConfig
from services.worker.engines import find_engine, known_engines, load_engine, refuse_unread
from services.worker.openai import engine as engine_module
from services.worker.openai.endpoint import (
    EndpointArgs,
    KnownEndpoint,
    examine,
    examine_first,
    parse_args,
)
from services.worker.openai.engine import OpenAIEngine
from tests.fakes.followed import Followed
from tests.fakes.openai_endpoint import OpenAIEndpoint, openai_endpoint
from tests.fakes.paged import expected_output
from tests.fakes.worker_service import MODEL, Leader, Sink, make_request, process, served

PATIENCE = 60.0


@pytest.fixture
def endpoint() -> Iterator[OpenAIEndpoint]:
    with openai_endpoint() as found:
        yield found


@pytest.fixture
def several() -> Iterator[Sequence[OpenAIEndpoint]]:
    with openai_endpoint() as first, openai_endpoint() as second:
        yield first, second


async def examined_all(several: Sequence[OpenAIEndpoint], **args: Any) -> KnownEndpoint:
    addresses = ",".join(each.url.removeprefix("http://") for each in several)
    given = EndpointArgs(endpoints=addresses, **args)
    known = await asyncio.to_thread(examine_first, given, str(MODEL), 0)
    for each in several:
        each.bodies.clear()
    return known


def examined(endpoint: OpenAIEndpoint, **args: Any) -> KnownEndpoint:
    return examine(EndpointArgs(url=endpoint.url, **args), str(MODEL), 0)


class Following(Followed[OpenAIEngine]):
    """What it is told of endpoints that are gone comes beside its reports."""

    def __init__(self, endpoint: KnownEndpoint) -> None:
        self.gone: list[str] = []
        super().__init__(OpenAIEngine(endpoint, 16, self.gone.append))

    async def __aenter__(self) -> Following:
        return self


def asking(number: int = 1, *, max_tokens: int = 4, **changed: Any) -> Request:
    """A request with other sampling parameters."""
    request = make_request("", number, max_tokens=max_tokens)
    return replace(request, sampling=replace(request.sampling, **changed))


async def answered(
    endpoint: OpenAIEndpoint, request: Request, **args: Any
) -> tuple[Following, Drawn]:
    """Reports of a request, and its end, by an engine in front of it."""
    async with Following(examined(endpoint, **args)) as found:
        found.engine.add(request, 0)
        return found, await found.end()


# --- the endpoint -----------------------------------------------------------------------


def test_an_endpoint_says_what_it_serves_and_takes(endpoint: OpenAIEndpoint) -> None:
    found = examined(endpoint)
    assert (found.model, found.max_model_len, found.capacity_tokens) == ("stock", 512, 3200)
    assert found.takes_priority
    assert found.names_logprobs
    assert found.eos_token_ids


def test_what_it_refuses_is_not_sent(endpoint: OpenAIEndpoint) -> None:
    endpoint.refused = {"priority", "return_tokens_as_token_ids"}
    found = examined(endpoint)
    assert not found.takes_priority
    assert not found.names_logprobs


def test_one_without_token_ids_is_refused_at_the_start(endpoint: OpenAIEndpoint) -> None:
    endpoint.names_tokens = False
    with pytest.raises(HeadwayError, match="does not return token ids"):
        examined(endpoint)


def test_a_model_that_it_does_not_have_is_refused_at_the_start(endpoint: OpenAIEndpoint) -> None:
    with pytest.raises(HeadwayError, match="'other'; it must be one of stock"):
        examined(endpoint, model="other")


def test_one_that_never_answers_is_refused_by_its_url() -> None:
    args = EndpointArgs(url="http://127.0.0.1:9", start_patience=2.0)
    with pytest.raises(HeadwayError, match=r"http://127.0.0.1:9 lists no models") as refused:
        examine(args, str(MODEL), 0)
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "listed",
    [
        "[]",
        '{"data": [7]}',
        '{"data": [{}]}',
        '{"data": {"id": 1}}',
        '{"data": []}',
        '{"data": [{"id": "m", "max_model_len": "long"}]}',
        '{"data": [{"id": "m", "max_model_len": 1e999}]}',
        "[" * 100_000,
        "x" * (17 << 20),
    ],
    ids=lambda listed: listed[:20],
)
def test_one_that_lists_nonsense_is_refused_at_the_start(
    endpoint: OpenAIEndpoint, listed: str
) -> None:
    endpoint.listed = listed
    args = EndpointArgs(url=endpoint.url, start_patience=0.1)
    with pytest.raises(HeadwayError, match="lists no models: ") as refused:
        examine(args, str(MODEL), 0)
    assert len(refused.value.message) < 500


def test_one_that_lists_models_and_computes_nothing_is_refused(endpoint: OpenAIEndpoint) -> None:
    endpoint.computes.clear()
    args = EndpointArgs(url=endpoint.url, start_patience=0.5)
    with pytest.raises(HeadwayError, match="did not answer a request of one token") as refused:
        examine(args, str(MODEL), 0)
    endpoint.computes.set()
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "--engine-args needs a url"),
        ({"url": "ftp://x"}, "--engine-args: url"),
        ({"url": "http://user:password@x"}, "--engine-args: url"),
        ({"url": "http://x", "colour": "red"}, "--engine-args: colour"),
    ],
)
def test_wrong_arguments_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(HeadwayError, match=named):
        parse_args(given)


# --- engines by name --------------------------------------------------------------------


def test_headways_own_engines_are_known() -> None:
    assert known_engines()[:2] == ["torch", "openai"]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("trch", "engine is 'trch'; it must be one of torch, openai"),
        ("vllm", "pip install -e . -e 'engines/vllm"),
    ],
)
def test_an_engine_that_is_not_there_is_refused_with_the_way_out(name: str, named: str) -> None:
    if name in known_engines():
        pytest.skip(f"{name} is installed here")
    with pytest.raises(HeadwayError, match=named):
        find_engine(name)


def test_torch_takes_no_engine_args() -> None:
    config = WorkerConfig(service_id="w", model=str(MODEL), engine_args={"a": 1})
    with pytest.raises(HeadwayError, match="engine torch has no --engine-args"):
        load_engine(config)


@pytest.mark.parametrize("engine", ["openai", "vllm", "vllm-native"])
@pytest.mark.parametrize("option", [{"deterministic": True}, {"kernels": "native"}])
def test_what_an_engine_does_not_read_is_refused_before_it_is_loaded(
    engine: str, option: dict[str, Any]
) -> None:
    config = WorkerConfig(service_id="w", model=str(MODEL), engine=engine, **option)
    named = f"--{next(iter(option))} is .*left out with engine {engine}"
    with pytest.raises(HeadwayError, match=named):
        refuse_unread(config)


def test_every_option_may_be_left_out_with_every_engine() -> None:
    for engine in ("torch", "openai", "vllm", "vllm-native"):
        refuse_unread(WorkerConfig(service_id="w", model=str(MODEL), engine=engine))


# --- one request ------------------------------------------------------------------------


async def test_tokens_come_as_the_endpoint_draws_them(endpoint: OpenAIEndpoint) -> None:
    request = make_request("", max_tokens=6)
    async with Following(examined(endpoint)) as found:
        found.engine.add(request, 42)
        assert (await found.end()).finish_reason is FinishReason.LENGTH
        assert found.tokens == expected_output(request.prompt_token_ids, 6)
    (body,) = endpoint.bodies
    assert (body["model"], body["priority"], body["temperature"]) == ("stock", 42, 0.0)
    assert body["ignore_eos"] is True
    assert "seed" not in body


async def test_a_stream_that_breaks_is_resumed_after_its_tokens(endpoint: OpenAIEndpoint) -> None:
    endpoint.breaks_after, endpoint.busy = [3, 0, 2], 1
    request = make_request("", max_tokens=8)
    found, _ = await answered(endpoint, request)
    assert found.tokens == expected_output(request.prompt_token_ids, 8)
    assert [body["max_tokens"] for body in endpoint.bodies] == [8, 5, 5, 3]


async def test_draws_of_a_resumed_output_differ_from_those_of_its_beginning(
    endpoint: OpenAIEndpoint,
) -> None:
    endpoint.breaks_after = [2]
    await answered(endpoint, asking(max_tokens=4, temperature=1.0, seed=7, is_seeded=True))
    first, second = (body["seed"] for body in endpoint.bodies)
    assert first == 7 != second


async def test_a_seed_that_no_client_chose_is_not_sent(endpoint: OpenAIEndpoint) -> None:
    await answered(endpoint, asking(max_tokens=2, temperature=1.0, seed=7))
    assert "seed" not in endpoint.bodies[0]


async def test_a_worker_spreads_requests_over_its_endpoints(
    several: Sequence[OpenAIEndpoint],
) -> None:
    requests = [make_request("", number, max_tokens=4) for number in range(1, 9)]
    async with Following(await examined_all(several)) as found:
        for request in requests:
            found.engine.add(request, 0)
        await found.until(lambda: len(found.ends) == len(requests))
    assert {drawn.finish_reason for drawn in found.ends} == {FinishReason.LENGTH}
    asked = [len(each.bodies) for each in several]
    assert sum(asked) == len(requests)
    assert min(asked) > 0


async def test_a_stream_that_breaks_goes_on_at_another_endpoint(
    several: Sequence[OpenAIEndpoint],
) -> None:
    for each in several:
        each.breaks_after = [3]
    request = make_request("", max_tokens=8)
    async with Following(await examined_all(several)) as found:
        found.engine.add(request, 0)
        await found.until(lambda: len(found.ends) == 1)
        assert found.tokens == expected_output(request.prompt_token_ids, 8)
    assert min(len(each.bodies) for each in several) > 0


async def test_what_a_silent_endpoint_has_begun_another_ends(
    several: Sequence[OpenAIEndpoint],
) -> None:
    request = make_request("", max_tokens=400)
    async with Following(await examined_all(several, patience=0.5)) as found:
        found.engine.add(request, 0)
        await found.until(lambda: bool(found.tokens))
        (asked,) = (each for each in several if each.bodies)
        asked.goes_on.clear()
        await found.until(lambda: len(found.ends) == 1)
        assert found.tokens == expected_output(request.prompt_token_ids, 400)
    assert found.gone == []


def test_endpoints_come_in_one_way() -> None:
    for given in ({"url": "http://a", "endpoints": "a:1"}, {"endpoints": "", "model": "m"}):
        with pytest.raises(HeadwayError, match="give one of url, endpoints, endpoints_file"):
            parse_args(given)
    with pytest.raises(HeadwayError, match="endpoints"):
        parse_args({"endpoints": "no port"})


async def test_an_endpoint_that_is_gone_is_given_up(endpoint: OpenAIEndpoint) -> None:
    known = examined(endpoint, patience=0.2)
    nowhere = replace(known, args=EndpointArgs(url="http://127.0.0.1:9", patience=0.2))
    async with Following(nowhere) as found:
        found.engine.add(make_request(""), 0)
        await found.until(lambda: bool(found.gone))
    assert found.gone == ["http://127.0.0.1:9"]
    assert found.drawn == []


@pytest.mark.parametrize(
    ("status", "code"), [(429, Code.UNAVAILABLE), (500, Code.INTERNAL), (0, Code.UNAVAILABLE)]
)
async def test_one_that_serves_others_and_not_this_request_loses_it_alone(
    endpoint: OpenAIEndpoint, status: int, code: Code
) -> None:
    async with Following(examined(endpoint, patience=2.0)) as found:
        healthy, unlucky = (make_request("", n, max_tokens=100_000) for n in (1, 2))
        found.engine.add(healthy, 0)
        await found.until(lambda: bool(found.tokens))
        endpoint.busy, endpoint.busy_status = 1_000_000, status
        found.engine.add(unlucky, 0)
        failed = await found.end()
        assert (failed.key, failed.finish_reason) == (unlucky.key, FinishReason.ERROR)
        assert failed.code is code
        num_tokens = len(found.tokens)
        await found.until(lambda: len(found.tokens) > num_tokens)
    assert found.gone == []


async def test_streams_that_all_end_without_tokens_end_their_request_alone(
    endpoint: OpenAIEndpoint,
) -> None:
    endpoint.breaks_after = [0] * 1000
    found, failed = await answered(endpoint, make_request(""), patience=2.0)
    assert (failed.finish_reason, failed.code) == (FinishReason.ERROR, Code.INTERNAL)
    assert found.gone == []


async def test_log_probabilities_come_by_token_id(endpoint: OpenAIEndpoint) -> None:
    _, drawn = await answered(endpoint, asking(max_tokens=1, num_logprobs=2))
    (token,) = drawn.token_ids
    assert drawn.logprobs == (TokenLogprobs(-0.5, (token, 7), (-0.5, -1.5)),)


async def test_log_probabilities_of_a_prompt_come_with_its_first_token(
    endpoint: OpenAIEndpoint,
) -> None:
    endpoint.breaks_after = [1]
    request = asking(max_tokens=3, num_prompt_logprobs=1)
    found, _ = await answered(endpoint, request)
    first, *others = found.drawn
    told = [TokenLogprobs(-token / 8, (7,), (-0.25,)) for token in request.prompt_token_ids[1:]]
    assert first.logprobs == (TokenLogprobs(0.0, prompt=tuple(told)),)
    assert [each.logprobs for each in others] == [(), ()]
    assert len(found.tokens) == 3


async def test_a_token_beyond_the_models_vocabulary_ends_its_request_alone(
    endpoint: OpenAIEndpoint,
) -> None:
    vocab_size = examined(endpoint).vocab_size
    event = {"choices": [{"index": 0, "token_ids": [vocab_size], "finish_reason": None}]}
    endpoint.instead = f"data: {json.dumps(event)}\n\n".encode()
    async with Following(examined(endpoint)) as found:
        found.engine.add(make_request(""), 0)
        failed = await found.end()
        assert found.tokens == []
        assert (failed.finish_reason, failed.code) == (FinishReason.ERROR, Code.INTERNAL)
        assert f"end at {vocab_size}" in failed.message
        endpoint.instead = b""
        found.engine.add(make_request("", 2, max_tokens=1), 0)
        await found.until(lambda: found.drawn[-1].finish_reason is FinishReason.LENGTH)
    assert found.gone == []


async def test_a_salt_reaches_the_endpoint(endpoint: OpenAIEndpoint) -> None:
    request = replace(make_request(""), cache_salt="tenant-a")
    async with Following(examined(endpoint)) as found:
        assert not any("salt" in loss for loss in found.engine.losses)
        found.engine.add(request, 0)
        await found.end()
    assert [body["cache_salt"] for body in endpoint.bodies] == ["tenant-a"]


@pytest.mark.parametrize("refused", [set[str](), {"cache_salt"}])
async def test_a_salt_that_the_endpoint_would_not_read_is_refused(
    endpoint: OpenAIEndpoint, refused: set[str]
) -> None:
    endpoint.reads, endpoint.refused = set(), refused
    request = replace(make_request(""), cache_salt="tenant-a")
    async with Following(examined(endpoint)) as found:
        assert any("salt" in loss for loss in found.engine.losses)
        found.engine.add(request, 0)
        drawn = await found.end()
    assert (drawn.code, endpoint.bodies) == (Code.INVALID_ARGUMENT, [])
    assert "cache_salt" in drawn.message


_BEHIND_REASONING = Constraints(grammar='start: "a"', reasoning_end=(9,))
_BAD_WORDS = Constraints(
    bad_words=tuple(BadWord(tuple(word.encode())) for word in ("over", " over", "rest", " rest"))
)


@pytest.mark.parametrize(
    ("constraints", "sent"),
    [
        (
            Constraints(grammar=of_schema({"type": "object"}, "").text),
            {"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": True}},
        ),
        (
            Constraints(grammar=of_regex("a+", "").text),
            {"structured_outputs": {"grammar": "start: /a+/"}},
        ),
        (_BEHIND_REASONING, {"structured_outputs": {"grammar": 'start: "a"'}}),
        (Constraints(reasoning_budget=9), {"thinking_token_budget": 9}),
        (_BAD_WORDS, {"bad_words": ["over", "rest"]}),
    ],
)
async def test_what_bounds_the_draws_is_passed_on(
    endpoint: OpenAIEndpoint, constraints: Constraints, sent: dict[str, Any]
) -> None:
    await answered(endpoint, asking(constraints=constraints))
    (body,) = endpoint.bodies
    assert {name: body[name] for name in sent} == sent


@pytest.mark.parametrize(
    ("words", "asked"),
    [  # of tokens 0 to 7: how many streams were asked for once 3 had come, and what was forbidden
        ([(2, 3)], [(1, 3), (4, None)]),
        ([(2, 9), (0, 1, 2, 8)], [(1, 8, 9), (4, None)]),
        ([(1, 2, 3, 4, 5)], [(2, None), (1, 5), (2, None)]),
        ([(0, 1), (3, 4), (2, 9, 9, 9, 9, 9, 9)], [(5, None)]),
        ([(3, 4)], [(5, None)]),
    ],
)
async def test_a_bad_word_that_a_broken_stream_has_begun_is_not_ended(
    endpoint: OpenAIEndpoint, words: list[tuple[int, ...]], asked: list[tuple[int | None, ...]]
) -> None:
    request = make_request("", max_tokens=8)
    output = expected_output(request.prompt_token_ids, 8)
    ids = [*output, 5, 6]  # 8 and 9 are drawn by nobody
    bad = tuple(BadWord(tuple(ids[place] for place in word)) for word in words)
    endpoint.breaks_after = [3]
    constraints = Constraints(bad_words=bad, biased_token_ids=(7,), biases=(1.0,))
    changed = replace(request.sampling, constraints=constraints)
    found, drawn = await answered(endpoint, replace(request, sampling=changed))
    first, *others = endpoint.bodies
    assert (first["max_tokens"], first["logit_bias"]) == (8, {"7": 1.0})
    for body, (most, *ends) in zip(others, asked, strict=True):
        forbidden = {str(ids[place]): -100.0 for place in ends if place is not None}
        assert (body["max_tokens"], body["logit_bias"]) == (most, {"7": 1.0} | forbidden)
    assert (found.tokens, drawn.finish_reason) == (output, FinishReason.LENGTH)


async def test_an_output_with_a_form_is_not_resumed_in_its_middle(endpoint: OpenAIEndpoint) -> None:
    endpoint.breaks_after = [3]
    constraints = Constraints(grammar='start: "a"')
    _, drawn = await answered(endpoint, asking(max_tokens=8, constraints=constraints))
    assert (drawn.code, len(endpoint.bodies)) == (Code.INTERNAL, 1)


@pytest.mark.parametrize(
    ("refused", "changed", "named"),
    [
        ("return_tokens_as_token_ids", {"num_logprobs": 1}, "no log probabilities by token id"),
        ("structured_outputs", {"constraints": Constraints(grammar="x")}, "response format"),
        ("thinking_token_budget", {"constraints": Constraints(reasoning_budget=9)}, "budget"),
        ("thinking_token_budget", {"constraints": _BEHIND_REASONING}, "behind reasoning"),
        ("bad_words", {"constraints": Constraints(bad_words=(BadWord((7,)),))}, "bad words"),
        ("", {"constraints": Constraints(bad_words=(BadWord((32,)),))}, "are spaces"),
        ("", {"constraints": Constraints(bad_words=(BadWord((195,)),))}, "or no text"),
        ("prompt_logprobs", {"num_prompt_logprobs": 1}, "log probabilities of a prompt"),
        ("min_p", {"min_p": 0.5}, "the endpoint answered 400: it does not take"),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name(
    endpoint: OpenAIEndpoint, refused: str, changed: dict[str, Any], named: str
) -> None:
    endpoint.refused = {refused}
    with capture_logs() as logs:
        _, drawn = await answered(endpoint, asking(**changed))
    assert (drawn.finish_reason, drawn.code) == (FinishReason.ERROR, Code.INVALID_ARGUMENT)
    assert endpoint.url not in drawn.message
    assert ("min_p is not supported" in str(logs)) == (refused == "min_p")
    with pytest.raises(HeadwayError, match=named):
        raise HeadwayError(Code.INTERNAL, drawn.message)


async def test_an_aborted_request_is_hung_up_on(endpoint: OpenAIEndpoint) -> None:
    async with Following(examined(endpoint)) as found:
        request = make_request("", max_tokens=10_000)
        found.engine.add(request, 0)
        await found.until(lambda: bool(found.tokens))
        found.engine.abort(request.key)
        await found.until(lambda: endpoint.num_hung_up > 0)
        assert all(drawn.finish_reason is None for drawn in found.drawn)


# --- odd answers ------------------------------------------------------------------------


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


TOP = {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:3": None}]}


async def test_what_a_stream_refuses_is_the_requests_fault(endpoint: OpenAIEndpoint) -> None:
    endpoint.instead = b'data: {"error": {"message": "secret", "code": 400}}\n\n'
    _, drawn = await answered(endpoint, make_request(""))
    assert drawn.code is Code.INVALID_ARGUMENT
    assert "secret" not in drawn.message


@pytest.mark.parametrize(
    "answer",
    [
        b'data: {"choices": null}\n\n',
        b'data: {"choices": [7]}\n\n',
        b'data: {"choices"\n\n',
        event(token_ids=[3], logprobs=TOP),
        event(token_ids=[3], logprobs={"token_logprobs": [None]}),
        event(token_ids=[3], logprobs={"token_logprobs": [-inf]}),
        event(token_ids=[3], logprobs={**TOP, "top_logprobs": [{"token_id:3": nan}]}),
        event(token_ids=[3], logprobs={"token_logprobs": [-1e300]}),
        event(token_ids=[-1]),
        event(token_ids=[2**31]),
        event(token_ids=[1.5]),
        event(token_ids=["3"]),
        event(token_ids=[True]),
        event(token_ids=[3] * 5),
        b'data: {"error": {"message": "at 10.0.0.7: secret"}}\n\n',
        b"data: " + b"x" * (2 << 20),
    ],
)
async def test_an_odd_answer_ends_its_request_with_an_error(
    endpoint: OpenAIEndpoint, answer: bytes
) -> None:
    endpoint.instead = answer
    with capture_logs() as logs:
        found, drawn = await answered(endpoint, asking(num_logprobs=1))
    assert found.gone == []
    assert (drawn.token_ids, drawn.finish_reason) == ((), FinishReason.ERROR)
    assert "the endpoint" in drawn.message
    assert "secret" not in drawn.message
    assert any(line["log_level"] == "error" for line in logs)


@pytest.mark.parametrize("count", [0, 2, 20])
async def test_of_more_log_probabilities_than_were_asked_for_the_best_are_kept(
    endpoint: OpenAIEndpoint, count: int
) -> None:
    tops = {f"token_id:{n}": -n / 8 for n in range(21)}
    scores = {"token_logprobs": [-2.5], "top_logprobs": [tops]}
    endpoint.instead = event(token_ids=[20], finish_reason="length", logprobs=scores)
    _, drawn = await answered(endpoint, asking(max_tokens=1, num_logprobs=count))
    (kept,) = drawn.logprobs
    assert (kept.logprob, kept.top_token_ids) == (-2.5, tuple(range(count)))


async def test_log_probabilities_that_nobody_asked_for_end_nothing(
    endpoint: OpenAIEndpoint,
) -> None:
    endpoint.instead = event(token_ids=[3], finish_reason="length", logprobs=TOP)
    _, drawn = await answered(endpoint, make_request("", max_tokens=1))
    assert (drawn.token_ids, drawn.logprobs) == ((3,), ())
    assert drawn.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("instead", [b"this is not gzip", compress(b": \n" * 2**20)])
async def test_a_compressed_answer_is_not_unpacked_and_ends_its_request(
    endpoint: OpenAIEndpoint, instead: bytes
) -> None:
    endpoint.encoding, endpoint.instead = "gzip", instead
    _, drawn = await answered(endpoint, make_request(""))
    assert drawn.finish_reason is FinishReason.ERROR
    assert "compressed" in drawn.message


async def test_an_endpoint_sets_no_cookies(endpoint: OpenAIEndpoint) -> None:
    endpoint.url = endpoint.url.replace("127.0.0.1", "localhost")  # an address never does
    async with Following(examined(endpoint)) as found:
        found.engine.add(make_request("", max_tokens=1), 0)
        await found.end()
        found.engine.add(make_request("", 2, max_tokens=1), 0)
        await found.until(lambda: len(found.drawn) > 1)
    assert endpoint.cookies == [None, None]


async def test_an_answer_that_ends_with_an_error_is_none(endpoint: OpenAIEndpoint) -> None:
    endpoint.instead = event(token_ids=[3], finish_reason="error")
    _, drawn = await answered(endpoint, make_request(""))
    assert drawn.finish_reason is FinishReason.ERROR


async def test_log_probabilities_of_other_tokens_are_left_out(endpoint: OpenAIEndpoint) -> None:
    logprobs = {"token_logprobs": [-0.5]}
    endpoint.instead = event(token_ids=[3, 4], logprobs=logprobs, finish_reason="length")
    _, drawn = await answered(endpoint, asking(num_logprobs=1))
    assert (drawn.token_ids, drawn.logprobs) == ((3, 4), ())


async def test_an_endpoint_that_falls_silent_is_given_up(endpoint: OpenAIEndpoint) -> None:
    async with Following(examined(endpoint, patience=0.3)) as found:
        found.engine.add(make_request("", max_tokens=10_000), 0)
        await found.until(lambda: bool(found.tokens))
        endpoint.lists_models.clear()
        endpoint.goes_on.clear()
        await found.until(lambda: bool(found.gone))
    assert found.gone == [endpoint.url]


@pytest.mark.parametrize("noise", [b"", b":\n\n", b"x", b'data: {"choices": []}\n\n'])
async def test_a_stream_without_tokens_ends_whatever_else_it_sends(
    endpoint: OpenAIEndpoint, noise: bytes
) -> None:
    endpoint.noise = noise
    async with Following(examined(endpoint, patience=1.0)) as found:
        found.engine.add(make_request("", max_tokens=10_000), 0)
        await found.until(lambda: bool(found.tokens))
        endpoint.goes_on.clear()
        failed = await found.end()
        assert (failed.finish_reason, failed.code) == (FinishReason.ERROR, Code.UNAVAILABLE)
        assert "silent" in failed.message
    assert found.gone == []


async def test_who_waits_for_a_place_is_not_silent_while_others_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(engine_module, "_now", lambda: now)
    pace, limit = engine_module._Pace(1.0, 600.0), asyncio.timeout(None)
    first, queued = (engine_module._Following(10, limit) for _ in range(2))
    now = 500.0
    assert pace.overdue(first) == 0.0, "how long a first token takes is not known"
    now = 0.2
    pace.drew(first, 1)
    for _ in range(10):
        now += 1.9
        pace.moved()
        assert pace.overdue(queued) == 0.0
    now += 2.1
    assert pace.overdue(queued) == pytest.approx(2.1)
    slow = engine_module._Following(10, limit)
    pace.drew(slow, 1)
    now += 1.0
    pace.drew(slow, 1)
    now += 9.9
    assert pace.overdue(slow) == 0.0, "ten times what its tokens have taken"
    now += 0.2
    assert pace.overdue(slow) > 10.0


async def test_a_silent_stream_is_waited_for_while_its_endpoint_answers(
    endpoint: OpenAIEndpoint,
) -> None:
    endpoint.goes_on.clear()
    async with Following(examined(endpoint, patience=6.0)) as found:
        found.engine.add(make_request("", max_tokens=2), 0)
        await found.until(lambda: endpoint.num_listings > 1)
        assert found.gone == []
        endpoint.goes_on.set()
        assert (await found.end()).finish_reason is FinishReason.LENGTH


# --- the worker -------------------------------------------------------------------------


@asynccontextmanager
async def in_front_of(
    endpoint: OpenAIEndpoint, store_url: str, cluster: str
) -> AsyncIterator[Leader]:
    """A worker in front of it; its leader has greeted it."""
    options: dict[str, Any] = {"engine": "openai", "engine_args": {"url": endpoint.url}}
    async with served(store_url, cluster, **options) as (stub, _):
        leader = Leader(stub, 1)
        await leader.greet()
        yield leader


async def holds(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_cancel_reaches_the_endpoint(
    store_url: str, cluster: str, endpoint: OpenAIEndpoint, sink: tuple[Sink, str]
) -> None:
    async with in_front_of(endpoint, store_url, cluster) as leader:
        request: Request = make_request(sink[1], max_tokens=400)
        await leader.send(Dispatch(1, (UnitBatch(0, (request,)),)))
        async with asyncio.timeout(PATIENCE):
            await sink[0].tokens.get()
        await leader.send(CancelStream(request.key))
        await holds(lambda: endpoint.num_hung_up)


async def test_a_full_endpoint_is_ready_for_more_while_a_dispatch_waits_for_its_place(
    store_url: str, cluster: str, endpoint: OpenAIEndpoint, sink: tuple[Sink, str]
) -> None:
    async with in_front_of(endpoint, store_url, cluster) as leader:
        running, waiting = (make_request(sink[1], n, max_tokens=50) for n in (1, 2))
        endpoint.goes_on.clear()
        await leader.send(Dispatch(1, (UnitBatch(0, (running,)),)))
        await holds(lambda: endpoint.num_begun == 1)
        endpoint.has_place.clear()
        await leader.send(Dispatch(2, (UnitBatch(0, (waiting,)),)))
        await holds(lambda: len(endpoint.bodies) == 2)
        endpoint.goes_on.set()
        while True:
            report = await leader.hear()
            if isinstance(report, EndForward) and 2 in report.dispatch_ids:
                break
        assert report.loads[0].queued_prefill_tokens == len(waiting.prompt_token_ids)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"role": "prefill"}, "a worker whose engine moves no KV must be 'unified'"),
        ({"role": "decode"}, "a worker whose engine moves no KV must be 'unified'"),
        ({"dp": 2}, "dp is 2; it must be 1 with engine openai"),
    ],
)
async def test_such_a_worker_does_both_phases_on_one_unit(
    store_url: str, cluster: str, endpoint: OpenAIEndpoint, option: dict[str, Any], said: str
) -> None:
    args = {"url": endpoint.url}
    with pytest.raises(HeadwayError, match=said):
        async with process(store_url, cluster, engine="openai", engine_args=args, **option):
            pass
