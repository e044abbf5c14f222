"""What ranks tell each other arrives as it was."""

from __future__ import annotations

from array import array
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.engine.batch import Segment
from dspine_cluster.engine.ranks.pipes import Tag, read_message, write_message
from dspine_cluster.engine.ranks.steps import Copy, Step, decode_step, encode_step

numbers = st.integers(0, 2**31 - 1)
segments = st.builds(
    Segment,
    tokens=st.lists(numbers, max_size=20),
    start=numbers,
    pages=st.lists(numbers, max_size=20).map(lambda pages: array("i", pages)),
    state_slot=numbers,
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    blocks = draw(st.lists(segments, max_size=4))
    return Step(
        copies=draw(st.lists(st.tuples(st.sampled_from(Copy), numbers, numbers), max_size=4)),
        blocks=blocks,
        chunks=draw(st.lists(segments, max_size=4)),
        num_pending=draw(st.lists(st.integers(0, 15), min_size=len(blocks), max_size=len(blocks))),
    )


@given(steps())
def test_a_step_survives_encoding(step: Step) -> None:
    assert decode_step(encode_step(step)) == step


@given(st.lists(st.tuples(st.sampled_from(Tag), st.binary(max_size=40)), max_size=5))
def test_messages_arrive_in_order_up_to_the_end(messages: list[tuple[Tag, bytes]]) -> None:
    stream = BytesIO()
    for tag, content in messages:
        write_message(stream, tag, content)
    stream.seek(0)
    assert [read_message(stream) for _ in messages] == messages
    assert read_message(stream) is None


@pytest.mark.parametrize("length", [1, 9, 12])
def test_a_message_that_breaks_off_is_the_end(length: int) -> None:
    stream = BytesIO()
    write_message(stream, Tag.STEP, b"four")
    assert read_message(BytesIO(stream.getvalue()[:length])) is None
