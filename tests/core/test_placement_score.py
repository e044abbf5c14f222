from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.placement_score import PlacementConfig, miss_token_s, standing_cost_s

CONFIG = PlacementConfig()
loads = st.builds(
    ReplicaLoad,
    running_requests=st.integers(0, 64),
    waiting_requests=st.integers(0, 64),
    queued_tokens=st.integers(0, 100_000),
    prefill_tokens_per_s=st.sampled_from((0.0, 5_000.0, 20_000.0)),
    cache_lifetime_s=st.floats(1.0, 1000.0),
)


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
