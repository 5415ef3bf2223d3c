"""A simulated accelerator: how long a forward pass takes, and which tokens it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from headway.cost.pass_time import EACH_TERM, PassTime, Share, prefill_context
from headway.forward_pass import ForwardPass, PassItem, PassResult, Sampled
from headway.request import StreamKey
from headway.sim.kernel import Kernel, Timer
from headway.sim.leaping import LeapingBatch
from headway.sim.lengths import TrueLengths, token_at

MOST_STEPS = 1 << 30

Pace = Callable[[float, bool], float]
"""What a pass takes, s, that should take so long; True: it computes prompts."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Equal batches in a row: step k, from 0, takes ``step + k * growth`` seconds.

    That holds for the first ``num_valid`` steps; then another DP unit is the slowest.
    """

    began_at: float
    step: float
    growth: float
    num_valid: int = 1

    def ends_at(self, num_steps: int) -> float:
        """Return the instant at which so many steps have ended."""
        grown = self.growth * (num_steps * (num_steps - 1) / 2)
        return self.began_at + num_steps * self.step + grown

    def steps_until(self, at: float) -> int:
        """Return the least number of steps that ends at or after ``at``, at least 1."""
        elapsed = at - self.began_at
        if elapsed <= self.step:
            return 1
        guess = elapsed / self.step
        if self.growth > 0:  # the root of the quadratic
            half = self.step - self.growth / 2
            guess = ((half * half + 2 * self.growth * elapsed) ** 0.5 - half) / self.growth
        steps = max(1, ceil(guess))
        while steps > 1 and self.ends_at(steps - 1) >= at:
            steps -= 1
        while self.ends_at(steps) < at:
            steps += 1
        return steps


class PassTaken(NamedTuple):
    """Equal passes in a row that have ended: instants in s, tokens, requests."""

    began_at: float
    ended_at: float
    num_steps: int
    prefill_tokens: int
    batch: int


@dataclass(slots=True)
class _Running:
    forward_pass: ForwardPass
    steps: Steps
    num_steps: int
    timer: Timer


class Device:
    """A device that runs a worker's passes: its DP units in lock-step, by ``pass_time``'s gate.

    ``chunk_tokens``: see ``prefill_context``. ``blocks_per_unit`` tells an item's unit from its
    block table. ``swap_per_token``: seconds to move a token's KV to or from host memory. ``pace``:
    of a machine that is not always as fast; passes then have one step each.
    """

    def __init__(
        self,
        kernel: Kernel,
        pass_time: PassTime,
        chunk_tokens: int,
        blocks_per_unit: int,
        swap_per_token: float,
        lengths: Mapping[StreamKey, TrueLengths],
        ended: Callable[[PassResult, Steps, int], None],
        pace: Pace | None = None,
    ) -> None:
        self._kernel = kernel
        self._pass_time = pass_time
        self._chunk_tokens = chunk_tokens
        self._blocks_per_unit = blocks_per_unit
        self._swap_per_token = swap_per_token
        self._lengths = lengths
        self._ended = ended
        self._pace = pace
        self._running: _Running | None = None
        self._batch = LeapingBatch(blocks_per_unit, lengths)
        self._next: ForwardPass | None = None
        self.busy = 0.0
        self.num_passes = 0
        self.num_prefill_passes = 0
        self.num_prefill_tokens = 0
        self.on_pass: Callable[[PassTaken], None] | None = None

    def start(self, forward_pass: ForwardPass) -> None:
        """Begin a pass of one step or more, or have it follow the one that runs."""
        if self._running is not None:
            assert self._next is None, "a worker runs ahead by one pass"
            self._next = forward_pass
            return
        leap = forward_pass.leap
        shares = self._shares(forward_pass.items) if leap is None else self._leaping(forward_pass)
        most = 1 if leap is None else leap.num_steps
        steps = self._steps(shares, most > 1)
        if self._pace is not None:
            assert leap is None, "the next step has a pace of its own"
            has_prompts = any(share.prefill_tokens for share in shares)
            steps = replace(steps, step=self._pace(steps.step, has_prompts))
        if forward_pass.swapped_out or forward_pass.swapped_in:
            steps, most = replace(steps, step=self._with_swaps(steps.step, forward_pass)), 1
        if forward_pass.saved and (seconds := self._save_time(forward_pass)) > steps.step:
            steps, most = replace(steps, step=seconds), 1
        if leap is not None and most > 1:
            most = min(most, steps.num_valid, steps.steps_until(leap.until))
            most = min(most, self._batch.steps_to_event())
        timer = self._kernel.at(steps.ends_at(most), self._end)
        self._running = _Running(forward_pass, steps, most, timer)

    @property
    def is_running(self) -> bool:
        """True while a pass is under way."""
        return self._running is not None

    def cut(self) -> int:
        """Something has happened: let the step that is under way be the last of its pass.

        Returns how many steps that makes; 0 where nothing runs.
        """
        running = self._running
        if running is None:
            return 0
        if running.num_steps == 1:
            return 1
        num_steps = running.steps.steps_until(self._kernel.now)
        if num_steps < running.num_steps:
            running.timer.cancel()
            running.num_steps = num_steps
            running.timer = self._kernel.at(running.steps.ends_at(num_steps), self._end)
        return running.num_steps

    def stop(self) -> None:
        """Stop the machine: what runs never ends."""
        if self._running is not None:
            self._running.timer.cancel()
            self._running = self._next = None

    def runs(self, key: StreamKey) -> bool:
        """Return whether a request is in the pass that runs."""
        running = self._running
        if running is None:
            return False
        if running.forward_pass.leap is not None:
            return key in self._batch
        return any(item.key == key for item in running.forward_pass.items)

    def _leaping(self, forward_pass: ForwardPass) -> list[Share]:
        """Let the batch go on, or begin; return each DP unit's share of the first step."""
        leap = forward_pass.leap
        assert leap is not None, "only a batch that decodes leaps"
        if not leap.goes_on:
            self._batch = LeapingBatch(self._blocks_per_unit, self._lengths)
        self._batch.leave(leap.left)
        self._batch.join(forward_pass.items)
        return self._batch.shares()

    def _steps(self, shares: Sequence[Share], several: bool) -> Steps:
        prefill_tokens = sum(share.prefill_tokens for share in shares)
        self.num_prefill_tokens += prefill_tokens
        self.num_prefill_passes += prefill_tokens > 0
        step = self._pass_time.lock_step(shares)
        if not several:
            return Steps(self._kernel.now, step, 0.0)
        # Only the KV grows, in each unit by its batch: the greatest of some straight lines.
        per_token = self._pass_time.per_kv_token
        if self._pass_time.gate == EACH_TERM:
            lines = [(per_token * s.kv_tokens, per_token * s.batch) for s in shares]
        else:
            awaited = self._pass_time.awaited(shares)
            lines = [(self._pass_time.seconds(*s), per_token * s.batch) for s in awaited]
        value, growth = max(lines)
        num_valid = MOST_STEPS
        for other, other_growth in lines:
            if other_growth > growth:
                num_valid = min(num_valid, 1 + int((value - other) / (other_growth - growth)))
        return Steps(self._kernel.now, step, growth, num_valid)

    def _with_swaps(self, step: float, forward_pass: ForwardPass) -> float:
        """Add the swaps' time; KV that returns for no request of the pass moves beside it."""
        waiting = {swap.key for swap in forward_pass.swapped_in}
        if waiting.isdisjoint(item.key for item in forward_pass.items) and waiting:
            return max(step, self._swap_time(forward_pass))
        return step + self._swap_time(forward_pass)

    def _swap_time(self, forward_pass: ForwardPass) -> float:
        """The unit with the most KV to move holds all; a link carries both directions at once."""
        num_tokens: dict[tuple[int, bool], int] = {}
        for is_in, swaps in enumerate((forward_pass.swapped_out, forward_pass.swapped_in)):
            for swap in swaps:
                link = swap.blocks[0] // self._blocks_per_unit, bool(is_in)
                num_tokens[link] = num_tokens.get(link, 0) + swap.num_tokens
        return self._swap_per_token * max(num_tokens.values())

    def _save_time(self, forward_pass: ForwardPass) -> float:
        """Every unit has a link; what it saves goes beside the pass."""
        num_tokens = max(swap.num_tokens for swap in forward_pass.saved)
        return self._swap_per_token * num_tokens

    def _shares(self, items: Sequence[PassItem]) -> list[Share]:
        """Return each DP unit's share of this pass."""
        sums: dict[int, list[int]] = {}
        for item in items:
            share = sums.setdefault(item.block_table[0] // self._blocks_per_unit, [0, 0, 0, 0])
            count = len(item.token_ids)
            if count == 1 and item.sample:
                share[2] += 1
                share[3] += item.start + 1
            else:
                share[0] += count
                share[1] += prefill_context(item.start, count, self._chunk_tokens)
        return [Share(*share) for share in sums.values()]

    def _end(self) -> None:
        running = self._running
        assert running is not None, "only what runs can end"
        self._running = None
        num_steps, items = running.num_steps, running.forward_pass.items
        if self.on_pass is not None:
            self.on_pass(self._taken(running, self._kernel.now))
        if running.forward_pass.leap is not None:
            sampled = self._batch.advance(num_steps)
        else:
            sampled = [Sampled(item.key, self._token(item)) for item in items if item.sample]
        self.busy += self._kernel.now - running.steps.began_at
        self.num_passes += num_steps
        seconds = (self._kernel.now - running.steps.began_at) / num_steps
        result = PassResult(
            running.forward_pass.pass_id, seconds, tuple(sampled), num_steps=num_steps
        )
        following, self._next = self._next, None
        if following is not None:
            self.start(following)
        self._ended(result, running.steps, num_steps)

    def _token(self, item: PassItem) -> int:
        return token_at(self._lengths[item.key], item.num_output_tokens + 1)

    def _taken(self, running: _Running, ended_at: float) -> PassTaken:
        items, began_at = running.forward_pass.items, running.steps.began_at
        if running.forward_pass.leap is not None:
            return PassTaken(began_at, ended_at, running.num_steps, 0, self._batch.num_requests)
        num_decoding = sum(item.sample and len(item.token_ids) == 1 for item in items)
        num_prefill = sum(len(item.token_ids) for item in items) - num_decoding
        return PassTaken(began_at, ended_at, 1, num_prefill, num_decoding)
