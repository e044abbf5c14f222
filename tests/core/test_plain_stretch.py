from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.plain_stretch import PlainStretch


def test_only_the_last_pass_is_looked_at() -> None:
    stretch = PlainStretch(4)
    stretch.begin([1, 2])
    assert [stretch.skip_pass() for _ in range(4)] == [True, True, True, False]
    assert not stretch.is_on
    assert stretch.take_unseen() == 3


def test_it_goes_on_with_the_same_requests_alone() -> None:
    stretch = PlainStretch(4)
    assert not stretch.goes_on([1, 2])
    stretch.begin((1, 2))
    assert stretch.goes_on([1, 2])
    assert not stretch.goes_on([1])
    assert not stretch.goes_on([1, 2, 3])
    stretch.end()
    assert not stretch.goes_on([1, 2])


@given(st.lists(st.booleans(), max_size=60))
def test_every_pass_is_counted_once(ends: list[bool]) -> None:
    stretch, num_counted = PlainStretch(4), 0
    for is_last in ends:
        if not stretch.is_on:
            stretch.begin([1])
        if is_last:
            stretch.end()
        if not stretch.is_on or not stretch.skip_pass():
            num_counted += 1 + stretch.take_unseen()
    assert num_counted + stretch.take_unseen() == len(ends)
