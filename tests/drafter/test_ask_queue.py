"""Drafts wait in the order in which they were asked for, each request's newest in its oldest place."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.drafter.ask_queue import AskQueue
from tests.drafts import DraftItem, draft_of


def ask(row: int, number: int) -> DraftItem:
    return DraftItem(row, number, 1, 5, 15, 0.5 * row, None, 3)


@given(
    st.integers(1, 6),
    st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)
        | st.integers(0, 9)
        | st.just("take"),
        max_size=20,
    ),
)
def test_it_gives_what_a_queue_of_one_ask_after_the_other_gives(
    max_blocks: int, steps: list[list[int] | int | str]
) -> None:
    queue, expected = AskQueue(max_blocks), dict[int, int]()
    for number, step in enumerate(steps):
        if isinstance(step, list):
            refused = []
            for row in step:
                if row in expected or len(expected) < max_blocks:
                    expected[row] = number
                else:
                    refused.append(row)
            is_refused = queue.add(step, draft_of([ask(row, number) for row in step]))
            given_back = [] if is_refused is None else np.array(step)[is_refused].tolist()
            assert given_back == refused
        elif isinstance(step, int):
            queue.discard(step)
            expected.pop(step, None)
        else:
            rows = queue.take(3)
            assert rows == list(expected)[:3]
            if rows:
                asked = queue.asked(rows)
                assert asked.uids.tolist() == rows
                assert asked.rounds.tolist() == [expected.pop(row) for row in rows]
                assert asked.temperatures.tolist() == [0.5 * row for row in rows]
        assert len(queue) == len(expected)
