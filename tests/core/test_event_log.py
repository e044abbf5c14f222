from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.event_log import EventLog


@given(st.integers(0, 20), st.integers(1, 10), st.integers(-2, 25))
def test_a_reader_gets_all_it_missed_or_is_told_that_some_is_gone(
    num_events: int, max_events: int, read: int
) -> None:
    log: EventLog[int] = EventLog(max_events)
    for number in range(1, num_events + 1):
        log.append(number)
    missed = list(range(read + 1, num_events + 1))
    has_all = 0 <= read <= num_events and len(missed) <= max_events
    assert log.after(read) == (missed if has_all else None)
    assert log.last == num_events
