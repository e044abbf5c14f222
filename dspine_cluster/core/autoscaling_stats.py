"""What autoscaling is told of the replicas."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundCurve:
    """How long a verifier's rounds take over the number of requests in them, drafts included, nothing queued and
    nothing prefilled: by its own measured costs, as it drafts and verifies at present."""

    num_requests: tuple[int, ...]
    """Ascending, from 1 on."""
    seconds: tuple[float, ...]
    """At `num_requests`; in between it is linear, and beyond the last it goes on, but never falls."""

    def __post_init__(self) -> None:
        assert len(self.num_requests) == len(self.seconds) >= 2
        assert self.num_requests[0] >= 1

    def at(self, num_requests: float) -> float:
        sizes, seconds = self.num_requests, self.seconds
        i = min(max(1, bisect_left(sizes, num_requests)), len(sizes) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (sizes[i] - sizes[i - 1])
        line_s = seconds[i] + slope * (max(num_requests, sizes[0]) - sizes[i])
        return max(line_s, min(seconds[i - 1], seconds[i]))


@dataclass(frozen=True, slots=True)
class VerifierStats:
    """One verifier's figures, over the last seconds."""

    replica_id: str
    age_s: float
    """How old the figures are."""
    curve: RoundCurve
    max_requests: int
    """It decodes this many at a time at most."""
    committed_tokens_per_s: float = 0.0
    acceptance_length: float = 1.0
    """Committed tokens a request and round; 1 decodes plainly."""
    speculation_gain: float = 1.0
    """Tokens a second with drafts over those of plain decoding, by its costs and acceptance; infinite where nothing is
    known of drafts."""
    running_requests: float = 0.0
    running_tokens: float = 0.0
    """Still to be generated for requests that run."""
    waiting_tokens: float = 0.0
    """To be generated for requests that wait."""
    queued_prefill_tokens: float = 0.0
    """Of prompts, still to be computed for both."""
    prefill_tokens_per_s: float = 0.0
    """Prompt tokens that were computed."""
    prefill_token_s: float = 0.0
    """What a prompt token adds to a round."""
    round_s: float = 0.0
    """Mean time of a round, all parts included; 0 when there was none."""
    prefill_s: float = 0.0
    """Of that, for prompt tokens."""
    draft_queue_s: float = 0.0
    """Of that, waiting for drafters that are busy with others."""
    page_usage_ratio: float = 0.0
    """Pages of running requests over all pages."""
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """One drafter's figures, over the last seconds."""

    replica_id: str
    age_s: float
    busy_ratio: float = 0.0
    queue_s: float = 0.0
    """How long blocks wait before they are drafted."""
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a decision goes by. Replicas that still start are in the targets only."""

    now_s: float
    target_verifiers: int
    target_drafters: int
    verifiers: Sequence[VerifierStats]
    drafters: Sequence[DrafterStats]
    unplaced_requests: int = 0
    """Requests that no verifier has taken."""
