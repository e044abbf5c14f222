"""One drafter's connection, and what each request has sent it and got back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from dspine_cluster.core.draft_pace import DraftPace
from dspine_cluster.core.position_ranges import PositionRanges
from dspine_cluster.core.session import Session
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import Float64Array, Int64Array, Opened
from dspine_cluster.transport.round_messages import NUM_DRAFT_COLUMNS
from dspine_cluster.verifier.drafted import DraftedBlock

UNSETTLED = -1
"""Before every position."""
_REMEMBERED_ASKS = 64
"""More rounds than pass before a new drafter's first answer, which tells how long its drafts take."""


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
    """The request was not asked for yet when its round began, or its features are still on their way."""


class Unchanging(NamedTuple):
    """What asks say of the same requests in every round, and where these are attached. A uid never names another
    request."""

    uids: list[int]
    attachments: dict[int, Attachment]
    """By uid, in order."""
    numbers: Int64Array
    """As in `Draft`, but 0 where a number changes, and less the position where it follows from that."""
    temperatures: Float64Array


OF_NOBODY = Unchanging([], {}, np.zeros((NUM_DRAFT_COLUMNS, 0), np.int64), np.zeros(0))


@dataclass(slots=True, eq=False)
class Link:
    """A connected drafter."""

    endpoint: str
    channel: Channel
    pace: DraftPace
    reserve_bytes: int
    """Byte credits that only the features of the last pass may use."""
    attachments: dict[int, Attachment] = field(default_factory=dict)
    """By uid."""
    awaited: dict[int, Attachment] = field(default_factory=dict)
    """Those whose last draft was asked for and has neither come nor been refused, by uid."""
    unchanging: Unchanging = OF_NOBODY
    """Of those that were asked for last, if all of them are attached still."""

    @property
    def spare_bytes(self) -> int:
        """What may be sent now without holding up the next round."""
        return self.channel.free_credit_bytes - self.reserve_bytes


@dataclass(slots=True, eq=False)
class Attachment:
    """One request at one drafter."""

    session: Session
    link: Link
    attempt: int
    """What its `Open` was told apart by."""
    opened_at_s: float
    num_keys: int
    """Pages that `Open` named."""
    fresh_start: int
    """Features of positions before it are old: they existed when the request attached, or have been sent before."""
    sent_to: int = UNSETTLED
    """While it is steady, where the features that have been sent end: `sent` takes that over when it is looked at."""
    features_from: int = 0
    """From this position on features exist, as far as was looked last. It only matters where not all were sent."""
    _sent: PositionRanges = field(default_factory=PositionRanges)
    tail: tuple[int, int] = (0, 0)
    """Positions, start and end, that the draft at the present anchor needs."""
    max_context_tokens: int | None = None
    """How many of the newest positions the drafter keeps; None until it has answered `Open`."""
    asked_at_s: float = 0.0
    """When the draft of `asked_round` was asked for."""
    _late_asks_s: dict[int, float] = field(default_factory=dict)
    """When drafts were asked for that had not come when the next one was, by round: they are measured too."""
    block: DraftedBlock | None = None
    refusal: Fallback | None = None
    asked_round: int = -1
    """The last round whose draft was asked for; -1 before the first."""
    needs_distributions: bool = field(init=False)
    """Whether proposals are of use only with the distributions that they were drawn from."""
    temperature: float = field(init=False)
    num_prompt: int = field(init=False)
    has_seed: bool = field(init=False)
    seed: int = field(init=False)
    """0 if there is none."""

    def __post_init__(self) -> None:
        sampling = self.session.request.sampling
        self.needs_distributions = not sampling.is_greedy and sampling.seed is None
        self.temperature = sampling.temperature
        self.num_prompt = self.session.num_prompt
        self.has_seed, self.seed = sampling.seed is not None, sampling.seed or 0

    @property
    def is_steady(self) -> bool:
        """Whether the drafter lacked nothing but what the last pass computed when it was asked last, and nothing has
        changed that since. Such requests are handled together; `fresh_start` waits then until `unsettle`."""
        return self.sent_to != UNSETTLED

    @property
    def sent(self) -> PositionRanges:
        """Positions whose features have been sent, or which the drafter had already."""
        if self.sent_to > self._sent.end:
            self._sent.grow(self.sent_to)
        return self._sent

    @property
    def is_outstanding(self) -> bool:
        """Whether the draft for the present anchor was asked for and nothing has come back."""
        return self.block is None and self.refusal is None and self.asked_round == self.session.round

    @property
    def is_answered(self) -> bool:
        """Whether the drafter has said what it has already."""
        return self.max_context_tokens is not None

    @property
    def oldest_position(self) -> int:
        """The first position that the drafter would keep, of those that have features."""
        if self.max_context_tokens is None:
            return self.features_from
        return max(self.features_from, self.session.anchor_position - self.max_context_tokens)

    def settles(self) -> bool:
        """Whether its drafter lacks nothing now: it is steady then."""
        end = self.session.anchor_position
        if self.has_all_before(end):
            self.sent_to = self.fresh_start = end
        return self.is_steady

    def unsettle(self) -> None:
        """What the drafter lacks has to be looked at anew."""
        if self.is_steady:
            self.fresh_start = self.sent.end
            self.sent_to = UNSETTLED

    def when_asked_s(self, number: int) -> float | None:
        """When the draft of a round was asked for, if that is known still."""
        return self.asked_at_s if number == self.asked_round else self._late_asks_s.get(number)

    def note_refusal(self, reason: Fallback) -> None:
        """No draft comes for the round that was asked for last."""
        self.refusal = reason
        self.link.awaited.pop(self.session.uid, None)

    def note_late(self) -> None:
        """The last draft that was asked for has not come, and the next one is asked for."""
        self._late_asks_s[self.asked_round] = self.asked_at_s
        if len(self._late_asks_s) > _REMEMBERED_ASKS:
            del self._late_asks_s[next(iter(self._late_asks_s))]

    def note_opened(self, message: Opened) -> None:
        """The drafter has told what it has, and how much it keeps."""
        self.unsettle()
        for start, end in message.ranges:
            self.sent.add(start, end)
        self.max_context_tokens = message.max_context_tokens

    def note_need(self, start: int, end: int) -> None:
        """The drafter lacks positions start .. end - 1, and drafts nothing before it has them."""
        self.note_refusal(Fallback.NEED)
        self.unsettle()
        self.sent.remove(start, end)

    def hold_back(self) -> None:
        """What has been computed up to now counts as old."""
        self.unsettle()
        self.fresh_start = self.session.num_computed

    def has_all_before(self, position: int) -> bool:
        """Whether the drafter lacks no features of positions that it would keep for an anchor at `position`."""
        sent, kept = self.sent, self.max_context_tokens
        if not sent.ends or sent.ends[-1] != position:
            return False
        start = sent.starts[-1]
        return start <= self.features_from or (kept is not None and start <= position - kept)

    def has(self, start: int, end: int) -> bool:
        """Whether the features of positions start .. end - 1 have been sent, or need not be."""
        return self.sent.covers(start, end)

    def reason_not_asked(self, now_s: float, plain_step_s: float) -> Fallback:
        """Why the draft for the present anchor was not asked for, although the drafter can be reached."""
        if not self.has(max(self.fresh_start, self.features_from), self.session.anchor_position):
            return Fallback.CREDITS
        is_late = now_s - self.opened_at_s >= self.link.pace.deadline_s(plain_step_s)
        return Fallback.LATE if is_late and not self.is_answered else Fallback.JOINING
