"""One drafter's connection, and what each request has sent it and got back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.session import Session
from dspine_cluster.errors import ChannelError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import Features, Float32Array, Int32Array, Proposals, UInt8Array
from dspine_cluster.types import SamplingParams

_REMEMBERED_ASKS = 4
_MAX_MASS_ERROR = 1e-3
"""How far a float32 distribution may be from a sum of 1."""

ReadFeatures = Callable[[Session, int, int], UInt8Array]
"""(session, start, end) -> the raw feature rows of those positions, uint8 [end - start, row_bytes]."""


class Fallback(StrEnum):
    """Why a request decoded plainly in a round that would have verified a block."""

    ABSENT = "absent"
    """No drafter is connected."""
    FINGERPRINT = "fingerprint"
    """The only drafters there are belong to another target or tokenizer, or are another drafter."""
    LATE = "late"
    LOST = "lost"
    """The drafter went away after it was asked."""
    RESTING = "resting"
    """The drafter failed repeatedly and is left alone for a while."""
    BUSY = "busy"
    NEED = "need"
    """The drafter lacks features; they are on their way."""
    CREDITS = "credits"
    """The channel is full of features."""
    JOINING = "joining"
    """The request was not asked for yet when its round began."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedBlock:
    """Proposals for one request's present anchor."""

    tokens: list[int]
    candidates: Int32Array | None  # [num_proposals, K]
    probs: Float32Array | None  # [num_proposals, K]
    confidences: list[float]


@dataclass(slots=True, eq=False)
class Link:
    """A connected drafter."""

    endpoint: str
    channel: Channel
    pace: DraftPace
    attachments: dict[int, Attachment] = field(default_factory=dict)
    """By uid."""


@dataclass(slots=True, eq=False)
class Attachment:
    """One request at one drafter."""

    session: Session
    link: Link
    sent_start: int
    sent_end: int
    """Features of positions sent_start .. sent_end - 1 have been sent."""
    asked_at_s: dict[int, float] = field(default_factory=dict)
    """When the drafts of the last few rounds were asked for, by round: late ones are measured too."""
    block: DraftedBlock | None = None
    refusal: Fallback | None = None

    @property
    def asked_round(self) -> int:
        """The last round whose draft was asked for; -1 before the first."""
        return next(reversed(self.asked_at_s), -1)

    @property
    def is_outstanding(self) -> bool:
        """Whether the draft for the present anchor was asked for and nothing has come back."""
        return self.asked_round == self.session.round and self.block is None and self.refusal is None

    @property
    def is_caught_up(self) -> bool:
        """Whether the features up to the anchor have been sent."""
        return self.sent_end == self.session.anchor_position

    def note_asked(self, now_s: float) -> None:
        """The draft of the session's present round is asked for now."""
        self.asked_at_s[self.session.round] = now_s
        if len(self.asked_at_s) > _REMEMBERED_ASKS:
            del self.asked_at_s[next(iter(self.asked_at_s))]
        self.block = self.refusal = None

    def restart_at(self, position: int) -> None:
        """Send features from `position` on next, and the ones before it later."""
        self.sent_start = self.sent_end = position

    def send_prefilled(self, read: ReadFeatures, max_tokens: int) -> None:
        """Send the features of a prompt that is still being prefilled, `max_tokens` a message, behind everything else
        and as far as the channel takes them.

        Raises:
            ChannelClosedError: the drafter is gone.
        """
        while (start := self.sent_end) < self.session.num_computed:
            end = min(self.session.num_computed, start + max_tokens)
            features = Features(self.session.uid, start, read(self.session, start, end))
            if not self.link.channel.send(features, bulk=True):
                return
            self.sent_end = end

    def send_latest(self, read: ReadFeatures, max_tokens: int) -> None:
        """Send the features up to the anchor ahead of everything else, the last `max_tokens` of them if more are due.

        Raises:
            ChannelClosedError: the drafter is gone.
        """
        end = self.session.anchor_position
        if end - self.sent_end > max_tokens:
            self.restart_at(end - max_tokens)
        start = self.sent_end
        if start < end and self.link.channel.send(
            Features(self.session.uid, start, read(self.session, start, end))
        ):
            self.sent_end = end

    def send_older(self, read: ReadFeatures, max_tokens: int) -> int:
        """Send up to `max_tokens` of the features before those sent so far, newest first, and return how many.

        Raises:
            ChannelClosedError: the drafter is gone.
        """
        end = self.sent_start
        start = max(0, end - max_tokens)
        if start >= end:
            return 0
        features = Features(self.session.uid, start, read(self.session, start, end))
        if not self.link.channel.send(features, bulk=True):
            return 0
        self.sent_start = start
        return end - start


def read_block(message: Proposals, row: int, sampling: SamplingParams, vocab_size: int) -> DraftedBlock:
    """One request's row of `message`, checked: what a drafter says must never bring the verifier down.

    Raises:
        ChannelError: the row cannot be used.
    """
    candidates = None if message.candidates is None else message.candidates[row]
    probs = None if message.probs is None else message.probs[row]
    if not sampling.is_greedy and sampling.seed is None:
        _check_distribution(message.tokens[row], candidates, probs)
    for ids in (message.tokens[row], candidates):
        if ids is not None and ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise ChannelError(f"proposals hold token ids outside the vocabulary of {vocab_size}")
    return DraftedBlock(
        tokens=message.tokens[row].tolist(),
        candidates=candidates,
        probs=probs,
        confidences=message.confidence[row].tolist(),
    )


def _check_distribution(
    tokens: Int32Array, candidates: Int32Array | None, probs: Float32Array | None
) -> None:
    """What speculative sampling divides by must be a distribution that can have given the proposals."""
    if candidates is None or probs is None:
        raise ChannelError("proposals for a sampled request came without their distribution")
    drawn = np.where(candidates == tokens[:, None], probs, 0.0).sum(-1)  # [num_proposals]
    if not ((drawn > 0.0).all() and (np.abs(probs.sum(-1) - 1.0) < _MAX_MASS_ERROR).all()):
        raise ChannelError(
            "proposals for a sampled request were not drawn from the distribution they came with"
        )
