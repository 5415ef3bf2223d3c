"""A gateway in front of one picker's core, on virtual time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headway.core.picker.core import GATEWAY_ID, PickerCore
from headway.core.picker.events import (
    EndpointInfo,
    EndpointListed,
    EndpointMetrics,
    EndpointStatus,
    Pick,
    PickAsked,
    PickEnded,
    PickerAction,
    PickerSettings,
    Refuse,
    Scraped,
    Silence,
)
from headway.core.scheduler.settings import SchedulerSettings
from headway.request import Request, SamplingParams, StreamKey
from headway.service_class import NO_STANDING, Standing

CHUNK = 1000
SCHEDULER = SchedulerSettings(
    dispatch="sbs-warm", dispatch_params={"watchdog_floor": 1e6}, prefix_hits=True
)


class Gateway:
    """Asks one core, and keeps its answers."""

    def __init__(
        self,
        *addresses: str,
        scheduler: SchedulerSettings = SCHEDULER,
        settings: PickerSettings | None = None,
    ) -> None:
        self.core = PickerCore(scheduler, settings)
        self.now = 100.0
        self.answers: dict[int, Pick | Refuse] = {}
        self._number = 0
        for address in addresses:
            self.handle(EndpointListed(EndpointInfo(address, "m", CHUNK)))
            self.scraped(address)

    def handle(self, event: object) -> None:
        self._keep(self.core.handle(event, now=self.now))  # type: ignore[arg-type]

    def _keep(self, actions: Sequence[PickerAction]) -> None:
        for action in actions:
            if isinstance(action, Pick | Refuse):
                assert action.key.stream_id not in self.answers, "a request is answered once"
                self.answers[action.key.stream_id] = action

    def scraped(self, address: str, result: EndpointMetrics | Silence | None = None) -> None:
        self.handle(Scraped(address, result or EndpointMetrics(), self.now))

    def ask(
        self,
        num_tokens: int = 100,
        *,
        among: tuple[str, ...] | None = None,
        token_ids: Sequence[int] | None = None,
        max_tokens: int = 16,
        standing: Standing = NO_STANDING,
    ) -> int:
        self._number += 1
        tokens = token_ids or array(
            "I", range(self._number << 16, (self._number << 16) + num_tokens)
        )
        request = Request(
            f"r{self._number}",
            "m",
            tokens,
            SamplingParams(max_tokens=max_tokens),
            self.now,
            stream_id=self._number,
            gateway_id=GATEWAY_ID,
            standing=standing,
        )
        self.handle(PickAsked(request, among))
        return self._number

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.core.next_wakeup) is not None and at <= until:
            self.now = max(self.now, at) + 1e-6
            self._keep(self.core.wake(now=self.now))
        self.now = until

    def endpoints(self) -> list[EndpointStatus]:
        return self.core.endpoints(now=self.now)

    def pick(self, number: int) -> Pick:
        answer = self.answers[number]
        assert isinstance(answer, Pick), answer
        return answer

    def refusal(self, number: int) -> Refuse:
        answer = self.answers[number]
        assert isinstance(answer, Refuse), answer
        return answer

    def end(self, number: int) -> None:
        self.handle(PickEnded(StreamKey(GATEWAY_ID, number)))
