"""How good a run was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from dspine_cluster.sim.fleet_report import FleetReport
from dspine_cluster.sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Score:
    """Over all requests that came after the warm-up; GPU hours are of the whole time."""

    num_requests: float
    objective_met_ratio: float
    gpu_hours: float
    goodput_tokens_per_s: float
    """Tokens of requests that met the objective."""
    cached_token_ratio: float
    ttft_p50_s: float
    ttft_p99_s: float
    inter_token_p50_s: float
    inter_token_p99_s: float
    scale_events: float

    def key(self, met_ratio: float) -> tuple[bool, float]:
        """The smaller the better: first those that meet the objective often enough, by cost; others by how often."""
        if self.objective_met_ratio >= met_ratio:
            return False, self.gpu_hours
        return True, -self.objective_met_ratio


def score(scenario: Scenario, report: FleetReport) -> Score:
    """Judge a run by the scenario's objective."""
    objective = scenario.objective
    num_met = output = prompt = cached = 0
    ttfts, gaps = [], []
    for work, ended_s in zip(report.done, report.ended_s, strict=True):
        if work.arrived_s < scenario.warm_up_s:
            continue
        assert work.first_s is not None
        exchange = work.talk.exchanges[work.turn]
        ttft_s = work.first_s - work.arrived_s
        gap_s = max(0.0, ended_s - work.first_s) / max(1, exchange.output_tokens - 1)
        ttfts.append(ttft_s)
        gaps.append(gap_s)
        prompt += work.prompt_tokens
        cached += work.cached_tokens
        if ttft_s <= objective.ttft_s and gap_s <= objective.inter_token_s:
            num_met += 1
            output += exchange.output_tokens
    count = max(1, len(ttfts))
    ttfts.sort()
    gaps.sort()
    return Score(
        num_requests=len(ttfts),
        objective_met_ratio=num_met / count,
        gpu_hours=report.gpu_s / 3600,
        goodput_tokens_per_s=output / (scenario.duration_s - scenario.warm_up_s),
        cached_token_ratio=cached / max(1, prompt),
        ttft_p50_s=_at(ttfts, 0.5),
        ttft_p99_s=_at(ttfts, 0.99),
        inter_token_p50_s=_at(gaps, 0.5),
        inter_token_p99_s=_at(gaps, 0.99),
        scale_events=len(report.scale_events),
    )


def pool(scores: Sequence[Score]) -> Score:
    """The mean of several runs, each with the same weight."""
    return Score(*(sum(getattr(s, f.name) for s in scores) / len(scores) for f in fields(Score)))


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
