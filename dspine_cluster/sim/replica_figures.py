"""What a simulated replica tells autoscaling, from what it counts."""

from __future__ import annotations

from dataclasses import replace

from dspine_cluster.core.autoscaling_stats import VerifierStats
from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.sim.round_table import RoundTable

_OUTPUT_WEIGHT = 0.02
_FIRST_OUTPUT_TOKENS = 300.0


class ReplicaFigures:
    """Sums since the last observation."""

    def __init__(self, table: RoundTable, num_kinds: int) -> None:
        self._table = table
        self._mix = (1,) + (0,) * (num_kinds - 1)
        self._output_tokens = _FIRST_OUTPUT_TOKENS
        self._observed_at_s = 0.0
        self._clear()

    def note(
        self,
        *,
        num_rounds: float,
        round_s: float,
        prefill_s: float,
        draft_queue_s: float,
        num_decoding: int,
        committed: float,
        prefilled: float,
    ) -> None:
        """So many rounds have passed, each with `num_decoding` requests; `committed` and `prefilled` in all of them."""
        self._prefilled += prefilled
        self._committed += committed
        if num_decoding:
            self._rounds += num_rounds
            self._seconds += num_rounds * round_s
            self._prefill_s += num_rounds * prefill_s
            self._queue_s += num_rounds * draft_queue_s
            self._request_rounds += num_rounds * num_decoding

    def note_first(self, prefilled: float = 0.0) -> None:
        """A prefill gave its token; `prefilled` are tokens of it that no round was told of."""
        self._committed += 1.0
        self._prefilled += prefilled
        self._firsts += 1

    def note_end(self, output_tokens: int) -> None:
        """A request has ended."""
        self._output_tokens += _OUTPUT_WEIGHT * (output_tokens - self._output_tokens)

    def stats(
        self,
        name: str,
        now_s: float,
        *,
        counts: tuple[int, ...],
        has_drafter: bool,
        load: ReplicaLoad,
        num_produced: float,
        page_usage_ratio: float,
        max_requests: int,
        prefill_token_s: float,
        is_draining: bool,
    ) -> VerifierStats:
        """The figures since the last call; `counts` are those that decode now, by kind, and have `num_produced`."""
        elapsed_s = max(1e-9, now_s - self._observed_at_s)
        self._observed_at_s = now_s
        if sum(counts):
            self._mix = counts
        length, curve = self._table.curve(self._mix, has_drafter)
        rounds = max(self._rounds, 1e-9)
        has_rounds = self._rounds > 0
        running = load.running_requests
        if has_rounds:
            expected, length = length, (self._committed - self._firsts) / self._request_rounds
            curve = replace(curve, seconds=tuple(s * length / expected for s in curve.seconds))
        stats = VerifierStats(
            name,
            age_s=0.0,
            curve=curve,
            max_requests=max_requests,
            committed_tokens_per_s=self._committed / elapsed_s,
            acceptance_length=length,
            speculation_gain=self._table.gain(self._mix),
            running_requests=self._request_rounds / rounds if has_rounds else float(running),
            running_tokens=running * self._output_tokens - num_produced,
            waiting_tokens=load.waiting_requests * self._output_tokens,
            queued_prefill_tokens=load.queued_tokens,
            prefill_tokens_per_s=self._prefilled / elapsed_s,
            prefill_token_s=prefill_token_s,
            round_s=self._seconds / rounds if has_rounds else 0.0,
            prefill_s=self._prefill_s / rounds if has_rounds else 0.0,
            draft_queue_s=self._queue_s / rounds if has_rounds else 0.0,
            page_usage_ratio=page_usage_ratio,
            is_draining=is_draining,
        )
        self._clear()
        return stats

    def _clear(self) -> None:
        self._committed = self._prefilled = 0.0
        self._firsts = 0
        self._rounds = self._seconds = self._prefill_s = self._queue_s = self._request_rounds = 0.0
