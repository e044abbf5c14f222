"""Verify lengths for one batch: take proposals by falling survival for as long as that makes tokens come faster.

Why it looks at rows one after the other: for a request that samples without a seed, whether position j is verified
must not depend on proposal x_j nor on anything drawn after it. Acceptance takes x_j for a draw of q_j; among blocks
that were picked for their x_j it is none, and the output leaves the target's distribution. Row j, its confidence
included, is a function of x_1 .. x_(j-1) if confidence means the row's largest probability, not that of the token
drawn from it. The walk asks for row j of a request only once positions 1 .. j-1 are certain to be verified. So up to
the step that takes position j, or to its end if none does, it runs the same for every x_j: given x_1 .. x_(j-1) and
all that other requests drew, "j is verified" is independent of x_j. Hence each request's output has the target's
distribution whatever the others' is, which makes them independent too. A position that was taken stays taken, and
what lies behind is judged by what is to be expected of it, never by what was drawn.

Requests whose text is fixed (greedy, seeded) would allow anything. They follow the same rule: a greedy proposal is
its row's largest anyway, so all that is lost is the sight of later rows when a step of the cost curve is to be
crossed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import sub

from dspine_cluster.core.cost_curve import CostCurve
from dspine_cluster.core.verify_frontier import Frontier

_ROUNDING = 1.0 + 1e-9
"""More than sums can be off by."""
_SMALL = 1e-3
"""A survival below which none is told apart."""


class Stop(StrEnum):
    """Why no further proposal is verified."""

    PRICE = "price"
    """It would cost more time than it is worth."""
    ALL = "all"
    """There is none."""
    ROOM = "room"
    """The pass is full."""


@dataclass(slots=True)
class RoundPrice:
    """What a round gives and takes whatever is verified."""

    curve: CostCurve
    num_tokens: int
    """Tokens that pass through the target without any proposal: anchors and prompt chunks."""
    base_tokens: float
    """Tokens that are committed anyway: one a request, and those that came while drafts were waited for."""
    base_s: float
    """Time that passes beside the pass."""


@dataclass(slots=True)
class Walk:
    """What was chosen."""

    lengths: list[int]
    expected_tokens: float
    """What the round is expected to commit, `base_tokens` included."""
    expected_s: float
    """What it is expected to take, `base_s` included."""
    stop: Stop


def choose_lengths(
    num_proposals: Sequence[int],
    cells: Sequence[Sequence[int]],
    rates: Sequence[Sequence[float]],
    expected: Sequence[float],
    price: RoundPrice,
    *,
    max_verified: int,
    in_full: Collection[int] = (),
) -> Walk:
    """Verify lengths that maximise expected tokens over expected seconds.

    Args:
        num_proposals: of each block.
        cells: of each block, which of its `rates` is that of a position. It may depend on the proposals before the
            position, and is looked at only when these are certain to be verified.
        rates: for each block, P(accept | all before accepted) by cell.
        expected: the same by position for rows that have not been looked at.
        price: the cost of a round.
        max_verified: proposals that fit into the pass.
        in_full: blocks to verify as far as they fit, chosen without a look at what they propose.
    """
    frontier = Frontier(num_proposals, cells, rates)
    gain, room = price.base_tokens, min(max_verified, sum(num_proposals))
    for block in in_full:
        gain = frontier.take_in_full(block, room, gain)
        room -= frontier.lengths[block]
    num_tokens = price.num_tokens + sum(frontier.lengths)
    end = num_tokens + room
    frontier.begin(apart=in_full)
    heap, lengths = frontier.heap, frontier.lengths
    time = price.base_s + price.curve.seconds(num_tokens)
    even_until, token_s = price.curve.stretch(num_tokens)
    promised_until, edges = num_tokens, price.curve.edges(num_tokens, end)
    while heap and num_tokens < end:
        is_promised = num_tokens < promised_until
        if num_tokens < even_until:
            most = min(even_until, end, promised_until if is_promised else end) - num_tokens
            num_taken, gain, time = frontier.take(most, gain, time, token_s, is_certain=is_promised)
        else:
            longer = max(time, price.base_s + price.curve.seconds(num_tokens + 1))
            num_taken = 0
            if is_promised or -heap[0][0] * time >= gain * (longer - time):
                num_taken, gain, _ = frontier.take(1, gain, time, 0.0, is_certain=True)
                time = longer
                even_until, token_s = price.curve.stretch(num_tokens + 1)
        if not num_taken:
            promised = _worth_crossing(frontier, expected, edges, price.base_s, num_tokens, gain, time)
            if not promised:
                return Walk(lengths, gain, time, Stop.PRICE)
            promised_until = num_tokens + promised
        num_tokens += num_taken
    return Walk(lengths, gain, time, Stop.ROOM if heap else Stop.ALL)


def _worth_crossing(
    frontier: Frontier,
    expected: Sequence[float],
    edges: Iterable[tuple[int, float]],
    base_s: float,
    num_tokens: int,
    gain: float,
    time: float,
) -> int:
    """How many proposals to take in one go although the next alone does not pay; 0 if that never does.

    After a step of the cost curve many may come at little cost. Rows that have been looked at count with their
    survival, those behind them with what is expected at their positions.
    """
    best = -frontier.heap[0][0]
    rate = gain / time
    # With the likeliest of all that is ahead, 0, 1, 2 .. of them; what is left out is less likely than `floor`.
    gains, floor = [gain], 2.0 * best
    for edge, edge_s in edges:
        count, longer = edge - num_tokens, max(time, base_s + edge_s)
        if count <= 0 or best * count * time < gain * (longer - time):
            continue  # not even if all were as likely as the first
        wanted = rate * longer
        if gain + frontier.gain_of(count) > wanted * _ROUNDING:
            return count
        while len(gains) <= count and (gains[-1] + floor * (count + 1 - len(gains))) * _ROUNDING > wanted:
            floor = min(floor / 2, 0.95 * (wanted - gain) / count)
            if floor < _SMALL:
                floor = 0.0
            gains = list(accumulate(frontier.ahead(expected, floor), sub, initial=gain))
        if len(gains) > count and gains[count] / longer > rate:
            return count
    return 0


def first_that_fit(num_proposals: Sequence[int], room: int) -> list[int]:
    """Verify lengths that fill `room` with whole blocks, one after the other."""
    lengths = []
    for count in num_proposals:
        lengths.append(min(count, room))
        room -= lengths[-1]
    return lengths
