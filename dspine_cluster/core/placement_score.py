"""What it costs to place a request on a verifier, in seconds: the smaller, the better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from dspine_cluster.core.cluster_records import ReplicaLoad
from dspine_cluster.errors import ConfigError

_STRICT: Mapping[str, Any] = {"extra": "forbid", "use_attribute_docstrings": True}
"""For whoever parses them: as all configuration, see `dspine_cluster.config`."""


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Weights of the score. The defaults suit a 27 B target on one large GPU; measured rates replace the first."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _STRICT

    prefill_tokens_per_s: float = 10_000.0
    """Of a replica that has not measured its own."""
    miss_weight: float = 3.0
    """A second of prefill that a cached prefix would have saved counts this often: it delays the rounds of others, too,
    and the copy takes cache from them."""
    request_s: float = 0.01
    """What each request that a verifier already has adds: its rounds and its part of the memory. Answers of a thousand
    tokens and more want ten times as much: else a long prefix that is cached outweighs dozens of requests."""
    reuse_s: float = 30.0
    """After how long what is cached is typically used again; a cache that keeps it for less is under pressure."""
    max_pressure: float = 4.0
    """More pressure makes no difference any more: nothing lasts until it is used."""
    draft_miss_ratio: float = 0.05
    """Filling the drafter's context for a token, as a part of prefilling it."""
    draft_request_s: float = 0.0005
    """What each request that a drafter already has adds."""
    remote_drafter_s: float = 0.05
    """No drafter on the verifier's node."""
    tie_s: float = 0.002
    """Costs that differ by less are equal, and one of them is taken at random."""
    max_candidates: int = 8
    """Verifiers with a cached prefix that are looked at, longest prefix first."""
    num_least_loaded: int = 4
    """Verifiers that are looked at whatever they have cached."""

    def __post_init__(self) -> None:
        if not 0 < self.prefill_tokens_per_s < inf or not 0 < self.reuse_s < inf:
            raise ConfigError("prefill_tokens_per_s and reuse_s must be positive and finite")
        if self.max_candidates < 0 or self.num_least_loaded < 1:
            raise ConfigError("max_candidates must not be negative, and num_least_loaded be at least 1")
        for name in (
            "miss_weight",
            "request_s",
            "max_pressure",
            "draft_miss_ratio",
            "draft_request_s",
            "remote_drafter_s",
            "tie_s",
        ):
            if not 0 <= getattr(self, name) < inf:
                raise ConfigError(f"{name} must be finite and not negative")


def prefill_rate(load: ReplicaLoad, config: PlacementConfig) -> float:
    """Prompt tokens a second."""
    return load.prefill_tokens_per_s or config.prefill_tokens_per_s


def pressure(load: ReplicaLoad, config: PlacementConfig) -> float:
    """What caching a token costs others, as a part of what prefilling it costs: it drives out what is used again."""
    if (
        load.cache_lifetime_s * config.max_pressure <= config.reuse_s
    ):  # nothing stays at all where requests need all pages
        return config.max_pressure
    return config.reuse_s / load.cache_lifetime_s


def standing_cost_s(
    load: ReplicaLoad, reserved_tokens: int, reserved_requests: int, config: PlacementConfig
) -> float:
    """What a verifier costs whatever is placed there: the wait for its queue, and its running requests."""
    num_requests = load.running_requests + load.waiting_requests + reserved_requests
    wait_s = (load.queued_tokens + reserved_tokens) / prefill_rate(load, config)
    return wait_s + num_requests * config.request_s


def miss_token_s(load: ReplicaLoad, config: PlacementConfig) -> float:
    """What a token costs that has to be prefilled there, and kept there in place of others."""
    return (config.miss_weight + pressure(load, config)) / prefill_rate(load, config)
