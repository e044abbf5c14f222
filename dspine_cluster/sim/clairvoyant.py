"""What a policy would need that knows beforehand who comes: no real one can, but it tells what there is to save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from dspine_cluster.core.autoscaling_stats import Observation
from dspine_cluster.sim.fleet_runs import run_fleet
from dspine_cluster.sim.round_table import RoundTable
from dspine_cluster.sim.scaling_policies import FixedNumbers, Numbers, replicas_at_ratio
from dspine_cluster.sim.scenario import Loss, Scenario

_DRAFTERS_OF_PLENTY = 0.25


class Clairvoyant:
    """Starts verifiers as long before they are needed, or others are lost, as they take to start, and keeps none that
    is not needed."""

    def __init__(
        self,
        load: Sequence[float],
        losses: Sequence[Loss],
        start_s: float,
        *,
        utilisation: float,
        drafters_per_verifier: float,
    ) -> None:
        """`load` are the verifiers that each second of the scenario would keep busy, as `known_load` tells."""
        ahead = ceil(start_s) + 1
        padded = list(load) + [load[-1]] * ahead
        self._needed = [max(1, ceil(max(padded[i : i + ahead]) / utilisation)) for i in range(len(load))]
        for loss in losses:
            for at in range(max(0, int(loss.at_s) - ahead), min(len(load), int(loss.at_s))):
                self._needed[at] += loss.verifiers
        self._drafters_per_verifier = drafters_per_verifier

    def decide(self, observation: Observation, num_requests: int) -> Numbers:
        verifiers = self._needed[min(len(self._needed) - 1, int(observation.now_s))]
        drafters = replicas_at_ratio(verifiers, self._drafters_per_verifier)
        return Numbers(verifiers, drafters, "known beforehand")


def known_load(scenario: Scenario, seed: int, table: RoundTable) -> list[float]:
    """Verifiers that each second would keep busy, from a run with plenty of them: every request takes its part of a
    batch whose rounds are as long as the objective allows, and what computing its prompt takes."""
    plenty = FixedNumbers(2 * max(scenario.fixed_rival.verifiers), _DRAFTERS_OF_PLENTY)
    report = run_fleet(scenario, plenty, "fluid", seed, table)
    token_s = scenario.objective.inter_token_s
    most = scenario.replicas.limits.max_running_requests
    parts = [token_s / table.largest_batch(kind, token_s, most) for kind in range(len(scenario.kinds))]
    changes = [0.0] * (ceil(scenario.duration_s) + 1)
    for work in report.done:
        tokens = work.talk.exchanges[work.turn].output_tokens
        prompt_s = (work.prompt_tokens - work.cached_tokens) * scenario.costs.token_s
        seconds = ceil(tokens * token_s)
        busy = (tokens * parts[work.talk.kind] + prompt_s) / seconds
        start = min(len(changes) - 1, int(work.arrived_s))
        changes[start] += busy
        changes[min(len(changes) - 1, start + seconds)] -= busy
    return list(accumulate(changes[:-1]))
