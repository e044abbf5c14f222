"""How long a replica's steps take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import inf
from typing import Any, ClassVar

from dspine_cluster.core.batch_plan import BatchPlan
from dspine_cluster.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CostModel:
    """A roofline with one term a resource. The defaults are floors of a 27 B hybrid target and its drafter on one H200:
    weights, K/V and recurrent states at 4.3 TB/s, arithmetic at 790 TFLOP/s."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    weights_s: float = 0.0125
    """One pass over the target's weights."""
    token_s: float = 7.0e-5
    """Arithmetic for a token that passes through the target; 128 of them take 9 ms."""
    cached_token_s: float = 1.5e-8
    """Reading the K/V of a token: 64 KB."""
    state_s: float = 3.5e-5
    """Reading a request's recurrent state: 151 MB."""
    step_s: float = 0.001
    """Whatever a step costs beside its pass."""
    draft_s: float = 0.0014
    """A pass over the drafter's weights."""
    draft_request_s: float = 5.0e-5
    """Drafting one block more."""

    def __post_init__(self) -> None:
        if not all(0 <= seconds < inf for seconds in astuple(self)):
            raise ConfigError("step times must be finite and not negative")

    def pass_s(self, num_requests: int, num_tokens: int, num_kv_tokens: int) -> float:
        """One pass of `num_tokens` through the target, of requests that read `num_kv_tokens` together."""
        arithmetic_s = max(self.weights_s, num_tokens * self.token_s)
        return self.step_s + arithmetic_s + num_kv_tokens * self.cached_token_s + num_requests * self.state_s

    def drafts_s(self, num_blocks: int) -> float:
        """One pass of the drafter, for this many blocks."""
        return self.draft_s + num_blocks * self.draft_request_s if num_blocks else 0.0

    def plan_s(self, plan: BatchPlan) -> float:
        """A round in lockstep: the drafts for its blocks, then the pass."""
        lengths, sessions = plan.blocks.verify_lengths, plan.sessions
        num_tokens = len(lengths) + sum(lengths) + sum(chunk.num_tokens for chunk in plan.chunks)
        num_kv_tokens = sum(len(session.tokens) for session in sessions)
        num_drafts = sum(length > 0 for length in lengths)
        return self.pass_s(len(sessions), num_tokens, num_kv_tokens) + self.drafts_s(num_drafts)
