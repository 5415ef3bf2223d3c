"""A simulated accelerator: how long a forward pass takes, and which tokens it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Protocol

from headway.cost.pass_time import EACH_TERM, PassTime, Share
from headway.forward_pass import ForwardPass, PassItem, PassResult, Sampled
from headway.request import StreamKey
from headway.sim.kernel import Kernel, Timer

MOST_STEPS = 1 << 30
ORDINARY, REASONING_END, EOS = 0, 1, 2
"""The three token ids that a simulated model knows."""


class TrueLengths(Protocol):
    """The lengths that a request will have: known to the simulated model alone."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to and with the end of reasoning; 0 without reasoning."""

    @property
    def num_output_tokens(self) -> int:
        """All tokens of the output, the last included."""

    @property
    def prefix_hashes(self) -> Sequence[int]:
        """Hashes of the prompt's blocks, from its beginning."""


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

    ``blocks_per_unit`` tells an item's unit from its block table. ``swap_per_token``: seconds to
    move a token's KV to or from host memory. ``pace``: what a pass of so many seconds takes on a
    machine that is not always as fast; passes then have one step each.
    """

    def __init__(
        self,
        kernel: Kernel,
        pass_time: PassTime,
        blocks_per_unit: int,
        swap_per_token: float,
        lengths: Mapping[StreamKey, TrueLengths],
        ended: Callable[[PassResult, Steps, int], None],
        pace: Callable[[float], float] | None = None,
    ) -> None:
        self._kernel = kernel
        self._pass_time = pass_time
        self._blocks_per_unit = blocks_per_unit
        self._swap_per_token = swap_per_token
        self._lengths = lengths
        self._ended = ended
        self._pace = pace
        self._running: _Running | None = None
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
        steps = self._steps(forward_pass.items, forward_pass.num_steps > 1)
        most = forward_pass.num_steps
        if self._pace is not None:
            assert most == 1, "the next step has a pace of its own"
            steps = replace(steps, step=self._pace(steps.step))
        if forward_pass.swapped_out or forward_pass.swapped_in:
            steps, most = replace(steps, step=self._with_swaps(steps.step, forward_pass)), 1
        if most > 1:
            most = min(most, steps.num_valid, steps.steps_until(forward_pass.until))
            most = min(most, *(self._steps_to_event(item) for item in forward_pass.items))
        timer = self._kernel.at(steps.ends_at(most), self._end)
        self._running = _Running(forward_pass, steps, most, timer)

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

    def _steps(self, items: Sequence[PassItem], several: bool) -> Steps:
        shares = list(self._shares(items))
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
            lines = [(self._pass_time.seconds(*s), per_token * s.batch) for s in shares]
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

    def _shares(self, items: Sequence[PassItem]) -> Iterable[Share]:
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
                share[1] += count * item.start
        return (Share(*share) for share in sums.values())

    def _steps_to_event(self, item: PassItem) -> int:
        """Steps until this request ends its reasoning or its output."""
        lengths, done = self._lengths[item.key], item.num_output_tokens
        if done < lengths.num_reasoning_tokens:
            return lengths.num_reasoning_tokens - done
        return max(1, lengths.num_output_tokens - done)

    def _end(self) -> None:
        running = self._running
        assert running is not None, "only what runs can end"
        self._running = None
        num_steps = running.num_steps
        before = (ORDINARY,) * (num_steps - 1)
        sampled = tuple(
            Sampled(item.key, self._token(item, num_steps), None, before)
            for item in running.forward_pass.items
            if item.sample
        )
        if self.on_pass is not None:
            self.on_pass(_taken(running, self._kernel.now))
        self.busy += self._kernel.now - running.steps.began_at
        self.num_passes += num_steps
        seconds = (self._kernel.now - running.steps.began_at) / num_steps
        result = PassResult(running.forward_pass.pass_id, seconds, sampled)
        following, self._next = self._next, None
        if following is not None:
            self.start(following)
        self._ended(result, running.steps, num_steps)

    def _token(self, item: PassItem, num_steps: int) -> int:
        lengths, index = self._lengths[item.key], item.num_output_tokens + num_steps
        if index >= lengths.num_output_tokens:
            return EOS
        return REASONING_END if index == lengths.num_reasoning_tokens else ORDINARY


def _taken(running: _Running, ended_at: float) -> PassTaken:
    items = running.forward_pass.items
    decoding = [item for item in items if item.sample and len(item.token_ids) == 1]
    num_prefill = sum(len(item.token_ids) for item in items) - len(decoding)
    began_at = running.steps.began_at
    return PassTaken(began_at, ended_at, running.num_steps, num_prefill, len(decoding))
