from __future__ import annotations

import pytest

from dspine_cluster.api.answering.answer_events import Event, merge
from dspine_cluster.api.answering.reasoning import ReasoningParser, Thinking


def read(text: str, thinking: Thinking = Thinking.UNDECIDED) -> tuple[str, str]:
    parser = ReasoningParser(thinking)
    answer = merge([*parser.push(text), *parser.finish()])
    return answer.reasoning, answer.content


@pytest.mark.parametrize(
    ("prompt", "thinking"),
    [
        ("<|im_start|>assistant\n", Thinking.UNDECIDED),
        ("<|im_start|>assistant\n<think>\n", Thinking.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.CLOSED),
        ("<think>\nold\n</think>\n\nyes<|im_end|>\n<|im_start|>assistant\n", Thinking.UNDECIDED),
    ],
)
def test_the_end_of_the_prompt_tells_whether_the_answer_begins_with_reasoning(
    prompt: str, thinking: Thinking
) -> None:
    assert Thinking.after(prompt) is thinking


def test_the_line_ends_of_the_markup_are_neither() -> None:
    assert read("<think>\nfirst\n\nsecond\n</think>\n\nanswer\n") == ("first\n\nsecond", "answer\n")


def test_reasoning_that_the_prompt_opened_needs_no_tag() -> None:
    assert read("why\n</think>\n\nanswer", Thinking.OPEN) == ("why", "answer")


def test_a_tag_that_the_prompt_and_the_model_opened_counts_once() -> None:
    assert read("<think>\nwhy\n</think>\n\nanswer", Thinking.OPEN) == ("why", "answer")


def test_after_closed_reasoning_tags_are_text() -> None:
    assert read("<think>a</think>b", Thinking.CLOSED) == ("", "<think>a</think>b")


def test_tags_in_the_answer_are_text() -> None:
    assert read("Use <think> and </think>.") == ("", "Use <think> and </think>.")
    assert read("<think>a</think><think>b</think>") == ("a", "<think>b</think>")


def test_reasoning_that_never_ends_is_all_there_is() -> None:
    assert read("why </thi", Thinking.OPEN) == ("why </thi", "")


@pytest.mark.parametrize("text", ["<thi", " \n", "", "\n<think", "<b>"])
def test_the_beginning_of_a_tag_that_never_comes_is_text(text: str) -> None:
    assert read(text) == ("", text)


def test_content_leaves_at_once_and_reasoning_as_soon_as_it_is_certain() -> None:
    parser = ReasoningParser(Thinking.OPEN)
    pushed: list[list[Event]] = [parser.push(piece) for piece in ("a\n", "b<", "/think>c", "d\n")]
    assert [(merge(events).reasoning, merge(events).content) for events in pushed] == [
        ("a", ""), ("\nb", ""), ("", "c"), ("", "d\n"),
    ]  # fmt: skip
