"""Text from tokens as they come: only what is certain leaves, and a stop string ends the request.

Beside the loop that commits tokens, because the cut must fall on the token that completes the stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.token_bytes import TokenBytes


@dataclass(slots=True)
class Pushed:
    """What pushing tokens gave."""

    text: str
    """Text that became certain. It ends before the stop string if there is one, or with it where that shows."""
    num_tokens_kept: int
    """Of the pushed tokens, those up to the one that completed a stop string; without one, all."""
    stopped: bool


class Detokenizer:
    """The text of one request's output, incrementally.

    All texts returned, joined, are the decoding of all tokens kept, cut before the first stop string, or behind it
    where it shows, however the tokens are split over calls. Of several stop strings the one that is complete first
    counts, the longest of those complete at the same character. Bytes that are not UTF-8 become U+FFFD as in the
    tokenizer's own decoding.

    A token that ends the request by its id and shall not show, such as an EOS that is not special, is not pushed.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        stop_strings: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        shows_stop: bool = False,
    ) -> None:
        """The text of the first `min_tokens` tokens is not searched for stop strings."""
        assert all(stop_strings), "a stop string is not empty"
        self._token_bytes = token_bytes
        self._stop_strings = stop_strings
        self._num_unsearched = min_tokens
        self._skip_special_tokens = skip_special_tokens
        self.shows_stop = shows_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._stopped = False

    @property
    def may_stop(self) -> bool:
        """Whether text can end the request."""
        return bool(self._stop_strings)

    def push(self, token_ids: Sequence[int]) -> Pushed:
        """Take the next tokens; none after a stop."""
        assert not self._stopped, "the request has ended"
        if not self._stop_strings:
            data = b"".join(
                self._token_bytes.of(token_id, skip_special_tokens=self._skip_special_tokens)
                for token_id in token_ids
            )
            return Pushed(self._decoder.decode(data), len(token_ids), False)
        texts: list[str] = []
        for index, token_id in enumerate(token_ids):
            data = self._token_bytes.of(token_id, skip_special_tokens=self._skip_special_tokens)
            text = self._decoder.decode(data)
            if self._num_unsearched > 0:
                self._num_unsearched -= 1
                texts.append(text)
                continue
            texts.append(self._release(text))
            if self._stopped:
                return Pushed("".join(texts), index + 1, True)
        return Pushed("".join(texts), len(token_ids), False)

    def flush(self) -> str:
        """The rest, when the request ends for another reason: held text, and U+FFFD for unfinished UTF-8."""
        if self._stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        if not self._stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        """Add `text` to what is held; return what no stop string can reach any more."""
        self._held += text
        ends = [
            (start + len(stop), start) for stop in self._stop_strings if (start := self._held.find(stop)) >= 0
        ]
        if ends:
            self._stopped = True
            end, start = min(ends)
            released, self._held = self._held[: end if self.shows_stop else start], ""
            return released
        num_certain = len(self._held) - self._num_held_back()
        released, self._held = self._held[:num_certain], self._held[num_certain:]
        return released

    def _num_held_back(self) -> int:
        """Characters at the end of the held text that begin a stop string."""
        longest = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
