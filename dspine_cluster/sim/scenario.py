"""What `dspine simulate` is told: a fleet, who comes, and what goes wrong. Parsed once; unknown keys are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ConfigDict

from dspine_cluster.config import STRICT, parse_config, parse_verify, require
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.core.placement_score import PlacementConfig
from dspine_cluster.errors import ConfigError
from dspine_cluster.sim.cost_fit import read_costs
from dspine_cluster.sim.ranges import in_range, not_empty, positive
from dspine_cluster.sim.verifier import VerifierLimits
from dspine_cluster.types import MAX_PROPOSALS


@dataclass(frozen=True)
class Objective:
    """What a request must get, both."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    ttft_s: float = 2.0
    """Time to the first token."""
    inter_token_s: float = 0.02
    """Between two tokens, on average over its answer."""
    met_ratio: float = 0.99
    """Of all requests."""

    def __post_init__(self) -> None:
        positive(self, "ttft_s inter_token_s")
        in_range(self, 0, "met_ratio", most=1)


@dataclass(frozen=True)
class Burst:
    """A time with more load."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_s: float
    for_s: float
    factor: float

    def __post_init__(self) -> None:
        in_range(self, 0, "at_s for_s factor")


@dataclass(frozen=True)
class LoadConfig:
    """When conversations start: a Poisson process whose rate follows the day and bursts."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    conversations_per_s: float
    amplitude: float = 0.0
    """Of a sine that starts at its lowest, as a part of the mean rate; 0 is constant."""
    period_s: float = 3600.0
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        positive(self, "conversations_per_s period_s")
        in_range(self, 0, "amplitude", most=1)


@dataclass(frozen=True)
class Kind:
    """A kind of text, in its own conversations."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    acceptance: float
    """The probability that a proposal is accepted if those before it are."""
    median_output_tokens: int = 300
    shares: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    """(time, share of the conversations that start), linear in between; only their proportions count."""

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1 or not self.shares:
            raise ConfigError(f"kinds {self.name}: acceptance must be in [0, 1], and shares not be empty")
        in_range(self, 1, "median_output_tokens")
        times = [at_s for at_s, _ in self.shares]
        require(times == sorted(set(times)), "shares", "be in the order of their times, each once")
        require(all(0 <= share < inf for _, share in self.shares), "shares", "be finite and not negative")


def share_at(shares: Sequence[tuple[float, float]], at_s: float) -> float:
    """Linear between the points, constant outside."""
    before = [point for point in shares if point[0] <= at_s]
    after = [point for point in shares if point[0] > at_s]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (t0, y0), (t1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (at_s - t0) / (t1 - t0)


@dataclass(frozen=True)
class ConversationConfig:
    """Lengths are medians of log-normal distributions."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    mean_turns: float = 4.0
    median_gap_s: float = 15.0
    """Between the end of an answer and the next turn."""
    num_system_prompts: int = 24
    """Shared; their popularity falls as 1 / rank."""
    median_system_tokens: int = 1200
    median_user_tokens: int = 150
    spread: float = 0.6
    """Standard deviation of the logarithm of all lengths."""
    max_tokens: int = 16_000
    """A conversation ends before it gets longer."""

    def __post_init__(self) -> None:
        in_range(self, 1, "mean_turns num_system_prompts median_system_tokens median_user_tokens max_tokens")
        positive(self, "median_gap_s")
        in_range(self, 0, "spread", most=10)


@dataclass(frozen=True)
class ReplicaConfig:
    """What replicas are like."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    verify: str = "dynamic"
    limits: VerifierLimits = field(default_factory=lambda: VerifierLimits(max_verify_length=15))
    verifier_start_s: float = 45.0
    """From the decision until it serves."""
    drafter_start_s: float = 20.0
    verifier_gpus: float = 1.0
    drafter_gpus: float = 1.0
    initial_verifiers: int = 4
    initial_drafters: int = 1
    slow_ratio: float = 0.0
    """Part of the verifiers that is slow."""
    slow_factor: float = 1.0
    """How many times as long their passes take."""

    def __post_init__(self) -> None:
        parse_verify(self.verify)
        in_range(self, 0, "verifier_start_s drafter_start_s verifier_gpus drafter_gpus")
        in_range(self, 0, "initial_verifiers initial_drafters")
        in_range(self, 0, "slow_ratio", most=1)
        positive(self, "slow_factor")
        positive(self.limits, "pool_tokens max_running_requests max_batch_tokens prefill_chunk_tokens")
        in_range(self.limits, 0, "max_checkpoints")
        in_range(self.limits, 0, "max_verify_length", most=MAX_PROPOSALS)


@dataclass(frozen=True)
class Loss:
    """At one moment this many verifiers are lost."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_s: float
    verifiers: int

    def __post_init__(self) -> None:
        in_range(self, 0, "at_s verifiers")


@dataclass(frozen=True)
class OwnChoices:
    """Values to try for the real autoscaling's settings, as the rivals' are tried."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    verifier_utilisation: tuple[float, ...] = (0.9, 0.85, 0.95)
    drafter_busy_ratio: tuple[float, ...] = (0.9,)
    down_hold_s: tuple[float, ...] = (20, 60)
    """Of verifiers and drafters."""
    smoothing_s: tuple[float, ...] = (25, 12)

    def __post_init__(self) -> None:
        not_empty(self)


@dataclass(frozen=True)
class ServeRival:
    """Values to try for Serve's default policy, one parameter after the other; the first is where the search starts."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    target_ongoing_requests: tuple[float, ...] = (22, 26, 24, 20, 16)
    drafters_per_verifier: tuple[float, ...] = (0.15,)
    downscale_delay_s: tuple[float, ...] = (20, 60)
    upscale_delay_s: tuple[float, ...] = (0,)

    def __post_init__(self) -> None:
        not_empty(self)
        positive(self, "target_ongoing_requests")
        in_range(self, 0, "drafters_per_verifier downscale_delay_s upscale_delay_s")


@dataclass(frozen=True)
class FixedRival:
    """Values to try for constant numbers of replicas."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    verifiers: tuple[int, ...] = (6, 2, 3, 4, 5, 7, 8, 9)
    drafters_per_verifier: tuple[float, ...] = (0.15,)

    def __post_init__(self) -> None:
        not_empty(self)
        positive(self, "verifiers")
        in_range(self, 0, "drafters_per_verifier")


@dataclass(frozen=True)
class Scenario:
    """One simulated time of one fleet."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    duration_s: float
    load: LoadConfig
    kinds: tuple[Kind, ...]
    warm_up_s: float = 60.0
    """What comes before is served, but not judged."""
    objective: Objective = field(default_factory=Objective)
    conversations: ConversationConfig = field(default_factory=ConversationConfig)
    replicas: ReplicaConfig = field(default_factory=ReplicaConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    losses: tuple[Loss, ...] = ()
    costs: CostModel = field(default_factory=CostModel)
    gpu_round: str | None = None
    """A JSON file of `gpu_round`, by whose figures passes and drafts are timed; relative to the scenario."""
    autoscaling: AutoscalingConfig = field(default_factory=AutoscalingConfig)
    own: OwnChoices = field(default_factory=OwnChoices)
    serve_rival: ServeRival = field(default_factory=ServeRival)
    fixed_rival: FixedRival = field(default_factory=FixedRival)
    sweep_seeds: tuple[int, ...] = (1,)
    """By which parameters are chosen."""
    held_out_seeds: tuple[int, ...] = (101, 102)
    """By which all are judged."""

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ConfigError("kinds must name at least one kind of text")
        if not 0 <= self.warm_up_s < self.duration_s < inf:
            raise ConfigError("warm_up_s must be less than duration_s, which must be finite")
        times = {at_s for kind in self.kinds for at_s, _ in kind.shares}
        is_shared = all(any(share_at(kind.shares, at_s) > 0 for kind in self.kinds) for at_s in times)
        require(is_shared, "shares", "be positive for at least one of the kinds at each time")
        require(bool(self.sweep_seeds), "sweep_seeds", "name at least one seed")
        require(bool(self.held_out_seeds), "held_out_seeds", "name at least one seed")
        require(
            self.costs.weights_s > 0 and self.costs.token_s > 0, "costs", "have weights_s and token_s above 0"
        )
        if set(self.sweep_seeds) & set(self.held_out_seeds):
            raise ConfigError("held_out_seeds must differ from sweep_seeds")


def read_scenario(path: Path) -> Scenario:
    """Parse a YAML file.

    Raises:
        ConfigError: it cannot be read, or a key is unknown, missing or out of range.
    """
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read scenario {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"scenario {path} must be a mapping of keys, see the files in scenarios/")
    if "gpu_round" in values and "costs" in values:
        raise ConfigError("give either costs or gpu_round")
    if isinstance(values.get("gpu_round"), str):
        values = values | {"costs": read_costs(path.parent / values["gpu_round"])}
    return parse_config(Scenario, values)
