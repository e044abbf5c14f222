from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.placement_score import PlacementConfig, miss_token_s, pressure, standing_cost_s
from dspine_cluster.errors import ConfigError

CONFIG = PlacementConfig()
loads = st.builds(
    ReplicaLoad,
    running_requests=st.integers(0, 64),
    waiting_requests=st.integers(0, 64),
    queued_tokens=st.integers(0, 100_000),
    prefill_tokens_per_s=st.sampled_from((0.0, 5_000.0, 20_000.0)),
    cache_lifetime_s=st.floats(1.0, 1000.0),
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prefill_tokens_per_s": 0.0}, "prefill_tokens_per_s"),
        ({"request_s": -0.1}, "request_s"),
        ({"num_least_loaded": 0}, "num_least_loaded"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlacementConfig(**values)


@given(loads, st.integers(0, 10_000), st.integers(1, 100))
def test_more_work_costs_more(load: ReplicaLoad, tokens: int, requests: int) -> None:
    nothing = standing_cost_s(load, 0, 0, CONFIG)
    assert (
        nothing <= standing_cost_s(load, tokens, 0, CONFIG) < standing_cost_s(load, tokens, requests, CONFIG)
    )


@given(loads)
def test_a_miss_costs_more_than_its_prefill(load: ReplicaLoad) -> None:
    rate = load.prefill_tokens_per_s or CONFIG.prefill_tokens_per_s
    assert miss_token_s(load, CONFIG) > 1 / rate


def test_a_miss_costs_more_where_the_cache_is_full() -> None:
    costs_s = [
        miss_token_s(ReplicaLoad(cache_lifetime_s=seconds), CONFIG) for seconds in (5.0, 500.0, float("inf"))
    ]
    assert costs_s == sorted(costs_s, reverse=True)
    assert len(set(costs_s)) == 3


def test_a_cache_from_which_all_was_evicted_is_under_the_most_pressure() -> None:
    """As where running requests need all pages: what is cached there lives for no time at all."""
    assert pressure(ReplicaLoad(cache_lifetime_s=0.0), CONFIG) == CONFIG.max_pressure
    assert pressure(ReplicaLoad(cache_lifetime_s=0.0), PlacementConfig(max_pressure=0.0)) == 0.0


@given(st.floats(0, 1e6))
def test_the_shorter_a_cache_lives_the_more_pressure_it_is_under(seconds: float) -> None:
    here, longer = (pressure(ReplicaLoad(cache_lifetime_s=s), CONFIG) for s in (seconds, seconds + 1.0))
    assert longer <= here <= CONFIG.max_pressure
    assert here == pytest.approx(min(CONFIG.max_pressure, CONFIG.reuse_s / max(seconds, 1e-9)))
