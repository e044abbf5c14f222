"""Where replicas write what they log."""

from __future__ import annotations

import logging

_OURS = ("dspine_cluster", "dspine_serve")
_SERVE = "ray.serve"


def log_like_serve() -> None:
    """Have this process's messages go where Serve's own go, with time, level and request, from the level that
    `logging_config` gives: Serve sets up no logger but its own."""
    for name in _OURS:
        logging.getLogger(name).parent = logging.getLogger(_SERVE)


class Outage:
    """Says that something fails once, not at each try, and that it works again."""

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger = logger
        self._message = message
        self._is_told = False

    def lasts(self, error: Exception) -> None:
        """A try has failed."""
        if not self._is_told:
            self._logger.warning("%s: %r", self._message, error)
        self._is_told = True

    def is_over(self) -> None:
        """A try has not failed."""
        if self._is_told:
            self._logger.warning("It is over: %s", self._message)
        self._is_told = False
