"""What ranks tell each other arrives as it was."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.ranks.pipes import Tag, read_message, write_message
from dspine_cluster.engine.ranks.steps import Copy, Step, decode_step, encode_step

numbers = st.integers(0, 2**31 - 1)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    starts = [draw(st.integers(0, 100)) for _ in lengths]
    num_blocks = draw(st.integers(0, len(lengths)))
    segments = [
        Segment(
            draw(st.lists(numbers, min_size=length, max_size=length)),
            start,
            draw(st.lists(st.integers(0, 1000), min_size=8, max_size=8)),
            state_slot,
        )
        for length, start, state_slot in zip(lengths, starts, draw(st.permutations(range(9))), strict=False)
    ]
    return Step(
        copies=draw(st.lists(st.tuples(st.sampled_from(Copy), numbers, numbers), max_size=4)),
        packed=PackedRows.of(segments[:num_blocks], segments[num_blocks:]),
        num_pending=draw(st.lists(st.integers(0, 15), min_size=num_blocks, max_size=num_blocks)),
    )


@given(steps())
def test_a_step_survives_encoding(step: Step) -> None:
    copy = decode_step(encode_step(step))
    assert (copy.copies, copy.num_pending) == (step.copies, step.num_pending)
    sent, received = step.packed, copy.packed
    assert (received.columns == sent.columns).all()
    assert (received.num_blocks, received.tokens) == (sent.num_blocks, sent.tokens)
    assert (received.page_table == sent.page_table).all()


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
