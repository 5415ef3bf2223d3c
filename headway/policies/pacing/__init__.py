"""When does a reader see each token? One file per answer."""

from headway.policies.pacing.protocol import Pace, Pacing
from headway.policies.pacing.token_pacer import TokenPacerParams

__all__ = ["Pace", "Pacing", "TokenPacerParams"]
