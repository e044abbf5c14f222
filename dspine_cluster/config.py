"""Frozen configuration, parsed once at the edge; nothing below this file reads the environment.

Unknown keys are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dspine_cluster.errors import ConfigError
from dspine_cluster.types import MAX_PROPOSALS

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""Of every configuration dataclass: unknown keys are refused, and docstrings are the meanings that are listed."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: a local folder, a Hub id with a pinned revision, or a name of the built-in pair."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    revision: str | None = None
    """Commit hash, 40 hex digits; required for a Hub id."""


@dataclass(frozen=True)
class EngineConfig:
    """Sizes and limits of one verifier's engine."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations: `float32`, or `bfloat16` on GPUs."""
    device: str = "cpu"
    """Where verifiers compute: `cpu` or `cuda`."""
    tensor_parallel: int = 1
    """Ranks that each target is split over, each a process with a GPU of its own: its attention heads and MLP are
    divided by it."""
    max_model_len_tokens: int = 4096
    """Prompt and output of one request together."""
    max_running_requests: int = 32
    """Recurrent state slots: requests that are prefilled or decoded at the same time."""
    max_waiting_requests: int = 1024
    """Requests that one verifier keeps waiting beyond those; more are refused."""
    max_batch_tokens: int = 1024
    """Tokens of one pass through the target: blocks of decoding requests first, prefill fills the rest."""
    prefill_chunk_tokens: int = 256
    """Prompt tokens of one request in one pass; a multiple of 64, so that warm and cold runs share a chunk grid."""
    pool_tokens: int | None = None
    """Tokens that the page pool holds; None sizes it from `memory_fraction` of the free memory."""
    memory_fraction: float = 0.3
    """Share of the free memory, measured after the weights are loaded, for pages and recurrent states."""
    prefix_cache: bool = True
    """Keep what requests leave behind, so that later ones with the same prefix need not compute it again."""
    checkpoint_bytes: int | None = None
    """Host memory for saved recurrent states, from which requests to a hybrid target resume; None takes a tenth of
    what is free."""
    paced_by: str | None = None
    """For trials of a fleet where there is room for few replicas: a YAML file with the times that passes and drafts
    take at least, by the keys of `core/cost_model.py`. None: they take what they take."""

    def __post_init__(self) -> None:
        require(
            self.prefill_chunk_tokens > 0 and self.prefill_chunk_tokens % 64 == 0,
            "prefill_chunk_tokens",
            "be a positive multiple of 64",
        )
        require(self.tensor_parallel >= 1, "tensor_parallel", "be at least 1")
        require(self.max_model_len_tokens >= 16, "max_model_len_tokens", "be at least 16")
        require(self.max_running_requests >= 1, "max_running_requests", "be at least 1")
        require(self.max_waiting_requests >= 1, "max_waiting_requests", "be at least 1")
        require(
            self.max_batch_tokens >= self.max_running_requests + 64,
            "max_batch_tokens",
            "hold an anchor of every running request and a prefill chunk of 64",
        )
        require(0.0 < self.memory_fraction <= 1.0, "memory_fraction", "be in (0, 1]")
        require((self.checkpoint_bytes or 0) >= 0, "checkpoint_bytes", "not be negative")
        if self.pool_tokens is not None:
            require(
                self.pool_tokens >= self.max_model_len_tokens + 16,
                "pool_tokens",
                "hold at least one request of max_model_len_tokens and a block of 16",
            )


@dataclass(frozen=True)
class DraftingConfig:
    """How a verifier uses its drafters."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    verify: str = "dynamic"
    """`dynamic` drafts and verifies as much as makes tokens come faster; `fixed:K` checks up to K proposals of every
    block; `off` decodes plainly."""
    late_factor: float = 2.0
    """A draft is late after this many moving averages of the draft time, or one plain step if that is longer."""
    first_deadline_s: float = 1.0
    """How long a new connection may bring no draft at all before this counts as failing; rounds do not wait for it."""
    breaker_failures: int = 5
    """Consecutive late rounds after which a drafter rests."""
    breaker_rest_s: float = 2.0
    """How long it rests."""
    attach_tokens: int = 512
    """The newest features of a request that attaches to a drafter; it is drafted for once these are there."""
    repair_bytes_per_step: int = 4 << 20
    """Features of earlier passes sent in one step, over all requests: to drafters that requests attach to, and where
    some were evicted. Requests decode plainly until `attach_tokens` of theirs are there; older ones follow."""

    def __post_init__(self) -> None:
        parse_verify(self.verify)
        require(1.0 <= self.late_factor < inf, "late_factor", "be at least 1 and finite")
        require(0.0 < self.first_deadline_s < inf, "first_deadline_s", "be positive and finite")
        require(0.0 <= self.breaker_rest_s < inf, "breaker_rest_s", "be finite and not negative")
        require(self.breaker_failures >= 1, "breaker_failures", "be at least 1")
        require(self.attach_tokens >= 16, "attach_tokens", "be at least 16")
        require(self.repair_bytes_per_step >= 1, "repair_bytes_per_step", "be positive")


@dataclass(frozen=True)
class TracingConfig:
    """Where traces of requests go."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    endpoint: str | None = None
    """Address of an OTLP receiver, such as `http://127.0.0.1:4318`; None traces nothing. Needs the extra `otlp`."""
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    """`http/protobuf`, for which an address without a path gets `/v1/traces`, or `grpc`."""
    sample_fraction: float = 1.0
    """Share of the requests that are traced. One that comes with a `traceparent` is traced if its caller traces it."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """Sent with what is exported, such as the receiver's key."""
    service_name: str = "dspine"
    """What the receiver calls the application."""
    max_queued_spans: int = 4096
    """Kept in each replica while the receiver is slow or away; more are dropped, and counted."""
    export_timeout_s: float = 5.0
    """How long the receiver may take."""

    def __post_init__(self) -> None:
        address = urlsplit(self.endpoint or "http://none")
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
        require(is_address, "endpoint", "begin with http:// or https:// and name a host")
        require(0.0 <= self.sample_fraction <= 1.0, "sample_fraction", "be in [0, 1]")
        require(self.max_queued_spans >= 1, "max_queued_spans", "be at least 1")
        require(0.0 < self.export_timeout_s < inf, "export_timeout_s", "be positive and finite")


@dataclass(frozen=True)
class VerifierConfig:
    """One verifier replica."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    target: ModelSource = ModelSource("miniature")
    drafter: ModelSource = ModelSource("miniature-dspine")
    """`none` decodes plainly; else its `fc` and `hidden_norm` run on the verifier."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    drafting: DraftingConfig = field(default_factory=DraftingConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    secret: str = field(default="", repr=False)
    """Shared by all replicas of an application; both ends of a channel prove that they know it."""


@dataclass(frozen=True)
class DrafterServiceConfig:
    """One drafter replica."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    target: ModelSource = ModelSource("miniature")
    """Its embedding and head are used, and its fingerprint is announced."""
    drafter: ModelSource = ModelSource("miniature-dspine")
    endpoints: tuple[str, ...] = ()
    """Where verifiers connect: `unix:/absolute/path` on this node, `tcp:host:port` from others; port 0 chooses."""
    secret: str = field(default="", repr=False)
    """See `VerifierConfig`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    max_context_tokens: int = 4096
    """Context that a request uses at most, and less where every layer slides: its newest tokens."""
    pool_tokens: int | None = None
    """Context tokens that the page pool holds; None sizes it from `memory_fraction` of the free memory."""
    memory_fraction: float = 0.1
    """Share of the free memory, measured after the weights are loaded, for pages."""
    max_batch_blocks: int = 64
    max_queued_blocks: int = 256
    """Blocks that wait to be drafted; more are answered with `busy`."""
    paced_by: str | None = None
    """See `EngineConfig`."""
    stall_s: float = 60.0
    """Seconds without progress after which the replica counts as unhealthy."""

    def __post_init__(self) -> None:
        require(len(self.endpoints) > 0, "endpoints", "name at least one endpoint")
        require(self.max_context_tokens >= 16, "max_context_tokens", "be at least 16")
        require(0.0 < self.memory_fraction <= 1.0, "memory_fraction", "be in (0, 1]")
        require(self.max_batch_blocks >= 1, "max_batch_blocks", "be at least 1")
        require(
            self.max_queued_blocks >= self.max_batch_blocks,
            "max_queued_blocks",
            "be at least max_batch_blocks",
        )
        require(self.stall_s > 0.0, "stall_s", "be positive")


def parse_config(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration dataclass from plain values, such as parsed YAML.

    Raises:
        ConfigError: a key is unknown, missing or of the wrong type or range; the message names each.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or kind.__name__}: {e['msg']}" for e in error.errors()
        )
        raise ConfigError(f"invalid {kind.__name__}: {problems}") from error


def parse_verify(value: str) -> int | None:
    """The verify length that a `verify` setting fixes: K for `fixed:K`, 0 for `off`, None for `dynamic`.

    Raises:
        ConfigError: the value has another form.
    """
    if value == "dynamic":
        return None
    if value == "off":
        return 0
    kind, _, number = value.partition(":")
    if kind == "fixed" and number.isascii() and number.isdecimal() and int(number) <= MAX_PROPOSALS:
        return int(number)
    raise ConfigError(
        f"verify must be 'dynamic', 'fixed:K' with K from 0 to {MAX_PROPOSALS}, or 'off', not {value!r}"
    )


def limit_threads() -> None:
    """Use one torch thread in this process unless OMP_NUM_THREADS says otherwise: two on shared cores can stall."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):  # which torch has read by itself, a list of numbers included
        torch.set_num_threads(1)


def require(condition: bool, key: str, rule: str) -> None:
    """Refuse a configuration whose `key` breaks a rule, told as what it must do.

    Raises:
        ConfigError: the condition does not hold.
    """
    if not condition:
        raise ConfigError(f"{key} must {rule}")
