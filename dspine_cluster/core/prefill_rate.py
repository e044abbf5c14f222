"""How fast a replica prefills, from the passes that held prompt tokens."""

from __future__ import annotations


class PrefillRate:
    """Prompt tokens over seconds of pass, averaged over about the last `window_tokens`.

    Passes count in proportion to their prompt tokens: what a pass costs whatever it holds would make the few tokens
    that end a prompt look slow, and with them all that waits.
    """

    def __init__(self, window_tokens: int = 2048) -> None:
        self._window_tokens = window_tokens
        self._weighted_tokens = 0.0
        self._weighted_s = 0.0

    def note(self, num_tokens: int, taken_s: float) -> None:
        """A pass with `num_tokens` prompt tokens took `taken_s`, decoding requests included."""
        kept = self._window_tokens / (self._window_tokens + num_tokens)
        self._weighted_tokens = kept * self._weighted_tokens + num_tokens * num_tokens
        self._weighted_s = kept * self._weighted_s + num_tokens * taken_s

    @property
    def tokens_per_s(self) -> float:
        """0 before the first pass."""
        return self._weighted_tokens / self._weighted_s if self._weighted_s > 0.0 else 0.0
