from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.answers import AnswerHead
from dspine_cluster.api.answering.chat import StartedChat, chat_events
from dspine_cluster.api.answering.choice_details import AnswerOptions
from dspine_cluster.api.answering.completions import CompletionPrompt, text_events
from dspine_cluster.api.answering.ready_events import ReadyEvents
from dspine_cluster.api.bodies import TextChoice, TextCompletion
from dspine_cluster.types import Logprobs, RoundOutput
from tests.api.answering.test_chat import outputs
from tests.api.fakes import NAMES

HEAD = AnswerHead('a "model" of {text} é', "cmpl-1", 1)
OPTIONS = AnswerOptions(NAMES)


def made(index: int, text: str) -> TextCompletion:
    choice = TextChoice(index=index, text=text, finish_reason=None, logprobs=None)
    return TextCompletion(
        id=HEAD.id, object="text_completion", created=1, model=HEAD.model, choices=[choice], usage=None
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.text()), max_size=6))
def test_ready_events_are_the_json_of_their_models(told: list[tuple[int, str]]) -> None:
    ready = ReadyEvents(made)
    for index, text in told:
        assert ready.event(index, text) == made(index, text).model_dump_json(exclude_unset=True).encode()


async def test_rounds_in_the_middle_of_a_completion_need_no_model() -> None:
    rounds = [(0, RoundOutput((1,), text)) for text in ("a", "", "b")]
    events = [event async for event in text_events(HEAD, outputs(*rounds), OPTIONS, [CompletionPrompt((1,))])]
    assert [isinstance(event, bytes) for event in events] == [True, True]


async def test_text_and_reasoning_of_a_chat_need_no_model() -> None:
    rounds = [(0, RoundOutput((1,), text)) for text in ("<think>a", "b", "c</think>", "d", "e")]
    first, *events = [event async for event in chat_events(HEAD, StartedChat(outputs(*rounds)), OPTIONS)]
    assert not isinstance(first, bytes)
    assert len(events) == 5
    assert all(isinstance(event, bytes) for event in events)


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, continuous_usage=True),
        replace(OPTIONS, logprobs=True),
        replace(OPTIONS, token_ids=True),
        replace(OPTIONS, origins=True),
    ],
)
async def test_what_is_asked_for_beside_text_is_in_every_event(options: AnswerOptions) -> None:
    logprobs = Logprobs((-1.0,), ((),), ((),))
    rounds = [(0, RoundOutput((token_id,), "A", logprobs=logprobs)) for token_id in (65, 66)]
    events = [event async for event in text_events(HEAD, outputs(*rounds), options, [CompletionPrompt((1,))])]
    assert len(events) == 2
    assert not any(isinstance(event, bytes) for event in events)
