from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.observability.histogram import Histogram, histogram_of


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5))))
def test_every_bucket_counts_what_is_at_most_its_bound(entries: list[tuple[int, int]]) -> None:
    histogram = Histogram((1.0, 4.0, 16.0))
    for value, times in entries:
        histogram.note(value, times)
    figures = histogram.figures("h", {"phase": "p"})
    for bound, name in ((1, "1.0"), (4, "4.0"), (16, "16.0"), (99, "+Inf")):
        assert figures[f"h_bucket{{phase=p,le={name}}}"] == sum(n for value, n in entries if value <= bound)
    assert figures["h_sum{phase=p}"] == sum(value * times for value, times in entries)
    assert figures["h_count{phase=p}"] == sum(times for _, times in entries)


@given(st.lists(st.integers(0, 20)))
def test_values_counted_one_by_one_give_the_same_histogram(values: list[int]) -> None:
    histogram = Histogram((1.0, 8.0))
    for value in values:
        histogram.note(value)
    assert histogram_of(Counter(values), (1.0, 8.0)).figures("h") == histogram.figures("h")
