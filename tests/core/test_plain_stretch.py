from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.plain_stretch import PlainStretch


def test_one_pass_in_so_many_is_looked_at() -> None:
    stretch = PlainStretch(4)
    stretch.begin([1, 2])
    assert [stretch.skip_pass() for _ in range(8)] == [True, True, True, False] * 2


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
def test_however_often_stretches_end_passes_are_looked_at_as_often(ends: list[bool]) -> None:
    stretch, num_seen = PlainStretch(4), 0
    for is_last in ends:
        stretch.begin([1])
        num_seen += not stretch.skip_pass()
        if is_last:
            stretch.end()
    assert num_seen == len(ends) // 4
