"""Which drafter drafts for which verifier."""

from __future__ import annotations

from collections.abc import Sequence

from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.replica import Replica


def pair(replicas: Sequence[Replica], drafters: Sequence[SimulatedDrafter]) -> None:
    """Spread verifiers over drafters; most stay with theirs."""
    for drafter in drafters:
        drafter.num_verifiers = 0
    most = -(-len(replicas) // max(1, len(drafters)))
    serving = set(drafters)
    homeless = []
    for replica in replicas:
        before = replica.drafter
        if before in serving and before.num_verifiers < most:
            before.num_verifiers += 1
            continue
        if before is not None:
            before.forget(replica.name)
        replica.drafter = None
        homeless.append(replica)
    for replica in homeless:
        if drafters:
            least = min(drafters, key=lambda d: d.num_verifiers)
            least.num_verifiers += 1
            replica.drafter = least
