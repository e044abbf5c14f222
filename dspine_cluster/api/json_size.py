"""How long JSON would take to look at, which nobody else is answered during."""

from __future__ import annotations

import re

MAX_CONTAINERS = 32_768
"""Objects and lists of a body, and as many in all texts of calls that it holds."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Also one that is not closed: nothing is read twice."""


def has_too_many_containers(text: bytes) -> bool:
    """Whether there are more than MAX_CONTAINERS. It need not be JSON."""
    return _num_containers(text) > MAX_CONTAINERS and _num_containers(_STRING.sub(b"", text)) > MAX_CONTAINERS


def _num_containers(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")
