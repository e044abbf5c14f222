"""An autoscaled application under load: the short form of `python -m dspine_serve.live_autoscaling`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dspine_cluster.bench.scaling_trace import Phase
from dspine_serve.live_autoscaling import Scaled, run_phases, scaled_application
from dspine_serve.local_cluster import wait_until

pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]

LONG_S = 600.0


@pytest.fixture(scope="module")
def scaled() -> Iterator[Scaled]:
    with scaled_application(max_verifiers=2, down_hold_s=4.0) as running:
        yield running


def test_a_load_step_adds_a_verifier_and_its_end_takes_it_away_with_reasons(scaled: Scaled) -> None:
    step = [Phase("load step", "arithmetic", 2.0, LONG_S)]
    samples, failures = asyncio.run(run_phases(scaled, step, is_over=lambda sample: sample.verifiers == 2))
    assert not failures
    assert samples[0].verifiers == 1
    assert samples[-1].verifiers == 2
    low = [Phase("low load", "arithmetic", 0.05, LONG_S)]
    samples, failures = asyncio.run(run_phases(scaled, low, is_over=lambda sample: sample.verifiers == 1))
    assert not failures
    assert samples[-1].verifiers == 1
    added = next(reason for reason in scaled.reasons() if "verifiers 1 -> 2" in reason)
    assert "tokens/s ahead" in added
    assert "acceptance length" in added
    wait_until(lambda: any("verifiers 2 -> 1" in reason for reason in scaled.reasons()))

    def changes() -> dict[str, float]:
        families = text_string_to_metric_families(httpx.get(f"{scaled.url}/metrics").text)
        return {
            sample.labels["direction"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "dspine_autoscaling_changes_total" and sample.labels["deployment"] == "verifier"
        }

    wait_until(lambda: changes().get("up", 0) >= 1 and changes().get("down", 0) >= 1)
