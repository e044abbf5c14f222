from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

import pytest

from dspine_cluster.api import unsupported
from dspine_cluster.api.schema import ChatCompletionRequest, CompletionRequest
from dspine_cluster.api.unsupported import check_extra_fields
from dspine_cluster.errors import RequestError


def chat(fields: Mapping[str, object], message: Mapping[str, object] | None = None) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "x", **(message or {})}], **fields}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("structural_tag", {"type": "structural_tag"}),
        ("echo", True),
        ("suffix", "end"),
        ("best_of", 2),
        ("chat_template", "{{ messages }}"),
        ("continue_final_message", True),
    ],
)
def test_a_field_that_would_change_the_output_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        check_extra_fields(chat({name: value}))
    assert caught.value.param == name
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", []),
        ("functions", None),
        ("function_call", "none"),
        ("response_format", {"type": "text"}),
        ("best_of", 1),
        ("echo", False),
        ("user", "someone"),
        ("metadata", {"a": "b"}),
    ],
)
def test_a_field_that_changes_nothing_is_accepted(name: str, value: object) -> None:
    check_extra_fields(chat({name: value}))


def test_fields_inside_messages_are_seen_too() -> None:
    with pytest.raises(RequestError) as caught:
        check_extra_fields(chat({}, {"audio": {"id": "1"}}))
    assert caught.value.param == "messages[0].audio"


@pytest.mark.parametrize("name", ["chat_template", "tools", "continue_final_message"])
def test_a_client_cannot_replace_the_template_or_its_options(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_extra_fields(chat({"chat_template_kwargs": {name: "x"}}))
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(("name", "value"), [("tools", [{"type": "function"}]), ("tool_choice", "required")])
def test_text_completions_have_no_tools(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name):
        check_extra_fields(CompletionRequest.model_validate({"prompt": "x", name: value}))


def test_unknown_fields_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    name = f"unheard_of_{uuid.uuid4().hex}"
    with caplog.at_level(logging.WARNING):
        check_extra_fields(chat({name: 1}))
        check_extra_fields(chat({name: 2}))
    assert [name in record.getMessage() for record in caplog.records] == [True]


def test_little_of_a_long_unknown_name_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    name = uuid.uuid4().hex + "x" * 100_000
    with caplog.at_level(logging.WARNING):
        check_extra_fields(chat({name: 1}))
    assert name[:32] in caplog.text
    assert len(caplog.text) < 1000
    assert all(len(kept) <= 100 for kept in unsupported._logged)
