import pytest
from transformers import AutoTokenizer

from dspine_cluster import miniature
from dspine_cluster.errors import ConfigError
from dspine_cluster.miniature.prompts import TASK_NAMES, held_out, held_out_prompts

TOKENIZER = AutoTokenizer.from_pretrained(miniature.folder("target"))


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_seed_gives_the_same_prompts_again(task: str) -> None:
    assert held_out_prompts(task, 5, 1) == held_out_prompts(task, 5, 1)
    assert held_out_prompts(task, 5, 1) != held_out_prompts(task, 5, 2)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_more_prompts_begin_with_the_fewer(task: str) -> None:
    assert held_out_prompts(task, 8, 3)[:5] == held_out_prompts(task, 5, 3)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_messages_alone_render_like_messages_with_tools(task: str) -> None:
    for prompt, messages in zip(held_out(task, 20, 4), held_out_prompts(task, 20, 4), strict=True):
        apart = TOKENIZER.apply_chat_template(
            list(prompt.messages),
            tools=list(prompt.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        alone = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert alone == apart


@pytest.mark.parametrize("task", TASK_NAMES)
def test_prompts_wait_for_the_assistant(task: str) -> None:
    assert all(messages[-1]["role"] in ("user", "tool") for messages in held_out_prompts(task, 30, 5))


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="arithmetic, code, tools, prose, chat"):
        held_out_prompts("poetry", 1, 1)
