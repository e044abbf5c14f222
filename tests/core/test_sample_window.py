from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.sample_window import SampleWindow


@given(st.lists(st.integers(0, 20), min_size=1).map(sorted), st.integers(-5, 25))
def test_what_is_counted_from_is_the_last_sample_that_has_left_and_all_later_ones_stay(
    samples: list[int], start: int
) -> None:
    window = SampleWindow[int]()
    for sample in samples:
        window.add(sample)
    window.forget(lambda sample: sample <= start)
    left = [sample for sample in samples if sample <= start]
    kept = left[-1:] + samples[len(left) :]
    assert list(reversed(window)) == kept[::-1]
    assert (window.first, window.latest, len(window)) == (kept[0], kept[-1], len(kept))
