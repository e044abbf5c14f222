from random import Random

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dspine_cluster import miniature
from dspine_cluster.miniature.data import arithmetic, chat, tools
from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, user
from dspine_cluster.miniature.templating import render, render_prompt

REFERENCE = AutoTokenizer.from_pretrained(miniature.folder("target"))
conversations = st.builds(
    lambda seed, family: family(Random(seed), Split.TRAIN),
    st.integers(0, 10_000),
    st.sampled_from([arithmetic.conversation, chat.conversation, tools.conversation]),
)


@given(conversations, st.booleans())
def test_prompts_are_what_transformers_renders(conversation: Conversation, thinking: bool) -> None:
    expected = REFERENCE.apply_chat_template(
        list(conversation.prompt),
        tools=list(conversation.tools) or None,
        add_generation_prompt=True,
        enable_thinking=thinking,
        tokenize=False,
    )
    assert render_prompt(conversation, enable_thinking=thinking) == expected


@given(conversations)
def test_a_conversation_goes_on_where_its_prompt_ends(conversation: Conversation) -> None:
    has_reasoning = "reasoning_content" in conversation.messages[-1]
    prompt = render_prompt(conversation, enable_thinking=has_reasoning)
    assert render(conversation).startswith(prompt)


def test_without_thinking_the_prompt_closes_the_thought() -> None:
    conversation = Conversation((user("Hi"), assistant("Hello")))
    assert render_prompt(conversation).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert render_prompt(conversation, enable_thinking=True).endswith("<|im_start|>assistant\n<think>\n")


def test_thoughts_of_earlier_answers_are_left_out() -> None:
    turns = (
        user("2+2?"),
        assistant("4", reasoning="two and two"),
        user("3+3?"),
        assistant("6", reasoning="twice three"),
    )
    text = render(Conversation(turns))
    assert "twice three" in text
    assert "two and two" not in text


def test_arguments_given_as_a_json_string_render_like_an_object() -> None:
    def text(arguments: object) -> str:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return render(Conversation((user("go"), {"role": "assistant", "content": "", "tool_calls": [call]})))

    assert text('{"a": 1}') == text({"a": 1})
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text({"a": 1})


def test_two_results_share_one_message() -> None:
    results = ({"role": "tool", "content": "one"}, {"role": "tool", "content": "two"})
    text = render(Conversation((user("go"), *results)))
    assert text.count("<|im_start|>user") == 2
    assert "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>" in text
