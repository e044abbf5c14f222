from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.sample_window import SampleWindow

numbers = st.lists(st.integers(0, 20), min_size=1).map(sorted)
limits = st.integers(-5, 25)


@given(numbers, limits)
def test_what_is_counted_from_is_the_last_sample_that_has_left_and_all_later_ones_stay(
    samples: list[int], limit: int
) -> None:
    window = SampleWindow[int]()
    for sample in samples:
        window.add(sample)
    window.forget(lambda sample: sample <= limit)
    left = [sample for sample in samples if sample <= limit]
    kept = left[-1:] + samples[len(left) :]
    assert (window.first, window.latest, len(window)) == (kept[0], kept[-1], len(kept))


@given(numbers, limits)
def test_a_rate_may_begin_at_any_sample_that_is_kept(samples: list[int], limit: int) -> None:
    early = [sample for sample in samples if sample <= limit]
    assert SampleWindow(*samples).last(lambda sample: sample <= limit) == max(early, default=samples[0])
