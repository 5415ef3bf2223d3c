"""Token batches, packed by hand: the hot path, about a microsecond a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import TypeVar

from headway.errors import invalid
from headway.life.moments import Mark, MomentKind
from headway.messages import StreamFailure, TokenBatch
from headway.request import MAX_LEVELS, MAX_LOGPROBS, FinishReason, TokenLogprobs
from protos import common_pb2 as common
from protos import gateway_pb2 as pb
from services.runtime.wire.checks import (
    MAX_ENTRIES,
    MAX_ID_CHARS,
    finite,
    known,
    require_at_most,
    text,
)
from services.runtime.wire.status import code_of, status_of_code

T = TypeVar("T")
_TO_PB: Mapping[FinishReason | None, common.FinishReason.ValueType] = MappingProxyType(
    {reason: common.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}
    | {None: common.FINISH_REASON_UNSPECIFIED}
)
_FROM_PB: Mapping[int, FinishReason | None] = {number: reason for reason, number in _TO_PB.items()}
_ENDS = MappingProxyType({number: reason for number, reason in _FROM_PB.items() if reason})
_MOST_CAUSE_CHARS = 200
MAX_PROMPT_LOGPROBS = 2**17
"""Prompt tokens of one message with log probabilities: more than a call may ask for."""
_SPARSE = ("logprobs", "failures", "cached", "spent", "marks")
_DAY = 86_400.0
"""The farthest that a mark may be from now, seconds."""


def pack_token_batch(batch: TokenBatch, *, now: float = 0.0) -> pb.TokenBatch:
    """Return the tokens of one forward pass for one gateway as a message, sent ``now``."""
    assert not batch.before, "live workers run one step a pass"
    packed = pb.TokenBatch(
        worker_id=batch.worker_id,
        stream_ids=batch.stream_ids,
        indices=batch.indices,
        token_ids=batch.token_ids,
        finish_reasons=[_TO_PB[reason] for reason in batch.finish_reasons],
    )
    for position, logprobs in batch.logprobs.items():
        entry = packed.logprobs.add(position=position)
        _pack_logprobs(entry, logprobs)
        for one in logprobs.prompt:
            _pack_logprobs(entry.prompt.add(), one)
    for position, num_tokens in batch.num_cached.items():
        packed.cached.add(position=position, num_tokens=num_tokens)
    for position, levels_spent in batch.levels_spent.items():
        packed.spent.add(position=position, levels_spent=levels_spent)
    for failure in batch.failures:
        packed.failures.add(
            stream_id=failure.stream_id,
            finish_reason=_TO_PB[failure.finish_reason],
            message=failure.message,
            code=status_of_code(failure.code),
        )
    for stream_id, kind, at, amount, cause in batch.marks:
        packed.marks.add(
            stream_id=stream_id, kind=kind.name, at=at - now, amount=amount, cause=cause
        )
    return packed


def _pack_logprobs(packed: pb.TokenLogprobs, logprobs: TokenLogprobs) -> None:
    packed.logprob = logprobs.logprob
    packed.top_token_ids.extend(logprobs.top_token_ids)
    packed.top_logprobs.extend(logprobs.top_logprobs)


def split_token_batch(batch: TokenBatch) -> Iterator[TokenBatch]:
    """Yield the batch in parts that have the log probabilities of one prompt each, at most.

    Those of several prompts may be more than the 4 MiB of a message, which would break the stream.
    """
    scored = [entry for entry, each in sorted(batch.logprobs.items()) if each.prompt]
    begins, end_of_all = [0, *scored[1:]], len(batch.stream_ids)
    for begin, end in zip(begins, (*begins[1:], end_of_all), strict=True):
        yield (
            batch
            if len(begins) == 1
            else TokenBatch(
                batch.worker_id,
                batch.stream_ids[begin:end],
                batch.indices[begin:end],
                batch.token_ids[begin:end],
                batch.finish_reasons[begin:end],
                _between(batch.logprobs, begin, end),
                batch.failures if end == end_of_all else (),
                num_cached=_between(batch.num_cached, begin, end),
                levels_spent=_between(batch.levels_spent, begin, end),
                marks=() if begin else batch.marks,
            )
        )


def _between(by_entry: Mapping[int, T], begin: int, end: int) -> dict[int, T]:
    return {entry - begin: each for entry, each in by_entry.items() if begin <= entry < end}


def unpack_token_batch(packed: pb.TokenBatch, *, now: float = 0.0) -> TokenBatch:
    """Return the tokens, checked: arrays of one length, known reasons, positions in range.

    ``now``: when they were received, by this host's clock.
    """
    if len(packed.worker_id) > MAX_ID_CHARS:
        raise invalid("worker_id", packed.worker_id, f"at most {MAX_ID_CHARS} characters long")
    num_tokens = len(packed.stream_ids)
    lengths = (len(packed.indices), len(packed.token_ids), len(packed.finish_reasons))
    if lengths != (num_tokens,) * 3:
        all_lengths = (num_tokens, *lengths)
        raise invalid("the token arrays' lengths", all_lengths, "equal")
    for name in _SPARSE:
        require_at_most(getattr(packed, name), MAX_ENTRIES, name)
    try:
        reasons = [_FROM_PB[reason] for reason in packed.finish_reasons]
    except KeyError as error:
        raise invalid("finish_reasons", error.args[0], "a known reason") from error
    return TokenBatch(
        worker_id=packed.worker_id,
        stream_ids=list(packed.stream_ids),
        indices=list(packed.indices),
        token_ids=list(packed.token_ids),
        finish_reasons=reasons,
        logprobs=_unpack_logprobs(packed, num_tokens) if packed.logprobs else {},
        failures=[
            StreamFailure(
                failure.stream_id,
                known(_ENDS, failure.finish_reason, "finish_reason"),
                text(failure.message),
                code_of(failure.code),
            )
            for failure in packed.failures
        ],
        num_cached=_unpack_cached(packed, num_tokens) if packed.cached else {},
        levels_spent=_unpack_spent(packed, num_tokens) if packed.spent else {},
        marks=_unpack_marks(packed, now) if packed.marks else (),
    )


def _unpack_marks(packed: pb.TokenBatch, now: float) -> list[Mark]:
    """Return the marks whose kinds are known here: another version may have others.

    An instant over a day away is taken to be a day away.
    """
    return [
        Mark(
            each.stream_id,
            MomentKind[each.kind],
            now + max(-_DAY, min(_DAY, finite(each.at, "marks.at"))),
            each.amount,
            text(each.cause)[:_MOST_CAUSE_CHARS],
        )
        for each in packed.marks
        if each.kind in MomentKind.__members__
    ]


def _unpack_cached(packed: pb.TokenBatch, num_tokens: int) -> dict[int, int]:
    for entry in packed.cached:
        _require_position(entry.position, num_tokens)
    return {entry.position: entry.num_tokens for entry in packed.cached}


def _unpack_spent(packed: pb.TokenBatch, num_tokens: int) -> dict[int, int]:
    for entry in packed.spent:
        _require_position(entry.position, num_tokens)
        if entry.levels_spent > MAX_LEVELS:
            raise invalid("levels_spent", entry.levels_spent, f"at most {MAX_LEVELS}")
    return {entry.position: entry.levels_spent for entry in packed.spent}


def _require_position(position: int, num_tokens: int) -> None:
    if position >= num_tokens:
        raise invalid("position", position, f"below the batch's {num_tokens} tokens")


def _unpack_logprobs(packed: pb.TokenBatch, num_tokens: int) -> dict[int, TokenLogprobs]:
    by_position: dict[int, TokenLogprobs] = {}
    num_prompt = sum(len(entry.prompt) for entry in packed.logprobs)
    if num_prompt > MAX_PROMPT_LOGPROBS:
        raise invalid("the number of prompt", num_prompt, f"at most {MAX_PROMPT_LOGPROBS}")
    for entry in packed.logprobs:
        _require_position(entry.position, num_tokens)
        prompt = tuple(_one_unpacked(one) for one in entry.prompt)
        by_position[entry.position] = _one_unpacked(entry, prompt)
    return by_position


def _one_unpacked(entry: pb.TokenLogprobs, prompt: tuple[TokenLogprobs, ...] = ()) -> TokenLogprobs:
    own, top_ids, tops = entry.logprob, tuple(entry.top_token_ids), tuple(entry.top_logprobs)
    if len(top_ids) != len(tops):
        raise invalid("top_logprobs", len(tops), "as many as top_token_ids")
    if len(tops) > MAX_LOGPROBS:
        raise invalid("top_logprobs", len(tops), f"at most {MAX_LOGPROBS}")
    if not (isfinite(own) and all(map(isfinite, tops))):  # of a prompt there may be 100,000
        for logprob in (own, *tops):
            finite(logprob, "logprobs")
    return TokenLogprobs(own, top_ids, tops, prompt)


def unpack_cancels(packed: pb.TokenControl) -> Sequence[int]:
    """Return the streams that a gateway wants no more of, checked."""
    require_at_most(packed.cancel_stream_ids, MAX_ENTRIES, "cancel_stream_ids")
    return packed.cancel_stream_ids
