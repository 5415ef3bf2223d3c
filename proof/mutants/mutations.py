"""The list: each mutation breaks one rule that a promise rests on, in one line."""

from __future__ import annotations

from dataclasses import dataclass

_GATEWAY = "headway/core/gateway/"
_WORKER = "headway/core/worker/"
_SOURCES = "tests/core/gateway/test_gateway_sources.py"
_ATTEMPTS = "tests/core/gateway/test_gateway_attempts.py"
_MIGRATION = "tests/core/worker/test_worker_migration.py"
_ROUNDS = "tests/core/worker/test_worker_rounds.py"
_CONTROL = "tests/services/worker/test_control.py"
_ELECTIONS = "tests/services/scheduler/test_leadership_instants.py"
_IDENTITY = "tests/services/runtime/identity/test_require_id.py"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of a file, without its indentation, and the line in its place.

    ``tests``: the files nearest to the rule.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "a worker takes KV of an older leader",
        f"{_WORKER}arrivals.py",
        "if header.fencing_token < state.fencing_token:  # the newer leader does not know of this "
        "move",
        "if False:",
        (_MIGRATION,),
    ),
    Mutation(
        "a duplicate offer is not acknowledged",
        f"{_WORKER}arrivals.py",
        "if present is not None and present.stage is not Stage.ARRIVING:",
        "if False:",
        (_MIGRATION, "tests/core/worker/test_worker.py"),
    ),
    Mutation(
        "blocks of a round leak",
        f"{_WORKER}departures.py",
        "state.units[sequence.unit].pool.release(departure.sending)",
        "pass",
        (_ROUNDS, _MIGRATION),
    ),
    Mutation(
        "a round begins while KV comes back",
        f"{_WORKER}departures.py",
        "is_there = sequence.stage is Stage.RUNNING and not kv.is_returning",
        "is_there = sequence.stage is Stage.RUNNING",
        (_ROUNDS,),
    ),
    Mutation(
        "any target's end calls a move off",
        f"{_WORKER}departures.py",
        "if departure.handoff.target_worker_id != target_worker_id:",
        "if False:",
        (_ROUNDS, _MIGRATION, "tests/core/worker/test_worker.py"),
    ),
    Mutation(
        "a source takes its own address as a target",
        f"{_WORKER}departures.py",
        "if handoff.target_address == state.info.address:",
        "if False:",
        (_ROUNDS, _MIGRATION, "tests/core/worker/test_worker.py"),
    ),
    Mutation(
        "what has just ended is not doubted",
        f"{_WORKER}reports.py",
        "if at < now - DOUBTFUL:",
        "if True:",
        ("tests/core/worker/test_worker.py",),
    ),
    Mutation(
        "a future without preempted requests",
        f"{_WORKER}reports.py",
        "(*num_tokens, *lost_tokens), (*remaining, *map(_remaining, lost)), horizon",
        "num_tokens, remaining, horizon",
        ("tests/core/worker/test_worker.py", "tests/core/worker/test_worker_host_memory.py"),
    ),
    Mutation(
        "an older leader is obeyed",
        f"{_WORKER}leaders.py",
        "if fencing_token < newest:",
        "if False:",
        (_CONTROL, "tests/services/worker/test_worker_service.py"),
    ),
    Mutation(
        "a leader greets whoever has an address",
        f"{_WORKER}leaders.py",
        'if hello.worker_id not in ("", worker_id):',
        "if False:",
        (_CONTROL,),
    ),
    Mutation(
        "copies that differ are not compared",
        f"{_GATEWAY}order.py",
        "elif (first != num_known or state.early) and _differs(state, first, delivery):",
        "elif False:",
        (_SOURCES, _ATTEMPTS, "tests/core/gateway/test_gateway.py"),
    ),
    Mutation(
        "tokens are taken from any worker",
        f"{_GATEWAY}order.py",
        "if worker_id in state.sources:",
        "if True:",
        (_SOURCES,),
    ),
    Mutation(
        "an end is repeated wrongly",
        f"{_GATEWAY}order.py",
        "elif index == num_known - 1 and reason in _ENDS:  # only the end was new",
        "elif reason in _ENDS:",
        (_SOURCES,),
    ),
    Mutation(
        "a gap is filled by a former worker's end",
        f"{_GATEWAY}order.py",
        "if missing is None or missing.before or missing.finish_reason is not None:",
        "if missing is None or missing.before:",
        (_SOURCES,),
    ),
    Mutation(
        "more tokens than were asked for",
        f"{_GATEWAY}order.py",
        "if index >= state.request.sampling.max_tokens:",
        "if False:",
        (_SOURCES,),
    ),
    Mutation(
        "a death is counted twice",
        f"{_GATEWAY}attempts.py",
        "if is_told and state.deaths[-1:] == [death._replace(is_told=False)]:",
        "if False:",
        (_ATTEMPTS,),
    ),
    Mutation(
        "progress forgives nothing",
        f"{_GATEWAY}attempts.py",
        "if len(state.output) - state.num_tokens_before >= PROGRESS:",
        "if False:",
        (_ATTEMPTS,),
    ),
    Mutation(
        "no margin of the lease",
        "services/scheduler/leadership.py",
        "return self._held_until - self._ttl * _MARGIN",
        "return self._held_until",
        (_ELECTIONS,),
    ),
    Mutation(
        "a lease from its answer on",
        "services/scheduler/leadership.py",
        "self._held_until = asked_at + self._ttl",
        "self._held_until = self._clock.now() + 2 * self._ttl",
        (_ELECTIONS,),
    ),
    Mutation(
        "a resigned lease is not released",
        "services/scheduler/leadership.py",
        "self._former_id, self._candidate_id = self._candidate_id, self._new_candidate()",
        "self._candidate_id = self._new_candidate()",
        ("tests/services/scheduler/test_leadership.py",),
    ),
    Mutation(
        "older changes over newer ones in the journal",
        "services/scheduler/journal.py",
        "self._requests = requests | self._requests",
        "self._requests = self._requests | requests",
        ("tests/services/scheduler/test_journal.py",),
    ),
    Mutation(
        "orders of a replaced leader are obeyed",
        "services/runtime/stream.py",
        "if self._outbox.has_ended:",
        "if False:",
        (_CONTROL,),
    ),
    Mutation(
        "a member is gone at once",
        "services/runtime/membership.py",
        "elif now - self._missed_at.setdefault(member_id, now) < ABSENCE_GRACE:",
        "elif False:",
        ("tests/services/runtime/test_membership.py",),
    ),
    Mutation(
        "the name in a certificate is not checked",
        "services/runtime/identity/guard.py",
        'if name not in ("", role, service_id):',
        "if False:",
        (_IDENTITY,),
    ),
    Mutation(
        "any gateway speaks for any other",
        "services/scheduler/gateway_link.py",
        "require_id(context, gateway_id)",
        "pass",
        (_IDENTITY,),
    ),
    Mutation(
        "any worker speaks for any other",
        "services/gateway/token_sink.py",
        "require_id(context, first.worker_id)",
        "pass",
        (_IDENTITY,),
    ),
)


def find(name: str) -> Mutation:
    """Return the mutation of this name; StopIteration for another."""
    return next(each for each in MUTATIONS if each.name == name)


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source with the mutation; ValueError unless its line is there exactly once."""
    lines = source.splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if line.strip() == mutation.old]
    if len(found) != 1:
        raise ValueError(f"{mutation.file} has {mutation.old!r} {len(found)} times, not once")
    line = lines[found[0]]
    lines[found[0]] = line.replace(mutation.old, mutation.new)
    return "".join(lines)
