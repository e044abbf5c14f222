from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from dspine_cluster.api.answering.answers import AnswerHead
from dspine_cluster.api.answering.choice_details import AnswerOptions
from dspine_cluster.api.answering.completions import CompletionPrompt, prompts_alone, text_events, whole_text
from dspine_cluster.api.bodies import TextCompletion
from dspine_cluster.types import FinishReason, RoundOutput, Usage
from tests.api.fakes import NAMES

OPTIONS = AnswerOptions(NAMES)
PROMPTS = [CompletionPrompt((1, 2, 3)), CompletionPrompt((1, 2, 3, 4))]
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


async def events_of(
    options: AnswerOptions, prompts: Sequence[CompletionPrompt] = PROMPTS
) -> list[TextCompletion]:
    """The events of a stream, as a client reads them."""
    events = [event async for event in text_events(HEAD, outputs(), options, prompts)]
    return [
        TextCompletion.model_validate_json(event) if isinstance(event, bytes) else event for event in events
    ]


async def outputs() -> AsyncGenerator[tuple[int, RoundOutput], None]:
    for item in ROUNDS:
        yield item


async def test_each_round_with_text_is_one_event() -> None:
    events = await events_of(OPTIONS)
    assert [(c.index, c.text, c.finish_reason) for event in events for c in event.choices] == [
        (0, "a", None),
        (0, "b", "stop"),
        (1, "c", "length"),
    ]


async def test_the_whole_answer_is_the_streamed_one() -> None:
    whole = await whole_text(HEAD, outputs(), OPTIONS, PROMPTS)
    events = await events_of(replace(OPTIONS, include_usage=True))
    assert [choice.text for choice in whole.choices] == ["ab", "c"]
    assert whole.usage == events[-1].usage


async def test_prompts_are_counted_each_and_once() -> None:
    for num_choices, prompt_tokens in ((1, 7), (2, 3)):
        options = replace(OPTIONS, num_choices=num_choices)
        usage = (await whole_text(HEAD, outputs(), options, PROMPTS)).usage
        assert usage is not None
        assert usage.prompt_tokens == prompt_tokens


async def test_usage_so_far_grows_event_by_event() -> None:
    options = replace(OPTIONS, include_usage=True, continuous_usage=True)
    events = await events_of(options)
    totals = [event.usage.completion_tokens for event in events if event.usage is not None]
    assert totals == [0, 2, 4, 4]  # these rounds tell of no usage before the last one of a completion


async def test_an_echoed_prompt_begins_each_of_its_completions() -> None:
    prompts = [CompletionPrompt((1,), "one "), CompletionPrompt((2,), "two ")]
    whole = await whole_text(HEAD, outputs(), OPTIONS, prompts)
    events = await events_of(OPTIONS, prompts)
    streamed = ["", ""]
    for event in events:
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == streamed == ["one ab", "two c"]


async def test_a_prompt_alone_has_no_output() -> None:
    whole = await whole_text(HEAD, prompts_alone(outputs()), OPTIONS, PROMPTS)
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == [("", "length")] * 2
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 0)


async def test_the_ids_of_a_prompt_come_once() -> None:
    options = replace(OPTIONS, token_ids=True)
    events = await events_of(options)
    choices = [choice for event in events for choice in event.choices]
    assert [choice.token_ids for choice in choices] == [[1], [2], [1, 2]]
    ids = [choice.model_dump(exclude_unset=True).get("prompt_token_ids") for choice in choices]
    assert ids == [[1, 2, 3], None, [1, 2, 3, 4]]
