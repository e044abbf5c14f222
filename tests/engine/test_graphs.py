from __future__ import annotations

import torch

from dspine_cluster.engine.graphs import GraphCache, can_record

CPU = torch.device("cpu")


def test_a_cpu_records_nothing_and_does_the_work_each_time() -> None:
    assert not can_record(CPU)
    cache: GraphCache[str, int] = GraphCache(CPU)
    numbers = iter(range(3))
    assert [cache.run("a", lambda: next(numbers)) for _ in range(3)] == [0, 1, 2]
    assert not cache.is_recorded("a")
