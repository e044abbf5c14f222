from __future__ import annotations

import pytest

from dspine_cluster.api.option_checks import check_options
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.errors import RequestError


def chat(**fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})


def text(**fields: object) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(top_logprobs=2), "top_logprobs"),
        (chat(top_logprobs=2, logprobs=False), "top_logprobs"),
        (text(best_of=2), "best_of"),
        (text(best_of=3, n=2), "best_of"),
        (text(max_tokens=0), "max_tokens"),
        (text(allowed_token_ids=[1], structured_outputs={"regex": "a"}), "allowed_token_ids"),
        (chat(allowed_token_ids=[1], response_format={"type": "json_object"}), "allowed_token_ids"),
    ],
)
def test_contradictions_are_refused_by_name(
    body: ChatCompletionRequest | CompletionRequest, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        check_options(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        chat(logprobs=True),
        chat(logprobs=True, top_logprobs=20),
        text(best_of=1, n=3),
        text(best_of=3, n=3),
        text(max_tokens=0, echo=True),
        chat(allowed_token_ids=[1], response_format={"type": "text"}),
    ],
)
def test_what_fits_together_is_taken(body: ChatCompletionRequest | CompletionRequest) -> None:
    check_options(body)
