from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api import json_size
from dspine_cluster.api.json_size import MAX_CONTAINERS, has_too_many_containers

VALUES = st.recursive(
    st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{"\\a'), inner),
    max_leaves=20,
)


def count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 0


@given(VALUES)
def test_exactly_the_objects_and_lists_are_counted(value: object) -> None:
    text, num = json.dumps(value).encode(), count(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "MAX_CONTAINERS", num)
        assert not has_too_many_containers(text)
        patch.setattr(json_size, "MAX_CONTAINERS", num - 1)
        assert has_too_many_containers(text)


def test_the_limit_is_allowed() -> None:
    assert not has_too_many_containers(b"[" * MAX_CONTAINERS)
    assert has_too_many_containers(b"{" * (MAX_CONTAINERS + 1))


@pytest.mark.parametrize("part", [b"[", b'\\"['])
def test_a_text_that_is_never_closed_is_read_once(part: bytes) -> None:
    assert not has_too_many_containers(b'"' + part * 1_000_000)  # takes hours where every quote is tried
