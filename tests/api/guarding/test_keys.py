from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dspine_cluster.api.guarding.keys import ApiKeys
from dspine_cluster.api.http_config import ApiKeyConfig, HttpConfig
from dspine_cluster.config import parse_config
from dspine_cluster.errors import ConfigError

KEY = "sk-0123456789abcdef"


def test_a_key_is_found_by_itself_and_by_its_hash() -> None:
    other = "sk-fedcba9876543210"
    digest = hashlib.sha256(other.encode()).hexdigest()
    keys = ApiKeys([ApiKeyConfig("one", KEY), ApiKeyConfig("two", sha256=digest.upper())], 0.0)
    found = [keys.find(KEY), keys.find(other)]
    assert [caller and caller.name for caller in found] == ["one", "two"]
    assert keys.find(digest) is keys.find(KEY + "x") is keys.find("") is None


def test_keys_of_a_file_are_added(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"name": "filed", "key": KEY, "requests_per_minute": 5}]))
    keys = ApiKeys.of(HttpConfig(api_keys_file=str(path)), 0.0)
    assert keys.find(KEY)


@pytest.mark.parametrize("text", ["{", "{}", '["x"]', '[{"name": "x"}]', '[{"name": "x", "kee": "y"}]'])
def test_a_wrong_file_is_a_configuration_error_that_tells_no_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        ApiKeys.of(HttpConfig(api_keys_file=str(path)), 0.0)


def test_two_keys_of_one_name_or_value_are_refused() -> None:
    for second in (ApiKeyConfig("one", KEY + "x"), ApiKeyConfig("two", KEY)):
        with pytest.raises(ConfigError):
            ApiKeys([ApiKeyConfig("one", KEY), second], 0.0)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "a b", "key": KEY},
        {"name": "", "key": KEY},
        {"name": "a", "key": "short"},
        {"name": "a", "sha256": "12"},
        {"name": "a", "key": KEY, "sha256": "0" * 64},
        {"name": "a", "key": KEY, "requests_per_minute": 0},
        {"name": "a", "key": KEY, "tokens_per_minute": float("inf")},
        {"name": "a", "key": KEY, "max_concurrent_requests": 0},
        {"name": "a", "key": KEY, "share": 0},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_config(ApiKeyConfig, values)


def test_keys_are_not_shown() -> None:
    assert KEY not in repr(HttpConfig(api_keys=(ApiKeyConfig("one", KEY),)))
