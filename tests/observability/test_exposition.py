from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dspine_cluster.observability.exposition import ReplicaFigures, exposition
from dspine_cluster.observability.histogram import Histogram


def families(*replicas: ReplicaFigures) -> dict[str, object]:
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(replicas).decode())
        for sample in family.samples
    }


def types(*replicas: ReplicaFigures) -> dict[str, str]:
    text = exposition(replicas).decode()
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def test_figures_of_several_replicas_stand_below_one_head() -> None:
    first = ReplicaFigures("a", "m", {"rounds_total": 3, "draft_fallback_total{reason=late}": 2})
    second = ReplicaFigures("b", "m", {"rounds_total": 4})
    assert families(first, second) == {
        "dspine_rounds_total[('model', 'm'), ('replica', 'a')]": 3.0,
        "dspine_rounds_total[('model', 'm'), ('replica', 'b')]": 4.0,
        "dspine_draft_fallback_total[('model', 'm'), ('reason', 'late'), ('replica', 'a')]": 2.0,
    }
    assert exposition([first, second]).count(b"# TYPE dspine_rounds_total counter") == 1


def test_a_histogram_is_read_back_as_one() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.note(1.5, 3)
    replica = ReplicaFigures("a", "m", histogram.figures("acceptance_length"))
    assert types(replica) == {"dspine_acceptance_length": "histogram"}
    values = {name.partition("[")[0]: value for name, value in families(replica).items() if "1.0" not in name}
    assert values["dspine_acceptance_length_sum"] == 4.5
    assert values["dspine_acceptance_length_count"] == values["dspine_acceptance_length_bucket"] == 3.0


def test_gauges_are_gauges() -> None:
    assert types(ReplicaFigures("a", "m", {"page_usage_ratio": 0.5})) == {"dspine_page_usage_ratio": "gauge"}


def test_figures_that_nobody_knows_are_left_out() -> None:
    assert families(ReplicaFigures("a", "m", {"of_tomorrow_total": 1})) == {}


def test_labels_are_escaped() -> None:
    replica = ReplicaFigures("a", 'a "model"\\', {"rounds_total": 1})
    assert list(families(replica)) == [
        """dspine_rounds_total[('model', 'a "model"\\\\'), ('replica', 'a')]"""
    ]
