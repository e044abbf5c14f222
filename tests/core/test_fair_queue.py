from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.core.fair_queue import FairQueue, FairShares

COSTS = st.integers(1, 100)


def serve_next(queue: FairQueue[tuple[str, int]], output_tokens: int = 0) -> tuple[str, int]:
    """The next item, charged with its cost and its output."""
    item = client, cost = next(iter(queue))
    queue.remove(item, client)
    queue.shares.charge(client, cost + output_tokens)
    return item


@given(st.lists(st.tuples(st.integers(-3, 3), COSTS), max_size=30))
def test_one_clients_items_are_served_in_their_own_order(items: list[tuple[int, int]]) -> None:
    queue = FairQueue[tuple[int, int]]()
    for arrival, (priority, cost) in enumerate(items):
        queue.add((priority, arrival), client="", order=(priority, arrival), cost_tokens=cost)
    assert list(queue) == sorted((priority, arrival) for arrival, (priority, _) in enumerate(items))
    assert bool(queue) == bool(len(queue)) == bool(items)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.25, 4), min_size=2),
    st.lists(st.tuples(COSTS, COSTS), min_size=30, max_size=80),
)
def test_clients_that_always_wait_get_their_shares_within_one_request(
    shares: dict[str, float], costs: list[tuple[int, int]]
) -> None:
    queue = FairQueue[tuple[str, int]]()
    numbers = iter(range(10**6))

    def add(client: str, cost: int) -> None:
        queue.add(
            (client, cost), client=client, order=(0, next(numbers)), cost_tokens=cost, share=shares[client]
        )

    for client in shares:
        add(client, costs[0][0])
        add(client, costs[0][1])
    served = Counter[str]()
    for cost, output_tokens in costs:
        client, served_cost = serve_next(queue, output_tokens)
        served[client] += served_cost + output_tokens
        add(client, cost)
    normalised = [served[client] / share for client, share in shares.items()]
    assert max(normalised) - min(normalised) <= 200 / min(shares.values()) + 1e-6


@given(st.integers(1, 500), COSTS, COSTS)
def test_a_client_that_comes_late_is_served_before_the_next_but_one_of_a_flood(
    num_before: int, flood_cost: int, cost: int
) -> None:
    queue = FairQueue[tuple[str, int]]()
    for number in range(num_before + 3):
        queue.add(("flood", flood_cost), client="flood", order=(0, number), cost_tokens=flood_cost)
    for _ in range(num_before):
        serve_next(queue)
    queue.add(("late", cost), client="late", order=(0, 0), cost_tokens=cost)
    assert "late" in [serve_next(queue)[0] for _ in range(2)]


def test_a_client_saves_nothing_up_while_it_asks_for_nothing() -> None:
    queue = FairQueue[tuple[str, int]]()
    queue.add(("idle", 1), client="idle", order=(0, 0), cost_tokens=1)
    serve_next(queue)
    for number in range(100):
        queue.add(("busy", 100), client="busy", order=(0, number), cost_tokens=100)
    for _ in range(90):
        serve_next(queue)
    queue.add(("idle", 1), client="idle", order=(0, 0), cost_tokens=1)
    assert queue.shares.served("busy") - queue.shares.served("idle") <= 100


def test_a_client_cannot_get_rid_of_its_counter_by_a_pause() -> None:
    shares = FairShares()
    for client in ("greedy", "other"):
        shares.enter(client)
    shares.charge("greedy", 500)
    shares.leave("greedy")
    shares.enter("greedy")
    assert shares.served("greedy") == 500


def test_priority_does_not_go_before_another_clients_turn() -> None:
    queue = FairQueue[str]()
    queue.add("urgent 1", client="a", order=(-100, 0), cost_tokens=10)
    queue.add("urgent 2", client="a", order=(-100, 1), cost_tokens=10)
    queue.add("usual", client="b", order=(0, 2), cost_tokens=10)
    assert list(queue) == ["urgent 1", "usual", "urgent 2"]


def test_a_share_of_two_is_served_twice_as_often() -> None:
    queue = FairQueue[str]()
    for number in range(40):
        queue.add("double", client="double", order=(0, number), cost_tokens=10, share=2.0)
        queue.add("single", client="single", order=(0, number), cost_tokens=10)
    first = Counter(item for item, _ in zip(queue, range(30), strict=False))
    assert first == {"double": 20, "single": 10}


def test_looking_ahead_changes_nothing() -> None:
    queue = FairQueue[str]()
    for number, client in enumerate("abab"):
        queue.add(f"{client}{number}", client=client, order=(0, number), cost_tokens=5)
    assert list(queue) == list(queue) == ["a0", "b1", "a2", "b3"]


def test_clients_that_ask_for_nothing_are_forgotten_at_some_time() -> None:
    shares = FairShares()
    for number in range(10_000):
        shares.enter(str(number))
        shares.leave(str(number))
    assert len(shares._served) < 5000
