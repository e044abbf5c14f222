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

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from operator import sub

from dspine_cluster.core.pass_cost import CostCurve

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


@dataclass(frozen=True, slots=True)
class RoundPrice:
    """What a round gives and takes whatever is verified."""

    curve: CostCurve
    num_tokens: int
    """Tokens that pass through the target without any proposal: anchors and prompt chunks."""
    base_tokens: float
    """Tokens that are committed anyway: one a request, and those that came while drafts were waited for."""
    base_s: float
    """Time that passes beside the pass."""


@dataclass(frozen=True, slots=True)
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
    lengths = [0] * len(num_proposals)
    gain, room = price.base_tokens, min(max_verified, sum(num_proposals))
    for block in in_full:
        lengths[block] = min(num_proposals[block], room)
        room -= lengths[block]
        survival = 1.0
        for position in range(lengths[block]):
            survival *= rates[block][cells[block][position]]
            gain += survival
    rows = list(zip(num_proposals, cells, rates, strict=True))
    heap = [
        (-own_rates[own_cells[0]], block)
        for block, (count, own_cells, own_rates) in enumerate(rows)
        if count and block not in in_full
    ]
    heapify(heap)
    num_tokens = price.num_tokens + sum(lengths)
    end = num_tokens + room
    time = price.base_s + price.curve.seconds(num_tokens)
    even_until, token_s = price.curve.stretch(num_tokens)
    promised_until = num_tokens
    while heap and num_tokens < end:
        if num_tokens < even_until:
            longer, stop = time + token_s, min(even_until, end)
            free_until = promised_until if token_s else stop
        else:
            longer, stop = max(time, price.base_s + price.curve.seconds(num_tokens + 1)), num_tokens + 1
            even_until, token_s = price.curve.stretch(num_tokens + 1)
            free_until = promised_until
        while heap and num_tokens < stop:
            negated, block = heap[0]
            if num_tokens >= free_until and -negated * time < gain * (longer - time):
                promised = _worth_crossing(
                    heap, lengths, num_proposals, expected, price, gain, time, num_tokens, end
                )
                if not promised:
                    return Walk(lengths, gain, time, Stop.PRICE)
                free_until = promised_until = num_tokens + promised
            gain -= negated
            time, longer = longer, longer + token_s
            num_tokens += 1
            count, own_cells, own_rates = rows[block]
            length = lengths[block] = lengths[block] + 1
            if length < count:
                heapreplace(heap, (negated * own_rates[own_cells[length]], block))
            else:
                heappop(heap)
    return Walk(lengths, gain, time, Stop.ROOM if heap else Stop.ALL)


def _worth_crossing(
    heap: Sequence[tuple[float, int]],
    lengths: Sequence[int],
    num_proposals: Sequence[int],
    expected: Sequence[float],
    price: RoundPrice,
    gain: float,
    time: float,
    num_tokens: int,
    end: int,
) -> int:
    """How many proposals to take in one go although the next alone does not pay; 0 if that never does.

    After a step of the cost curve many may come at little cost. Rows that have been looked at count with their
    survival, those behind them with what is expected at their positions.
    """
    best = -heap[0][0]
    rate = gain / time
    heads: list[float] = []
    share = 0.0
    groups: dict[tuple[int, int], list[float]] = {}
    # With the likeliest of all that is ahead, 0, 1, 2 .. of them; what is left out is less likely than `floor`.
    gains, floor = [gain], best
    for edge in price.curve.edges(num_tokens, end):
        count = edge - num_tokens
        longer = max(time, price.base_s + price.curve.seconds(edge))
        if best * count * time < gain * (longer - time):
            continue  # not even if all were as likely as the first
        if not heads:
            heads = [negated for negated, _ in heap]
            share = -sum(heads) / len(heads)
        num_heads = min(count, len(heads))
        wanted = rate * longer
        # What the rows give that have been looked at, the likeliest at least as much as the mean of all.
        if gain + share * num_heads > wanted * _ROUNDING:
            return count
        if num_heads < len(heads):
            heads.sort()
            if gain - sum(heads[:num_heads]) > wanted * _ROUNDING:
                return count
        while len(gains) <= count and (gains[-1] + floor * (count + 1 - len(gains))) * _ROUNDING > wanted:
            groups = groups or _grouped(heap, lengths, num_proposals)
            floor = min(floor / 2, 0.75 * (wanted - gain) / count) if floor > _SMALL else 0.0
            gains = list(accumulate(_ahead(groups, expected, floor), sub, initial=gain))
        if len(gains) > count and gains[count] / longer > rate:
            return count
    return 0


def _grouped(
    heap: Iterable[tuple[float, int]], lengths: Sequence[int], num_proposals: Sequence[int]
) -> dict[tuple[int, int], list[float]]:
    """Negated survivals by (position, proposals of the block), the likeliest first."""
    groups: dict[tuple[int, int], list[float]] = {}
    for negated, block in heap:
        key = lengths[block], num_proposals[block]
        if key in groups:
            groups[key].append(negated)
        else:
            groups[key] = [negated]
    for survivals in groups.values():
        survivals.sort()
    return groups


def _ahead(
    groups: Mapping[tuple[int, int], list[float]], expected: Sequence[float], floor: float
) -> list[float]:
    """What has at least `floor` to expect, of rows that have been looked at and of those behind them: negated
    survivals, the likeliest first."""
    ahead = []
    for (position, num_proposals), survivals in groups.items():
        likely = survivals[: bisect_right(survivals, -floor)]
        ahead += likely
        for rate in expected[position + 1 : num_proposals]:
            behind = [survival * rate for survival in likely]
            likely = behind[: bisect_right(behind, -floor)]
            if not likely:
                break
            ahead += likely
    ahead.sort()
    return ahead


def first_that_fit(num_proposals: Sequence[int], room: int) -> list[int]:
    """Verify lengths that fill `room` with whole blocks, one after the other."""
    lengths = []
    for count in num_proposals:
        lengths.append(min(count, room))
        room -= lengths[-1]
    return lengths
