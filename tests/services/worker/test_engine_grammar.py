"""Structured output: what an engine draws follows the request's grammar, however it came there."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from headway.blocks import blocks_for
from headway.errors import Code, HeadwayError
from headway.forward_pass import PENDING, ForwardPass, PassItem
from headway.request import BadWord, Constraints, SamplingParams, StreamKey
from services.gateway.grammars import GrammarChecker, of_choice, of_regex, of_rules, of_schema
from services.worker.engine import grammar as grammar_module
from services.worker.engine.backend import TorchBackend, patience
from services.worker.engine.constraints import RecentBounds
from services.worker.engine.masks import MaskMaker, Order, Setup, Wanted
from tests.fakes.engine_rig import load

MINI = Path(__file__).parents[3] / "models" / "headway-mini"
TOKENIZER = Tokenizer.from_file(str(MINI / "tokenizer.json"))
VOCAB_SIZE = TOKENIZER.get_vocab_size()
START, END, EOS = (
    TOKENIZER.token_to_id(text) or 0 for text in ("<think>", "</think>", "<|im_end|>")
)
SCHEMAS: Sequence[Mapping[str, Any]] = (
    {"enum": ["red", "green", 3, None]},
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6, "pattern": "^[a-z ]*$"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "sunny": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {"$ref": "#/$defs/pair"},
        "$defs": {
            "pair": {
                "type": "object",
                "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "ü🙂"]}},
                "required": ["a", "b"],
                "additionalProperties": False,
            }
        },
    },
)


@pytest.fixture(autouse=True)
def masks_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mask is late, however busy the machine: a pass waits as long as it takes."""
    wait = grammar_module.Grammars.wait
    monkeypatch.setattr(grammar_module.Grammars, "wait", lambda own, keys, _: wait(own, keys, 60.0))


@pytest.fixture(scope="module")
def engine() -> TorchBackend:
    return fresh()


def fresh() -> TorchBackend:
    return load(str(MINI), num_blocks=64)


def bound(grammar: str, seed: int = 0, **more: Any) -> SamplingParams:
    """A hot draw, so that only the grammar keeps the answer in form."""
    constraints = Constraints(grammar, more.pop("start", ()), more.pop("end", ()))
    return SamplingParams(
        temperature=1.5, seed=seed, max_tokens=400, constraints=constraints, **more
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


PROMPT = ids("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def item(
    sampling: SamplingParams, output: Sequence[int], computed: int, stream_id: int
) -> PassItem:
    tokens = (*PROMPT, *output)
    blocks = range(blocks_for(len(tokens), 16))
    key = StreamKey("g", stream_id)
    rest = tokens[computed:]
    return PassItem(key, rest, computed, tuple(blocks), True, sampling, PROMPT, list(output))


def generate(
    engine: TorchBackend,
    sampling: SamplingParams,
    output: Sequence[int] = (),
    stream_id: int = 1,
    preempted_at: Sequence[int] = (),
    between: PassItem | None = None,
) -> list[int]:
    """Go on after ``output`` to the end of the answer; a preemption drops the KV.

    ``between``: another request's, computed after each token over the same blocks.
    """
    found, computed = list(output), 0
    while len(found) < sampling.max_tokens and (not found or found[-1] != EOS):
        if len(found) in preempted_at:
            computed = 0
        run = engine.run(ForwardPass(1, (item(sampling, found, computed, stream_id),)))
        computed = len(PROMPT) + len(found)
        found.append(run.sampled[0].token_id)
        if between is not None:
            engine.run(ForwardPass(1, (between,)))
    return found


def answer(tokens: Sequence[int]) -> str:
    assert tokens[-1] == EOS, "the grammar has come to its end"
    return str(TOKENIZER.decode(list(tokens[:-1])))


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@pytest.mark.parametrize("seed", range(4))
def test_every_answer_fits_its_schema(engine: TorchBackend, number: int, seed: int) -> None:
    schema = SCHEMAS[number]
    grammar = GrammarChecker(MINI, VOCAB_SIZE).check(of_schema(dict(schema), "x"))
    text = answer(generate(engine, bound(grammar, seed), stream_id=10 * number + seed))
    Draft202012Validator(schema).validate(json.loads(text))


def test_regexes_choices_and_grammars_are_followed(engine: TorchBackend) -> None:
    regex = of_regex("[ab]{2,5}(x|yy)", "r").text
    assert re.fullmatch("[ab]{2,5}(x|yy)", answer(generate(engine, bound(regex))))
    choice = of_choice(["one", "two two", 'th"ree'], "c").text
    assert answer(generate(engine, bound(choice))) in ("one", "two two", 'th"ree')
    for rules in ('root ::= "a" ("b" | "c")', 'start: "a" ("b" | "c")'):
        assert answer(generate(engine, bound(of_rules(rules, "g").text))) in ("ab", "ac")


@pytest.mark.parametrize("reasons", [False, True])
def test_an_answer_is_the_same_after_a_resumption_at_every_token(
    engine: TorchBackend, reasons: bool
) -> None:
    grammar = of_schema(dict(SCHEMAS[1]), "x").text
    thoughts = [*ids("hm"), END] if reasons else []
    sampling = bound(grammar, seed=3, end=(END,) if reasons else ())
    whole = generate(engine, sampling, thoughts)
    json.loads(answer(whole[len(thoughts) :]))
    for place in range(len(thoughts), len(whole)):
        # Another worker knows nothing of it; the same one may have its state.
        assert generate(engine, sampling, whole[:place], stream_id=100 + place) == whole
    assert generate(fresh(), sampling, whole[:7], stream_id=1) == whole


def test_an_answer_is_the_same_with_preemptions_and_with_few_states_kept(
    engine: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = bound(of_schema(dict(SCHEMAS[2]), "x").text, seed=5)
    whole = generate(engine, sampling)
    every = range(len(whole))
    assert generate(engine, sampling, stream_id=2, preempted_at=every) == whole
    monkeypatch.setattr(grammar_module, "MAX_STATES", 0)
    assert generate(engine, sampling, stream_id=3, preempted_at=random.Random(1).sample(every, 5))[
        : len(whole)
    ] == list(whole)
    other = item(sampling, (), 0, 5)
    assert generate(engine, sampling, stream_id=4, preempted_at=every, between=other) == whole


def test_a_pass_with_more_grammars_than_states_are_kept_reads_no_output_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_module, "MAX_STATES", 2)
    sent: list[Sequence[Order]] = []

    def keep(grammars: grammar_module.Grammars, orders: Sequence[Order]) -> None:
        sent.append(orders)

    monkeypatch.setattr(grammar_module.Grammars, "_send", keep)
    grammars = grammar_module.Grammars(MINI / "tokenizer.json", VOCAB_SIZE, (EOS,))
    sampling = bound(of_regex("[ab]{9}", "r").text)
    for output in ((), ids("a"), ids("ab"), ids("aba")):
        assert grammars.begin([item(sampling, output, 0, number) for number in range(5)])
    orders = [order for each in sent for order in each if isinstance(order, Wanted)]
    assert [order.constraints is not None for order in orders] == [True] * 5 + [False] * 15
    assert [len(order.token_ids) for order in orders] == [0] * 5 + [1] * 15
    assert grammars.begin([item(sampling, (), 0, 9)])
    *gone, last = sent[-1]
    assert gone == [StreamKey("g", number) for number in range(4)]
    assert isinstance(last, Wanted)
    assert last.constraints is not None


def order(tenant: str, stream_id: int, text: str) -> Wanted:
    return Wanted(StreamKey(tenant, stream_id), stream_id, tenant, Constraints(text), (), ())


@pytest.mark.parametrize(("text", "may_stop"), [("", False), ("a", False), ("ab", True)])
def test_a_requests_own_stop_token_may_end_a_complete_answer_alone(
    text: str, may_stop: bool
) -> None:
    maker, (stop,) = MaskMaker(Setup(MINI / "tokenizer.json", VOCAB_SIZE, (EOS,))), ids("z")
    wanted = order("t", 1, of_regex("ab+", "r").text)
    maker.take([wanted._replace(token_ids=tuple(ids(text)), stops=(stop,))])
    admitted = np.unpackbits(np.frombuffer(maker.make().bits, np.uint8))
    assert bool(admitted[stop]) is may_stop


def test_tenants_have_equal_shares_of_the_time_for_masks() -> None:
    maker = MaskMaker(Setup(MINI / "tokenizer.json", VOCAB_SIZE, (EOS,)))
    hostile = of_schema(
        {"properties": {f"p{n}": {"type": "string"} for n in range(300)}, "required": ["p299"]}, "x"
    ).text
    maker.take([order("flood", number, hostile) for number in range(6)])
    maker.make()
    maker.take([order("other", number, of_regex("a", "r").text) for number in range(3)])
    made = [maker.make().key.gateway_id for _ in range(4)]
    assert made.count("other") == 3, "one whose masks are cheap waits for one of the flood's"
    maker.take([StreamKey("flood", number) for number in range(6)])
    assert maker.is_idle, "who has ended waits for no mask"


def test_one_whose_mask_is_late_is_left_out_and_draws_later_as_it_would_have(
    engine: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = item(bound(of_regex("abc", "r").text), (), 0, 70)
    good = item(SamplingParams(temperature=0.0), (), 0, 71)
    slow = slow._replace(block_table=tuple(b + 20 for b in slow.block_table))
    with monkeypatch.context() as patch:
        patch.setattr(grammar_module.Grammars, "wait", lambda *_: {})
        result = engine.run(ForwardPass(1, (slow, good)))
        ahead = slow._replace(token_ids=(PENDING,), start=len(PROMPT))
        behind = engine.run(ForwardPass(2, (ahead,)))
    assert [drawn.key for drawn in result.sampled] == [good.key]
    assert result.late == (slow.key,)
    assert (behind.sampled, behind.late) == ((), ())
    (drawn,) = engine.run(ForwardPass(3, (slow,))).sampled
    assert drawn.token_id == ids("a")[0]


def test_a_pass_waits_less_for_masks_beside_another_tenant() -> None:
    slow = item(bound(of_regex("abc", "r").text), (), 0, 70)
    other = item(SamplingParams(temperature=0.0), (), 0, 71)._replace(tenant="other")
    assert patience([slow, slow]) == 1.0
    assert patience([slow, other]) == 0.25


def test_a_process_that_ends_fails_those_that_wait_and_another_goes_on() -> None:
    grammars = grammar_module.Grammars(Path("/nowhere/tokenizer.json"), VOCAB_SIZE, (EOS,))
    one = item(bound(of_regex("abc", "r").text), (), 0, 1)
    begun = grammars.begin([one])
    assert begun is not None
    (mask,) = begun.result(60.0).values()  # what a broken file does
    assert mask.problem.startswith("its grammar fails")
    grammars.close()


@pytest.mark.parametrize("start", [(), (START,)])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_budget_ends_the_reasoning_whoever_continues_it(
    engine: TorchBackend, start: tuple[int, ...], temperature: float
) -> None:
    constraints = Constraints("", start, (END,), reasoning_budget=6)
    sampling = SamplingParams(
        temperature=temperature, seed=4, max_tokens=14, ignore_eos=True, constraints=constraints
    )
    begun = list(start)
    whole = generate(engine, sampling, begun, 300)
    assert whole.index(END) <= len(begun) + 6
    for place in range(len(begun), len(whole)):
        assert generate(engine, sampling, whole[:place], stream_id=310 + place) == whole


def test_a_budget_bounds_no_output_that_does_not_reason(engine: TorchBackend) -> None:
    constraints = Constraints("", (START,), (END,), reasoning_budget=0)
    begun = ids("I say ")
    sampling = SamplingParams(temperature=0.0, max_tokens=12, constraints=constraints)
    free = SamplingParams(temperature=0.0, max_tokens=12)
    assert generate(engine, sampling, begun, 330) == generate(engine, free, begun, 331)


def test_a_pending_token_counts(engine: TorchBackend) -> None:
    sampling = bound(of_regex("abcdef", "r").text)
    first = engine.run(ForwardPass(1, (item(sampling, (), 0, 7),))).sampled[0].token_id
    ahead = item(sampling, (first,), len(PROMPT), 7)
    ahead = ahead._replace(token_ids=(PENDING,), output_token_ids=[])
    second = engine.run(ForwardPass(2, (ahead,))).sampled[0].token_id
    assert TOKENIZER.decode([first, second]) == "ab"


def test_the_grammar_holds_after_the_reasoning_alone(engine: TorchBackend) -> None:
    grammar = of_choice(["yes", "no"], "c").text
    inside = bound(grammar, end=(END,), ignore_eos=True)
    run = engine.run(ForwardPass(1, (item(inside, ids("so"), 0, 20),)))
    thought = run.sampled[0].token_id
    assert thought not in ids("yn"), "any token may follow in the reasoning"
    assert answer(generate(engine, inside, [*ids("so"), END], 21)[3:]) in ("yes", "no")


def test_an_end_inside_the_reasoning_is_the_reasonings(engine: TorchBackend) -> None:
    grammar = of_choice(["yes", "no"], "c").text
    eager = Constraints(grammar, (), (END,), biased_token_ids=(EOS,), biases=(100.0,))
    sampling = SamplingParams(temperature=0.0, max_tokens=40, constraints=eager)
    output = generate(engine, sampling, ids("hm"), 25)
    assert output[2] == END
    assert answer(output[3:]) in ("yes", "no")


def test_an_output_may_begin_with_reasoning_or_with_its_answer(engine: TorchBackend) -> None:
    sampling = bound(of_choice(["yes", "no"], "c").text, start=(START,), end=(END,))
    firsts = set()
    for seed in range(12):
        one = SamplingParams(**{**_fields(sampling), "seed": seed, "temperature": 2.0})
        run = engine.run(ForwardPass(1, (item(one, (), 0, 30 + seed),)))
        firsts.add(run.sampled[0].token_id)
    assert firsts <= {START, *ids("yn")}
    rest = generate(engine, sampling, [START, *ids("hm"), END], 60)
    assert answer(rest[4:]) in ("yes", "no")


def test_a_complete_answer_ends_whatever_the_least_length(engine: TorchBackend) -> None:
    sampling = bound(of_choice(["a"], "c").text, min_tokens=10)
    output = generate(engine, SamplingParams(**{**_fields(sampling), "max_tokens": 12}))
    assert output[:2] == [*ids("a"), EOS]


def test_a_request_whose_tokens_break_its_grammar_fails_alone(engine: TorchBackend) -> None:
    bad = item(bound(of_regex("abc", "r").text), ids("zz"), 0, 80)
    good = item(SamplingParams(temperature=0.0), (), 0, 81)
    bad = bad._replace(block_table=tuple(b + 20 for b in bad.block_table))
    failed, drawn = engine.run(ForwardPass(1, (bad, good))).sampled
    assert failed.problem is not None
    assert (failed.key, failed.problem.code) == (bad.key, Code.INVALID_ARGUMENT)
    assert failed.problem.message.startswith("its grammar fails")
    assert drawn == engine.run(ForwardPass(2, (good,))).sampled[0]


def test_biases_bad_words_and_allowed_tokens_bound_the_draws(engine: TorchBackend) -> None:
    a, b, c = ids("abc")

    def draws(constraints: Constraints, output: Sequence[int] = ()) -> set[int]:
        found = set()
        for seed in range(10):
            params = SamplingParams(temperature=2.0, seed=seed, constraints=constraints)
            made = engine.run(ForwardPass(1, (item(params, output, 0, 200 + seed),)))
            found.add(made.sampled[0].token_id)
        return found

    only = Constraints(allowed_token_ids=(a, b, 10_000))
    assert draws(only) <= {a, b}
    assert draws(Constraints(biased_token_ids=(c, 10_000), biases=(100.0, 1.0))) == {c}
    words = (BadWord((a,)), BadWord((c, b)))
    assert draws(Constraints(allowed_token_ids=(a, b), bad_words=words)) == {b}
    after = Constraints(allowed_token_ids=(b, c), bad_words=words)
    assert draws(after, (c,)) == {c}


def test_one_whose_bad_words_are_all_that_its_form_admits_fails_alone(engine: TorchBackend) -> None:
    (a,) = ids("a")
    constraints = Constraints(of_regex("a+", "r").text, bad_words=(BadWord((a,)),))
    bad = item(SamplingParams(constraints=constraints), (), 0, 90)
    bad = bad._replace(block_table=tuple(b + 20 for b in bad.block_table))
    good = item(SamplingParams(temperature=0.0), (), 0, 91)
    drawn, failed = engine.run(ForwardPass(1, (good, bad))).sampled
    assert failed.problem is not None
    assert failed.problem.code is Code.INVALID_ARGUMENT
    assert "admit no token" in failed.problem.message
    assert drawn == engine.run(ForwardPass(2, (good,))).sampled[0]
    # A pass that was planned behind it computes any token for it.
    length = bad.start + len(bad.token_ids)
    more = (*bad.block_table, 40)
    behind = bad._replace(token_ids=(PENDING,), start=length, block_table=more)
    engine.run(ForwardPass(3, (bad,)))
    (again,) = engine.run(ForwardPass(4, (behind,))).sampled
    assert again.key == bad.key


def test_the_bounds_of_those_that_draw_are_read_once() -> None:
    recent, row = RecentBounds(100_000), torch.zeros(8)
    allowed = Constraints(allowed_token_ids=(1, 3, 9))
    bounds = recent.of(allowed, row)
    assert bounds.forbidden is not None
    assert (~bounds.forbidden).nonzero()[:, 0].tolist() == [1, 3]
    for _ in range(300):
        recent.of(Constraints(biased_token_ids=(2, 9), biases=(1.0, 1.0)), row)
        assert recent.of(allowed, row) is bounds
    assert recent.of(allowed, row.double()).biases.dtype == torch.float64
    for _ in range(300):
        recent.of(Constraints(biased_token_ids=(2,), biases=(1.0,)), row)
    assert recent.of(allowed, row) is not bounds, "it has not drawn for long"


def test_bounds_of_one_token_are_let_go_by_what_they_take_on_the_device() -> None:
    recent, row = RecentBounds(1_000_000), torch.zeros(100_000)
    masks = [
        ref(recent.of(Constraints(allowed_token_ids=(token,)), row).forbidden)
        for token in range(50)
    ]
    assert sum(mask() is not None for mask in masks) <= 2 * 10 + 1


def test_bad_words_that_forbid_all_allowed_tokens_are_refused() -> None:
    words = (BadWord((1,)), BadWord((2,)), BadWord((3, 4)))
    with pytest.raises(HeadwayError, match="forbid every token") as refused:
        Constraints(allowed_token_ids=(1, 2), bad_words=words)
    assert (refused.value.code, refused.value.param) == (Code.INVALID_ARGUMENT, "bad_words")
    assert Constraints(allowed_token_ids=(1, 2, 3), bad_words=words).bad_words == words


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__slots__}
