from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from dspine_cluster import miniature
from dspine_cluster.api.limits import ApiLimits
from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.prompting.prompts import encode_prompts
from dspine_cluster.api.prompting.token_bounds import TokenBound
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.errors import RequestError
from dspine_cluster.models.folder import load_tokenizer
from tests.api.fakes import byte_tokenizer

MINIATURE: Tokenizer = load_tokenizer(miniature.folder("target"))
BOUND = TokenBound(MINIATURE)
TEXTS = st.lists(
    st.sampled_from(["<|im_start|>", "</tool_response>", " " * 40, "def ", "the", "\n\n"]) | st.text()
).map("".join)


@given(TEXTS)
def test_no_text_has_fewer_tokens(text: str) -> None:
    assert BOUND.min_tokens(text) <= len(MINIATURE.encode(text, add_special_tokens=False).ids)


def test_the_longest_token_alone_reaches_the_bound() -> None:
    assert BOUND.min_tokens("<|im_start|>") == 1
    longest = max(MINIATURE.get_vocab(), key=len)
    assert BOUND.min_tokens(10 * "x" * len(longest)) == 10


def test_a_text_is_measured_as_the_tokenizer_normalizes_it() -> None:
    tokenizer = byte_tokenizer().backend_tokenizer
    tokenizer.normalizer = normalizers.NFC()
    bound = TokenBound(tokenizer)
    kelvins = 120 * "\N{KELVIN SIGN}"  # one byte each once normalized, three before
    bound.check(kelvins, 11, "prompt")
    with pytest.raises(RequestError, match="at least 10"):
        bound.check(kelvins, 10, "prompt")


@pytest.mark.parametrize("what", ["whitespace", "removed", "strips"])
def test_where_bytes_can_be_left_out_nothing_is_known(what: str) -> None:
    tokenizer = byte_tokenizer().backend_tokenizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if what == "whitespace":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), level])
    elif what == "removed":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\s+"), "removed"), level]
        )
    else:
        tokenizer.add_tokens([AddedToken("<x>", lstrip=True)])
    text = 1000 * " " + "<x>"
    assert TokenBound(tokenizer).min_tokens(text) == 0
    assert len(tokenizer.encode(text).ids) <= 3


class CountingTokenizer:
    """Counts how often something is encoded."""

    def __init__(self) -> None:
        self._tokenizer = byte_tokenizer()
        self.num_encoded = 0

    def __getattr__(self, name: str) -> object:
        if name == "encode":
            self.num_encoded += 1
        return getattr(self._tokenizer, name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.num_encoded += 1
        return self._tokenizer(*args, **kwargs)


@pytest.mark.parametrize("is_chat", [True, False])
def test_what_cannot_fit_is_refused_before_it_is_encoded(is_chat: bool) -> None:
    tokenizer = CountingTokenizer()
    limits = ApiLimits(max_model_len_tokens=100, vocab_size=258)
    text = 1200 * "x"  # the longest token has twelve bytes
    body = (
        ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": text}]})
        if is_chat
        else CompletionRequest.model_validate({"prompt": ["a", text]})
    )
    encoding = encode_prompts(body, ChatTokenizer(tokenizer), limits)
    with pytest.raises(RequestError, match="at least 10") as caught:
        asyncio.run(encoding)
    assert (caught.value.code, caught.value.param) == (
        "context_length_exceeded",
        "messages" if is_chat else "prompt",
    )
    assert tokenizer.num_encoded == (0 if is_chat else 1)
