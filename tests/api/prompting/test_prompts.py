from __future__ import annotations

import pytest
from tokenizers import processors

from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer, EncodedPrompt
from dspine_cluster.api.prompting.prompts import echoed_texts, encode_prompts
from dspine_cluster.api.schema import CompletionRequest
from dspine_cluster.errors import RequestError
from tests.api.fakes import byte_tokenizer

LIMITS = ApiLimits(max_model_len_tokens=100, vocab_size=258, max_choices=4)


async def encode(prompt: object, n: int = 1) -> list[EncodedPrompt]:
    body = CompletionRequest.model_validate({"prompt": prompt, "n": n})
    return await encode_prompts(body, ChatTokenizer(byte_tokenizer()), LIMITS)


async def test_one_text_is_one_prompt() -> None:
    assert len(await encode("abc")) == 1


async def test_texts_are_prompts_in_their_order() -> None:
    assert await encode(["ab", "c"]) == [*await encode("ab"), *await encode("c")]


async def test_ids_are_one_prompt_and_lists_of_ids_are_several() -> None:
    assert await encode([1, 2]) == [EncodedPrompt((1, 2))]
    assert await encode([[1, 2], [3]]) == [EncodedPrompt((1, 2)), EncodedPrompt((3,))]


@pytest.mark.parametrize(
    ("prompt", "n", "param"), [("a", 5, "n"), (["a", "b"], 3, "prompt"), ([[1]] * 5, 1, "prompt")]
)
async def test_more_completions_than_allowed_are_refused_by_what_asks_for_them(
    prompt: object, n: int, param: str
) -> None:
    with pytest.raises(RequestError, match=f"{param}: .* completions") as caught:
        await encode(prompt, n)
    assert caught.value.param == param


async def test_a_client_can_leave_out_the_tokens_that_begin_every_text() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<|im_start|> $A", None, [("<|im_start|>", 256)]
    )
    lengths = []
    for value in (None, True, False):
        body = CompletionRequest.model_validate({"prompt": "abc", "add_special_tokens": value})
        [prompt] = await encode_prompts(body, ChatTokenizer(tokenizer), LIMITS)
        lengths.append(len(prompt.token_ids))
    assert lengths == [4, 4, 3]


async def test_prompts_are_echoed_as_they_came_and_ids_with_special_tokens() -> None:
    for prompt, texts in (("abc", ["abc"]), (["a", "b"], ["a", "b"]), ([257], ["<|im_end|>"])):
        body = CompletionRequest.model_validate({"prompt": prompt})
        assert await echoed_texts(body, ChatTokenizer(byte_tokenizer())) == texts
