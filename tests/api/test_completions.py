from __future__ import annotations

from collections.abc import AsyncGenerator

from dspine_cluster.api.answers import AnswerHead
from dspine_cluster.api.completions import text_events, whole_text
from dspine_cluster.types import FinishReason, RoundOutput, Usage

HEAD = AnswerHead("model", "cmpl-1", 1)
ROUNDS = [
    (0, RoundOutput((1,), "a")),
    (1, RoundOutput((1,), "")),
    (
        0,
        RoundOutput(
            (2,), "b", finish_reason=FinishReason.STOP, usage=Usage(prompt_tokens=3, output_tokens=2)
        ),
    ),
    (
        1,
        RoundOutput(
            (2,), "c", finish_reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=4, output_tokens=2)
        ),
    ),
]


async def outputs() -> AsyncGenerator[tuple[int, RoundOutput], None]:
    for item in ROUNDS:
        yield item


async def test_each_round_with_text_is_one_event() -> None:
    events = [event async for event in text_events(HEAD, outputs(), 1, include_usage=False)]
    assert [(c.index, c.text, c.finish_reason) for event in events for c in event.choices] == [
        (0, "a", None),
        (0, "b", "stop"),
        (1, "c", "length"),
    ]


async def test_the_whole_answer_is_the_streamed_one() -> None:
    whole = await whole_text(HEAD, outputs(), 1)
    events = [event async for event in text_events(HEAD, outputs(), 1, include_usage=True)]
    assert [choice.text for choice in whole.choices] == ["ab", "c"]
    assert whole.usage == events[-1].usage


async def test_prompts_are_counted_each_and_once() -> None:
    for num_choices, prompt_tokens in ((1, 7), (2, 3)):
        usage = (await whole_text(HEAD, outputs(), num_choices)).usage
        assert usage is not None
        assert usage.prompt_tokens == prompt_tokens
