from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api

MESSAGES = [{"role": "user", "content": "Hi é"}]


def tokenize(api: Api, **body: object) -> dict[str, Any]:
    answer = api.http.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("body", [{"prompt": "Hi é 漢"}, {"messages": MESSAGES}])
def test_a_prompt_is_encoded_as_it_would_be_for_a_completion(api: Api, body: dict[str, object]) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    api.http.post(path, json={**body, "max_tokens": 1})
    answer = tokenize(api, **body)
    assert answer["tokens"] == list(api.generator.requests[-1].prompt_ids)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 512
    assert answer["token_strs"] is None


def test_tokens_are_told_as_the_vocabulary_has_them(api: Api) -> None:
    assert tokenize(api, prompt="a é", return_token_strs=True)["token_strs"] == ["a", "Ġ", "Ã", "©"]


def test_detokenizing_gives_the_text_back_with_its_markup(api: Api) -> None:
    tokens = tokenize(api, messages=MESSAGES)["tokens"]
    text = "<|im_start|>user\nHi é<|im_end|>\n<|im_start|>assistant\n"
    assert api.http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}
    assert api.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_messages_may_end_without_the_start_of_an_answer(api: Api) -> None:
    whole = tokenize(api, messages=MESSAGES)["tokens"]
    shorter = tokenize(api, messages=MESSAGES, add_generation_prompt=False)["tokens"]
    assert whole[: len(shorter)] == shorter
    assert len(shorter) < len(whole)
    closed = tokenize(api, messages=MESSAGES, chat_template_kwargs={"enable_thinking": False})["tokens"]
    assert closed[: len(whole)] == whole
    assert len(closed) > len(whole)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_a_wrong_value_is_named(api: Api, path: str, body: dict[str, object], param: str) -> None:
    answer = api.http.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
