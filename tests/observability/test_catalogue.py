from __future__ import annotations

from dspine_cluster.observability.catalogue import METRICS, Kind


def test_names_tell_the_kind() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM), metric.name


def test_every_name_is_there_once() -> None:
    names = [name for metric in METRICS for name in metric.figure_names]
    assert len(names) == len(set(names))


def test_names_of_times_and_ratios_carry_their_unit() -> None:
    for metric in METRICS:
        parts = metric.figure.removesuffix("_total").split("_")
        assert ("seconds" in parts) == (metric.unit == "seconds"), metric.name
        assert (parts[-1] == "ratio") == (metric.unit == "ratio"), metric.name


def test_bounds_ascend() -> None:
    for metric in METRICS:
        assert list(metric.bounds) == sorted(set(metric.bounds))
