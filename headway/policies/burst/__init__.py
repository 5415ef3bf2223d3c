"""Does a request arrive in a burst? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.burst.dual_signal import DualSignal, DualSignalParams
from headway.policies.burst.off import Off
from headway.policies.burst.protocol import Burst, Label

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "dual-signal": Answer(DualSignal, "TokenScale, sections II-C and IV-A", DualSignalParams),
        "off": Answer(Off, "what a plain deployment does"),
    }
)

__all__ = ["ANSWERS", "Burst", "Label"]
