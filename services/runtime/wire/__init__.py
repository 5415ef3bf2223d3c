"""The only place that maps protobuf to dataclasses.

``pack_…`` writes, ``unpack_…`` reads; every unpack refuses a peer's bad bytes with
HeadwayError INVALID_ARGUMENT, naming the value and the limit.
"""

from services.runtime.wire.checks import unpack_role
from services.runtime.wire.gateways import (
    pack_all_to_gateway,
    pack_all_to_scheduler,
    pack_to_gateway,
    pack_to_scheduler,
    unpack_all_to_gateway,
    unpack_all_to_scheduler,
    unpack_to_gateway,
    unpack_to_scheduler,
)
from services.runtime.wire.kv import pack_kv_header, pack_kv_part, unpack_kv_header, unpack_kv_part
from services.runtime.wire.orders import pack_to_worker, unpack_to_worker
from services.runtime.wire.predictions import (
    Question,
    pack_question,
    unpack_question,
    unpack_remaining,
)
from services.runtime.wire.reports import pack_from_worker, unpack_from_worker
from services.runtime.wire.requests import pack_request, unpack_request
from services.runtime.wire.scaling import (
    pack_decision,
    pack_fleet,
    pack_targets,
    unpack_decision,
    unpack_fleet,
    unpack_rate_report,
)
from services.runtime.wire.status import abort, error_of, status_of
from services.runtime.wire.tokens import pack_token_batch, unpack_token_batch

__all__ = [
    "Question",
    "abort",
    "error_of",
    "pack_all_to_gateway",
    "pack_all_to_scheduler",
    "pack_decision",
    "pack_fleet",
    "pack_from_worker",
    "pack_kv_header",
    "pack_kv_part",
    "pack_question",
    "pack_request",
    "pack_targets",
    "pack_to_gateway",
    "pack_to_scheduler",
    "pack_to_worker",
    "pack_token_batch",
    "status_of",
    "unpack_all_to_gateway",
    "unpack_all_to_scheduler",
    "unpack_decision",
    "unpack_fleet",
    "unpack_from_worker",
    "unpack_kv_header",
    "unpack_kv_part",
    "unpack_question",
    "unpack_rate_report",
    "unpack_remaining",
    "unpack_request",
    "unpack_role",
    "unpack_to_gateway",
    "unpack_to_scheduler",
    "unpack_to_worker",
    "unpack_token_batch",
]
