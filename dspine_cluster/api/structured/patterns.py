"""Regular expressions of requests: what a grammar would not read as it is meant is refused."""

from __future__ import annotations

import re

from dspine_cluster.api.structured.schema_parts import refused

_MAX_REPEATS = 1000
_MAX_GROUP_REPEATS = 10_000
_REPEATS = re.compile(r"(\)\s*)?\{\s*([0-9]+)\s*(?:,\s*([0-9]*)\s*)?\}")
_PIECES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ESCAPES = re.compile(r"\\(.)", re.DOTALL)
_READ = frozenset("abBcdDefknrsStuvwWx")
"""Letters behind a backslash that mean something to xgrammar; it takes others for themselves, and \\0 for the end."""


def check_pattern(pattern: str, param: str) -> None:
    """Refuses what xgrammar reads otherwise than ECMAScript does, without an error; it names the rest itself."""
    check_repeats(pattern, param)
    pieces = _PIECES.findall(pattern)
    for number, piece in enumerate(pieces):
        for char in _ESCAPES.findall(piece):
            if char.isascii() and char.isalnum() and char not in _READ:
                raise refused(param, f"pattern {pattern!r}: '\\{char}' is not supported in patterns")
        if piece.startswith(r"[\^"):
            raise refused(param, f"pattern {pattern!r}: '\\^' must not come first between brackets")
        if (piece == "^" and number) or (piece == "$" and number < len(pieces) - 1):
            raise refused(
                param, f"pattern {pattern!r}: {piece!r} is supported only at the pattern's beginning or end"
            )


def check_repeats(pattern: str, param: str) -> None:
    """Refuses counts in braces that would make grammars large. Groups count as if each that repeats held the others."""
    of_groups = of_others = 1
    for group, *counts in (match.groups() for match in _REPEATS.finditer(pattern)):
        # Compared by length first: Python reads no integers of thousands of digits.
        digits = [count.lstrip("0") or "0" for count in counts if count]
        if any(len(count) > 4 or int(count) > _MAX_REPEATS for count in digits):
            raise refused(param, f"nothing may be repeated more than {_MAX_REPEATS} times")
        most = max(1, *map(int, digits))
        if group:
            of_groups *= most
        else:
            of_others = max(of_others, most)
        if of_groups * of_others > _MAX_GROUP_REPEATS:
            raise refused(param, f"counts of groups may multiply to {_MAX_GROUP_REPEATS} at most")
