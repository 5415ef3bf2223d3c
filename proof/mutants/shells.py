"""Mutations of services."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

_ENGINE_GRAMMAR_TESTS = "tests/services/worker/test_engine_grammar.py"
_JOURNAL_TESTS = "tests/services/scheduler/test_journal.py"
_LEADERSHIP_TESTS = "tests/services/scheduler/test_leadership.py"
_MEMBERSHIP_TESTS = "tests/services/runtime/test_membership.py"
_REQUIRE_ID_TESTS = "tests/services/runtime/identity/test_require_id.py"
_SCHEDULER_SERVICE_TESTS = "tests/services/scheduler/test_scheduler_service.py"
_STORE_TESTS = "tests/services/runtime/test_store.py"
_SUPERVISOR_TESTS = "tests/services/runtime/test_supervisor.py"
_WORKER_SCALER_TESTS = "tests/services/runtime/test_worker_scaler.py"
_WORKER_SERVICE_TESTS = "tests/services/worker/test_worker_service.py"

SHELLS = (
    Mutation(
        "no margin of the lease",
        "services/scheduler/leadership.py",
        "return self._held_until - self._ttl * _MARGIN",
        "return self._held_until",
        (_LEADERSHIP_TESTS,),
    ),
    Mutation(
        "a lease from its answer on",
        "services/scheduler/leadership.py",
        "self._held_until = asked_at + self._ttl",
        "self._held_until = self._clock.now() + 2 * self._ttl",
        (_LEADERSHIP_TESTS,),
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
        (_JOURNAL_TESTS,),
    ),
    Mutation(
        "orders of a replaced leader are obeyed",
        "services/runtime/stream.py",
        "if self._outbox.has_ended:",
        "if False:",
        ("tests/services/worker/test_control.py",),
    ),
    Mutation(
        "a member is gone at once",
        "services/runtime/membership.py",
        "elif now - self._missed_at.setdefault(member_id, now) < ABSENCE_GRACE:",
        "elif False:",
        (_MEMBERSHIP_TESTS,),
    ),
    Mutation(
        "the name in a certificate is not checked",
        "services/runtime/identity/guard.py",
        'if name not in ("", role, service_id):',
        "if False:",
        (_REQUIRE_ID_TESTS,),
    ),
    Mutation(
        "any gateway speaks for any other",
        "services/scheduler/gateway_link.py",
        "require_id(context, gateway_id)",
        "pass",
        (_REQUIRE_ID_TESTS,),
    ),
    Mutation(
        "any worker speaks for any other",
        "services/gateway/token_sink.py",
        "require_id(context, first.worker_id)",
        "pass",
        (_REQUIRE_ID_TESTS,),
    ),
    Mutation(
        "a part of KV that is not the next is taken",
        "services/worker/kv_receiver.py",
        "if not more or part.first_token != num_tokens:",
        "if not more:",
        (_WORKER_SERVICE_TESTS,),
    ),
    Mutation(
        "half of a transfer has arrived",
        "services/worker/kv_receiver.py",
        "self._post(KvArrived(answer.key) if arrived else KvAborted(answer.key))",
        "self._post(KvArrived(answer.key))",
        (_WORKER_SERVICE_TESTS,),
    ),
    Mutation(
        "any process takes a worker's token stream",
        "services/gateway/token_sink.py",
        "if self._nonces.get(worker_id, nonce) != nonce and digest != digest_of(nonce):",
        "if False:",
        ("tests/services/gateway/test_gateway_grpc.py",),
    ),
    Mutation(
        "a gateway speaks of another's requests",
        "services/scheduler/gateway_link.py",
        "if message.key.gateway_id != gateway_id:",
        "if False:",
        (_SCHEDULER_SERVICE_TESTS,),
    ),
    Mutation(
        "a leader that all workers refuse stays",
        "services/scheduler/term.py",
        "if self._links and self._refusing >= self._links.keys():",
        "if False:",
        (_SCHEDULER_SERVICE_TESTS,),
    ),
    Mutation(
        "an older leader's journal is written",
        "services/runtime/store_scripts.py",
        "if redis.call('GETRANGE', KEYS[1], 0, 1023) ~= ARGV[1] then return 0 end",
        "-- no fence",
        (_STORE_TESTS, _JOURNAL_TESTS),
    ),
    Mutation(
        "a store that goes back gives a token twice",
        "services/runtime/store_scripts.py",
        "token = math.max(last, tonumber(ARGV[4]), now) + 1 + drawn",
        "token = math.max(last, tonumber(ARGV[4]), now) + 1",
        (_STORE_TESTS,),
    ),
    Mutation(
        "an outage of the store counts as absence",
        "services/runtime/membership.py",
        "self._missed_at.clear()  # unseen during the outage, which does not count as absent",
        "pass",
        (_MEMBERSHIP_TESTS,),
    ),
    Mutation(
        "a minute of a gateway's last process is written over",
        "services/gateway/past.py",
        "if _minute_of(each.ended_at) in written:",
        "if False:",
        ("tests/services/gateway/test_gateway_past.py",),
    ),
    Mutation(
        "a peer that does not read is not cut off",
        "services/runtime/stream.py",
        "if self._num_queued >= self._max_queued:",
        "if False:",
        ("tests/services/runtime/test_stream.py",),
    ),
    Mutation(
        "a grammar's mask is dropped",
        "services/worker/engine/constraints.py",
        "row.masked_fill_(~admitted, _NEVER)",
        "pass",
        (_ENGINE_GRAMMAR_TESTS,),
    ),
    Mutation(
        "an answer may end inside its grammar",
        "services/worker/engine/masks.py",
        "if matcher.is_accepting():",
        "if True:",
        (_ENGINE_GRAMMAR_TESTS,),
    ),
    Mutation(
        "a process that dies starts again at once",
        "services/local/supervised.py",
        "await asyncio.sleep(pause)",
        "await asyncio.sleep(0)",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "pauses between lives do not grow",
        "services/local/supervised.py",
        "pause = min(2 * pause, _LONGEST_PAUSE)",
        "pause = _SHORTEST_PAUSE",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "a long life forgives nothing",
        "services/local/supervised.py",
        "if loop.time() - started_at >= _HEALTHY_AFTER:",
        "if False:",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "who has served is given up, too",
        "services/local/supervised.py",
        "if not self._has_served and is_hopeless:",
        "if is_hopeless:",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "a wrong configuration is tried again",
        "services/local/supervised.py",
        "is_hopeless = self.num_deaths == _TRIALS or status == _WRONG_CONFIGURATION",
        "is_hopeless = self.num_deaths == _TRIALS",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "a process is killed, not drained",
        "services/local/supervised.py",
        "process.send_signal(signal.SIGTERM)",
        "process.send_signal(signal.SIGKILL)",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "what does not stop is waited for",
        "services/local/supervised.py",
        "self.kill()",
        "pass",
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "schedulers go before gateways",
        "services/local/supervisor.py",
        '_STOP_FIRST = ("gateway", "scheduler")',
        '_STOP_FIRST = ("scheduler", "gateway")',
        (_SUPERVISOR_TESTS,),
    ),
    Mutation(
        "the oldest worker goes first",
        "services/local/worker_scaler.py",
        "order = sorted(enumerate(there), key=lambda each: (not each[1].is_given_up, -each[0]))",
        "order = sorted(enumerate(there), key=lambda each: (not each[1].is_given_up, each[0]))",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "a worker that was given up stays",
        "services/local/worker_scaler.py",
        "order = sorted(enumerate(there), key=lambda each: (not each[1].is_given_up, -each[0]))",
        "order = sorted(enumerate(there), key=lambda each: -each[0])",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "a worker that drains counts",
        "services/local/worker_scaler.py",
        "if process.spec.role == role and process not in self._draining",
        "if process.spec.role == role",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "a spare is never taken",
        "services/local/worker_scaler.py",
        "warm = None if self._standby is None else self._standby.take(role, self._make_spec)",
        "warm = None",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "a spare that cannot be told is left alone",
        "services/local/standby_workers.py",
        "process.restart()",
        "pass",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "the next spare starts at once",
        "services/local/standby_workers.py",
        "is_quiet = asyncio.get_running_loop().time() >= self._refill_at",
        "is_quiet = True",
        (_WORKER_SCALER_TESTS,),
    ),
    Mutation(
        "a changed role is forgotten with a life",
        "services/local/role_change.py",
        'flags = (*process.spec.flags, "--role", role)',
        "flags = process.spec.flags",
        (_WORKER_SCALER_TESTS,),
    ),
)
