from __future__ import annotations

from dspine_cluster.bench.scaling_trace import Phase, ScalingSample, num_turns, phases_of, summarise_scaling


def sample(at_s: float, verifiers: int, waiting: float = 0.0) -> ScalingSample:
    return ScalingSample(at_s, verifiers, 1, verifiers, 1, 4.0, waiting, 3.0)


def test_a_number_turns_where_it_goes_back() -> None:
    assert num_turns([1, 1, 2, 4, 4, 5]) == 0
    assert num_turns([1, 3, 3, 2, 2, 3, 1]) == 3
    assert num_turns([]) == 0


def test_phases_are_told_apart_by_time() -> None:
    phases = [Phase("a", "arithmetic", 1.0, 10.0), Phase("b", "prose", 1.0, 10.0)]
    samples = [
        sample(0, 1),
        sample(9, 1),
        sample(10, 1),
        sample(13, 1, 0.5),
        sample(14, 3, 7.0),
        sample(19, 2),
    ]
    first, second = summarise_scaling(phases, samples)
    assert first["verifiers"] == [1, 1, 1]
    assert first["first_addition"] is None
    assert second["verifiers"] == [1, 3, 2]
    assert second["verifier_turns"] == 1
    assert second["first_addition"] == {"after_s": 4.0, "waiting_requests": 0.5, "running_requests": 4.0}
    assert second["most_waiting_requests"] == 7.0


def test_acceptance_falls_at_a_constant_rate() -> None:
    phases = {phase.name: phase for phase in phases_of(60.0, 600.0)}
    assert phases["moderate load"].requests_per_s == phases["low acceptance"].requests_per_s
    assert phases["constant load"].seconds == 600.0
