from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.load_order import LoadOrder

changes = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 4).map(float)), max_size=300
)


def filled(steps: list[tuple[str, float | None]]) -> tuple[LoadOrder, dict[str, float]]:
    order, costs = LoadOrder(Random(0)), dict[str, float]()
    for name, cost in steps:
        if cost is None:
            order.discard(name)
            costs.pop(name, None)
        else:
            order.set(name, cost)
            costs[name] = cost
    return order, costs


@given(changes, st.integers(0, 7))
def test_the_cheapest_come_first(steps: list[tuple[str, float | None]], count: int) -> None:
    order, costs = filled(steps)
    names = order.cheapest(count)
    assert [costs[name] for name in names] == sorted(costs.values())[:count]
    assert len(set(names)) == len(names)


@given(changes)
def test_asking_changes_nothing(steps: list[tuple[str, float | None]]) -> None:
    order, _ = filled(steps)
    assert order.cheapest(6) == order.cheapest(6)


@given(changes, st.sets(st.sampled_from("abcdef")))
def test_refused_names_are_passed_over(steps: list[tuple[str, float | None]], refused: set[str]) -> None:
    order, costs = filled(steps)
    assert set(order.cheapest(6, lambda name: name not in refused)) == costs.keys() - refused


def test_equals_are_mixed() -> None:
    firsts = set()
    for seed in range(40):
        order = LoadOrder(Random(seed))
        for name in "abc":
            order.set(name, 1.0)
        firsts.add(order.cheapest(1)[0])
    assert firsts == set("abc")
