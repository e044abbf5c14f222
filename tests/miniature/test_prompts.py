from __future__ import annotations

import pytest

from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.prompts import TASK_NAMES, held_out


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_seed_gives_the_same_prompts_again(task: str) -> None:
    assert held_out(task, 5, 1) == held_out(task, 5, 1)
    assert held_out(task, 5, 1) != held_out(task, 5, 2)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_more_prompts_begin_with_the_fewer(task: str) -> None:
    assert held_out(task, 8, 3)[:5] == held_out(task, 5, 3)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_prompts_wait_for_the_assistant(task: str) -> None:
    for conversation in held_out(task, 30, 5):
        assert conversation.prompt[-1]["role"] in ("user", "tool")
        assert conversation.messages[-1]["role"] == "assistant"


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="arithmetic, code, tools, prose, chat"):
        held_out("poetry", 1, 1)
