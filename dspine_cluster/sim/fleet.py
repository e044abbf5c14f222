"""A fleet of simulated replicas that grows and shrinks, served through the real placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random

from dspine_cluster.core.autoscaling_stats import Observation
from dspine_cluster.core.cluster_records import (
    NO_DRAFTER,
    ClusterEvent,
    ClusterUpdates,
    Cursor,
    Fingerprints,
    Removal,
    ReplicaDelta,
    VerifierRecord,
)
from dspine_cluster.core.placement import PlacementRequest, Placer, Refusal
from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.fleet_report import FleetReport, ScaleEvent
from dspine_cluster.sim.pairing import pair
from dspine_cluster.sim.replica import Replica, Work
from dspine_cluster.sim.scaling_policies import ScalingPolicy
from dspine_cluster.sim.scenario import Scenario
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.workload import Talk

_FOLLOW_S = 0.1
"""How often placement hears of loads, as replicas tell their directory."""
_MAX_REQUESTS = 512
_DECIDE_PERIOD_S = 2.0

MakeReplica = Callable[[str, Simulation, float], Replica]
"""(name, simulation, slow factor)"""


@dataclass(slots=True)
class _Server:
    replica: Replica
    sequence: int = 0
    is_draining: bool = False
    last_load: object = None


class SimulatedFleet:
    """Serves conversations; a policy decides how many replicas there are."""

    def __init__(
        self,
        scenario: Scenario,
        policy: ScalingPolicy,
        make_replica: MakeReplica,
        *,
        seed: int,
        by_load: bool,
    ) -> None:
        """`by_load`: drafters' queues are worked out, not simulated."""
        self.simulation = Simulation()
        self.report = FleetReport()
        self._scenario = scenario
        self._policy = policy
        self._make_replica = make_replica
        self._by_load = by_load
        self._random = Random(seed)
        self._placer = Placer(scenario.placement, Random(seed))
        self._cursor = 0
        self._servers: dict[str, _Server] = {}
        self._drafters: list[SimulatedDrafter] = []
        self._starting_verifiers: list[int] = []
        self._starting_drafters: list[int] = []
        self._targets = (scenario.replicas.initial_verifiers, scenario.replicas.initial_drafters)
        self._numbers = count()
        self._unplaced: list[Work] = []
        self._num_open = 0
        self._accounted_s = 0.0
        self._is_over = False

    def run(self, talks: Iterable[Talk]) -> FleetReport:
        """Serve all that comes, to its end."""
        for _ in range(self._targets[0]):
            self._add_verifier()
        for _ in range(self._targets[1]):
            self._add_drafter()
        for loss in self._scenario.losses:
            self.simulation.after(loss.at_s, partial(self._lose, loss.verifiers))
        self._next_talk(iter(talks))
        self.simulation.after(self._scenario.duration_s, self._finish)
        self._follow()
        self._decide()
        self.simulation.run()
        return self.report

    # Requests

    def _next_talk(self, talks: Iterable[Talk]) -> None:
        iterator = iter(talks)

        def start(talk: Talk) -> None:
            self._arrive(talk, 0)
            schedule()

        def schedule() -> None:
            talk = next(iterator, None)
            if talk is not None:
                delay_s = max(0.0, talk.starts_at_s - self.simulation.now_s)
                self.simulation.after(delay_s, lambda: start(talk))

        schedule()

    def _arrive(self, talk: Talk, turn: int) -> None:
        if self._is_over:
            return
        self._num_open += 1
        self._place(Work(f"{talk.number}/{turn}", talk, turn, self.simulation.now_s, self._end))

    def _place(self, work: Work) -> None:
        uid = f"{next(self._numbers)}"
        keys = next(iter(self._servers.values())).replica.keys(work) if self._servers else ()
        placement = self._placer.choose(PlacementRequest(uid, work.prompt_tokens, keys))
        if isinstance(placement, Refusal):
            self._unplaced.append(work)
            return
        work.uid = uid
        self._servers[placement.verifier_id].replica.submit(work)

    def _end(self, work: Work) -> None:
        self._num_open -= 1
        self._placer.release(work.uid)
        self.report.done.append(work)
        self.report.ended_s.append(self.simulation.now_s)
        talk, turn = work.talk, work.turn + 1
        if turn < len(talk.exchanges):
            self.simulation.after(talk.exchanges[turn].gap_s, lambda: self._arrive(talk, turn))

    def _finish(self) -> None:
        self._account()
        self._is_over = True

    # What placement hears

    def _tell(self, events: list[ClusterEvent]) -> None:
        self._cursor += len(events)
        self._placer.apply(ClusterUpdates(Cursor("simulated", self._cursor), tuple(events)))

    def _follow(self) -> None:
        events: list[ClusterEvent] = []
        for name, server in self._servers.items():
            if not server.replica.has_news:
                continue
            added, removed = server.replica.take_keys()
            load, admitted = server.replica.load(), server.replica.take_admitted()
            if not added and not removed and not admitted and load == server.last_load:
                continue
            server.sequence += 1
            server.last_load = load
            events.append(
                ReplicaDelta(
                    name,
                    "1",
                    server.sequence,
                    load,
                    added=tuple(added),
                    removed=tuple(removed),
                    admitted=tuple(admitted),
                )
            )
        self._tell(events)
        unplaced, self._unplaced = self._unplaced, []
        for work in unplaced:
            self._place(work)
        for name in [n for n, s in self._servers.items() if s.is_draining and not s.replica.num_requests]:
            self._remove(name)
        if self._num_open or not self._is_over:
            self.simulation.after(_FOLLOW_S, self._follow)

    # Replicas

    def _decide(self) -> None:
        if self._is_over:
            return
        if self._by_load:
            for drafter in self._drafters:
                drafter.update_wait()
        now_s = self.simulation.now_s
        observation = Observation(
            now_s,
            *self._targets,
            [s.replica.observe(s.is_draining) for s in self._servers.values()],
            [d.observe(now_s, by_load=self._by_load) for d in self._drafters],
            unplaced_requests=len(self._unplaced),
        )
        num_requests = len(self._unplaced) + sum(s.replica.num_requests for s in self._servers.values())
        numbers = self._policy.decide(observation, num_requests)
        targets = (numbers.verifiers, numbers.drafters)
        if targets != self._targets:
            self._targets = targets
            self.report.scale_events.append(ScaleEvent(now_s, *targets, numbers.reason))
        self._reconcile()
        self.report.counts.append((now_s, len(self._servers), len(self._drafters), float(num_requests)))
        self.simulation.after(_DECIDE_PERIOD_S, self._decide)

    def _reconcile(self) -> None:
        """Start what is missing; cancel or drain what is too much, the emptiest first."""
        self._account()
        verifiers, drafters = self._targets
        serving = [s for s in self._servers.values() if not s.is_draining]
        missing = verifiers - len(serving) - len(self._starting_verifiers)
        for _ in range(missing):
            self._start(
                self._starting_verifiers, self._scenario.replicas.verifier_start_s, self._add_verifier
            )
        for _ in range(-missing):
            if self._starting_verifiers:
                self._starting_verifiers.pop()
                continue
            least = min(serving, key=lambda s: s.replica.num_requests)
            serving.remove(least)
            least.is_draining = True
            self._tell([Removal(least.replica.name)])
        missing = drafters - len(self._drafters) - len(self._starting_drafters)
        for _ in range(missing):
            self._start(self._starting_drafters, self._scenario.replicas.drafter_start_s, self._add_drafter)
        for _ in range(-missing):
            if self._starting_drafters:
                self._starting_drafters.pop()
            else:
                self._drafters.pop()
                self._pair()

    def _start(self, starting: list[int], start_s: float, add: Callable[[], None]) -> None:
        number = next(self._numbers)
        starting.append(number)

        def ready() -> None:
            if number in starting and not self._is_over:
                self._account()
                starting.remove(number)
                add()

        self.simulation.after(start_s, ready)

    def _add_verifier(self) -> None:
        config = self._scenario.replicas
        name = f"verifier-{next(self._numbers)}"
        is_slow = self._random.random() < config.slow_ratio
        replica = self._make_replica(name, self.simulation, config.slow_factor if is_slow else 1.0)
        self._servers[name] = _Server(replica)
        record = VerifierRecord(name, name, "1", Fingerprints(drafter=NO_DRAFTER), _MAX_REQUESTS)
        self._tell([record])
        self._pair()

    def _add_drafter(self) -> None:
        self._drafters.append(SimulatedDrafter(f"drafter-{next(self._numbers)}"))
        self._pair()

    def _pair(self) -> None:
        pair([server.replica for server in self._servers.values()], self._drafters)

    def _remove(self, name: str) -> _Server:
        self._account()
        server = self._servers.pop(name)
        if server.replica.drafter is not None:
            server.replica.drafter.forget(name)
        self._pair()
        return server

    def _lose(self, number: int) -> None:
        """Requests of the lost go on elsewhere, with the tokens they had."""
        names = list(self._servers)
        for name in self._random.sample(names, min(number, len(names))):
            server = self._remove(name)
            self._tell([Removal(name)])
            for work in server.replica.stop():
                self._placer.release(work.uid)
                self._place(work)

    def _account(self) -> None:
        if self._is_over:
            return
        config, now_s = self._scenario.replicas, self.simulation.now_s
        verifiers = len(self._servers) + len(self._starting_verifiers)
        drafters = len(self._drafters) + len(self._starting_drafters)
        gpus = verifiers * config.verifier_gpus + drafters * config.drafter_gpus
        self.report.gpu_s += gpus * (now_s - self._accounted_s)
        self._accounted_s = now_s
