from __future__ import annotations

from collections.abc import Iterator
from random import Random

from dspine_cluster.sim.conversations import (
    ConversationSettings,
    Turn,
    make_conversations,
    prompt_of,
    text_after,
)

SETTINGS = ConversationSettings(conversations_per_s=2.0, duration_s=40.0)


def walk(turn: Turn, before: tuple[int, ...] = ()) -> Iterator[tuple[Turn, tuple[int, ...]]]:
    yield turn, before
    for following in turn.next:
        yield from walk(following, text_after(before, turn))


TRACE = make_conversations(SETTINGS, Random(3))
ALL = [pair for first in TRACE for pair in walk(first)]


def test_the_same_seed_gives_the_same_trace() -> None:
    assert make_conversations(SETTINGS, Random(3)) == TRACE
    assert make_conversations(SETTINGS, Random(4)) != TRACE


def test_a_prompt_begins_with_the_messages_before_it() -> None:
    for turn, before in ALL:
        prompt = prompt_of(before, turn)
        assert prompt[: len(before)] == before
        assert turn.boundaries[-1] == len(text_after(before, turn)) < len(prompt) <= SETTINGS.max_tokens + 2


def test_an_answer_comes_back_in_the_next_prompt_without_its_thinking() -> None:
    num_stripped = 0
    for turn, before in ALL:
        for following in turn.next:
            rest = prompt_of(text_after(before, turn), following)[len(prompt_of(before, turn)) :]
            assert rest[: len(turn.answer_ids)] == turn.answer_ids
            assert turn.output_ids[: len(turn.thinking_ids)] == turn.thinking_ids
            num_stripped += len(turn.thinking_ids) > 0
    assert num_stripped > 10


def test_system_prompts_are_shared_between_conversations() -> None:
    systems = [first.added_ids[: first.boundaries[0]] for first in TRACE]
    assert 1 < len(set(systems)) <= SETTINGS.num_system_prompts < len(systems)


def test_some_conversations_branch() -> None:
    assert any(len(turn.next) > 1 for turn, _ in ALL)
    branches = {first.conversation for first in TRACE}
    assert {turn.conversation for turn, _ in ALL} == branches
