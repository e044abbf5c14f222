from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.answer_events import (
    Call,
    CallArguments,
    CallStart,
    Content,
    Event,
    Merged,
    Reasoning,
    merge,
    split_certain,
)


def test_pieces_of_each_kind_and_of_each_call_are_joined() -> None:
    events: list[Event] = [
        Reasoning("a"), CallArguments(0, "}"), Content("c"), CallStart(1, "f"), Reasoning("b"), CallArguments(1, "{"),
        CallArguments(1, "}"), Content("d"),
    ]  # fmt: skip
    assert merge(events) == Merged("ab", "cd", [Call(0, None, "}"), Call(1, "f", "{}")])


@given(st.text("<tag>"), st.sampled_from(["<tag>", "<<t", "tt"]))
def test_what_is_held_is_the_longest_beginning_of_the_tag(text: str, tag: str) -> None:
    text = text.replace(tag, "")
    certain, held = split_certain(text, tag)
    assert certain + held == text
    assert tag.startswith(held)
    assert not any(text.endswith(tag[:length]) for length in range(len(held) + 1, len(tag)))
