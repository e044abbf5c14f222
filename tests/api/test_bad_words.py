from __future__ import annotations

import pytest

from dspine_cluster import miniature
from dspine_cluster.api.bad_words import encode_bad_words
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.schema import CompletionRequest
from dspine_cluster.errors import RequestError
from tests.api.conftest import Api
from tests.api.fakes import byte_tokenizer

LIMITS = ApiLimits(max_model_len_tokens=100, vocab_size=5000, max_bad_words=3, max_stop_chars=12)
MINIATURE = ChatTokenizer.from_folder(miniature.folder("target"))


async def encoded(words: list[str] | None, tokenizer: ChatTokenizer = MINIATURE) -> list[str]:
    body = CompletionRequest.model_validate({"prompt": "x", "bad_words": words})
    return [await tokenizer.decode(word) for word in await encode_bad_words(body, tokenizer, LIMITS)]


async def test_a_word_is_kept_out_at_the_beginning_and_behind_a_space() -> None:
    assert await encoded(["the"]) == ["the", " the"]
    assert await encoded(["  the", "the"]) == ["the", " the"]


async def test_a_space_that_is_a_token_of_its_own_makes_no_other_word() -> None:
    assert await encoded(["ab"], ChatTokenizer(byte_tokenizer())) == ["ab"]


async def test_without_words_there_is_nothing_to_keep_out() -> None:
    assert await encoded(None) == await encoded([]) == []


@pytest.mark.parametrize("words", [[""], ["good", "  "], ["x" * 13], ["a", "b", "c", "d"]])
async def test_what_is_no_word_or_too_much_is_refused(words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        await encoded(words)
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_every_interface_passes_them_on(api: Api, path: str) -> None:
    prompt = {"chat/completions": "messages", "completions": "prompt", "responses": "input"}[path[4:]]
    content = [{"role": "user", "content": "x"}] if prompt == "messages" else "x"
    body = {prompt: content, "bad_words": ["ab"], "allowed_token_ids": [5, 4], "skip_special_tokens": False}
    assert api.http.post(path, json=body).status_code == 200
    request = api.generator.requests[-1]
    assert request.sampling.bad_words == (tuple(byte_tokenizer().encode("ab")),)
    assert request.sampling.allowed_token_ids == (4, 5)
    assert not request.skip_special_tokens
