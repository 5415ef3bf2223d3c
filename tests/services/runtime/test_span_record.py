"""What a service records of the hops between cores."""

from __future__ import annotations

from pathlib import Path

from headway.core.gateway.core import GatewayCore
from headway.core.gateway.events import SchedulerConnected, Submit
from headway.core.gateway.settings import GatewaySettings
from headway.core.scheduler.events import WorkerReported
from headway.core.worker.events import KvArrived
from headway.engine import Drawn, EngineStepped
from headway.forward_pass import PassResult, Sampled
from headway.messages import Accepted, Dispatch, EndForward, TokenBatch, UnitBatch
from headway.request import FinishReason, Request, SamplingParams, StreamKey
from services.runtime import event_record
from services.runtime.event_record import record_of
from services.runtime.span_record import Heard, SpanRecord, read_spans

KEY = StreamKey("gateway", 7)
ASKED = Request("r-1", "m", (1, 2), SamplingParams(), 1.0, stream_id=7, gateway_id="gateway")


def test_an_event_that_begins_or_ends_a_hop_is_recorded_with_what_it_is_about(
    tmp_path: Path,
) -> None:
    record = SpanRecord(tmp_path / "gateway-1.spans", "gateway")
    events = [
        Submit(ASKED),
        ASKED,
        Dispatch(3, (UnitBatch(0, (ASKED,)),)),
        PassResult(4, 0.1, (Sampled(KEY, 5),)),
        TokenBatch("w-1", [7, 8], [0, 3], [5, 6], [None, None], {}),
        WorkerReported("w-1", EndForward(4, 0.1, (3,), ())),
        WorkerReported("w-1", Accepted(3)),
        SchedulerConnected(),
        KvArrived(KEY),
    ]
    for number, event in enumerate(events):
        record.note(event, float(number), ())
    record.close()
    assert list(read_spans(tmp_path)) == [
        Heard(0.0, "submitted", ["r-1"]),
        Heard(1.0, "requested", ["r-1", "gateway/7"]),
        Heard(2.0, "dispatched", ["gateway/7"]),
        Heard(3.0, "passed", ["gateway/4", "gateway/7"]),
        Heard(4.0, "tokens", ["gateway/7"]),
        Heard(5.0, "reported", ["w-1/4"]),
        Heard(8.0, "arrived", ["gateway/7"]),
    ]


def test_passes_that_an_engine_planned_have_the_numbers_that_their_worker_reports(
    tmp_path: Path,
) -> None:
    record = SpanRecord(tmp_path / "w-1.spans", "w-1")
    for at, drawn in ((1.0, Drawn(KEY, (5,))), (2.0, Drawn(KEY, (), FinishReason.STOP))):
        record.note(EngineStepped(0.1, (drawn,)), at, ())
    record.close()
    assert list(read_spans(tmp_path)) == [
        Heard(1.0, "passed", ["w-1/1", "gateway/7"]),
        Heard(2.0, "passed", ["w-1/2"]),
    ]


def test_a_line_that_a_killed_process_left_half_written_is_left_out(tmp_path: Path) -> None:
    record = SpanRecord(tmp_path / "w-1.spans", "w-1")
    record.note(KvArrived(KEY), 1.0, ())
    record.close()
    with (tmp_path / "w-1.spans").open("a") as file:
        file.write('[2.0, "arr')
    assert [each.at for each in read_spans(tmp_path)] == [1.0]


def test_a_service_records_events_or_else_spans(tmp_path: Path) -> None:
    core = GatewayCore("s", "127.0.0.1:1", GatewaySettings(max_model_len=10))
    try:
        event_record.configure("", "s", str(tmp_path / "spans"))
        spans = record_of(core)
        assert isinstance(spans, SpanRecord)
        spans.close()
        event_record.configure(str(tmp_path / "events"), "s", str(tmp_path / "spans"))
        events = record_of(core)
        assert events is not None
        assert not isinstance(events, SpanRecord)
        events.close()
    finally:
        event_record.configure("", "s")
    assert record_of(core) is None
