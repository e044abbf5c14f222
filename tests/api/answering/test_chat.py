from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from dspine_cluster.api.answering.answers import AnswerHead
from dspine_cluster.api.answering.chat import StartedChat, chat_events, whole_chat
from dspine_cluster.api.answering.choice_details import AnswerOptions
from dspine_cluster.api.bodies import ChatCompletionChunk
from dspine_cluster.types import FinishReason, Logprobs, RoundOutput, Usage
from tests.api.fakes import NAMES

HEAD = AnswerHead("model", "chatcmpl-1", 1)
OPTIONS = AnswerOptions(NAMES)


async def outputs(*rounds: tuple[int, RoundOutput]) -> AsyncGenerator[tuple[int, RoundOutput], None]:
    for item in rounds:
        yield item


async def events_of(
    options: AnswerOptions,
    rounds: AsyncGenerator[tuple[int, RoundOutput], None],
    prompt_ids: tuple[int, ...] = (),
) -> list[ChatCompletionChunk]:
    """The events of a stream, as a client reads them."""
    events = [event async for event in chat_events(HEAD, StartedChat(rounds, prompt_ids=prompt_ids), options)]
    return [
        ChatCompletionChunk.model_validate_json(event) if isinstance(event, bytes) else event
        for event in events
    ]


def last(text: str, index: int = 0) -> tuple[int, RoundOutput]:
    usage = Usage(prompt_tokens=5, output_tokens=2)
    return index, RoundOutput((2,), text, finish_reason=FinishReason.STOP, usage=usage)


async def test_each_choice_starts_with_its_role() -> None:
    rounds = outputs((1, RoundOutput((1,), "a")), (0, RoundOutput((1,), "b")), last("c", 1), last("d", 0))
    events = await events_of(replace(OPTIONS, num_choices=2), rounds)
    first: dict[int, object] = {}
    for event in events:
        [choice] = event.choices
        first.setdefault(choice.index, choice.delta.model_dump(exclude_unset=True))
    assert first == {index: {"role": "assistant", "content": ""} for index in (0, 1)}


async def test_a_round_whose_text_is_still_held_back_sends_no_event() -> None:
    rounds = outputs((0, RoundOutput((1,), "")), (0, RoundOutput((1,), "a")), last(""))
    events = await events_of(OPTIONS, rounds)
    deltas = [event.choices[0].delta.model_dump(exclude_unset=True) for event in events]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {}]


async def test_usage_is_the_last_event_where_it_is_asked_for() -> None:
    for include_usage in (False, True):
        rounds = outputs(last("a"))
        options = replace(OPTIONS, include_usage=include_usage)
        events = await events_of(options, rounds)
        assert (events[-1].usage is not None) == include_usage
        assert (events[-1].choices == []) == include_usage


async def test_the_whole_answer_is_the_streamed_one() -> None:
    rounds = [(0, RoundOutput((1,), "a")), last("b")]
    whole = await whole_chat(HEAD, StartedChat(outputs(*rounds)), OPTIONS)
    options = replace(OPTIONS, include_usage=True)
    events = await events_of(options, outputs(*rounds))
    text = "".join(choice.delta.content for event in events for choice in event.choices)
    assert whole.choices[0].message.content == text
    assert whole.usage == events[-1].usage


async def test_finish_reasons_are_written_as_openai_writes_them() -> None:
    whole = await whole_chat(HEAD, StartedChat(outputs(last("a"))), OPTIONS)
    assert '"finish_reason":"stop"' in whole.model_dump_json()


async def test_tokens_whose_text_is_held_back_come_with_the_next_event() -> None:
    options = replace(OPTIONS, logprobs=True, token_ids=True, continuous_usage=True)

    def told(token_id: int, text: str, reason: FinishReason | None = None) -> tuple[int, RoundOutput]:
        logprobs = Logprobs((-1.0,), ((),), ((),))
        return 0, RoundOutput((token_id,), text, 0, reason, Usage(output_tokens=token_id - 64), logprobs)

    rounds = outputs(told(65, ""), told(66, "b", FinishReason.STOP))
    first, second = await events_of(options, rounds, (7, 8))
    assert first.prompt_token_ids == [7, 8]
    [choice] = second.choices
    assert choice.token_ids == [65, 66]
    assert choice.logprobs is not None
    assert [entry.token for entry in choice.logprobs.content] == [NAMES.name(65), NAMES.name(66)]
    assert second.usage is not None
    assert second.usage.completion_tokens == 2
