from __future__ import annotations

import pytest

from dspine_cluster.api.structured.patterns import check_pattern
from dspine_cluster.errors import RequestError


@pytest.mark.parametrize(
    "pattern",
    [r"^[\w.+-]+@[^@\s]+$", r"[\]\-^$]\^\$", "^a|b$", r"(a{100}){100}", r"\/\.\_\@", "", "^", "[a$^]$"],
)
def test_usual_patterns_pass(pattern: str) -> None:
    check_pattern(pattern, "p")


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        (r"\z", r"'\\z' is not supported"),
        (r"[\p{L}]", r"'\\p' is not supported"),
        (r"a\0b", r"'\\0' is not supported"),
        (r"\\\A", r"'\\A' is not supported"),
        (r"[\^a]", "must not come first"),
        ("a^b", r"'\^' is supported only"),
        ("(^a|b)", r"'\^' is supported only"),
        ("(a$)", r"'\$' is supported only"),
        ("(a{100}){1000}", "multiply to 10000"),
        ("a{1001}", "repeated more than 1000"),
    ],
)
def test_what_would_be_misread_is_refused(pattern: str, cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        check_pattern(pattern, "p")
    assert caught.value.param == "p"
