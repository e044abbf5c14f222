"""The walk over verify lengths step by step: every row is asked for when the walk comes to it, nothing is skipped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heapreplace

from dspine_cluster.core.verify_walk import RoundPrice, Stop, Walk


def choose_lengths(
    num_proposals: Sequence[int],
    conditional: Callable[[int, int], float],
    expected: Sequence[float],
    price: RoundPrice,
    *,
    max_verified: int,
    in_full: Collection[int] = (),
) -> Walk:
    """As the function of the same name, with P(accept | all before accepted) of (block, position) as a function."""
    lengths = [0] * len(num_proposals)
    gain, room = price.base_tokens, min(max_verified, sum(num_proposals))
    for block in in_full:
        lengths[block] = min(num_proposals[block], room)
        room -= lengths[block]
        survival = 1.0
        for position in range(lengths[block]):
            survival *= conditional(block, position)
            gain += survival
    heap = [
        (-conditional(block, 0), block)
        for block, count in enumerate(num_proposals)
        if count and block not in in_full
    ]
    heapify(heap)
    num_tokens = price.num_tokens + sum(lengths)
    time = price.base_s + price.curve.seconds(num_tokens)
    even_until, token_s = price.curve.stretch(num_tokens)
    num_promised = 0
    while heap and room:
        negated, block = heap[0]
        if num_tokens < even_until:
            longer = time + token_s
        else:
            longer = max(time, price.base_s + price.curve.seconds(num_tokens + 1))
            even_until, token_s = price.curve.stretch(num_tokens + 1)
        if num_promised:
            num_promised -= 1
        elif -negated * time < gain * (longer - time):
            promised = _worth_crossing(
                heap, lengths, num_proposals, expected, price, gain, time, num_tokens, room
            )
            if not promised:
                return Walk(lengths, gain, time, Stop.PRICE)
            num_promised = promised - 1
        gain, time, num_tokens, room = gain - negated, longer, num_tokens + 1, room - 1
        lengths[block] += 1
        if lengths[block] < num_proposals[block]:
            heapreplace(heap, (negated * conditional(block, lengths[block]), block))
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
    room: int,
) -> int:
    """How many proposals to take in one go although the next alone does not pay; 0 if that never does."""
    candidates = []  # [(number of proposals, time with them)]
    for edge, edge_s in price.curve.edges(num_tokens, num_tokens + room):
        count = edge - num_tokens
        longer = max(time, price.base_s + edge_s)
        if -heap[0][0] * count * time >= gain * (longer - time):
            candidates.append((count, longer))
    if not candidates:
        return 0
    rate = gain / time
    ahead = list(heap)
    reached = list(lengths)
    taken = 0
    for count, longer in candidates:
        while taken < count and ahead:
            negated, block = ahead[0]
            gain -= negated
            taken += 1
            reached[block] += 1
            if reached[block] < num_proposals[block]:
                heapreplace(ahead, (negated * expected[reached[block]], block))
            else:
                heappop(ahead)
        if gain / longer > rate:
            return taken
    return 0
