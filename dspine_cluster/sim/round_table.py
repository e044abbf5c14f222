"""What a round of a replica takes and gives, by what is in it: the real choice of verify lengths at known costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dspine_cluster.config import parse_verify
from dspine_cluster.core.autoscaling_stats import RoundCurve
from dspine_cluster.core.cost_curve import CostCurve, CostShape
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.verify_walk import RoundPrice, choose_lengths
from dspine_cluster.sim.verifier import VerifierLimits

_CURVE_POINTS = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
_FINE = 32
_COARSE = 4


@dataclass(frozen=True, slots=True)
class Round:
    """One round in lockstep. K/V is not counted, and drafters have no queue."""

    seconds: float
    """Drafts included."""
    draft_s: float
    """Of that, for drafts."""
    committed: tuple[float, ...]
    """Tokens a request, by kind."""


class RoundTable:
    """Rounds by (requests of each kind, prompt tokens), each worked out once."""

    def __init__(
        self, costs: CostModel, acceptances: Sequence[float], verify: str, limits: VerifierLimits
    ) -> None:
        """`acceptances` by kind: P(a proposal is accepted | those before it are)."""
        self._costs = costs
        self._acceptances = tuple(acceptances)
        self._fixed = parse_verify(verify)
        self._limits = limits
        self._rounds: dict[tuple[tuple[int, ...], int, bool], Round] = {}
        self.curve = lru_cache(maxsize=4096)(self._curve)

    def round(self, counts: tuple[int, ...], num_prefill_tokens: int, has_drafter: bool = True) -> Round:
        """Of so many requests of each kind; large numbers are rounded to a few."""
        if max(counts) > _FINE:
            counts = tuple(c if c <= _FINE else c - c % _COARSE for c in counts)
        key = (counts, num_prefill_tokens, has_drafter)
        found = self._rounds.get(key)
        if found is None:
            found = self._rounds[key] = self._work_out(counts, num_prefill_tokens, has_drafter)
        return found

    def gain(self, counts: tuple[int, ...]) -> float:
        """Tokens a second with drafts over those without."""
        with_drafts, plain = self.round(counts, 0), self.round(counts, 0, has_drafter=False)
        committed = sum(n * a for n, a in zip(counts, with_drafts.committed, strict=True))
        return committed / with_drafts.seconds / (sum(counts) / plain.seconds)

    def largest_batch(self, kind: int, inter_token_s: float, limit: int) -> int:
        """Requests of one kind whose tokens come often enough, with drafts and without prompts; at least one."""

        def token_s(count: int) -> float:
            there = self.round(tuple(count * (k == kind) for k in range(len(self._acceptances))), 0)
            return there.seconds / there.committed[kind]

        return max((n for n in range(1, limit + 1) if token_s(n) <= inter_token_s), default=1)

    def _curve(self, counts: tuple[int, ...], has_drafter: bool) -> tuple[float, RoundCurve]:
        """The acceptance length of such a batch, and how long it takes batches of the same mixture, by their size, to
        commit as much for each request: where more requests are verified less of, that takes more than one round."""
        total = sum(counts)
        here = self.round(counts, 0, has_drafter)
        length = sum(n * a for n, a in zip(counts, here.committed, strict=True)) / total
        sizes, seconds = [], []
        for size in _CURVE_POINTS:
            part = tuple(round(n * size / total) for n in counts)
            if not sum(part) or sum(part) in sizes:
                continue
            there = self.round(part, 0, has_drafter)
            committed = sum(n * a for n, a in zip(part, there.committed, strict=True)) / sum(part)
            sizes.append(sum(part))
            seconds.append(there.seconds * length / committed)
        return length, RoundCurve(tuple(sizes), tuple(seconds))

    def _work_out(self, counts: tuple[int, ...], num_prefill_tokens: int, has_drafter: bool) -> Round:
        num_requests = sum(counts)
        num_passing = num_requests + (num_prefill_tokens > 0)
        plain_tokens = num_requests + num_prefill_tokens
        plain = Round(self._costs.pass_s(num_passing, plain_tokens, 0), 0.0, tuple(1.0 for _ in counts))
        if not has_drafter or not num_requests or self._fixed == 0:
            return plain
        kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
        draft_s = self._costs.drafts_s(num_requests)
        lengths = self._lengths(kinds, plain_tokens, num_passing, draft_s)
        pass_s = self._costs.pass_s(num_passing, plain_tokens + sum(lengths), 0)
        committed = [0.0] * len(counts)
        for kind, length in zip(kinds, lengths, strict=True):
            committed[kind] += 1.0 + sum(self._acceptances[kind] ** j for j in range(1, length + 1))
        drafted = Round(
            pass_s + draft_s,
            draft_s,
            tuple(total / count if count else 1.0 for total, count in zip(committed, counts, strict=True)),
        )
        is_slower = sum(committed) / drafted.seconds < num_requests / plain.seconds
        return plain if is_slower and self._fixed is None else drafted

    def _lengths(
        self, kinds: Sequence[int], plain_tokens: int, num_passing: int, draft_s: float
    ) -> Sequence[int]:
        longest = self._limits.max_verify_length
        room = max(0, self._limits.max_batch_tokens - plain_tokens)
        if self._fixed is not None:
            return [min(self._fixed, longest, room // len(kinds))] * len(kinds)
        costs = self._costs
        flat_s = costs.pass_s(num_passing, 0, 0)
        knee = int(costs.weights_s / costs.token_s)
        curve = CostCurve(CostShape((0, knee), (flat_s, flat_s), (0.0, costs.token_s)))
        rates = [self._acceptances[kind] for kind in kinds]
        price = RoundPrice(curve, plain_tokens, float(len(kinds)), draft_s)
        mean = sum(rates) / len(rates)
        return choose_lengths(
            [longest] * len(kinds),
            [[0] * longest] * len(kinds),
            [[rate] for rate in rates],
            [mean] * longest,
            price,
            max_verified=room,
        ).lengths
