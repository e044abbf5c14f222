"""What an API server does with an object of a custom resource: defaults, nulls and unknown fields."""

from __future__ import annotations

from typing import Any

import jsonschema


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError where an API server with strict field validation refuses the object."""
    jsonschema.Draft202012Validator(_closed(schema)).validate(with_defaults(value, schema))


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """A copy with the schema's defaults put in and nulls of fields dropped."""
    if isinstance(value, dict):
        properties: dict[str, Any] = schema.get("properties", {})
        others = schema.get("additionalProperties", {})
        filled = {
            name: with_defaults(item, properties.get(name, others if isinstance(others, dict) else {}))
            for name, item in value.items()
            if item is not None
        }
        defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
        return defaults | filled
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    return value


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with fields refused that it does not name; `metadata` is left to the API server."""
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            closed[key] = {name: _closed(field) for name, field in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            closed[key] = _closed(value)
        elif not key.startswith("x-") and key != "format":
            closed[key] = value
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False) or "properties" not in schema
    if schema.get("type") == "object" and not is_open:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
        closed.pop("anyOf", None)
    return closed
