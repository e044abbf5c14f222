from __future__ import annotations

from typing import Any

from dspine_cluster.sim.fleet_runs import make_table
from dspine_cluster.sim.fluid import FluidVerifier
from dspine_cluster.sim.replica import Work
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.workload import make_talks


def told(replica: FluidVerifier) -> tuple[bool, list[str]]:
    """Whether there are news, and what was admitted; all is taken."""
    has_news = replica.has_news
    replica.take_keys()
    return has_news, replica.take_admitted()


def test_a_replica_has_news_while_it_prefills_and_when_a_request_begins_or_ends(make_scenario: Any) -> None:
    scenario = make_scenario()
    simulation, ended = Simulation(), list[Work]()
    replica = FluidVerifier(
        "v", simulation, make_table(scenario), scenario.costs, scenario.replicas.limits, num_kinds=1
    )
    told(replica)
    assert told(replica) == (False, [])
    work = Work("a", next(make_talks(scenario, 1)), 0, 0.0, ended.append)
    replica.submit(work)
    assert told(replica) == (True, ["a"])
    assert told(replica) == (True, [])
    while work.first_s is None:
        simulation.run(simulation.now_s + 0.01)
    assert told(replica) == (True, [])
    replica.observe(is_draining=False)
    told(replica)
    assert told(replica) == (False, [])
    simulation.run()
    assert ended == [work]
    assert told(replica)[0]
