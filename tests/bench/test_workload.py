from __future__ import annotations

import pytest

from dspine_cluster import miniature
from dspine_cluster.bench.workload import (
    LONG_TOKENS,
    MULTI_TURN,
    TASK_NAMES,
    held_out_workload,
)
from dspine_cluster.errors import ConfigError
from dspine_cluster.models.folder import load_tokenizer

TOKENIZER = load_tokenizer(miniature.folder("target"))


@pytest.mark.parametrize("task", TASK_NAMES)
def test_equal_arguments_give_equal_prompts_and_seeds_give_others(task: str) -> None:
    prompts = held_out_workload(TOKENIZER, task, 2, seed=1)
    assert prompts == held_out_workload(TOKENIZER, task, 2, seed=1)
    assert prompts != held_out_workload(TOKENIZER, task, 2, seed=2)


def test_long_prompts_have_two_to_four_thousand_tokens() -> None:
    assert LONG_TOKENS == (2048, 3840)
    for prompt in held_out_workload(TOKENIZER, "long", 4, seed=3):
        assert LONG_TOKENS[0] <= len(prompt) <= LONG_TOKENS[1]


def test_conversations_of_several_turns_end_where_the_assistant_answers() -> None:
    for prompt in held_out_workload(TOKENIZER, MULTI_TURN, 8, seed=4):
        text = TOKENIZER.decode(prompt, skip_special_tokens=False)
        assert text.count("<|im_start|>assistant") >= 3
        assert text.rstrip().rpartition("<|im_start|>")[2].startswith("assistant")


def test_an_unknown_task_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="poetry"):
        held_out_workload(TOKENIZER, "poetry", 1, seed=0)
