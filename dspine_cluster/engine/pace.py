"""Steps that take as long as a cost model says, on machines that would be faster: for trying out what many replicas do
together where there is room for few."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.engine.batch import PackedRows


class Pace:
    """Sleeps what is left of a step's time. For one thread."""

    def __init__(
        self,
        costs: CostModel,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._costs = costs
        self._clock = clock
        self._sleep = sleep

    @contextmanager
    def passing(self, packed: PackedRows) -> Iterator[None]:
        """A pass takes place within."""
        num_kv_tokens = sum(packed.starts) + packed.num_rows
        with self._lasting(self._costs.pass_s(len(packed.lengths), packed.num_rows, num_kv_tokens)):
            yield

    @contextmanager
    def drafting(self, num_blocks: int) -> Iterator[None]:
        """So many blocks are drafted within."""
        with self._lasting(self._costs.drafts_s(num_blocks)):
            yield

    @contextmanager
    def _lasting(self, seconds: float) -> Iterator[None]:
        ends_s = self._clock() + seconds
        yield
        left_s = ends_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)
