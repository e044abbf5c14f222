"""Frozen configuration of the HTTP interface. Unknown keys are refused."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from pydantic import ConfigDict

from dspine_cluster.config import STRICT, require


@dataclass(frozen=True)
class ApiKeyConfig:
    """One API key and what it allows. None does not limit."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: str
    """Letters, digits, `.`, `_` and `-`. It parts cached prefixes and queues, and is what logs may tell."""
    key: str | None = field(default=None, repr=False)
    sha256: str | None = None
    """Hash of the key, 64 hex digits, in place of the key."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompt and output tokens."""
    max_concurrent_requests: int | None = None
    """Completions that run or wait in one ingress."""
    share: float = 1.0
    """What its waiting requests are entitled to beside those of other keys."""
    shares_cache: bool = False
    """Share cached prefixes with the other keys that do."""

    def __post_init__(self) -> None:
        require(re.fullmatch(r"[\w.-]{1,64}", self.name, re.ASCII) is not None, "name", "be a short word")
        require((self.key is None) != (self.sha256 is None), "key", "be given, or else sha256")
        require(self.key is None or len(self.key) >= 16, "key", "have at least 16 characters")
        require(
            self.sha256 is None or re.fullmatch(r"[0-9a-fA-F]{64}", self.sha256) is not None,
            "sha256",
            "have 64 hex digits",
        )
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            require(value is None or 0.0 < value < inf, name, "be positive and finite")
        require(
            self.max_concurrent_requests is None or self.max_concurrent_requests >= 1,
            "max_concurrent_requests",
            "be at least 1",
        )
        require(0.001 <= self.share <= 1000.0, "share", "be in [0.001, 1000]")

    @property
    def digest(self) -> str:
        """SHA-256 of the key in hex."""
        return self.sha256.lower() if self.sha256 else hashlib.sha256((self.key or "").encode()).hexdigest()


@dataclass(frozen=True)
class HttpConfig:
    """Who may ask an ingress for what, and how it answers."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    api_keys: tuple[ApiKeyConfig, ...] = ()
    """Each `{name: ..., key: ...}`, or `sha256` of the key in place of `key`, and what it allows:
    `requests_per_minute`, `tokens_per_minute`, `max_concurrent_requests`, `share` of what is served where several wait
    (1), `shares_cache` with other keys that do (false). Without keys everybody is let in."""
    api_keys_file: str | None = None
    """A JSON file on the ingress's node with more of them, as a list."""
    max_open_requests: int = 1024
    """Completions that run or wait in one ingress; clients beyond it are told to come back (status 429)."""
    max_waiting_tokens: int = 4_000_000
    """Tokens of prompts whose answers have not begun, in one ingress; beyond it as with `max_open_requests`."""
    body_timeout_s: float = 30.0
    """How long a client may take to send a body."""
    keep_alive_s: float = 10.0
    """After so long without an event a stream gets a comment, so that nothing between takes it for dead."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins, such as `https://chat.example.com` or `*`, may call the interface."""

    def __post_init__(self) -> None:
        require(self.max_open_requests >= 1, "max_open_requests", "be at least 1")
        require(self.max_waiting_tokens >= 1, "max_waiting_tokens", "be at least 1")
        require(0.0 < self.body_timeout_s < inf, "body_timeout_s", "be positive and finite")
        require(0.0 < self.keep_alive_s < inf, "keep_alive_s", "be positive and finite")
