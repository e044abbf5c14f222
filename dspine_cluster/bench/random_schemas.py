"""Random bounded JSON schemas: every text that fits one is short."""

from __future__ import annotations

from random import Random
from typing import Any

_NAMES = (
    *("title", "text", "day", "time", "city", "colour", "count", "price", "owner", "tags", "status", "id"),
    *("first_name", "isOpen", "größe", "notes", "level", "unit"),
)
_WORDS = ("red", "blue", "small", "large", "Oslo", "Monday", "cup", "done", "a b", 'q"uote', "é")
_MAX_DEPTH = 3
Schema = dict[str, Any]


def random_schema(rng: Random) -> Schema:
    """An object with one to five properties."""
    return _object(rng, 0)


def _value(rng: Random, depth: int) -> Schema:
    simple = [_enum, _string, _pattern, _date, _integer, _constant, _switch]
    nested = [_object, _array, _any_of] if depth < _MAX_DEPTH else []
    return rng.choice([*simple, *nested])(rng, depth)


def _object(rng: Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(1, 5))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        **({"additionalProperties": False} if rng.random() < 0.5 else {}),
    }


def _array(rng: Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    items = _value(rng, depth + 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _any_of(rng: Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth + 1), {"type": "null"}]}


def _enum(rng: Random, depth: int) -> Schema:
    return {"enum": rng.sample([*_WORDS, 3, None, True], rng.randint(1, 4))}


def _string(rng: Random, depth: int) -> Schema:
    least = rng.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)}


def _pattern(rng: Random, depth: int) -> Schema:
    return {
        "type": "string",
        "pattern": rng.choice(["^[A-Z]{2}-[0-9]{3}$", "^(yes|no|maybe)$", "^[a-z]{1,8}$"]),
    }


def _date(rng: Random, depth: int) -> Schema:
    return {"type": "string", "format": "date"}


def _integer(rng: Random, depth: int) -> Schema:
    least = rng.randint(-50, 50)
    return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 200)}


def _constant(rng: Random, depth: int) -> Schema:
    return {"const": rng.choice([2.5, "fixed", -1])}


def _switch(rng: Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null"])}
