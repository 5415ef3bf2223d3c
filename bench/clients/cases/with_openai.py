"""83 cases of the official client alone: routes, streams, fields, errors, tools, forms."""

from __future__ import annotations

from collections.abc import Mapping

from .asked import Case
from .openai_chat import CHAT
from .openai_other import OTHER, REFUSED_OTHER
from .openai_tools import REFUSED_TOOLS, TOOLS

CASES: Mapping[str, Case] = {**CHAT, **OTHER, **TOOLS}
REFUSED: Mapping[str, str] = {**REFUSED_OTHER, **REFUSED_TOOLS}
