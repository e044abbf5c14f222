from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.key_index import KeyIndex
from dspine_cluster.core.page_hash import page_keys, root_key

KEYS = page_keys(range(16 * 8), root_key("target"))
changes = st.lists(
    st.tuples(
        st.sampled_from(("add", "remove", "drop")),
        st.sampled_from("abcd"),
        st.lists(st.sampled_from(KEYS), unique=True),
    )
)


def filled(steps: list[tuple[str, str, list[bytes]]]) -> tuple[KeyIndex, dict[str, set[bytes]]]:
    index, held = KeyIndex(Random(0)), {name: set[bytes]() for name in "abcd"}
    for what, name, keys in steps:
        if what == "add":
            index.add(name, keys)
            held[name] |= set(keys)
        elif what == "remove":
            index.remove(name, keys)
            held[name] -= set(keys)
        else:
            index.drop(name)
            held[name] = set()
    return index, held


@given(changes)
def test_each_holder_is_found_with_its_longest_prefix(steps: list[tuple[str, str, list[bytes]]]) -> None:
    index, held = filled(steps)
    longest = {
        name: max(i + 1 for i, key in enumerate(KEYS) if key in keys) for name, keys in held.items() if keys
    }
    found = index.deepest(KEYS, limit=4)
    assert found == longest
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert {name: index.depth(name, KEYS) for name in held} == dict.fromkeys(held, 0) | longest


@given(changes)
def test_only_what_is_held_is_kept(steps: list[tuple[str, str, list[bytes]]]) -> None:
    index, held = filled(steps)
    assert len(index) == len(set().union(*held.values()))
    assert {name: index.num_keys(name) for name in held} == {name: len(keys) for name, keys in held.items()}


@given(changes, st.integers(1, 4))
def test_the_limit_keeps_the_longest(steps: list[tuple[str, str, list[bytes]]], limit: int) -> None:
    index, _ = filled(steps)
    every = index.deepest(KEYS, limit=4)
    found = index.deepest(KEYS, limit)
    assert sorted(found.values(), reverse=True) == list(every.values())[:limit]
    assert found.items() <= every.items()


def test_of_many_equal_holders_different_ones_are_found() -> None:
    index = KeyIndex(Random(1))
    for number in range(100):
        index.add(str(number), KEYS)
    seen = {name for _ in range(50) for name in index.deepest(KEYS, limit=4)}
    assert len(seen) > 50
