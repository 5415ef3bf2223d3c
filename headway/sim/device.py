"""A simulated accelerator: how long a forward pass takes, and which tokens it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from headway.messages import ForwardPass, PassItem, PassResult, Sampled
from headway.request import StreamKey
from headway.sim.kernel import Kernel, Timer

ORDINARY, REASONING_END, EOS = 0, 1, 2
"""The three token ids that a simulated model knows."""


class PassCost(Protocol):
    """The time of one DP unit's share of a forward pass, seconds."""

    def seconds(
        self, prefill_tokens: int, prefill_context: int, batch: int, kv_tokens: int
    ) -> float:
        """``prefill_context``: the sum over prefills of tokens × tokens before them.

        ``batch`` requests decode over ``kv_tokens`` tokens of KV.
        """


class Lengths(Protocol):
    """What a request will generate: known to the simulated model alone."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to and with the end of reasoning; 0 without reasoning."""

    @property
    def num_output_tokens(self) -> int:
        """All tokens, with the last."""


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
        """The instant at which so many steps have ended."""
        grown = self.growth * (num_steps * (num_steps - 1) / 2)
        return self.began_at + num_steps * self.step + grown

    def steps_until(self, at: float) -> int:
        """The least number of steps that ends at or after ``at``, at least 1."""
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


@dataclass(slots=True)
class _Running:
    forward_pass: ForwardPass
    steps: Steps
    num_steps: int
    timer: Timer


@dataclass(slots=True)
class _Share:
    """One DP unit's part of a pass."""

    prefill_tokens: int = 0
    prefill_context: int = 0
    batch: int = 0
    kv_tokens: int = 0

    def add(self, item: PassItem) -> None:
        count = len(item.token_ids)
        if count == 1 and item.sample:
            self.batch += 1
            self.kv_tokens += item.start + 1
        else:
            self.prefill_tokens += count
            self.prefill_context += count * item.start


class Device:
    """Runs one worker's passes: its DP units in lock-step, so the slowest holds all.

    ``blocks_per_unit`` tells an item's unit from its block table.
    """

    def __init__(
        self,
        kernel: Kernel,
        cost: PassCost,
        blocks_per_unit: int,
        lengths: Mapping[StreamKey, Lengths],
        ended: Callable[[PassResult, Steps, int], None],
    ) -> None:
        self._kernel = kernel
        self._cost = cost
        self._blocks_per_unit = blocks_per_unit
        self._lengths = lengths
        self._ended = ended
        self._running: _Running | None = None
        self.busy = 0.0
        self.num_passes = 0

    def start(self, forward_pass: ForwardPass) -> None:
        """Begin a pass of one step or more; it ends by itself."""
        steps = self._steps(forward_pass.items, forward_pass.num_steps > 1)
        most = forward_pass.num_steps
        if most > 1:
            most = min(most, steps.num_valid, steps.steps_until(forward_pass.until))
            most = min(most, *(self._steps_to_event(item) for item in forward_pass.items))
        timer = self._kernel.at(steps.ends_at(most), self._end)
        self._running = _Running(forward_pass, steps, most, timer)

    def cut(self) -> None:
        """Something has happened: let the step that is under way be the last of its pass."""
        running = self._running
        if running is None or running.num_steps == 1:
            return
        num_steps = running.steps.steps_until(self._kernel.now)
        if num_steps < running.num_steps:
            running.timer.cancel()
            running.num_steps = num_steps
            running.timer = self._kernel.at(running.steps.ends_at(num_steps), self._end)

    def stop(self) -> None:
        """The machine is gone: what runs never ends."""
        if self._running is not None:
            self._running.timer.cancel()
            self._running = None

    def _steps(self, items: Sequence[PassItem], several: bool) -> Steps:
        shares: dict[int, _Share] = {}
        for item in items:
            unit = item.block_table[0] // self._blocks_per_unit
            share = shares.get(unit)
            if share is None:
                share = shares[unit] = _Share()
            share.add(item)
        lines = [self._line(share, several) for share in shares.values()]
        step, growth = max(lines)
        num_valid = 1 << 30
        for other_step, other_growth in lines:
            if other_growth > growth:
                num_valid = min(num_valid, 1 + int((step - other_step) / (other_growth - growth)))
        return Steps(self._kernel.now, step, growth, num_valid)

    def _line(self, share: _Share, several: bool) -> tuple[float, float]:
        """A unit's pass time, and what a token more for each of its requests adds."""
        seconds = self._cost.seconds(
            share.prefill_tokens, share.prefill_context, share.batch, share.kv_tokens
        )
        if not several:
            return seconds, 0.0
        following = self._cost.seconds(0, 0, share.batch, share.kv_tokens + share.batch)
        return seconds, following - seconds

    def _steps_to_event(self, item: PassItem) -> int:
        """Steps until this request ends its reasoning or its output."""
        lengths, done = self._lengths[item.key], len(item.output_token_ids)
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
        self.busy += self._kernel.now - running.steps.began_at
        self.num_passes += num_steps
        seconds = (self._kernel.now - running.steps.began_at) / num_steps
        result = PassResult(running.forward_pass.pass_id, seconds, sampled)
        self._ended(result, running.steps, num_steps)

    def _token(self, item: PassItem, num_steps: int) -> int:
        lengths, index = self._lengths[item.key], len(item.output_token_ids) + num_steps
        if index >= lengths.num_output_tokens:
            return EOS
        return REASONING_END if index == lengths.num_reasoning_tokens else ORDINARY
