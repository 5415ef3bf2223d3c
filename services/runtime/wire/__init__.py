"""The only place that maps protobuf to dataclasses.

``pack_…`` writes, ``unpack_…`` reads; every unpack refuses a peer's bad bytes with
``HeadwayError`` INVALID_ARGUMENT, naming the value and the limit.
"""

from services.runtime.wire.calls import (
    activate,
    dial_attach,
    dial_connect,
    dial_control,
    explain,
    length_table,
    nonce_of,
    observe,
    picture,
    predict,
    report_fleet,
    report_rates,
    scaling_decisions,
    set_role,
    transfer_kv,
)
from services.runtime.wire.pictures import PICTURE
from services.runtime.wire.predictions import (
    Question,
    pack_question,
    unpack_question,
    unpack_remaining,
)
from services.runtime.wire.scaling import (
    RATE_REPORT,
    pack_decision,
    pack_fleet,
    pack_targets,
    unpack_decision,
    unpack_fleet,
)
from services.runtime.wire.status import abort, error_of, status_of
from services.runtime.wire.streams import (
    FROM_GATEWAY,
    FROM_WORKER,
    KV,
    REQUEST,
    SET_ROLE,
    TO_GATEWAY,
    TO_WORKER,
)
from services.runtime.wire.tokens import (
    pack_token_batch,
    split_token_batch,
    unpack_cancels,
    unpack_token_batch,
)

__all__ = [
    "FROM_GATEWAY",
    "FROM_WORKER",
    "KV",
    "PICTURE",
    "RATE_REPORT",
    "REQUEST",
    "SET_ROLE",
    "TO_GATEWAY",
    "TO_WORKER",
    "Question",
    "abort",
    "activate",
    "dial_attach",
    "dial_connect",
    "dial_control",
    "error_of",
    "explain",
    "length_table",
    "nonce_of",
    "observe",
    "pack_decision",
    "pack_fleet",
    "pack_question",
    "pack_targets",
    "pack_token_batch",
    "picture",
    "predict",
    "report_fleet",
    "report_rates",
    "scaling_decisions",
    "set_role",
    "split_token_batch",
    "status_of",
    "transfer_kv",
    "unpack_cancels",
    "unpack_decision",
    "unpack_fleet",
    "unpack_question",
    "unpack_remaining",
    "unpack_token_batch",
]
