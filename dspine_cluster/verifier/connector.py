"""Connects a verifier to its drafters, beside the loop: connecting may take long, a round may not wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from dspine_cluster.errors import ChannelError, ConfigError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.endpoint import parse_endpoint
from dspine_cluster.transport.messages import Hello
from dspine_cluster.transport.socket import connect

_logger = logging.getLogger(__name__)

_RETRY_S = 0.25
_MISFIT_RETRY_S = 10.0
_CONNECT_TIMEOUT_S = 2.0


class DrafterConnector:
    """A thread that keeps a channel to every wanted endpoint, one attempt at a time."""

    def __init__(
        self,
        hello: Hello,
        secret: bytes,
        *,
        on_channel: Callable[[str, Channel], None],
        on_misfit: Callable[[str], None],
    ) -> None:
        """The callbacks are called from the connector's thread and must not block."""
        self._hello = hello
        self._secret = secret
        self._on_channel = on_channel
        self._on_misfit = on_misfit
        self._condition = threading.Condition()
        self._wanted: list[str] = []
        self._connected: set[str] = set()
        self._next_try_s: dict[str, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="drafter-connector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def want(self, endpoints: Iterable[str]) -> None:
        """Keep channels to these endpoints, tried in this order."""
        with self._condition:
            self._wanted = list(endpoints)
            self._connected &= set(self._wanted)
            self._next_try_s = {e: t for e, t in self._next_try_s.items() if e in self._wanted}
            self._condition.notify()

    def lost(self, endpoint: str, *, is_faulty: bool) -> None:
        """A channel handed over earlier is gone: connect again, after a pause if the drafter broke the protocol."""
        with self._condition:
            self._connected.discard(endpoint)
            if is_faulty:
                self._next_try_s[endpoint] = time.monotonic() + _MISFIT_RETRY_S
            self._condition.notify()

    def _run(self) -> None:
        while (endpoint := self._await_due()) is not None:
            pause_s = self._try(endpoint)
            with self._condition:
                if endpoint in self._wanted:
                    # A drafter that broke the protocol meanwhile has been given a longer pause.
                    due_s = time.monotonic() + pause_s
                    self._next_try_s[endpoint] = max(due_s, self._next_try_s.get(endpoint, 0.0))

    def _await_due(self) -> str | None:
        """The next endpoint to try, when its time has come; None when the connector stops."""
        with self._condition:
            while not self._stopping:
                missing = [endpoint for endpoint in self._wanted if endpoint not in self._connected]
                due = min(missing, key=lambda endpoint: self._next_try_s.get(endpoint, 0.0), default=None)
                wait_s = None if due is None else self._next_try_s.get(due, 0.0) - time.monotonic()
                if wait_s is not None and wait_s <= 0.0:
                    return due
                self._condition.wait(wait_s)
            return None

    def _try(self, endpoint: str) -> float:
        """Connect if possible; seconds before which not to try this endpoint again, should it be missing."""
        try:
            channel = connect(parse_endpoint(endpoint), self._hello, self._secret, _CONNECT_TIMEOUT_S)
        except (ChannelError, ConfigError, OSError) as error:
            _logger.debug("drafter %s cannot be reached yet: %s", endpoint, error)
            return _RETRY_S
        differing = [
            name
            for name in ("target", "drafter", "tokenizer")
            if getattr(channel.peer, name) != getattr(self._hello, name)
        ]
        if differing:
            _logger.error(
                "drafter %s does not fit this verifier: its %s fingerprint differs; requests decode plainly",
                endpoint,
                " and ".join(differing),
            )
            channel.close()
            self._on_misfit(endpoint)
            return _MISFIT_RETRY_S
        with self._condition:
            if endpoint in self._wanted:
                self._connected.add(endpoint)
                self._on_channel(endpoint, channel)
            else:
                channel.close()
        return _RETRY_S
