from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.sim.simulation import Simulation


@given(st.lists(st.integers(0, 5)))
def test_events_run_in_order_of_time_and_then_of_scheduling(delays: list[int]) -> None:
    simulation = Simulation()
    seen: list[tuple[float, int]] = []

    def note(number: int) -> None:
        seen.append((simulation.now_s, number))

    for number, delay in enumerate(delays):
        simulation.after(delay, partial(note, number))
    simulation.run()
    assert seen == sorted((float(delay), number) for number, delay in enumerate(delays))


def test_an_event_may_schedule_others() -> None:
    simulation = Simulation()
    seen: list[float] = []

    def act() -> None:
        seen.append(simulation.now_s)
        if len(seen) < 4:
            simulation.after(0.5, act)

    act()
    simulation.run()
    assert seen == [0.0, 0.5, 1.0, 1.5]


def test_running_up_to_a_time_leaves_later_events() -> None:
    simulation = Simulation()
    seen: list[float] = []
    for delay in (1.0, 2.0, 3.0):
        simulation.after(delay, lambda: seen.append(simulation.now_s))
    simulation.run(until_s=2.0)
    assert (seen, simulation.now_s) == ([1.0, 2.0], 2.0)
    simulation.run()
    assert seen == [1.0, 2.0, 3.0]
