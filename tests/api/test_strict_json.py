from __future__ import annotations

import pytest

from tests.api.conftest import Api


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_none_are_refused(api: Api, value: bytes) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=b'{"prompt": "x", "temperature": ' + value + b"}",
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "field", [rb'"prompt": "\ud800"', rb'"prompt": "x", "stop": "\udfff"', rb'"\udfff": 1']
)
def test_halves_of_surrogate_pairs_are_refused(api: Api, field: bytes) -> None:
    answer = api.http.post(
        "/v1/completions", content=b"{" + field + b"}", headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_whole_surrogate_pairs_are_one_character(api: Api) -> None:
    answer = api.http.post(
        "/v1/completions",
        content=rb'{"prompt": "\ud83d\ude00", "max_tokens": 1}',
        headers={"content-type": "application/json"},
    )
    assert answer.json()["usage"]["prompt_tokens"] == len("😀".encode())
