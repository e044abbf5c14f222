"""API keys: who asks, and what each may ask for. Keys are known by their hashes alone, and never logged."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspine_cluster.api.http_config import ApiKeyConfig, HttpConfig
from dspine_cluster.config import parse_config
from dspine_cluster.core.rate_limit import RateLimiter, RateLimits
from dspine_cluster.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Whose request it is."""

    name: str = ""
    share: float = 1.0
    namespace: str = ""
    """Goes before the salts of its prefixes."""
    limiter: RateLimiter | None = None


ANYONE = Caller()
current_caller: ContextVar[Caller] = ContextVar("current_caller", default=ANYONE)
"""Whose request the present task answers."""


class ApiKeys:
    """The keys that a server knows; without any it lets everybody in."""

    def __init__(self, keys: Iterable[ApiKeyConfig], now_s: float) -> None:
        """Raises ConfigError when two keys have one name or are equal."""
        keys = list(keys)
        self._callers = {bytes.fromhex(key.digest): _caller(key, now_s) for key in keys}
        if len({key.name for key in keys}) < len(keys) or len(self._callers) < len(keys):
            raise ConfigError("api_keys: every key needs a name and a value of its own")

    @classmethod
    def of(cls, config: HttpConfig, now_s: float) -> ApiKeys:
        """Those of the configuration and of the file that it names.

        Raises:
            ConfigError: the file cannot be read, or the keys are wrong.
        """
        listed = [] if config.api_keys_file is None else _read(Path(config.api_keys_file))
        return cls([*config.api_keys, *listed], now_s)

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, key: str) -> Caller | None:
        """Whose key it is. Takes as long whichever it is."""
        digest = hashlib.sha256(key.encode()).digest()
        found = None
        for known, caller in self._callers.items():
            if hmac.compare_digest(digest, known):
                found = caller
        return found


def _caller(key: ApiKeyConfig, now_s: float) -> Caller:
    limits = RateLimits(key.requests_per_minute, key.tokens_per_minute, key.max_concurrent_requests)
    namespace = "shared:" if key.shares_cache else f"key:{key.name}:"
    return Caller(key.name, key.share, namespace, RateLimiter(limits, now_s))


def _read(path: Path) -> list[ApiKeyConfig]:
    try:
        listed: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"api_keys_file: {path} cannot be read as JSON") from error
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ConfigError(f"api_keys_file: {path} must hold a list of objects")
    return [parse_config(ApiKeyConfig, item) for item in listed]
