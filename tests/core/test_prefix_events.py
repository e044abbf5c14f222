from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.prefix_events import PrefixEvents

KEYS = [bytes([number]) * 16 for number in range(6)]


@given(st.lists(st.lists(st.sampled_from(KEYS), max_size=8), max_size=8))
def test_a_follower_of_the_changes_knows_what_is_present(batches: list[list[bytes]]) -> None:
    events, present, known = PrefixEvents(), set[bytes](), set[bytes]()
    for toggled in batches:
        for key in toggled:
            (events.discard if key in present else events.add)(key)
            present ^= {key}
        added, removed = events.take()
        assert removed <= known
        assert not added & known
        known = (known | added) - removed
        assert known == present == events.present


def test_what_came_and_went_in_between_is_not_reported() -> None:
    events = PrefixEvents()
    events.add(KEYS[0])
    events.discard(KEYS[0])
    assert events.take() == (set(), set())
