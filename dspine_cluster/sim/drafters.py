"""Drafter replicas without tensors: first come, first served, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspine_cluster.core.autoscaling_stats import DrafterStats


@dataclass(slots=True, eq=False)
class SimulatedDrafter:
    """Drafts for the verifiers that are given to it."""

    name: str
    num_verifiers: int = 0
    free_at_s: float = 0.0
    busy_s: float = 0.0
    """Drafting, since it was last observed."""
    queued_s: float = 0.0
    num_batches: int = 0
    expected_wait_s: float = 0.0
    """In front of a batch, where batches are not simulated one by one."""
    _loads: dict[str, tuple[float, float]] = field(default_factory=dict)
    _observed_at_s: float = 0.0

    def ask(self, now_s: float, draft_s: float) -> float:
        """Seconds until a batch is drafted that is asked for now."""
        starts_s = max(now_s, self.free_at_s)
        self.free_at_s = starts_s + draft_s
        self.busy_s += draft_s
        self.queued_s += starts_s - now_s
        self.num_batches += 1
        return self.free_at_s - now_s

    def set_load(self, verifier: str, draft_s: float, round_s: float) -> None:
        """A verifier has batches of `draft_s` drafted, one every `round_s`; none where `draft_s` is 0."""
        if draft_s:
            self._loads[verifier] = (draft_s, round_s)
        else:
            self._loads.pop(verifier, None)

    def forget(self, verifier: str) -> None:
        self._loads.pop(verifier, None)

    @property
    def load(self) -> float:
        """Part of its time that it is busy, by what verifiers have set."""
        return min(1.0, sum(draft / round_s for draft, round_s in self._loads.values()))

    def update_wait(self) -> None:
        """Of a batch that comes at any time: the rest of the batch that is being drafted, and those before it.

        With M verifiers that each wait for their own batch, the others are M - 1, so the queue stays finite.
        """
        count = len(self._loads)
        if count < 2:
            self.expected_wait_s = 0.0
            return
        mean_s = sum(draft for draft, _ in self._loads.values()) / count
        others = sum(draft / round_s for draft, round_s in self._loads.values()) * (count - 1) / count
        wait_s = min(others * mean_s / 2 / max(1e-3, 1 - others), (count - 1) * mean_s)
        self.expected_wait_s += 0.5 * (wait_s - self.expected_wait_s)

    def observe(self, now_s: float, *, by_load: bool) -> DrafterStats:
        """Figures since the last time; `by_load` takes them from what verifiers have set."""
        elapsed_s = max(1e-9, now_s - self._observed_at_s)
        busy = self.load if by_load else min(1.0, self.busy_s / elapsed_s)
        queue_s = self.expected_wait_s if by_load else self.queued_s / max(1, self.num_batches)
        self.busy_s, self.queued_s, self.num_batches, self._observed_at_s = 0.0, 0.0, 0, now_s
        return DrafterStats(self.name, 0.0, busy, queue_s)
