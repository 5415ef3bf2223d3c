"""Refusals: what they say survives the way out of another process."""

from __future__ import annotations

import pickle

from headway.errors import Code, HeadwayError


def test_a_refusal_comes_whole_out_of_another_process() -> None:
    error = HeadwayError(Code.INVALID_ARGUMENT, "no", param="p", retry_after=2.0)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is HeadwayError
    assert (again.code, again.message, again.param, again.retry_after) == (
        Code.INVALID_ARGUMENT,
        "no",
        "p",
        2.0,
    )
