from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.answer_events import CallArguments, CallStart, Content, Event, Reasoning
from dspine_cluster.api.responses_api.bodies import OutputItem, ResponseEvent
from dspine_cluster.api.responses_api.events import OutputWriter

ANSWER: list[Event] = [
    Reasoning("Let me "),
    Reasoning("see."),
    Content("I "),
    Content("look."),
    CallStart(0, "find"),
    CallArguments(0, '{"a"'),
    CallArguments(0, ": 1}"),
    CallStart(1, "stop"),
    CallArguments(1, "{}"),
]


def written(rounds: list[list[Event]]) -> tuple[list[OutputItem], list[ResponseEvent]]:
    writer = OutputWriter()
    events = [event for events in rounds for event in writer.push(events)]
    return writer.items, events + writer.finish("completed")


def accumulated(events: list[ResponseEvent]) -> list[dict[str, str]]:
    """The texts of all items as a client puts them together from deltas."""
    items: list[dict[str, str]] = []
    for event in events:
        if event.type == "response.output_item.added":
            assert event.item is not None
            items.append({"type": event.item.type, "text": ""})
        elif event.type.endswith(".delta"):
            items[event.output_index]["text"] += event.delta
    return items


@given(st.lists(st.integers(0, len(ANSWER)), max_size=5))
def test_items_do_not_depend_on_how_rounds_part_them(places: list[int]) -> None:
    bounds = [0, *sorted(places), len(ANSWER)]
    rounds = [ANSWER[start:end] for start, end in pairwise(bounds)]
    items, events = written(rounds)
    assert accumulated(events) == [
        {"type": "reasoning", "text": "Let me see."},
        {"type": "message", "text": "I look."},
        {"type": "function_call", "text": '{"a": 1}'},
        {"type": "function_call", "text": "{}"},
    ]
    assert [item.status for item in items] == ["completed"] * 4
    assert [item.arguments for item in items[2:]] == ['{"a": 1}', "{}"]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_each_item_is_opened_filled_and_closed_in_openai_s_order() -> None:
    _, events = written([ANSWER[:6], ANSWER[6:7]])
    assert [event.type.removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


def test_an_event_keeps_what_it_told() -> None:
    _, events = written([ANSWER[2:4]])
    added, *_, done = [event.item for event in events if event.item is not None]
    assert (added.status, added.content) == ("in_progress", [])
    assert (done.status, done.content[0].text) == ("completed", "I look.")


def test_an_answer_without_text_is_an_empty_message() -> None:
    [item], _ = written([[]])
    assert (item.type, item.content[0].text) == ("message", "")


def test_an_item_that_was_cut_off_is_incomplete() -> None:
    writer = OutputWriter()
    writer.push(ANSWER[:3])
    writer.finish("incomplete")
    assert [item.status for item in writer.items] == ["completed", "incomplete"]
