"""A cluster of processes on one heap of events, and the operator who starts and ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random

from headway.cluster import Role
from headway.core.settings import PolicySettings, policy_settings
from headway.core.worker.settings import WorkerSettings
from headway.cost.costs import Costs
from headway.cost.profile import load_profile
from headway.presets import find_preset
from headway.request import Request, SamplingParams
from headway.sim.kernel import Kernel
from proof.checker import Asked, Checker
from proof.vopr.advisers import AutoscalerProcess, Operator, PredictorProcess
from proof.vopr.engine import END_OF_REASONING, answer_to
from proof.vopr.gateway import GatewayProcess
from proof.vopr.network import KEEPALIVE, SimulatedNetwork
from proof.vopr.process import SimulatedProcess
from proof.vopr.scenario import Asking, SeedScenario, names
from proof.vopr.scheduler import SchedulerProcess
from proof.vopr.store import SimStore
from proof.vopr.worker import WorkerProcess
from proof.vopr.world import BLOCK_SIZE, MODEL, Times, WorkerShape, World

_DRAIN_PATIENCE = 10.0
_MOST_WORKERS = 6


def policies_of(preset: str, shape: WorkerShape) -> PolicySettings:
    """Return the preset's policies for workers of this shape."""
    settings = WorkerSettings(
        report_interval=0.05,
        linger=0.002,
        end_of_reasoning=(END_OF_REASONING,),
        host_tokens=shape.host_blocks * BLOCK_SIZE,
        prefix_caching=shape.prefix_caching,
        predict_every=shape.predict_every,
        move_rounds=4,
        runs_ahead=shape.runs_ahead,
        swaps_beside=shape.swaps_beside,
    )
    costs = Costs(profile=load_profile("llama-8b-a100"))
    return policy_settings(find_preset(preset), costs, worker=settings)


class SimulatedCluster(Operator):
    """All processes of one history, by the names of their hosts."""

    def __init__(self, scenario: SeedScenario) -> None:
        self.scenario = scenario
        kernel, rng = Kernel(), Random(scenario.seed)
        sometimes: Counter[str] = Counter()

        def hit(state: str) -> None:
            sometimes[state] += 1

        self.world = World(
            kernel,
            rng,
            SimulatedNetwork(kernel, rng, hit),
            SimStore(kernel, rng, hit),
            policies_of(scenario.preset, scenario.shape),
            Times(request_timeout=scenario.request_timeout),
            scenario.shape,
            Checker(bound=2.0),
            sometimes,
        )
        self.most = _MOST_WORKERS
        self.processes: dict[str, SimulatedProcess] = {}
        self.skews = dict(zip(names(scenario), scenario.skews, strict=False))
        self._num_lives: Counter[str] = Counter()
        self._roles = {f"w{n}": Role(role) for n, role in enumerate(scenario.roles)}
        self._next_worker = len(scenario.roles)
        for name in names(scenario):
            self.start(name)
        for asking in scenario.requests:
            kernel.at(asking.at, partial(self.submit, asking))

    # --- processes --------------------------------------------------------------------

    def start(self, name: str, *, new_id: bool = False) -> None:
        """Start the next life of a process."""
        world, skew = self.world, self.skews.get(name, 0.0)
        self.world.happened(f"start {name}")
        process: SimulatedProcess
        if name.startswith("g"):
            process = GatewayProcess(world, name, skew)
        elif name.startswith("s"):
            process = SchedulerProcess(world, name, skew)
        elif name == "p0":
            process = PredictorProcess(world, name, skew)
        elif name == "a0":
            process = AutoscalerProcess(world, name, skew, self)
        else:
            self._num_lives[name] += new_id
            life = self._num_lives[name]
            worker_id = f"{name}.{life}" if life else name
            worker = WorkerProcess(world, name, skew, worker_id, self._roles[name])
            worker.gone = partial(self._gone, name)
            process = worker
        self.processes[name] = process

    def end(self, name: str, *, silent: bool = False) -> SimulatedProcess | None:
        """End a process at once; what it had sent and nobody has read is lost."""
        process = self.processes.pop(name, None)
        if process is not None:
            self.world.happened(f"end {name}")
            self._died(process)
            process.kill()
            self.world.network.gone(process, silent=silent)
        return process

    def _died(self, process: SimulatedProcess) -> None:
        if isinstance(process, WorkerProcess):
            self.world.deaths.append(self.world.kernel.now)

    def _gone(self, name: str) -> None:
        self.end(name)

    def pause(self, name: str) -> None:
        """Let a process stand still; keepalive gives it up after a while."""
        process = self.processes.get(name)
        if process is None:
            return
        process.pause()

        def notice() -> None:
            if process.is_paused and process.is_alive:
                self._died(process)
                self.world.network.hangs(process)

        self.world.kernel.after(KEEPALIVE, notice)

    @property
    def workers(self) -> list[WorkerProcess]:
        """The living workers, by name."""
        living = [p for p in self.processes.values() if isinstance(p, WorkerProcess)]
        return sorted(living, key=lambda worker: worker.name)

    @property
    def gateways(self) -> list[GatewayProcess]:
        """The living gateways, by name."""
        living = [p for p in self.processes.values() if isinstance(p, GatewayProcess)]
        return sorted(living, key=lambda gateway: gateway.name)

    @property
    def schedulers(self) -> list[SchedulerProcess]:
        """The living schedulers, by name."""
        living = [p for p in self.processes.values() if isinstance(p, SchedulerProcess)]
        return sorted(living, key=lambda scheduler: scheduler.name)

    # --- the operator -----------------------------------------------------------------

    def ordered(self) -> Mapping[str, int]:
        """Return the ordered workers by role."""
        found = Counter(dict.fromkeys(sorted(role.value for role in self._roles.values()), 0))
        for name, role in self._roles.items():
            process = self.processes.get(name)
            is_leaving = isinstance(process, WorkerProcess) and process.is_draining
            found[role.value] += not is_leaving
        return found

    def scale(self, role: str, number: int) -> None:
        """Start or drain workers of a role until so many are left."""
        there = [w for w in self.workers if w.role.value == role and not w.is_draining]
        for worker in there[max(number, 1) :]:
            self.drain(worker.name)
        for _ in range(number - len(there)):
            self.start_worker(Role(role))

    def start_worker(self, role: Role) -> None:
        """Start one more worker, unless there are enough."""
        if len(self._roles) < self.most:
            name = f"w{self._next_worker}"
            self._next_worker += 1
            self._roles[name] = role
            self.start(name)

    def change_role(self, source: str, target: str, number: int) -> None:
        """Give workers of a role another one, the youngest first."""
        for worker in [w for w in self.workers if w.role.value == source][::-1][:number]:
            self.set_role(worker.name, Role(target))

    def set_role(self, name: str, role: Role) -> None:
        """Order a worker to serve in another role."""
        worker = self.processes.get(name)
        if isinstance(worker, WorkerProcess) and self._keeps_serving(name, role):
            self._roles[name] = role
            worker.run(lambda: worker.set_role(role))

    def drain(self, name: str) -> None:
        """Order a worker to go; it is killed if it takes too long."""
        worker = self.processes.get(name)
        if not isinstance(worker, WorkerProcess) or worker.is_draining:
            return
        if not self._keeps_serving(name, None):
            return
        self._roles.pop(name, None)  # it may have gone, and come back, before
        worker.run(worker.drain)

        def give_up() -> None:
            if self.processes.get(name) is worker:
                self.world.hit("a drain takes too long")
                self.end(name)

        self.world.kernel.after(_DRAIN_PATIENCE, give_up)

    def _keeps_serving(self, name: str, role: Role | None) -> bool:
        """Return whether the rest can serve both stages if this worker changes, or goes."""
        roles = {**self._roles, name: role}
        rest = [r for r in roles.values() if r is not None]
        return any(r.prefills for r in rest) and any(r.decodes for r in rest)

    def is_wanted(self, name: str) -> bool:
        """Return whether a process is to run."""
        return not name.startswith("w") or name in self._roles

    def use_preset(self, preset: str) -> None:
        """Let processes that start from now on follow another preset."""
        self.world.policies = policies_of(preset, self.world.shape)

    # --- clients ----------------------------------------------------------------------

    def submit(self, asking: Asking) -> None:
        """A client asks; it hangs up at its time."""
        world = self.world
        gateway = self.processes.get(f"g{asking.gateway % self.scenario.num_gateways}")
        if not isinstance(gateway, GatewayProcess):
            world.hit("a client finds no gateway")
            return
        prompt, stops = prompt_of(asking), (asking.stops,) if asking.stops else ()
        expected = answer_to(prompt, asking.max_tokens, stops)
        request = Request(
            asking.name,
            MODEL,
            prompt,
            SamplingParams(temperature=0.0, max_tokens=asking.max_tokens, stop_token_ids=stops),
            0.0,
            predicted_output_tokens=float(asking.max_tokens // 2),
            reasons=asking.reasons,
        )

        def asked() -> None:  # a gateway that stands still has not read it
            now = world.kernel.now
            world.record(Asked(asking.name, now, expected, now + world.times.request_timeout))
            gateway.submit(request, is_read=asking.paced)

        gateway.run(asked)
        if asking.leaves:
            world.kernel.after(
                asking.leaves, lambda: gateway.run(partial(gateway.hang_up, asking.name))
            )


def prompt_of(asking: Asking) -> tuple[int, ...]:
    """Return the prompt of a request; the first ``shared`` tokens are those of others."""
    number = int("".join(filter(str.isdigit, asking.name)) or 0)
    common = [place % 50 + 1 for place in range(min(asking.shared, asking.num_prompt))]
    own = [(number * 7 + place) % 50 + 1 for place in range(asking.num_prompt - len(common))]
    return (*common, *own)
