from __future__ import annotations

from typing import Any

import pytest

from dspine_cluster.api.structured.schema_parts import alternatives, referred, schema_parts


def test_every_schema_of_a_value_is_given_with_its_path() -> None:
    schema = {
        "properties": {"a": {"items": {"type": "null"}}, "b": True},
        "anyOf": [{"$defs": {"C": {}}}],
        "propertyNames": {"maxLength": 1},
        "const": {"properties": {"d": {}}},
    }
    paths = [path for path, _ in schema_parts(schema, "s")]
    assert paths == ["s", "s.anyOf[0]", "s.anyOf[0].$defs.C", "s.properties.a", "s.properties.a.items"]


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", "all"),
        ("#/$defs/a~1b", 1),
        ("#/$defs/a%20b", 2),
        ("#/$defs/~01", 3),
        ("#/$defs/missing", None),
        ("#/title/x", None),
    ],
)
def test_references_are_pointers(reference: str, found: object) -> None:
    root: dict[str, Any] = {"$defs": {"a/b": 1, "a b": 2, "~1": 3}, "title": "t"}
    assert referred(reference, root) == (root if found == "all" else found)


def test_alternatives_are_what_references_and_choices_end_in() -> None:
    root = {
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}, {"$ref": "#"}]},
            "B": {"title": "B"},
        },
    }
    assert {str(part) for part in alternatives(root)} == {"{'type': 'null'}", "{'title': 'B'}"}
    assert alternatives({"type": "object"}) == [{"type": "object"}]
