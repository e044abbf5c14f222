from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.reasoning import Thinking
from dspine_cluster.api.chat_schema import ChatMessage, TextPart, Tool, ToolFunction
from dspine_cluster.api.prompting.chat_template import ChatTokenizer, EncodedPrompt
from dspine_cluster.errors import CheckpointError, RequestError
from tests.api.fakes import CHAT_TEMPLATE, TOOLS_TEMPLATE, byte_tokenizer

USER = ChatMessage(role="user", content="Hi")


def text_of(token_ids: tuple[int, ...]) -> str:
    return str(byte_tokenizer().decode(list(token_ids)))


async def test_the_prompt_ends_where_the_answer_starts() -> None:
    ids = (await ChatTokenizer(byte_tokenizer()).encode_chat([USER], {})).token_ids
    assert text_of(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_markup_becomes_single_special_tokens() -> None:
    ids = (await ChatTokenizer(byte_tokenizer()).encode_chat([USER], {})).token_ids
    assert ids.count(256) == 2
    assert ids.count(257) == 1


async def test_template_kwargs_reach_the_template() -> None:
    prompt = await ChatTokenizer(byte_tokenizer()).encode_chat([USER], {"enable_thinking": False})
    assert text_of(prompt.token_ids).endswith("<think></think>")


async def test_text_parts_are_joined() -> None:
    parts = [TextPart(type="text", text="H"), TextPart(type="text", text="i")]
    message = ChatMessage(role="user", content=parts)
    tokenizer = ChatTokenizer(byte_tokenizer())
    assert await tokenizer.encode_chat([message], {}) == await tokenizer.encode_chat([USER], {})


async def test_developer_messages_are_system_messages() -> None:
    message = ChatMessage(role="developer", content="x")
    prompt = await ChatTokenizer(byte_tokenizer()).encode_chat([message], {})
    assert text_of(prompt.token_ids).startswith("<|im_start|>system\nx")


async def test_what_the_template_refuses_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="starts with assistant") as caught:
        await ChatTokenizer(byte_tokenizer()).encode_chat([ChatMessage(role="assistant", content="x")], {})
    assert caught.value.param == "messages"


async def test_templates_run_in_a_sandbox() -> None:
    tokenizer = ChatTokenizer(byte_tokenizer("{{ ''.__class__.__mro__[1].__subclasses__() }}"))
    with pytest.raises(RequestError, match="unsafe"):
        await tokenizer.encode_chat([USER], {})


async def test_a_model_without_a_template_points_to_completions() -> None:
    with pytest.raises(RequestError, match="/v1/completions"):
        await ChatTokenizer(byte_tokenizer(None)).encode_chat([USER], {})


async def test_many_prompts_at_once_are_encoded_as_one_by_one() -> None:
    tokenizer = ChatTokenizer(byte_tokenizer())
    texts = [f"text {index} é 漢" * (index + 1) for index in range(32)]
    at_once = await asyncio.gather(*(tokenizer.encode_text(text) for text in texts))
    assert [text_of(prompt.token_ids) for prompt in at_once] == texts


async def test_a_saved_tokenizer_loads_from_its_folder(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = ChatTokenizer.from_folder(tmp_path)
    assert await loaded.encode_chat([USER], {}) == await ChatTokenizer(byte_tokenizer()).encode_chat(
        [USER], {}
    )


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=tmp_path.name):
        ChatTokenizer.from_folder(tmp_path)


def conversation(*contents: str) -> list[ChatMessage]:
    roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
    return [ChatMessage(role=roles[turn % 2], content=content) for turn, content in enumerate(contents)]


def prefixes(prompt: EncodedPrompt) -> list[str]:
    return [text_of(prompt.token_ids[:length]) for length in prompt.message_boundaries]


async def test_boundaries_lie_before_the_last_message_and_where_the_next_turn_parts() -> None:
    prompt = await ChatTokenizer(byte_tokenizer()).encode_chat(conversation("a", "b", "c"), {})
    before = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n"
    assert prefixes(prompt) == [before, f"{before}c<|im_end|>\n<|im_start|>assistant\n"]


async def test_a_boundary_lies_before_what_the_template_strips_on_the_next_turn() -> None:
    template = CHAT_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    prompt = await ChatTokenizer(byte_tokenizer(template)).encode_chat(conversation("a"), {})
    assert text_of(prompt.token_ids).endswith("assistant\n<think>\n")
    assert prefixes(prompt)[-1] == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


@given(
    st.lists(st.text(alphabet="ab- \n\u00e9\u6f22", max_size=6), min_size=3, max_size=3),
    st.lists(st.text(alphabet="ab- \n\u00e9\u6f22", max_size=6), min_size=1, max_size=3),
)
def test_the_next_turn_begins_with_the_last_boundary_s_prefix(said: list[str], more: list[str]) -> None:
    tokenizer = ChatTokenizer(byte_tokenizer())
    prompt = asyncio.run(tokenizer.encode_chat(conversation(*said), {}))
    later = asyncio.run(tokenizer.encode_chat(conversation(*said, *more), {}))
    end = prompt.message_boundaries[-1]
    assert later.token_ids[:end] == prompt.token_ids[:end]


async def test_a_next_turn_that_the_template_refuses_leaves_the_other_boundary() -> None:
    template = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}Say {{ messages[0].content }}!"
    prompt = await ChatTokenizer(byte_tokenizer(template)).encode_chat([USER], {})
    assert prefixes(prompt) == ["Say "]


async def test_tools_reach_a_template_that_tells_of_them() -> None:
    tool = Tool(type="function", function=ToolFunction(name="f"))
    prompt = await ChatTokenizer(byte_tokenizer(TOOLS_TEMPLATE)).encode_chat([USER], {}, [tool])
    assert '{"type": "function", "function": {"name": "f"}}' in text_of(prompt.token_ids)
    with pytest.raises(RequestError, match="no place for tools"):
        await ChatTokenizer(byte_tokenizer()).encode_chat([USER], {}, [tool])


@pytest.mark.parametrize(
    ("kwargs", "thinking"), [({}, Thinking.UNDECIDED), ({"enable_thinking": True}, Thinking.OPEN)]
)
async def test_a_prompt_tells_how_it_leaves_the_reasoning(
    kwargs: dict[str, bool], thinking: Thinking
) -> None:
    prompt = await ChatTokenizer(byte_tokenizer(TOOLS_TEMPLATE)).encode_chat([USER], kwargs)
    assert prompt.thinking is thinking


def test_a_tokenizer_may_have_a_token_that_ends_reasoning() -> None:
    assert ChatTokenizer(byte_tokenizer()).reasoning_end_id is None
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["</think>"])
    assert ChatTokenizer(tokenizer).reasoning_end_id == tokenizer.convert_tokens_to_ids("</think>")
