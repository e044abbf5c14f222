"""Rounds of one verifier without tensors: what a verify length policy makes of costs and acceptance that are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dspine_cluster.core.survival import cells_of
from dspine_cluster.core.verify_length import Blocks, Outcomes, PassLoad, VerifyLengthPolicy


class RoundCosts(Protocol):
    """How long passes and drafts take; see `CostModel`."""

    def pass_s(self, num_requests: int, num_tokens: int, num_kv_tokens: int) -> float: ...

    def drafts_s(self, num_blocks: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One position of a drafted block."""

    acceptance: float
    """The probability that its proposal is accepted if those before it are."""
    confidence: float


DraftRows = Callable[[int, Random], Sequence[Row]]
"""Drafts a block for a request, by its number."""


@dataclass(slots=True)
class RoundsReport:
    """What came out."""

    seconds: float = 0.0
    num_tokens: float = 0.0
    """Expected, given the rows that were drafted and verified."""
    num_blocks: int = 0
    """Drafted blocks that took part in a pass."""
    num_verified: int = 0
    num_plain_passes: int = 0
    """Passes in which nothing was verified."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def verify_length(self) -> float:
        """Mean over drafted blocks."""
        return self.num_verified / self.num_blocks if self.num_blocks else 0.0


@dataclass(slots=True)
class SimulatedRounds:
    """A constant number of requests that never end, in lockstep with one drafter.

    Requests that are drafted for run when all drafts have come; until then the others go on.
    """

    policy: VerifyLengthPolicy
    costs: RoundCosts
    draft_rows: DraftRows
    num_requests: int
    random: Random
    num_kv_tokens_each: int = 1000
    noise: float = 0.0
    """Standard deviation of the logarithm of a pass's time, as it is measured."""
    hiccup_share: float = 0.0
    """Share of passes that seem to take five times as long."""
    unseen_s: float = 0.0
    """What a round with drafts takes beside its drafts and its pass."""
    now_s: float = 0.0
    _waiting: list[int] = field(default_factory=list)
    _drafts_at_s: float = 0.0
    _ended_s: float = 0.0

    def run(self, num_passes: int) -> RoundsReport:
        """Run passes; a second call goes on where the first ended."""
        report = RoundsReport()
        started_s = self.now_s
        if not self._waiting:
            self._ask(list(range(self.num_requests)))
        for _ in range(num_passes):
            self._step(report)
        report.seconds = self.now_s - started_s
        return report

    def _step(self, report: RoundsReport) -> None:
        waiting = set(self._waiting)
        ready = [uid for uid in range(self.num_requests) if uid not in waiting]
        if not ready:
            self.now_s = max(self.now_s, self._drafts_at_s)
        drafted = self._waiting if self.now_s >= self._drafts_at_s else []
        if drafted:
            self._waiting = []
        rows = {uid: self.draft_rows(uid, self.random) for uid in drafted}
        uids = sorted([*ready, *drafted])
        own_rows = [rows.get(uid, ()) for uid in uids]
        blocks = Blocks(
            uids,
            [len(own) for own in own_rows],
            [cells_of([row.confidence for row in own]) for own in own_rows],
            [True] * len(uids),
        )
        load = PassLoad(num_kv_tokens=self.num_kv_tokens_each * len(uids))
        lengths = self.policy.choose(blocks, load)
        chosen = [own[:length] for own, length in zip(own_rows, lengths, strict=True)]
        outcomes = Outcomes(uids, lengths, [self._num_accepted(own) for own in chosen])
        taken_s = self.costs.pass_s(len(uids), len(uids) + sum(lengths), load.num_kv_tokens)
        started_s = self.now_s + self.unseen_s if drafted else self.now_s
        self.now_s = started_s + taken_s
        measured_s = taken_s * self._noise_factor()
        self.policy.note_elapsed(started_s - self._ended_s + measured_s)
        self._ended_s = self.now_s
        self.policy.note_pass(outcomes, load, measured_s)
        self._ask(uids)
        report.num_tokens += sum(1.0 + _expected_accepted(own) for own in chosen)
        report.num_blocks += len(drafted)
        report.num_verified += sum(lengths)
        report.num_plain_passes += not any(lengths)

    def _ask(self, uids: Sequence[int]) -> None:
        chosen = self.policy.choose_drafts(uids)
        asked = [uid for uid in uids if uid in chosen]
        if asked:
            draft_s = self.costs.drafts_s(len(asked))
            self.policy.note_drafts(len(asked), draft_s)
            self._drafts_at_s = self.now_s + draft_s
            self._waiting += asked

    def _noise_factor(self) -> float:
        factor = self.random.lognormvariate(0.0, self.noise)
        return factor * 5.0 if self.random.random() < self.hiccup_share else factor

    def _num_accepted(self, rows: Sequence[Row]) -> int:
        for number, row in enumerate(rows):
            if self.random.random() >= row.acceptance:
                return number
        return len(rows)


def _expected_accepted(rows: Sequence[Row]) -> float:
    expected, survival = 0.0, 1.0
    for row in rows:
        survival *= row.acceptance
        expected += survival
    return expected
