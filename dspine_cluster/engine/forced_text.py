"""How long a text a grammar can force: xgrammar follows it to its end, before it returns, however far that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_MAX_FORCED_BYTES = 4096
_MAX_RECURSION = 1 << 18
"""Output tokens times the bytes that a level of recursion leaves to be said."""
_MAX_ROUNDS = 16
_ENDLESS = 1 << 60
_TEXT, _CHARS_STAR, _EMPTY, _RULE, _SEQUENCE, _CHOICES, _DISPATCH, _REPEAT = 0, 2, 3, 4, 5, 6, 7, 8
_TOKEN_DISPATCH = 11
"""Kinds of expressions, as xgrammar numbers them. Of all others one character or token is the least."""


@dataclass(frozen=True, slots=True)
class ForcedText:
    """What is known of the texts that a grammar forces. They are beginnings of its shortest possible end."""

    never_ends: bool
    """No finite text is allowed."""
    max_output_tokens: int
    """With more output it may take long to find what is forced; 0 where it always may."""


def forced_text(serialized: str) -> ForcedText:
    """Of an xgrammar `Grammar`, from its `serialize_json()`."""
    rules = _Rules(serialized)
    is_settled = rules.find_lengths()
    never_ends = is_settled and rules.lengths[rules.root] >= _ENDLESS
    if not is_settled or max(rules.longest) > _MAX_FORCED_BYTES:
        return ForcedText(never_ends, 0)
    of_level = max((rules.longest[rule] for rule in rules.recursive()), default=0)
    return ForcedText(never_ends, _MAX_RECURSION // max(1, of_level))


class _Rules:
    def __init__(self, serialized: str) -> None:
        fields = json.loads(serialized)
        data: list[int] = fields["grammar_expr_data"]
        starts: list[int] = fields["grammar_expr_indptr"]
        # Each is its kind, its length and its values.
        self._expressions = [data[start:end] for start, end in pairwise([*starts, len(data)])]
        self._bodies: list[int] = [rule[1] for rule in fields["rules"]]
        self.root: int = fields["root_rule_id"]
        self.lengths = [_ENDLESS] * len(self._bodies)
        """Bytes of each rule's shortest text."""
        self.longest = [0] * len(self._bodies)
        """Of the longest sequence of each rule, shortest texts of its parts taken."""

    def find_lengths(self) -> bool:
        """Whether they are exact."""
        order = range(len(self._bodies))
        for _ in range(_MAX_ROUNDS):
            before = list(self.lengths)
            for rule in order:
                self.longest[rule] = 0
                self.lengths[rule] = self._shortest(self._bodies[rule], rule)
            if self.lengths == before:
                return True
            order = order[::-1]
        return False

    def recursive(self) -> set[int]:
        """The rules in cycles, and those between cycles."""
        uses = [self._used(body) for body in self._bodies]
        left = set(range(len(uses)))
        for _ in range(2):
            users: list[list[int]] = [[] for _ in uses]
            for rule in left:
                for used in uses[rule] & left:
                    users[used].append(rule)
            num_uses = {rule: len(uses[rule] & left) for rule in left}
            ready = [rule for rule in left if not num_uses[rule]]
            while ready:
                rule = ready.pop()
                left.discard(rule)
                for user in users[rule]:
                    num_uses[user] -= 1
                    if not num_uses[user]:
                        ready.append(user)
            # Then those that no rule left uses.
            uses = [set(users[rule]) & left for rule in range(len(uses))]
        return left

    def _shortest(self, expression: int, rule: int) -> int:
        kind, _, *values = self._expressions[expression]
        if kind == _TEXT:
            return len(values)
        if kind in (_CHARS_STAR, _EMPTY, _DISPATCH, _TOKEN_DISPATCH):
            return 0
        if kind in (_RULE, _REPEAT):
            least = values[1] if kind == _REPEAT else 1
            return min(_ENDLESS, least * self.lengths[values[0]])
        if kind == _CHOICES:
            return min((self._shortest(value, rule) for value in values), default=0)
        if kind == _SEQUENCE:
            length = min(_ENDLESS, sum(self._shortest(value, rule) for value in values))
            self.longest[rule] = max(self.longest[rule], length)
            return length
        return 1

    def _used(self, expression: int) -> set[int]:
        kind, _, *values = self._expressions[expression]
        if kind in (_RULE, _REPEAT):
            return {values[0]}
        if kind in (_DISPATCH, _TOKEN_DISPATCH):
            return _below(values, len(self._bodies))
        if kind in (_CHOICES, _SEQUENCE):
            return set().union(*(self._used(value) for value in values))
        return set()


def _below(values: Sequence[int], num_rules: int) -> set[int]:
    """Rules that a dispatch may go to, among all its numbers."""
    return {value for value in values if value < num_rules}
