"""A cluster of simulated verifiers that serves a trace of conversations through a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.page_hash import page_keys
from dspine_cluster.core.placement_score import PlacementConfig
from dspine_cluster.sim.conversations import Turn, prompt_of, text_after
from dspine_cluster.sim.routing import JointPlacement, PowerOfTwo, RoundRobin, Router, StickyHash
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.verifier import ROOT, Job, SimulatedVerifier, VerifierLimits
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions

POLICIES = ("joint", "power_of_two", "sticky", "round_robin")
_FOLLOW_PERIOD_S = 0.1


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is simulated."""

    num_verifiers: int = 8
    verifiers_per_node: int = 2
    """With one drafter on each node."""
    num_ingresses: int = 2
    limits: VerifierLimits = field(default_factory=VerifierLimits)
    costs: CostModel = field(default_factory=CostModel)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """What became of a request."""

    arrived_s: float
    ttft_s: float
    """Time to first token, from its arrival at the ingress."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    verifier: int


class SimulatedCluster:
    """Serves the turns of a trace: each comes a gap after the end of the answer before it."""

    def __init__(self, settings: ClusterSettings, policy: str) -> None:
        self.simulation = Simulation()
        self.served: list[Served] = []
        random = Random(settings.seed)
        self.verifiers = [
            SimulatedVerifier(self.simulation, settings.limits, settings.costs, Random(random.random()))
            for _ in range(settings.num_verifiers)
        ]
        self._router = self._make_router(settings, policy, random)
        self._until_s = inf
        self._uids = count()
        self._num_open = 0

    def run(self, first_turns: Sequence[Turn], until_s: float = inf) -> None:
        """Serve all requests that arrive before `until_s`."""
        self._until_s = until_s
        for turn in first_turns:
            self._schedule(turn, ())
        self._follow()
        self.simulation.run()

    def _follow(self) -> None:
        self._router.follow(self.simulation.now_s)
        if self._num_open:
            self.simulation.after(_FOLLOW_PERIOD_S, self._follow)

    def _schedule(self, turn: Turn, before: tuple[int, ...]) -> None:
        if self.simulation.now_s + turn.gap_s < self._until_s:
            self._num_open += 1
            self.simulation.after(turn.gap_s, lambda: self._arrive(turn, before))

    def _arrive(self, turn: Turn, before: tuple[int, ...]) -> None:
        prompt = prompt_of(before, turn)
        uid = str(next(self._uids))
        arrived_s = self.simulation.now_s
        number = self._router.choose(uid, turn.conversation, len(prompt), page_keys(prompt, ROOT))
        ttft_s = 0.0

        def on_first() -> None:
            nonlocal ttft_s
            ttft_s = self.simulation.now_s - arrived_s

        def on_end(cached_tokens: int) -> None:
            self._router.release(uid)
            self.served.append(
                Served(arrived_s, ttft_s, len(prompt), cached_tokens, len(turn.output_ids), number)
            )
            for following in turn.next:
                self._schedule(following, text_after(before, turn))
            self._num_open -= 1

        request = GenerateRequest(
            uid,
            prompt,
            SamplingParams(),
            StopConditions(max_tokens=len(turn.output_ids)),
            message_boundaries=turn.boundaries,
        )
        self.verifiers[number].submit(Job(uid, request, turn.output_ids, on_first, on_end))

    def _make_router(self, settings: ClusterSettings, policy: str, random: Random) -> Router:
        match policy:
            case "round_robin":
                return RoundRobin(settings.num_verifiers)
            case "power_of_two":
                return PowerOfTwo(self.verifiers, random)
            case "sticky":
                return StickyHash(settings.num_verifiers)
        assert policy == "joint", policy
        return JointPlacement(
            self.verifiers,
            settings.placement,
            random,
            num_ingresses=settings.num_ingresses,
            verifiers_per_node=settings.verifiers_per_node,
        )
