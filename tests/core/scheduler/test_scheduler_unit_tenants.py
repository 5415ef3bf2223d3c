"""The room that tenants find on units: for all of a dispatch at once as for each alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.cluster import Role, UnitId
from headway.core.scheduler.instance import Instance
from headway.core.scheduler.places import Tracked
from headway.core.scheduler.settings import SchedulerSettings
from headway.core.scheduler.state import SchedulerState
from headway.core.scheduler.unit_tenants import UnitTenants
from headway.core.scheduler.windows import TenantWindows, cost_of
from headway.policies.packing import Assigned, Room
from headway.policies.packing.flow_control import FlowControl
from tests.fakes.scheduler_text import make_info
from tests.fakes.waiting import waiting

TENANTS = "abcde"
SENT = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.integers(0, 1), st.integers(1, 400)), max_size=12
)


@given(
    sent=SENT,
    asking=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 400)), max_size=12),
    served=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    capacities=st.tuples(st.integers(-500, 500), st.integers(-500, 500)),
    num_free=st.integers(0, 30),
    capped=st.booleans(),
    takes=st.booleans(),
)
def test_each_tenant_finds_in_a_dispatch_what_it_finds_alone(
    sent: list[tuple[str, int, int]],
    asking: list[tuple[str, int]],
    served: list[int],
    capacities: tuple[int, int],
    num_free: int,
    capped: bool,
    takes: bool,
) -> None:
    info = make_info("w", Role.UNIFIED, units=2, chunk=600, blocks=60)
    windows, instance = TenantWindows(FlowControl()), Instance(info, 0.0)
    tenants = UnitTenants(SchedulerState(SchedulerSettings()), windows)
    for number, (tenant, unit, num_tokens) in enumerate(sent):
        entry = waiting(number, tenant, num_tokens)
        tenants.sent([Assigned(entry, UnitId("w", unit), 0)])
        instance.hold(entry.key, unit, tenant, num_tokens)
    for tenant, level in zip(TENANTS, served, strict=True):
        windows.counters.charge(tenant, 100.0 * level)
    rooms = [
        Room(UnitId("w", unit), capacity, num_free, 0, info.block_size, empty=False)
        for unit, capacity in enumerate(capacities)
    ]
    plain = {room.unit: (room.capacity, room.num_free_blocks) for room in rooms}

    def chunk(tenant: str, room: Room) -> int:
        alone = tenants.room(tenant, room.unit, info.chunk_tokens) if capped else -inf
        return int(max(plain[room.unit][0], alone))

    def pack(
        legacy: Sequence[Tracked], new: Sequence[Tracked], rooms: Sequence[Room]
    ) -> list[Assigned[Tracked]]:
        if not new:
            return []
        (tenant,) = {entry.tenant for entry in new}
        for room in rooms:
            assert room.capacity == chunk(tenant, room)
            num_blocks = tenants.num_blocks(tenant, instance, room.unit.unit)
            given = max(num_free, num_blocks) if len(rooms) > 1 else num_free
            assert room.num_free_blocks == given
        if len(rooms) > 1:  # they need blocks of others, and get them while they are behind
            ahead = [windows.counters.of(n) for unit in (0, 1) for n in instance.claims(unit)]
            mine = windows.counters.of(tenant)
            lead = min((each for each in ahead if each > mine), default=mine) - mine
            assert sum(map(cost_of, new[:-1])) < lead
        elif takes:
            return [Assigned(new[0], rooms[0].unit, 0)]
        return []

    entries = [waiting(100 + n, tenant, tokens) for n, (tenant, tokens) in enumerate(asking)]
    assigned = tenants.pack(entries, rooms, instance, pack, capped=capped)
    assert len({each.request.key for each in assigned}) == len(assigned)
    assert plain == {room.unit: (room.capacity, room.num_free_blocks) for room in rooms}
