"""A verifier replica as flows: requests of a kind share its rounds and get tokens at one common rate, which changes
only when a request comes, ends its prefill or ends. Nothing is done per round."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil

from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.sim.drafters import SimulatedDrafter
from dspine_cluster.sim.prefix_store import PrefixStore
from dspine_cluster.sim.replica import Work
from dspine_cluster.sim.replica_figures import ReplicaFigures
from dspine_cluster.sim.round_table import Round, RoundTable
from dspine_cluster.sim.simulation import Simulation
from dspine_cluster.sim.verifier import VerifierLimits
from dspine_cluster.types import CHUNK_GRID_TOKENS

_PREFILL_STEP = 64
_SOON = 1e-9
_TAIL_TOKENS = CHUNK_GRID_TOKENS / 2
"""Of a prompt, behind its last checkpoint: computed in a round of their own, on average so many."""
_PHASE_STEP = 0.618034
"""Multiples of it, without what is before the point, are spread evenly: they stand for what chance decides."""
_MEAN_CONTEXT = 0.75
"""Cached tokens that requests read, over those they will have in the end."""


@dataclass(slots=True)
class _Prefill:
    work: Work
    left: float
    chunk: float
    """Tokens a round, where there is room for them."""
    granted: float = 0.0
    """Tokens a round at present."""


class FluidVerifier:
    """See `Replica`. Prompts are computed in order of their arrival, as many at a time as rounds have
    room for, beside those that decode."""

    def __init__(
        self,
        name: str,
        simulation: Simulation,
        table: RoundTable,
        costs: CostModel,
        limits: VerifierLimits,
        *,
        num_kinds: int,
        slow_factor: float = 1.0,
    ) -> None:
        self.name = name
        self.drafter: SimulatedDrafter | None = None
        self._simulation = simulation
        self._table = table
        self._costs = costs
        self._limits = limits
        self._slow_factor = slow_factor
        self._store = PrefixStore(limits.pool_tokens, limits.max_checkpoints)
        self._figures = ReplicaFigures(table, num_kinds)
        self._numbers = count()
        self._waiting: deque[Work] = deque()
        self._prefill: list[_Prefill] = []
        self._decoding: list[list[tuple[float, int, float, Work]]] = [[] for _ in range(num_kinds)]
        """By kind, a heap of (reach at which it ends, number, reach at which it began, request)."""
        self._reach = [0.0] * num_kinds
        """Tokens that a request which decodes since the beginning would have by now, by kind."""
        self._begun = 0.0  # sum of the reaches at which those that decode began
        self._rates = [0.0] * num_kinds
        self._round = Round(0.0, 0.0, ())
        self._round_s = 0.0
        self._prefill_s = 0.0
        self._prefill_tokens = 0  # a round at present
        self._phase = 0.0
        self._wait_s = 0.0
        self._in_use_tokens = 0
        self._advanced_at_s = simulation.now_s
        self._version = 0
        self._admitted: list[str] = []
        self._has_news = True

    @property
    def has_news(self) -> bool:
        return self._has_news or bool(self._prefill)

    @property
    def num_requests(self) -> int:
        return self._num_running + len(self._waiting)

    @property
    def _num_running(self) -> int:
        return len(self._prefill) + sum(map(len, self._decoding))

    def keys(self, work: Work) -> Sequence[PageKey]:
        return work.talk.keys(work.turn)

    def submit(self, work: Work) -> None:
        self._advance()
        self._admitted.append(work.uid)
        self._waiting.append(work)
        self._admit()
        self._continue()

    def load(self) -> ReplicaLoad:
        prefill = sum(item.left for item in self._prefill)
        queued = prefill + sum(work.prompt_tokens for work in self._waiting)
        return ReplicaLoad(self._num_running, len(self._waiting), int(queued))

    def take_keys(self) -> tuple[frozenset[PageKey], frozenset[PageKey]]:
        return self._store.take_events()

    def take_admitted(self) -> list[str]:
        self._has_news = False
        admitted, self._admitted = self._admitted, []
        return admitted

    def observe(self, is_draining: bool) -> VerifierStats:
        self._advance()
        if self._num_running:
            self._continue()  # drafters' queues have changed
        counts = tuple(map(len, self._decoding))
        produced = sum(n * reach for n, reach in zip(counts, self._reach, strict=True)) - self._begun
        return self._figures.stats(
            self.name,
            self._simulation.now_s,
            counts=counts,
            has_drafter=self.drafter is not None,
            load=self.load(),
            num_produced=produced,
            page_usage_ratio=min(1.0, self._in_use_tokens / self._limits.pool_tokens),
            max_requests=self._limits.max_running_requests,
            prefill_token_s=self._costs.token_s * self._slow_factor,
            is_draining=is_draining,
        )

    def stop(self) -> list[Work]:
        self._advance()
        self._version += 1
        left = [*self._waiting, *(item.work for item in self._prefill)]
        for kind, heap in enumerate(self._decoding):
            for _, _, began, work in heap:
                done = int(self._reach[kind] - began) + 1
                work.num_produced += max(0, min(done, work.output_tokens - 1))
                left.append(work)
        return left

    def _advance(self) -> None:
        now_s = self._simulation.now_s
        elapsed_s = now_s - self._advanced_at_s
        self._advanced_at_s = now_s
        if elapsed_s <= 0 or not self._round_s:
            return
        committed, num_decoding = 0.0, 0
        for kind, rate in enumerate(self._rates):
            gained, count = rate * elapsed_s, len(self._decoding[kind])
            self._reach[kind] += gained
            committed += count * gained
            num_decoding += count
        prefilled = 0.0
        for item in self._prefill:
            done = min(item.left, item.granted * elapsed_s / self._round_s)
            item.left -= done
            prefilled += done
        self._figures.note(
            num_rounds=elapsed_s / self._round_s,
            round_s=self._round_s,
            prefill_s=self._prefill_s,
            draft_queue_s=self._wait_s,
            num_decoding=num_decoding,
            committed=committed,
            prefilled=prefilled,
        )

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        ready = [item for item in self._prefill if item.left <= _SOON * (1 + item.granted / self._round_s)]
        for item in ready:
            self._prefill.remove(item)
            self._begin_decode(item)
        for kind, heap in enumerate(self._decoding):
            while heap and heap[0][0] - self._reach[kind] <= _SOON * (1 + self._rates[kind]):
                _, _, began, work = heappop(heap)
                self._begun -= began - work.num_produced
                self._end(work)
        self._admit()
        self._continue()

    def _begin_decode(self, item: _Prefill) -> None:
        """Its first token is there at the end of a round, and it has waited for the beginning of one: up to a round
        more than if both were at once. Another passes where a checkpoint splits the prompt, and one more for a quarter
        of the prompts, which go on from between two points of the chunk grid. In none of them is more than a tail of
        the prompt computed. Its last round gives more than it needs, by half a round's tokens on average."""
        work, kind = item.work, item.work.talk.kind
        self._store.put_system(work.talk, self._in_use_tokens)
        phase = self._phase = (self._phase + _PHASE_STEP) % 1.0
        late_s = (1.0 + 4 * phase % 1.0 + (phase < 0.25)) * self._round_without(item)
        if work.first_s is None:
            work.first_s = self._simulation.now_s + late_s
            self._figures.note_first(_TAIL_TOKENS)
        late = self._rates[kind] * late_s
        surplus = (self._round.committed[kind] - 1.0) / 2 if self._round.committed else 0.0
        began = self._reach[kind] + late
        self._begun += began - work.num_produced
        entry = (began + work.output_tokens - 1 + surplus, next(self._numbers), began, work)
        heappush(self._decoding[kind], entry)

    def _end(self, work: Work) -> None:
        self._in_use_tokens -= work.prompt_tokens + work.output_tokens
        self._store.put(work.talk, work.turn, self._in_use_tokens)
        self._figures.note_end(work.talk.exchanges[work.turn].output_tokens)
        work.on_end(work)

    def _admit(self) -> None:
        while self._waiting and self._num_running < self._limits.max_running_requests:
            work = self._waiting[0]
            size = work.prompt_tokens + work.output_tokens
            if self._in_use_tokens and self._in_use_tokens + size > self._limits.pool_tokens:
                return
            self._waiting.popleft()
            self._in_use_tokens += size
            work.cached_tokens = min(self._store.match(work.talk, work.turn), work.prompt_tokens - 1)
            left = max(1.0, work.prompt_tokens - work.cached_tokens - _TAIL_TOKENS)
            # As many rounds as chunks: those that decode go on in the last one as well, which is seldom a full one.
            num_chunks = ceil(left / self._limits.prefill_chunk_tokens)
            self._prefill.append(_Prefill(work, left, left / num_chunks))

    def _continue(self) -> None:
        """Work out how fast everything goes from now on, and when that changes."""
        self._version += 1
        self._has_news = True
        counts = tuple(map(len, self._decoding))
        num_decoding = sum(counts)
        if not num_decoding and not self._prefill:
            self._rates, self._round_s = [0.0] * len(counts), 0.0
            if self.drafter is not None:
                self.drafter.set_load(self.name, 0.0, 1.0)
            return
        num_prefill = self._prefill_tokens = self._chunk_tokens(num_decoding)
        has_drafter = self.drafter is not None
        taken, self._wait_s, self._round_s = self._round_of(counts, num_prefill)
        self._round = taken
        self._prefill_s = 0.0
        if num_prefill and num_decoding:
            without = self._table.round(counts, 0, has_drafter)
            self._prefill_s = max(0.0, self._slow_factor * (taken.seconds - without.seconds))
        if self.drafter is not None:
            self.drafter.set_load(self.name, taken.draft_s, self._round_s)
        self._rates = [committed / self._round_s for committed in taken.committed]
        soonest_s = 1e9
        for item in self._prefill:
            if item.granted:
                soonest_s = min(soonest_s, item.left / item.granted * self._round_s)
        for kind, heap in enumerate(self._decoding):
            if heap:
                soonest_s = min(soonest_s, (heap[0][0] - self._reach[kind]) / self._rates[kind])
        self._simulation.after(max(0.0, soonest_s), partial(self._wake, self._version))

    def _round_of(self, counts: tuple[int, ...], num_prefill: int) -> tuple[Round, float, float]:
        """The round of those that decode with so many prompt tokens, how long it waits for drafters, and how long it
        is in all."""
        costs = self._costs
        steps = -(-num_prefill // _PREFILL_STEP) * _PREFILL_STEP
        taken = self._table.round(counts, steps, self.drafter is not None)
        # Prompt tokens are rounded up to few different numbers; what is too much is taken off again.
        pass_s = taken.seconds - taken.draft_s - (steps - num_prefill) * costs.token_s
        pass_s = max(pass_s, costs.pass_s(sum(counts), 0, 0)) + (
            _MEAN_CONTEXT * self._in_use_tokens * costs.cached_token_s
        )
        wait_s = self.drafter.expected_wait_s if self.drafter is not None and taken.draft_s else 0.0
        return taken, wait_s, pass_s * self._slow_factor + taken.draft_s + wait_s

    def _round_without(self, item: _Prefill) -> float:
        """How long rounds would be at present with the tail of one prompt only."""
        counts = tuple(map(len, self._decoding))
        others = max(0, self._prefill_tokens - int(item.granted))
        return self._round_of(counts, others + int(_TAIL_TOKENS))[2]

    def _chunk_tokens(self, num_decoding: int) -> int:
        """Prompt tokens of a round, granted in order of arrival."""
        room = float(self._limits.max_batch_tokens - 2 * num_decoding)
        total = 0.0
        for item in self._prefill:
            item.granted = min(item.chunk, room - total)
            total += item.granted
        return max(1, int(total)) if total else 0
