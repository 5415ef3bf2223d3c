"""Mutations of cores and of what they decide by."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

_GATEWAY = "headway/core/gateway/"
_WORKER = "headway/core/worker/"
_SCHEDULER = "headway/core/scheduler/"
_AHEAD_TESTS = "tests/core/worker/test_worker_ahead.py"
_ATTEMPTS_TESTS = "tests/core/gateway/test_gateway_attempts.py"
_BLOCK_PROPERTIES_TESTS = "tests/properties/test_block_properties.py"
_CONTROL_TESTS = "tests/services/worker/test_control.py"
_DECODE_TESTS = "tests/core/scheduler/test_scheduler_decode.py"
_FAILURES_TESTS = "tests/core/scheduler/test_scheduler_failures.py"
_FAIR_CHUNK_TESTS = "tests/core/worker/test_worker_fair_chunk.py"
_GATEWAY_SCENARIOS = "tests/scenarios/test_gateway_scenarios.py"
_GATEWAY_TESTS = "tests/core/gateway/test_gateway.py"
_HOST_PREFIXES_TESTS = "tests/core/worker/test_worker_host_prefixes.py"
_MIGRATION_TESTS = "tests/core/worker/test_worker_migration.py"
_PASS_LIMIT_TESTS = "tests/core/worker/test_worker_pass_limit.py"
_PICKER_TESTS = "tests/core/picker/test_picker.py"
_PLAN_TESTS = "tests/core/worker/test_worker_plan.py"
_PREFIXES_TESTS = "tests/core/scheduler/test_scheduler_prefixes.py"
_PREFIX_CACHE_TESTS = "tests/core/worker/test_worker_prefix_cache.py"
_QUOTAS_TESTS = "tests/core/gateway/test_gateway_quotas.py"
_ROUNDS_TESTS = "tests/core/worker/test_worker_rounds.py"
_SCHEDULER_SCENARIOS = "tests/scenarios/test_scheduler_scenarios.py"
_SCHEDULER_TESTS = "tests/core/scheduler/test_scheduler.py"
_SHARES_TESTS = "tests/core/gateway/test_gateway_shares.py"
_TAKEOVER_TESTS = "tests/core/scheduler/test_scheduler_takeover.py"
_TIER_PROPERTIES_TESTS = "tests/properties/test_tier_properties.py"
_TOKENSCALE_SCALING_TESTS = "tests/papers/test_tokenscale_scaling.py"
_WORKER_TESTS = "tests/core/worker/test_worker.py"

CORES = (
    Mutation(
        "copies that differ are not compared",
        f"{_GATEWAY}order.py",
        "elif (first != num_known or state.early) and _differs(state, first, delivery):",
        "elif False:",
        (_GATEWAY_SCENARIOS, _ATTEMPTS_TESTS, _GATEWAY_TESTS),
    ),
    Mutation(
        "tokens are taken from any worker",
        f"{_GATEWAY}order.py",
        "if worker_id in state.sources:",
        "if True:",
        (_GATEWAY_SCENARIOS,),
    ),
    Mutation(
        "an end is repeated wrongly",
        f"{_GATEWAY}order.py",
        "elif index == num_known - 1 and reason in _ENDS:  # only the end was new",
        "elif reason in _ENDS:",
        (_GATEWAY_SCENARIOS,),
    ),
    Mutation(
        "a gap is filled by a former worker's end",
        f"{_GATEWAY}order.py",
        "if missing is None or missing.before or missing.finish_reason is not None:",
        "if missing is None or missing.before:",
        (_GATEWAY_SCENARIOS,),
    ),
    Mutation(
        "more tokens than were asked for",
        f"{_GATEWAY}order.py",
        "if index >= state.request.sampling.max_tokens:",
        "if False:",
        ("tests/core/gateway/test_gateway_sources.py",),
    ),
    Mutation(
        "a death is counted twice",
        f"{_GATEWAY}attempts.py",
        "if death.is_told and state.deaths[-1:] == [death._replace(is_told=False)]:",
        "if False:",
        (_ATTEMPTS_TESTS,),
    ),
    Mutation(
        "nobody hears which process a leader reaches",
        f"{_SCHEDULER}core.py",
        "if process_id and worker_id not in self._instances:",
        "if False:",
        ("tests/core/scheduler/test_scheduler_failures.py",),
    ),
    Mutation(
        "progress forgives nothing",
        f"{_GATEWAY}attempts.py",
        "if len(state.output) - state.num_tokens_before >= PROGRESS:",
        "if False:",
        (_ATTEMPTS_TESTS,),
    ),
    Mutation(
        "a failure of a worker that is not named yet is forgotten",
        f"{_GATEWAY}order.py",
        "elif state is not None and worker_id not in state.former:",
        "elif False:",
        (_GATEWAY_SCENARIOS,),
    ),
    Mutation(
        "a token ahead of its turn is dropped",
        f"{_GATEWAY}order.py",
        "if index > num_known:  # its predecessor may come over another worker's stream",
        "if False:",
        (_GATEWAY_SCENARIOS, _GATEWAY_TESTS),
    ),
    Mutation(
        "a key saves up more than a minute's tokens",
        f"{_GATEWAY}quotas.py",
        "bucket.level, bucket.at = min(float(most), bucket.level + gained), now",
        "bucket.level, bucket.at = bucket.level + gained, now",
        (_QUOTAS_TESTS,),
    ),
    Mutation(
        "a quota counts what was there before alone",
        f"{_GATEWAY}quotas.py",
        "if most and held + num_outputs > most:",
        "if most and held > most:",
        (_QUOTAS_TESTS,),
    ),
    Mutation(
        "one client may take all there is",
        f"{_GATEWAY}shares.py",
        "if free <= 0 or held > self._alpha * free:",
        "if free <= 0:",
        (_SHARES_TESTS,),
    ),
    Mutation(
        "a client keeps its turn",
        f"{_GATEWAY}shares.py",
        "self._waiting[client] = jobs  # behind the others",
        "self._waiting[client] = jobs; self._waiting.move_to_end(client, last=False)",
        (_SHARES_TESTS,),
    ),
    Mutation(
        "suspects run together",
        f"{_GATEWAY}attempts.py",
        "return state.request_id not in self._waiting",
        "return True",
        (_ATTEMPTS_TESTS,),
    ),
    Mutation(
        "a suspect's third death is no proof",
        f"{_GATEWAY}attempts.py",
        "if state.request_id == self._on_trial or num_alone >= self._most:",
        "if num_alone >= self._most:",
        (_ATTEMPTS_TESTS,),
    ),
    Mutation(
        "the end of an answer waits for its reader",
        f"{_GATEWAY}pacing.py",
        "if one.finish_reason is not None:",
        "if False:",
        ("tests/core/gateway/test_gateway_pacing.py",),
    ),
    Mutation(
        "the context has room for the prompt alone",
        f"{_GATEWAY}admission.py",
        "if num_prompt + max_tokens > limit:",
        "if num_prompt > limit:",
        (_GATEWAY_SCENARIOS,),
    ),
    Mutation(
        "a class is had by asking",
        f"{_GATEWAY}class_rules.py",
        "if name and may and name not in may:",
        "if False:",
        ("tests/core/gateway/test_gateway_class_rules.py",),
    ),
    Mutation(
        "a deadline is nobody's",
        f"{_GATEWAY}core.py",
        "if state.request.deadline_at <= now:",
        "if False:",
        (_GATEWAY_TESTS,),
    ),
    Mutation(
        "promised blocks are given away",
        "headway/blocks.py",
        "if missing > self.num_free:",
        "if missing > len(self._free) + len(self._unused):",
        (_BLOCK_PROPERTIES_TESTS, _TIER_PROPERTIES_TESTS),
    ),
    Mutation(
        "a name leads to the newest of its blocks",
        "headway/blocks.py",
        "if hashes[n] not in self._cached and table[n] not in self._hashes:",
        "if table[n] not in self._hashes:",
        (_BLOCK_PROPERTIES_TESTS,),
    ),
    Mutation(
        "a cached block is free",
        "headway/blocks.py",
        "elif block in hashes:",
        "elif False:",
        (_BLOCK_PROPERTIES_TESTS, _PREFIX_CACHE_TESTS),
    ),
    Mutation(
        "a worker takes KV of an older leader",
        f"{_WORKER}arrivals.py",
        "if header.fencing_token < state.fencing_token:  # the newer leader does "
        "not know of this move",
        "if False:",
        (_MIGRATION_TESTS,),
    ),
    Mutation(
        "a duplicate offer is not acknowledged",
        f"{_WORKER}arrivals.py",
        "if present is not None and present.stage is not Stage.ARRIVING:",
        "if False:",
        (_MIGRATION_TESTS, _WORKER_TESTS),
    ),
    Mutation(
        "blocks of a round leak",
        f"{_WORKER}departures.py",
        "state.units[sequence.unit].pool.release(departure.sending)",
        "pass",
        (_ROUNDS_TESTS, _MIGRATION_TESTS),
    ),
    Mutation(
        "a round begins while KV comes back",
        f"{_WORKER}departures.py",
        "is_there = sequence.stage is Stage.RUNNING and not kv.is_returning",
        "is_there = sequence.stage is Stage.RUNNING",
        (_ROUNDS_TESTS,),
    ),
    Mutation(
        "any target's end calls a move off",
        f"{_WORKER}departures.py",
        "if departure.handoff.target_worker_id != target_worker_id:",
        "if False:",
        (_ROUNDS_TESTS, _MIGRATION_TESTS, _WORKER_TESTS),
    ),
    Mutation(
        "a source takes its own address as a target",
        f"{_WORKER}departures.py",
        "if handoff.target_address == state.info.address:",
        "if False:",
        (_ROUNDS_TESTS, _MIGRATION_TESTS, _WORKER_TESTS),
    ),
    Mutation(
        "what has just ended is not doubted",
        f"{_WORKER}reports.py",
        "if at < now - DOUBTFUL or self._state.find(finished.key) is not None:",
        "if True:",
        (_WORKER_TESTS,),
    ),
    Mutation(
        "a future without preempted requests",
        f"{_WORKER}reports.py",
        "(*num_tokens, *lost_tokens), (*remaining, *map(_remaining, lost)), horizon",
        "num_tokens, remaining, horizon",
        ("tests/papers/test_star_loads.py",),
    ),
    Mutation(
        "an older leader is obeyed",
        f"{_WORKER}leaders.py",
        "if fencing_token < newest:",
        "if False:",
        (_CONTROL_TESTS, "tests/services/worker/test_worker_service.py"),
    ),
    Mutation(
        "a leader greets whoever has an address",
        f"{_WORKER}leaders.py",
        'if hello.worker_id not in ("", worker_id):',
        "if False:",
        (_CONTROL_TESTS,),
    ),
    Mutation(
        "a prompt's last token is taken from the cache",
        f"{_WORKER}unit.py",
        "return sequence.kv.hashes[: (sequence.num_tokens - 1) // self.pool.block_size]",
        "return sequence.kv.hashes[: sequence.num_tokens // self.pool.block_size]",
        (_PREFIX_CACHE_TESTS,),
    ),
    Mutation(
        "a pass is planned behind one that has moved on",
        f"{_WORKER}flight.py",
        "if sequence.is_leaving or sequence.kv.num_computed != item.start:",
        "if sequence.is_leaving:",
        (_AHEAD_TESTS,),
    ),
    Mutation(
        "a failed pass ends all that it served",
        f"{_WORKER}flight.py",
        "elif not blamed or item.key in blamed:",
        "else:",
        (_WORKER_TESTS,),
    ),
    Mutation(
        "a repeated dispatch runs twice",
        f"{_WORKER}worker_base.py",
        "if dispatch_id in self._seen_dispatches:",
        "if False:",
        (_WORKER_TESTS,),
    ),
    Mutation(
        "a token of a pass behind a failed one counts",
        f"{_WORKER}core.py",
        "elif item.start != sequence.kv.num_computed:",
        "elif False:",
        (_AHEAD_TESTS,),
    ),
    Mutation(
        "blocks are freed while a pass reads them",
        f"{_WORKER}lifecycle.py",
        "is_held = is_sent or self.num_passes or self.stage in (Stage.LEAVING, Stage.ARRIVING)",
        "is_held = is_sent or self.stage in (Stage.LEAVING, Stage.ARRIVING)",
        (_WORKER_TESTS,),
    ),
    Mutation(
        "admission leaves nothing for growth",
        f"{_WORKER}room.py",
        "spare = self._spare if num_free < pool.num_blocks else 0",
        "spare = 0",
        (_PLAN_TESTS,),
    ),
    Mutation(
        "a cached block that is free is counted twice",
        f"{_WORKER}room.py",
        "return needed - pool.num_in_use(self._unit.adoptable(sequence)) <= num_free",
        "return needed - pool.count_cached(self._unit.adoptable(sequence)) <= num_free",
        (_PREFIX_CACHE_TESTS, _PLAN_TESTS),
    ),
    Mutation(
        "a pass has any number of tokens",
        f"{_WORKER}planner.py",
        "self._budget -= num_tokens",
        "pass",
        (_PLAN_TESTS,),
    ),
    Mutation(
        "a request that was preempted is given back",
        f"{_WORKER}drain.py",
        "is_new = sequence.stage is Stage.WAITING and not sequence.num_preemptions",
        "is_new = sequence.stage is Stage.WAITING",
        ("tests/core/worker/test_worker_drain.py",),
    ),
    Mutation(
        "a saved block of a known name is lost",
        f"{_WORKER}host_prefixes.py",
        "if not ok or saved is None or saved[0] in self._places:",
        "if not ok or saved is None:",
        (_HOST_PREFIXES_TESTS, _TIER_PROPERTIES_TESTS),
    ),
    Mutation(
        "a block that another pass reads is idle",
        f"{_WORKER}host_prefixes.py",
        "if self._num_readers[block]:",
        "if False:",
        (_HOST_PREFIXES_TESTS, _TIER_PROPERTIES_TESTS),
    ),
    Mutation(
        "KV of another layout is taken",
        f"{_WORKER}arrivals.py",
        "problem = _layout_problem(state, header.layout) or state.problem(request, unit)",
        "problem = state.problem(request, unit)",
        ("tests/core/worker/test_worker_layouts.py",),
    ),
    Mutation(
        "a round may take back what has come",
        f"{_WORKER}arrivals.py",
        "if not kv.num_computed <= event.num_computed_tokens < num_tokens < state.max_len:",
        "if False:",
        (_MIGRATION_TESTS, _ROUNDS_TESTS),
    ),
    Mutation(
        "an arrival that was cancelled runs",
        f"{_WORKER}arrivals.py",
        "elif not ok or sequence.ended is not None:",
        "elif not ok:",
        (_MIGRATION_TESTS,),
    ),
    Mutation(
        "a flood has whole passes",
        f"{_WORKER}fair_chunk.py",
        "if not floods or not self._others_come(floods):",
        "if True:",
        (_FAIR_CHUNK_TESTS,),
    ),
    Mutation(
        "a tenant has more than its part of a pass",
        f"{_WORKER}fair_chunk.py",
        "taken = min(most, self._left.get(name, 0), sequence.num_remaining)",
        "taken = min(most, sequence.num_remaining)",
        (_FAIR_CHUNK_TESTS,),
    ),
    Mutation(
        "a new leader waits for nobody's report",
        f"{_SCHEDULER}core.py",
        "self._unheard = {w: None for w in event.worker_ids if w not in self._instances}",
        "pass",
        (_TAKEOVER_TESTS,),
    ),
    Mutation(
        "what nobody confirms stays in the journal",
        f"{_SCHEDULER}memory.py",
        "self._state.changed(key)",
        "pass",
        (_TAKEOVER_TESTS,),
    ),
    Mutation(
        "a target that has not reported is not waited for",
        f"{_SCHEDULER}memory.py",
        "places.add(saved.target.worker_id)",
        "pass",
        (_TAKEOVER_TESTS,),
    ),
    Mutation(
        "a new leader does not heed where a gateway's requests are",
        f"{_SCHEDULER}memory.py",
        "places = set(request.placed_on)",
        "places = set[str]()",
        (_TAKEOVER_TESTS,),
    ),
    Mutation(
        "an older leader's failed move fails this leader's",
        f"{_SCHEDULER}decode.py",
        "elif not result.ok and entry.target == target and is_older and not is_resumed:",
        "elif False:",
        (_TAKEOVER_TESTS, _DECODE_TESTS),
    ),
    Mutation(
        "a handoff names no leader",
        f"{_SCHEDULER}decode.py",
        "address, token = self._instances[unit.worker_id].info.address, self._state.fencing_token",
        "address, token = self._instances[unit.worker_id].info.address, 0",
        (_DECODE_TESTS, _TAKEOVER_TESTS),
    ),
    Mutation(
        "a copy that was lost at its target has arrived",
        f"{_SCHEDULER}decode.py",
        "is_ours = entry.target == target and target.worker_id not in entry.distrusted",
        "is_ours = entry.target == target",
        (_DECODE_TESTS, _FAILURES_TESTS),
    ),
    Mutation(
        "an ended request is adopted",
        f"{_SCHEDULER}reports.py",
        "if self._state.has_ended(held.key) or held.unit >= instance.info.num_units:",
        "if held.unit >= instance.info.num_units:",
        (_TAKEOVER_TESTS, _FAILURES_TESTS),
    ),
    Mutation(
        "an older attempt is adopted beside a newer one",
        f"{_SCHEDULER}reports.py",
        "if any(other.request is not None for other in self._state.others(entry)):",
        "if False:",
        (_TAKEOVER_TESTS,),
    ),
    Mutation(
        "a failure of an ended request is not told again",
        f"{_SCHEDULER}reports.py",
        "elif has_failed:  # its end may not have reached its gateway",
        "elif False:",
        (_FAILURES_TESTS, _SCHEDULER_TESTS),
    ),
    Mutation(
        "two leaders' dispatches have one id",
        f"{_SCHEDULER}state.py",
        "return (self.fencing_token & 0xFFFFFFFF) << 32 | self._num_dispatches",
        "return self._num_dispatches",
        (_SCHEDULER_SCENARIOS,),
    ),
    Mutation(
        "orders go out before their records",
        f"{_SCHEDULER}state.py",
        "actions.insert(0, self._persist())",
        "actions.append(self._persist())",
        (_TAKEOVER_TESTS, _SCHEDULER_TESTS),
    ),
    Mutation(
        "a request that has just moved moves again",
        f"{_SCHEDULER}moves.py",
        "and entry.moved_at <= since",
        "and True",
        ("tests/core/scheduler/test_scheduler_moves.py",),
    ),
    Mutation(
        "a group holds what one of it holds",
        f"{_SCHEDULER}prefixes.py",
        "if holders.get(names[middle], 0) & group == group:",
        "if holders.get(names[middle], 0) & group:",
        (_PREFIXES_TESTS,),
    ),
    Mutation(
        "a worker's false claims are believed",
        f"{_SCHEDULER}prefixes.py",
        "if self._num_false.get(worker_id, 0) >= MOST_FALSE_CLAIMS:",
        "if False:",
        (_PREFIXES_TESTS,),
    ),
    Mutation(
        "a tenant pays for a token at each attempt",
        f"{_SCHEDULER}charges.py",
        "return max(0, num_output_tokens - paid)",
        "return num_output_tokens",
        ("tests/properties/test_fairness_properties.py",),
    ),
    Mutation(
        "a budget leaves no decoder",
        "headway/core/autoscaler/budget.py",
        "num_prefill = min(num_prefill, left - min(self.min_decode, targets.num_decode))",
        "pass",
        ("tests/core/autoscaler/test_autoscaler_budget.py",),
    ),
    Mutation(
        "an order is never stale",
        "headway/core/autoscaler/core.py",
        "if self._ordered is not None and now - self._ordered[0] > self._staleness:",
        "if False:",
        ("tests/core/autoscaler/test_autoscaler_budget.py",),
    ),
    Mutation(
        "a pool grows beyond its bound",
        "headway/policies/scaling/pool.py",
        "return max(self._bounds.least, min(num, self._bounds.most))",
        "return max(self._bounds.least, num)",
        (_TOKENSCALE_SCALING_TESTS,),
    ),
    Mutation(
        "a pool shrinks below its least",
        "headway/policies/scaling/pool.py",
        "return max(self._bounds.least, min(num, self._bounds.most))",
        "return min(num, self._bounds.most)",
        (_TOKENSCALE_SCALING_TESTS,),
    ),
    Mutation(
        "a pool shrinks at once",
        "headway/policies/scaling/pool.py",
        "elif may_shrink and now - self._quiet_since >= self._bounds.hold_down:",
        "elif may_shrink:",
        (_TOKENSCALE_SCALING_TESTS,),
    ),
    Mutation(
        "an endpoint that is silent is picked beside others",
        "headway/core/picker/core.py",
        "return up or silent",
        "return up | silent",
        (_PICKER_TESTS,),
    ),
    Mutation(
        "missed KV events are no loss",
        "headway/core/picker/core.py",
        "if event.is_cleared or not event.is_complete:",
        "if event.is_cleared:",
        (_PICKER_TESTS,),
    ),
    Mutation(
        "each prompt has all the time that a pass has for prompts",
        f"{_WORKER}planner.py",
        "self._prompt_budget -= num_tokens",
        "pass",
        (_PASS_LIMIT_TESTS,),
    ),
    Mutation(
        "what a tenant leaves of a pass is given beyond its time",
        f"{_WORKER}planner.py",
        "spare = int(min(self._budget, self._fair.spare, self._prompt_budget))",
        "spare = min(self._budget, self._fair.spare)",
        (_PASS_LIMIT_TESTS,),
    ),
    Mutation(
        "a class that yields is promised its pace",
        f"{_WORKER}pass_limit.py",
        "if service is None or service.tpot is None or service.yields:",
        "if service is None or service.tpot is None:",
        (_PASS_LIMIT_TESTS,),
    ),
    Mutation(
        "a short prompt waits for a KV event that never comes",
        "headway/core/picker/endpoint.py",
        "is_told = self.ends is Ends.INFERRED and held.uncached >= self.block_size",
        "is_told = self.ends is Ends.INFERRED",
        (_PICKER_TESTS,),
    ),
)
