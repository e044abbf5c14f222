"""One request's committed tokens, phase and counts: the only owner of what has been decided for it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from dspine_cluster.core.page_hash import PageKey, page_keys
from dspine_cluster.core.resume import COLD_START, Resume
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest, Usage

Counts: TypeAlias = tuple[int, int, int, int, int]
"""Committed tokens, rounds, and their proposed, verified and accepted tokens."""


class Phase(Enum):
    """Where a request stands."""

    WAITING = auto()
    """No pages, no state slot."""
    PREFILL = auto()
    """Its committed tokens pass through the target in chunks."""
    DECODE = auto()
    """All committed tokens but the anchor have passed through the target."""


_DECODE = Phase.DECODE  # members of an enumeration are looked up slowly


@dataclass(slots=True)
class Session:
    """A request in a verifier loop."""

    uid: int
    request: GenerateRequest
    arrival: int
    """Order of arrival; breaks ties of priority."""
    root: PageKey = b""
    """Which pages it may share: see `page_hash.root_key`."""
    tokens: list[int] = field(init=False)
    """Committed tokens: the prompt, then the output."""
    max_length: int = field(init=False)
    """As many tokens as it may have."""
    is_greedy: bool = field(init=False)
    num_computed: int = 0
    """Committed tokens that have passed through the target: their K/V and features exist."""
    num_in_state: int = 0
    """Committed tokens that the recurrent state covers; the computed ones after them wait to be replayed."""
    phase: Phase = Phase.WAITING
    pages: array[int] = field(default_factory=lambda: array("i"))
    """Page i holds positions 16 i .. 16 i + 15. int32, as page tables take them."""
    first_new_page: int | None = None
    """The first index at which `pages` have changed since this was last set to None by who keeps a copy of them."""
    num_indexed_pages: int = 0
    """The first of `pages` that the prefix index knows; they are never written again."""
    resume: Resume = COLD_START
    """How it was admitted."""
    cached_prompt_tokens: int | None = None
    """Prompt tokens found in the cache when it was first admitted."""
    state_slot: int | None = None
    round: int = 0
    """Number of the round that decodes the present anchor; a draft belongs to exactly one."""
    counts: Counts = field(init=False)
    """What changes of `usage` from round to round."""
    _keys: list[PageKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt_ids, *self.request.forced_output_ids]
        self.max_length = len(self.request.prompt_ids) + self.request.stop.max_tokens
        self.is_greedy = self.request.sampling.is_greedy
        self.counts = len(self.tokens), 0, 0, 0, 0

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def keys(self) -> list[PageKey]:
        """The page keys of the committed tokens' full pages."""
        if len(self._keys) < len(self.tokens) // PAGE_TOKENS:
            self._keys = page_keys(self.tokens, self.root, self._keys)
        return self._keys

    @property
    def num_output(self) -> int:
        """Output tokens, forced ones included; also the output position of the next token."""
        return len(self.tokens) - self.num_prompt

    @property
    def anchor_position(self) -> int:
        return len(self.tokens) - 1

    @property
    def remaining_output(self) -> int:
        """Output tokens that `max_tokens` still allows."""
        return self.max_length - len(self.tokens)

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every position of the prompt has to pass through the target, be it cached or not."""
        return self.request.prompt_logprobs and self.num_output == 0

    @property
    def usage(self) -> Usage:
        return self.usage_at(self.counts)

    def usage_at(self, counts: Counts) -> Usage:
        """The usage when `counts` gave this; its prompt had been admitted then."""
        num_prompt = len(self.request.prompt_ids)
        num_tokens, *rounds = counts
        return Usage(num_prompt, num_tokens - num_prompt, self.cached_prompt_tokens or 0, *rounds)

    def start(self, resume: Resume, pages: Sequence[int], state_slot: int) -> None:
        """Begin prefill behind the tokens of `resume.match`, whose K/V and state are in place."""
        assert self.phase is Phase.WAITING
        self.phase = Phase.PREFILL
        self.resume = resume
        self.num_computed = self.num_in_state = resume.match.num_tokens
        self.pages, self.num_indexed_pages = array("i", pages), len(resume.match.pages)
        self.first_new_page = 0
        self.state_slot = state_slot
        if self.cached_prompt_tokens is None:
            self.cached_prompt_tokens = min(resume.match.num_tokens, self.num_prompt)

    def add_page(self, page: int) -> None:
        """Get a page more, for the positions after those of the present ones."""
        self.note_new_pages(len(self.pages))
        self.pages.append(page)

    def note_new_pages(self, first: int) -> None:
        """Note that `pages` change from index `first` on."""
        known = self.first_new_page
        self.first_new_page = first if known is None or first < known else known

    def advance_prefill(self, num_tokens: int) -> None:
        """Note that a chunk of `num_tokens` committed tokens has passed through the target."""
        assert self.phase is Phase.PREFILL
        self.num_computed += num_tokens
        self.num_in_state = self.num_computed
        assert self.num_computed <= len(self.tokens)

    def commit_first(self, token: int) -> None:
        """Commit the token that prefill yields. It belongs to no round."""
        assert self.phase is Phase.PREFILL
        assert self.num_computed == len(self.tokens)
        self.tokens.append(token)
        self.counts = len(self.tokens), *self.counts[1:]
        self.phase = Phase.DECODE
        self.round += 1

    def commit_round(
        self, tokens: Sequence[int], num_proposed: int, num_verified: int, num_accepted: int
    ) -> Counts:
        """Commit what a round gave: `num_accepted` accepted proposals and the bonus token, possibly cut at an end.
        Returns `counts`."""
        committed, num_computed, num_tokens = self.tokens, self.num_computed, len(tokens)
        assert self.phase is _DECODE
        assert num_computed == len(committed) - 1
        assert 0 <= num_accepted <= num_verified <= num_proposed
        assert num_accepted <= num_tokens <= num_accepted + 1
        assert num_tokens
        self.num_in_state = num_computed + 1
        self.num_computed = num_computed + num_tokens
        committed += tokens
        self.round += 1
        before, rounds, proposed, verified, accepted = self.counts
        self.counts = counts = (
            before + num_tokens,
            rounds + 1,
            proposed + num_proposed,
            verified + num_verified,
            accepted + num_accepted,
        )
        return counts

    def preempt(self) -> Sequence[int]:
        """Give up pages and slot and wait again; committed tokens stay. Returns the pages to release."""
        assert self.phase is not Phase.WAITING
        released, self.pages = self.pages, array("i")
        self.phase = Phase.WAITING
        self.num_computed = self.num_in_state = self.num_indexed_pages = 0
        self.state_slot = None
        self.round += 1
        return released
