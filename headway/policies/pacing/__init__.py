"""When does a reader see each token? One file per answer."""

from collections.abc import Mapping
from types import MappingProxyType

from headway.policies.answer import Answer
from headway.policies.pacing.off import PacingOff
from headway.policies.pacing.protocol import Pace, Pacing
from headway.policies.pacing.token_pacer import TokenPacer, TokenPacerParams

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "off": Answer(PacingOff, "PASCAL's baseline"),
        "token-pacer": Answer(TokenPacer, "PASCAL, section IV-D; Andes", TokenPacerParams),
    }
)

__all__ = ["ANSWERS", "Pace", "Pacing", "TokenPacerParams"]
