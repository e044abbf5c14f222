"""Typed errors for what callers get wrong. Bugs of our own are assertions, never these."""

from __future__ import annotations


class DspineError(Exception):
    """Base of every error whose message is meant for the person who can mend its cause."""


class ConfigError(DspineError):
    """A configuration value is missing, unknown or out of range; the message names the key and the remedy."""


class CheckpointError(DspineError):
    """A model folder cannot be loaded; the message names the file or the tensors."""


class MismatchError(DspineError):
    """A target and a drafter, or their fingerprints, do not belong together."""


class RequestError(DspineError):
    """A generation request is invalid. `param` names the field of the request, as OpenAI's error shape wants it."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class OverloadedError(DspineError):
    """The server cannot take the request now; try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float = 2.0, code: str = "overloaded") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code
        """As OpenAI's error shape has it: whether the server or the client's own limit refuses."""


class ChannelError(DspineError):
    """A channel could not be opened, or broke its protocol or limits."""


class ChannelClosedError(ChannelError):
    """The other side of a channel is gone."""


class EngineStoppedError(DspineError):
    """The engine loop has ended; the replica must be restarted."""
