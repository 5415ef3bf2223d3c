"""Scenarios drawn from seeds: small clusters, short histories, every kind of fault."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from headway.presets import PRESETS
from proof.vopr.scenario import (
    SUPERVISED,
    SUPERVISOR,
    Asking,
    FaultKind,
    PlannedFault,
    SeedScenario,
    WorkerShape,
    names,
)

ROLES = (
    ("unified",),
    ("unified", "unified"),
    ("unified", "unified", "unified"),
    ("prefill", "decode"),
    ("prefill", "prefill", "decode", "decode"),
    ("prefill", "decode", "decode"),
    ("prefill", "unified", "decode"),
    ("prefill", "convertible", "decode"),
)
MOST_SKEW = 300.0
"""Seconds that a host's clock may be wrong, either way."""
_WORKLOAD_S = 4.0
_ON_PROCESSES = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.SLOW, FaultKind.CLOCK)
_ON_WORKERS = (
    FaultKind.REPLACE,
    FaultKind.SLOW_ENGINE,
    FaultKind.FAIL_PASS,
    FaultKind.DRAIN,
    FaultKind.ROLE,
    FaultKind.DRAIN_KILLED,
)
_ON_LINKS = (
    FaultKind.DELAY,
    FaultKind.CUT,
    FaultKind.HALF_OPEN,
    FaultKind.PARTITION,
    FaultKind.UNANSWERED,
)
_LASTING = {
    FaultKind.CRASH: (0.0, 3.0),
    FaultKind.REPLACE: (0.0, 2.0),
    FaultKind.PAUSE: (0.05, 6.0),
    FaultKind.SLOW: (0.2, 2.0),
    FaultKind.SLOW_ENGINE: (0.2, 3.0),
    FaultKind.DELAY: (0.2, 4.0),
    FaultKind.PARTITION: (0.05, 6.0),
    FaultKind.UNANSWERED: (0.5, 5.0),
    FaultKind.STORE_AWAY: (0.1, 5.0),
    FaultKind.STORE_SLOW: (0.5, 4.0),
    FaultKind.STORE_STALE: (0.2, 4.0),
    FaultKind.START_FAILS: (3.0, 6.0),
    FaultKind.START_SLOW: (0.5, 4.0),
    FaultKind.DRAIN_KILLED: (0.1, 1.0),
}
_EVERY = tuple(kind for kind in FaultKind if kind not in SUPERVISED)
_THEMES: tuple[tuple[FaultKind, ...], ...] = (
    (),  # every kind
    (),
    (
        FaultKind.DRAIN,
        FaultKind.ROLE,
        FaultKind.START,
        FaultKind.CUT,
        FaultKind.DELAY,
        FaultKind.USURP,
    ),  # operators
    (
        FaultKind.CUT,
        FaultKind.HALF_OPEN,
        FaultKind.PARTITION,
        FaultKind.DELAY,
        FaultKind.UNANSWERED,
    ),  # links
)
"""Kinds of one history; faults of few kinds meet each other more often."""
_WEIGHTS = {
    FaultKind.CUT: 3,
    FaultKind.PARTITION: 3,
    FaultKind.CRASH: 4,
    FaultKind.PAUSE: 3,
    FaultKind.USURP: 3,
    FaultKind.DRAIN: 2,
    FaultKind.DELAY: 2,
    FaultKind.ROLE: 2,
}


def draw(seed: int, preset: str = "") -> SeedScenario:
    """Return the scenario of a seed, under a preset or the seed's own."""
    rng = Random(seed)
    own = sorted(PRESETS)[seed % len(PRESETS)]
    roles = rng.choice(ROLES)
    shape = _shape(rng)
    scenario = SeedScenario(
        seed=seed,
        preset=preset or own,
        num_gateways=rng.choice((1, 2)),
        num_schedulers=rng.choice((1, 2, 2)),
        roles=roles,
        shape=shape,
        request_timeout=rng.choice((40.0, 40.0, 5.0)),
        requests=_requests(rng, shape),
    )
    processes = names(scenario)
    skews = tuple(round(rng.uniform(-MOST_SKEW, MOST_SKEW), 3) for _ in processes)
    faults = _faults(rng, scenario)
    more, standby = _supervised(Random(f"supervisor {seed}"), scenario)
    more += _order_links(Random(f"orders {seed}"), scenario)
    faults = tuple(sorted([*faults, *more], key=lambda each: each.at))
    past = Random(f"past {seed}").choice((0.0, 0.3, 2.0))
    requests = _shared(Random(f"tenants {seed}"), scenario.requests)
    return replace(
        scenario,
        skews=skews,
        faults=faults,
        standby=standby,
        past_interval=past,
        requests=requests,
    )


def _shape(rng: Random) -> WorkerShape:
    return WorkerShape(
        num_units=rng.choice((1, 1, 2)),
        chunk_tokens=rng.choice((8, 16, 32)),
        num_blocks=rng.choice((16, 24, 40)),
        host_blocks=rng.choice((0, 8, 24)),
        prefix_caching=rng.random() < 0.7,
        runs_ahead=rng.random() < 0.4,
        swaps_beside=rng.random() < 0.5,
        pass_seconds=rng.choice((0.01, 0.03)),
        predict_every=rng.choice((0, 3)),
        kv_seconds=rng.choice((0.0, 0.005, 0.1)),
    )


def _requests(rng: Random, shape: WorkerShape) -> tuple[Asking, ...]:
    most = shape.num_blocks * 4 // 2
    requests = []
    bursts = [rng.uniform(0.0, _WORKLOAD_S) for _ in range(3)]
    for number in range(rng.randint(4, 16)):
        at = rng.choice(bursts) if rng.random() < 0.5 else rng.uniform(0.0, _WORKLOAD_S)
        leaves = rng.random() < 0.15
        requests.append(
            Asking(
                name=f"r{number}",
                at=round(at + rng.random() * 0.05, 4),
                gateway=rng.randrange(2),
                num_prompt=rng.randint(1, most),
                shared=rng.choice((0, 0, 8, 20)),
                max_tokens=rng.choice((1, 4, 12, 24, most)) if rng.random() < 0.9 else most,
                reasons=rng.random() < 0.5,
                paced=rng.random() < 0.5,
                leaves=round(rng.uniform(0.01, 2.0), 3) if leaves else 0.0,
            )
        )
    return tuple(sorted(requests, key=lambda each: each.at))


def _shared(rng: Random, requests: tuple[Asking, ...]) -> tuple[Asking, ...]:
    """Give a third of the histories three tenants, of which one asks for most."""
    if rng.random() < 2 / 3:
        return requests
    return tuple(replace(each, tenant=rng.choice("aaaabc")) for each in requests)


def _faults(rng: Random, scenario: SeedScenario) -> tuple[PlannedFault, ...]:
    if rng.random() < 0.2:
        return _takeovers(rng, scenario)
    theme = rng.choice(_THEMES)
    kinds = [kind for kind in theme or _EVERY for _ in range(_WEIGHTS.get(kind, 1))]
    drawn = [_fault(rng, rng.choice(kinds), scenario) for _ in range(rng.randint(0, 9))]
    return tuple(sorted(drawn, key=lambda each: each.at))


def _supervised(rng: Random, scenario: SeedScenario) -> tuple[list[PlannedFault], int]:
    """Return faults of the supervisor, and its warm workers, by dice of their own."""
    if rng.random() < 0.5:
        return [], 0
    kinds = (*SUPERVISED, *SUPERVISED, FaultKind.START, FaultKind.DRAIN, FaultKind.ROLE)
    drawn = [_fault(rng, rng.choice(kinds), scenario) for _ in range(rng.randint(1, 4))]
    return drawn, rng.choice((0, 1))


def _order_links(rng: Random, scenario: SeedScenario) -> list[PlannedFault]:
    """Return faults of the supervisor's own links, each with an order, by dice of their own."""
    if rng.random() < 0.8:
        return []
    faults: list[PlannedFault] = []
    for _ in range(rng.randint(1, 3)):
        peer = rng.choice([*(name for name in names(scenario) if name[0] in "wa"), "store"])
        kinds = (FaultKind.DELAY, FaultKind.PARTITION, FaultKind.UNANSWERED)
        kind = FaultKind.PARTITION if peer == "store" else rng.choice(kinds)
        on, to = (SUPERVISOR, peer) if peer == "store" else rng.sample((SUPERVISOR, peer), 2)
        link = replace(_fault(rng, kind, scenario), on=on, to=to)
        order = _fault(rng, rng.choice((FaultKind.ROLE, FaultKind.DRAIN)), scenario)
        faults += [link, replace(order, at=round(link.at + rng.random() * link.lasts, 4))]
    return faults


def _takeovers(rng: Random, scenario: SeedScenario) -> tuple[PlannedFault, ...]:
    """Return many changes of leader while KV takes long from worker to worker."""
    workers = [name for name in names(scenario) if name.startswith("w")]
    delay = round(rng.uniform(0.05, 0.3), 3)
    slow = [
        PlannedFault(FaultKind.DELAY, 0.1, 7.0, one, other, delay)
        for place, one in enumerate(workers)
        for other in workers[place + 1 :]
    ]
    usurped = [
        PlannedFault(FaultKind.USURP, round(rng.uniform(0.2, _WORKLOAD_S + 1.0), 4))
        for _ in range(rng.randint(4, 10))
    ]
    wiped = PlannedFault(FaultKind.STORE_WIPED, round(rng.choice(usurped).at + 0.1, 4))
    return tuple(sorted([*slow, *usurped, wiped], key=lambda each: each.at))


def _fault(rng: Random, kind: FaultKind, scenario: SeedScenario) -> PlannedFault:
    processes = list(names(scenario))
    workers = [name for name in processes if name.startswith("w")]
    at = round(rng.uniform(0.05, _WORKLOAD_S + 2.0), 4)
    shortest, longest = _LASTING.get(kind, (0.0, 0.0))
    # Many short faults and few long ones.
    lasts = shortest + (longest - shortest) * rng.random() ** 2
    lasts = round(min(lasts, scenario.heals_at - at), 4)
    on, to, amount = "", "", 0.0
    if kind in _ON_LINKS:
        on, to = _link(rng, scenario)
        if kind is FaultKind.UNANSWERED and len(workers) > 1:
            on, to = rng.sample(workers, 2)  # all other calls are streams that stay open
        amount = round(rng.uniform(0.01, 0.6), 4)
    elif kind in _ON_PROCESSES:
        on = rng.choice(processes)
        amount = round(rng.choice((-1, 1)) * rng.uniform(0.0, MOST_SKEW), 3)
        if kind is FaultKind.SLOW:
            amount = 0.005
        elif kind is FaultKind.CRASH:
            amount = rng.choice((0.0, 0.0, 0.25))  # one in three is silent
    elif kind in _ON_WORKERS:
        on = rng.choice(workers)
        amount = float(rng.randint(1, 3))
    elif kind in (FaultKind.START, FaultKind.START_SLOW):
        amount = float(rng.randrange(4))
    elif kind is FaultKind.START_FAILS:
        on = rng.choice([*processes, *[""] * len(processes)])
        amount = float(rng.randint(1, 3))
    elif kind is FaultKind.PRESET:
        on, amount = "s0", float(rng.randrange(len(PRESETS)))
    elif kind is FaultKind.STORE_SLOW:
        amount = round(rng.uniform(0.05, 1.5), 3)
    elif kind is FaultKind.STORE_GARBAGE:
        amount = float(rng.randrange(3))
    return PlannedFault(kind, at, lasts, on, to, amount)


def _link(rng: Random, scenario: SeedScenario) -> tuple[str, str]:
    """Return two processes that talk to each other."""
    gateways = [f"g{n}" for n in range(scenario.num_gateways)]
    schedulers = [f"s{n}" for n in range(scenario.num_schedulers)]
    workers = [f"w{n}" for n in range(len(scenario.roles))]
    sides = rng.choice(
        (
            (gateways, schedulers),
            (schedulers, workers),
            (workers, gateways),
            (workers, workers),
            (gateways + schedulers + workers, ["store"]),
        )
    )
    one, other = rng.choice(sides[0]), rng.choice(sides[1])
    return (other, one) if rng.random() < 0.5 and other != "store" else (one, other)
