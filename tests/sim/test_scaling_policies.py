from __future__ import annotations

from dspine_cluster.core.autoscaling_stats import Observation
from dspine_cluster.sim.scaling_policies import FixedNumbers, ServeDefault, ServeSettings


def observe(now_s: float, verifiers: int) -> Observation:
    return Observation(now_s, verifiers, 1, (), ())


def follow(policy: ServeDefault, requests: dict[range, int], verifiers: int) -> list[int]:
    numbers = []
    for seconds, count in requests.items():
        for now in seconds:
            verifiers = policy.decide(observe(float(now), verifiers), count).verifiers
            numbers.append(verifiers)
    return numbers


def test_serve_waits_its_delay_and_averages_over_its_look_back() -> None:
    policy = ServeDefault(ServeSettings(10, upscale_delay_s=20, look_back_period_s=10))
    numbers = follow(policy, {range(30): 20, range(30, 120): 80}, 2)
    first = next(i for i, n in enumerate(numbers) if n > 2)
    assert 50 <= first <= 53  # wanted from the next average on, then for 20 s
    assert numbers[-1] == 8


def test_serve_goes_down_only_when_it_was_wanted_all_the_time() -> None:
    policy = ServeDefault(ServeSettings(10, downscale_delay_s=60, upscale_delay_s=0, look_back_period_s=1))
    numbers = follow(policy, {range(30): 20, range(30, 32): 50, range(32, 85): 20, range(85, 130): 20}, 5)
    assert numbers[84] == 5
    assert numbers[-1] == 2


def test_drafters_are_kept_at_a_ratio_rounded_up() -> None:
    numbers = FixedNumbers(6, 0.25).decide(observe(0.0, 1), 0)
    assert (numbers.verifiers, numbers.drafters) == (6, 2)
